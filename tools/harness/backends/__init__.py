"""Backends: each takes a case's implementation, inputs and outputs, and returns a Run.

    sim   PyPTO's compiler, interpreter and cost model, on any machine
    npu   the device
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch


@dataclass
class Run:
    """What a backend obtained. `error` is empty, or one sentence for the user.

    outputs        tensors that the kernel wrote, by name; empty when it did not get that far
    no_cost        sim: why there are numbers but no cycles
    crashed        the process was ended by a signal
    seconds        wall time of the case's process
    peak_bytes     peak memory of that process
    estimate       peak memory that was foreseen, 0 when the record gives no formula
    passes         sim: pass -> verdict -> count, of every verified compiler pass
    kernels        sim: one entry per jit kernel with cycles, utilisation (percent) and tasks
    device_us      npu: device time of one launch, in microseconds
    overrides      sim: jit options that were replaced for the simulator
    ignored        options that the installed PyPTO release does not know
    folder         what PyPTO wrote, if it was kept
    log            console output of the case's process, its last part
    """

    backend: str
    release: str
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    error: str = ""
    no_cost: str = ""
    crashed: bool = False
    seconds: float = 0.0
    peak_bytes: int = 0
    estimate: int = 0
    passes: dict[str, dict[str, int]] = field(default_factory=dict)
    kernels: list[dict] = field(default_factory=list)
    device_us: float = 0.0
    overrides: dict = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    folder: str = ""
    log: str = ""

    @property
    def cycles(self) -> int:
        """Simulated cycles from the first task to the last, the kernels of a launch one after another."""
        return sum(kernel["cycles"] for kernel in self.kernels)

    def mean(self, figure: str) -> float:
        """A percentage of the kernels, weighted by their cycles."""
        return sum(k[figure] * k["cycles"] for k in self.kernels) / self.cycles if self.cycles else 0.0

    def to_dict(self) -> dict:
        """All but the tensors and the log."""
        plain = asdict(Run(**{**self.__dict__, "outputs": {}, "log": ""}))
        del plain["outputs"], plain["log"]
        if self.cycles:
            plain["cycles"] = self.cycles
        return plain
