"""Inputs, golden and truth of a case, computed once and kept in the user's cache by content."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from pypto_gym.tools.harness.cases import Case
from pypto_gym.tools.harness.records import Operator
from pypto_gym.tools.runtime.calculator import cache_root

CACHE_BYTES = 2 << 30  # the oldest entries go when the cache has grown beyond this


@dataclass(frozen=True)
class Reference:
    """What a case is computed from and judged against. `inputs` are the keyword arguments of `launch`."""

    inputs: dict
    golden: dict[str, torch.Tensor]
    truth: dict[str, torch.Tensor]

    @property
    def bytes(self) -> int:
        """Size of the inputs, in bytes."""
        return sum(t.numel() * t.element_size() for t in self.inputs.values() if isinstance(t, torch.Tensor))


class GoldenError(RuntimeError):
    """The golden module did not deliver what the record promises."""


def inputs(operator: Operator, case: Case) -> dict:
    """The inputs of a case alone."""
    generator = torch.Generator().manual_seed(case.seed)
    return operator.golden.make_inputs(case.params, generator)


def get(operator: Operator, case: Case) -> Reference:
    """The reference of a case, from the cache or computed. Raises GoldenError."""
    path = cache_root() / "golden" / f"{operator.name}-{_key(operator, case)}.pt"
    try:
        loaded = torch.load(path, weights_only=True)
        os.utime(path)
        return Reference(**loaded)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, TypeError, ValueError):
        reference = _compute(operator, case)  # not there, or damaged
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
        torch.save(reference.__dict__, part)
    os.replace(part.name, path)
    _prune(path.parent)
    return reference


def _compute(operator: Operator, case: Case) -> Reference:
    values = inputs(operator, case)
    golden = operator.golden.golden(**values)
    truth = operator.golden.truth(**values)
    for what, got in (("golden", golden), ("truth", truth)):
        if set(got) != set(operator.outputs):
            raise GoldenError(f"{operator.name}: {what} returns {sorted(got)}, the record has outputs {sorted(operator.outputs)}")
    return Reference(values, golden, truth)


def _key(operator: Operator, case: Case) -> str:
    digest = hashlib.sha256(torch.__version__.encode())
    for source in [*sorted(operator.folder.glob("*golden*.py")), *sorted(operator.folder.parent.glob("*.py"))]:
        digest.update(source.read_bytes())
    digest.update(json.dumps([case.params, case.seed], sort_keys=True).encode())
    return digest.hexdigest()[:20]


def _prune(folder: Path) -> None:
    files = sorted(folder.glob("*.pt"), key=lambda path: path.stat().st_mtime)
    total = sum(path.stat().st_size for path in files)
    for path in files[:-1]:
        if total <= CACHE_BYTES:
            return
        total -= path.stat().st_size
        path.unlink(missing_ok=True)


def fresh_outputs(operator: Operator, reference: Reference) -> dict[str, torch.Tensor]:
    """Outputs as the kernel gets them: NaN (integers: the smallest value), zeros where it accumulates, or, for an
    output updated in place, a copy of the input of that name."""
    outputs = {}
    for name, spec in operator.outputs.items():
        golden = reference.golden[name]
        if name in reference.inputs:
            outputs[name] = reference.inputs[name].clone()
        elif spec.zeroed:
            outputs[name] = torch.zeros_like(golden)
        elif golden.dtype.is_floating_point:
            outputs[name] = torch.full_like(golden, float("nan"))
        elif golden.dtype is torch.bool:
            outputs[name] = torch.zeros_like(golden)
        else:
            outputs[name] = torch.full_like(golden, torch.iinfo(golden.dtype).min)
    return outputs
