"""Times perf cases in the cost model alone: no numbers, little memory, so that full-size shapes can be timed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pypto_gym.tools.harness import reference
from pypto_gym.tools.harness.backends import Run, process
from pypto_gym.tools.harness.cases import Case
from pypto_gym.tools.harness.records import Operator
from pypto_gym.tools.perf import roofline


@dataclass(frozen=True)
class Row:
    """One measurement: a case with an implementation, on one PyPTO release. `us` is simulated; `roofline_us` the least possible."""

    case: str
    impl: str
    release: str
    cycles: int
    us: float
    utilisation: float
    cube_pipe: float
    tasks: int
    roofline_us: float
    seconds: float

    @staticmethod
    def of(case: str, impl: str, run: Run, roofline_us: float) -> Row:
        return Row(
            case, impl, run.release, run.cycles, round(sum(k["us"] for k in run.kernels), 1), round(run.mean("utilisation"), 1),
            round(run.mean("cube_pipe"), 1), sum(k["tasks"] for k in run.kernels), round(roofline_us, 1), round(run.seconds, 1),
        )  # fmt: skip


def measure(operator: Operator, case: Case, impl: str, memory: int, timeout: float = 600) -> Row:
    """Times one case. Raises RuntimeError with the reason when the cost model gives no figure."""
    process.warm("sim")
    inputs = reference.inputs(operator, case)
    tensors = {**inputs, **empty_outputs(operator, inputs)}
    run = process.run(operator, impl, tensors, backend="sim", memory=memory, timeout=timeout, numbers=False)
    if run.error or not run.cycles:
        raise RuntimeError(f"{operator.name} {case.id} {impl}: {run.error or 'the cost model reported no task'}")
    return Row.of(case.id, impl, run, roofline.microseconds(operator.work(inputs)) if operator.work else 0.0)


def empty_outputs(operator: Operator, inputs: dict) -> dict[str, torch.Tensor]:
    """Outputs to be written by a kernel whose numbers do not matter: zeros of the right shape and dtype.

    The golden module's `output_shapes(**inputs)` (name -> (shape, dtype)) spares computing a golden of full size.
    """
    if hasattr(operator.golden, "output_shapes"):
        shapes = operator.golden.output_shapes(**inputs)
    else:
        shapes = {name: (tuple(t.shape), t.dtype) for name, t in operator.golden.golden(**inputs).items()}
    return {
        name: inputs[name].clone() if name in inputs else torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()
    }
