"""The last outcome of every case, kept in the user's cache: what `gym list` says ran where."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pypto_gym.tools.runtime.calculator import cache_root

if TYPE_CHECKING:
    from pypto_gym.tools.harness.runner import CaseResult


def _path(operator: str, case: str, impl: str, backend: str) -> Path:
    return cache_root() / "results" / operator / f"{case}--{impl}--{backend}.json".replace("/", "_")


def store(result: CaseResult) -> None:
    """Remembers this outcome in place of the last one."""
    path = _path(result.operator, result.case, result.impl, result.run.backend)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as part:
        json.dump(result.to_dict(), part)
    os.replace(part.name, path)


def last(operator: str, case: str, impl: str, backend: str) -> dict | None:
    """The last outcome, as `CaseResult.to_dict` wrote it, or None."""
    try:
        return json.loads(_path(operator, case, impl, backend).read_text())
    except (OSError, ValueError):
        return None
