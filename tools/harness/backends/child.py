"""What happens in a case's own process. Imported beforehand by the fork server, so that a case starts at once."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import traceback
from pathlib import Path

import torch

import pypto_gym.ops
from pypto_gym.tools import runtime
from pypto_gym.tools.harness.backends.job import Job


if runtime.backend() == "sim":
    # PyPTO says only in its own log why a pass failed. Its logger reads these once, when it is loaded.
    os.environ.update(ASCEND_GLOBAL_LOG_LEVEL="3", ASCEND_SLOG_PRINT_TO_STDOUT="1")
    runtime.prepare()


def main(job: Job) -> None:
    """Runs the job, leaves result.json and outputs.pt in its folder, and ends the process."""
    folder = Path(job.folder)
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(folder)  # what writes into the current folder all the same, writes here
    result: dict = {"error": ""}
    try:
        with _sim(job) if job.backend == "sim" else _npu(job) as figures:
            result.update(figures)
    except MemoryError:
        result["error"] = "the kernel ran out of memory"
        traceback.print_exc()
    except BaseException as error:
        result["error"] = f"the kernel raised {type(error).__name__}: {_first_lines(error)}"
        traceback.print_exc()
    from pypto_gym.tools.runtime import polyfill

    result["ignored"] = polyfill.ignored_options()
    (folder / "result.json").write_text(json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    # Not os._exit: PyPTO flushes its verification tables in C++ destructors.
    ctypes.CDLL(None).exit(0)


def _first_lines(error: BaseException, most: int = 400) -> str:
    text = " ".join(str(error).split())
    return text[:most] + (" …" if len(text) > most else "")


def _load(job: Job) -> tuple:
    pypto_gym.ops.__path__ = list(job.ops)
    from pypto_gym.tools.harness import registry

    return registry.load(job.operator), torch.load(Path(job.folder) / "tensors.pt", weights_only=True)


@contextlib.contextmanager
def _sim(job: Job):
    from pypto_gym.tools.runtime import sim

    sim.use_folder(Path(job.folder) / "pypto")
    operator, tensors = _load(job)
    with sim.options(numbers=job.numbers, passes=None, cost=job.cost, tolerance=operator.pass_tolerance):
        operator.launch(job.impl, **tensors)
    torch.save({name: tensors[name] for name in operator.outputs}, Path(job.folder) / "outputs.pt")
    yield {}


@contextlib.contextmanager
def _npu(job: Job):
    """Not run anywhere but on a machine with an NPU: kept to what torch_npu documents."""
    import torch_npu  # noqa: F401

    torch.npu.set_device(job.device)
    operator, tensors = _load(job)
    on_device = {name: value.npu() if isinstance(value, torch.Tensor) else value for name, value in tensors.items()}
    operator.launch(job.impl, **on_device)
    torch.npu.synchronize()
    torch.save({name: on_device[name].cpu() for name in operator.outputs}, Path(job.folder) / "outputs.pt")
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()  # a second launch, for the time: the first one compiled
    operator.launch(job.impl, **on_device)
    end.record()
    torch.npu.synchronize()
    yield {"device_us": start.elapsed_time(end) * 1000}
