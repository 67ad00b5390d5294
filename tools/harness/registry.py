"""Finds the operators of this repository: every `ops/<family>/<op>/<op>.py` that holds an OPERATOR."""

from __future__ import annotations

import importlib
from pathlib import Path

import pypto_gym.ops
from pypto_gym.tools.harness.records import Operator


def folders() -> list[Path]:
    """The folders of families: ops/ of this repository and those of PYPTO_GYM_OPS."""
    return [Path(folder) for folder in pypto_gym.ops.__path__]


def names() -> dict[str, str]:
    """Operator name -> family, by the folders alone (nothing is imported)."""
    return {path.parent.name: path.parents[1].name for folder in folders() for path in sorted(folder.glob("*/*/cases.yaml"))}


def load(name: str) -> Operator:
    """The record of the operator of that name. Raises ValueError that lists what there is."""
    families = names()
    if name not in families:
        raise ValueError(f"there is no operator {name!r}; there are {', '.join(sorted(families)) or 'none'}")
    family = importlib.import_module(f"pypto_gym.ops.{families[name]}")
    # An editable install knows the families of the repository alone; a family may have more in another folder.
    family.__path__ = [str(folder / families[name]) for folder in folders() if (folder / families[name]).is_dir()]
    return importlib.import_module(f"{family.__name__}.{name}.{name}").OPERATOR


def load_all() -> list[Operator]:
    """All records, by family and name."""
    return sorted((load(name) for name in names()), key=lambda operator: (operator.family, operator.name))
