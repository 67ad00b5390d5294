"""The way of one case: reference, backend, verdict. pytest and the command line both call `run_case`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch

from pypto_gym.tools import runtime
from pypto_gym.tools.harness import history, reference
from pypto_gym.tools.harness.backends import Run, process
from pypto_gym.tools.harness.cases import Case
from pypto_gym.tools.harness.compare import OutputVerdict, compare
from pypto_gym.tools.harness.records import Executions, Operator

BASE_BYTES = int(0.3 * 2**30)  # a process with torch, PyPTO and a compiled kernel


@dataclass(frozen=True)
class Settings:
    """How cases are run.

    backend   "sim" or "npu"
    device    NPU number
    memory    bytes that one case may use
    timeout   seconds that one case may take
    keep      leave what PyPTO wrote
    """

    backend: str = field(default_factory=runtime.backend)
    device: int = field(default_factory=lambda: int(os.environ.get("TILE_FWK_DEVICE_ID", "0")))
    memory: int = field(default_factory=lambda: default_memory())
    timeout: float = 600.0
    keep: bool = False


def default_memory() -> int:
    """PYPTO_GYM_MEMORY_GB, or four fifths of the machine, shared among the pytest workers."""
    if "PYPTO_GYM_MEMORY_GB" in os.environ:
        return int(float(os.environ["PYPTO_GYM_MEMORY_GB"]) * 2**30)
    return int(0.8 * process.total_memory() / int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


@dataclass
class CaseResult:
    """The outcome of one case with one implementation.

    status     "PASS", "FAIL" (it ran and is wrong, or it could not end) or "NOT-RUN" (it was not tried)
    reason     one sentence, empty for PASS
    verdicts   of every output, in the order of the record
    """

    operator: str
    family: str
    case: str
    impl: str
    status: str
    reason: str
    run: Run
    verdicts: list[OutputVerdict] = field(default_factory=list)

    @property
    def replay(self) -> str:
        """The command that runs this again."""
        return f"./gym run {self.operator} --case {self.case} --impl {self.impl} --backend {self.run.backend}"

    def to_dict(self) -> dict:
        return {
            "operator": self.operator, "family": self.family, "case": self.case, "impl": self.impl, "status": self.status,
            "reason": self.reason, "replay": self.replay, "run": self.run.to_dict(),
            "outputs": [verdict.to_dict() for verdict in self.verdicts],
        }  # fmt: skip


def estimate(operator: Operator, inputs: dict, impl: str) -> int:
    """Peak memory of a case in simulation, in bytes, from the record's formula; 0 when it has none.

    The interpreter copies each raw tensor of a loop body before and after every execution, and keeps all to the end.
    """
    if operator.sim_executions is None:
        return 0
    return BASE_BYTES + sum(_execution_bytes(e) for e in operator.sim_executions(inputs, impl))


def _execution_bytes(execution: Executions) -> int:
    def size(tensors) -> int:
        return sum(t.numel() * t.element_size() if isinstance(t, torch.Tensor) else int(t) for t in tensors)

    return int(execution.count * (3 * size(execution.viewed) + 2 * size(execution.assembled) + execution.tiles))


def why_not(operator: Operator, case: Case, impl: str, settings: Settings) -> str:
    """Why this case is not for this implementation or machine; empty when it is."""
    if not case.runs(impl):
        return f"the case is for {', '.join(case.impls)} only"
    if settings.backend == "npu":
        soc, cards = _npu()
        if case.soc and not any(name.lower() in soc.lower() for name in case.soc):
            return f"needs {' or '.join(case.soc)}, this is {soc}"
        if case.cards > cards:
            return f"needs {case.cards} cards, there are {cards}"
    elif case.cards > 1:
        return f"needs {case.cards} cards, the simulator has one"
    return ""


def _npu() -> tuple[str, int]:
    import torch_npu  # noqa: F401

    return torch.npu.get_device_name(), torch.npu.device_count()


def run_case(operator: Operator, case: Case, impl: str, settings: Settings) -> CaseResult:
    """Runs one case with one implementation and judges every output."""

    def result(status: str, reason: str, run: Run, verdicts=()) -> CaseResult:
        outcome = CaseResult(operator.name, operator.family, case.id, impl, status, reason, run, list(verdicts))
        history.store(outcome)
        return outcome

    skipped = why_not(operator, case, impl, settings)
    if skipped:
        return result("NOT-RUN", skipped, Run(settings.backend, runtime.release()))
    process.warm(settings.backend)
    sim = settings.backend == "sim"
    needed = estimate(operator, reference.inputs(operator, case), impl) if sim else 0
    if needed > settings.memory:
        run = Run(settings.backend, runtime.release(), estimate=needed)
        return result("NOT-RUN", process.too_large(needed, settings.memory), run)
    expected = reference.get(operator, case)
    tensors = {**expected.inputs, **reference.fresh_outputs(operator, expected)}
    run = process.run(
        operator, impl, tensors, backend=settings.backend, memory=settings.memory, timeout=settings.timeout,
        estimate=needed, device=settings.device, keep=settings.keep,
    )  # fmt: skip
    verdicts = judge(operator, expected, run.outputs) if run.outputs else []
    reasons = [run.error] if run.error else []
    reasons += [f"{v.name}: {v.reasons[0]}" for v in verdicts if not v.passed]
    reasons += failed_passes(run)
    return result("FAIL" if reasons else "PASS", "; ".join(reasons), run, verdicts)


def judge(operator: Operator, expected: reference.Reference, outputs: dict[str, torch.Tensor]) -> list[OutputVerdict]:
    """The verdict of every output of the record."""
    kinds = {t.dtype for t in expected.inputs.values() if isinstance(t, torch.Tensor) and t.dtype.is_floating_point}
    input_dtype = min(kinds, key=lambda dtype: torch.finfo(dtype).bits, default=None)
    return [
        compare(name, outputs[name], expected.golden[name], expected.truth[name], spec, input_dtype)
        for name, spec in operator.outputs.items()
    ]


def failed_passes(run: Run) -> list[str]:
    """A sentence for every verified compiler pass whose result differed, or that was not compared."""
    sentences = []
    for name, verdicts in run.passes.items():
        bad = {verdict: count for verdict, count in verdicts.items() if verdict != "PASS"}
        if bad:
            counts = ", ".join(f"{count} {verdict}" for verdict, count in bad.items())
            sentences.append(f"compiler pass {name}: {counts} of {sum(verdicts.values())} compared results")
    return sentences
