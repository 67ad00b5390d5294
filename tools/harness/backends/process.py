"""Gives a case its own process, with a memory limit and a time limit, and says in one sentence how it ended."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import torch

from pypto_gym.tools import runtime
from pypto_gym.tools.harness.backends import Run, cause, figures
from pypto_gym.tools.harness.backends.job import Job, start
from pypto_gym.tools.harness.records import Operator
from pypto_gym.tools.runtime.template import warm

_POLL = 0.02  # seconds between two looks at the process


def total_memory() -> int:
    """Memory of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def too_large(estimate: int, memory: int) -> str:
    """Why a case of that estimate is not run."""
    return f"needs about {_gib(estimate)} of memory in simulation, the limit is {_gib(memory)}"


def run(
    operator: Operator, impl: str, tensors: dict, *, backend: str, memory: int, timeout: float, estimate: int = 0,
    device: int = 0, numbers: bool = True, cost: bool = True, keep: bool = False,
) -> Run:  # fmt: skip
    """Launches `impl` on `tensors` (inputs and outputs) in a process of its own.

    memory    bytes that the process may use
    timeout   seconds that it may take
    keep      leave the folder with everything PyPTO wrote; its path is in the Run
    """
    outcome = Run(backend, runtime.release(), estimate=estimate, overrides=dict(operator.sim_overrides.get(impl, {})))
    folder = Path(tempfile.mkdtemp(prefix=f"pypto-gym-{operator.name}-"))
    try:
        torch.save(tensors, folder / "tensors.pt")
        job = Job(operator.name, impl, str(folder), backend, device, numbers, cost)
        _watch(outcome, job, memory, timeout)
        if outcome.crashed and numbers and cost and backend == "sim":
            # The cost model may be what crashed: the numbers are worth more than the cycles.
            retry = Run(**{**Run(backend, outcome.release).__dict__, "overrides": outcome.overrides, "estimate": estimate})
            _watch(retry, dataclasses.replace(job, cost=False), memory, timeout)
            if not retry.error:
                retry.no_cost = f"the cost model did not end: {outcome.error}"
                outcome = retry
        if backend == "sim":
            outcome.passes = figures.passes(folder / "pypto") if numbers else {}
            outcome.kernels = figures.kernels(folder / "pypto")
    finally:
        if keep:
            outcome.folder = str(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _watch(outcome: Run, job: Job, memory: int, timeout: float) -> None:
    context = multiprocessing.get_context("forkserver" if job.backend == "sim" else "spawn")
    warm(job.backend)
    folder = Path(job.folder)
    process = context.Process(target=start, args=(job,))
    started = time.monotonic()
    process.start()
    while process.exitcode is None:
        process.join(_POLL)
        outcome.peak_bytes = max(outcome.peak_bytes, _peak(process.pid))
        outcome.seconds = time.monotonic() - started
        if outcome.peak_bytes > memory:
            outcome.error = f"the kernel ran out of memory: {_gib(outcome.peak_bytes)} used, the limit is {_gib(memory)}"
        elif outcome.seconds > timeout:
            outcome.error = f"the kernel did not end within {timeout:g} s"
        if outcome.error:
            process.kill()
            process.join()
    log = folder / "log.txt"
    whole_log = log.read_text(errors="replace") if log.exists() else ""
    outcome.log = whole_log[-20000:]
    if outcome.error:
        return
    result = folder / "result.json"
    if not result.exists():
        outcome.error, outcome.crashed = _death(process.exitcode, outcome.log), process.exitcode < 0
        return
    found = json.loads(result.read_text())
    outcome.error, outcome.ignored = found["error"], found["ignored"]
    if outcome.error and (told := cause.sentence(whole_log)):
        outcome.error = f"the kernel was refused: {told}"
    outcome.device_us = found.get("device_us", 0.0)
    if "output was resized" in outcome.log and not outcome.error:
        outcome.error = "the interpreter resized an output: a valid shape was lost on the way"
    if (folder / "outputs.pt").exists():
        outcome.outputs = torch.load(folder / "outputs.pt", weights_only=True)


def _death(exitcode: int, log: str) -> str:
    if "bad_alloc" in log or "Cannot allocate memory" in log:
        return "the kernel ran out of memory"
    if exitcode < 0:
        last = next((line for line in reversed(log.splitlines()) if line.strip()), "")
        return f"the kernel crashed PyPTO ({signal.Signals(-exitcode).name})" + (f"; last output: {last.strip()[:200]}" if last else "")
    return f"the kernel's process ended with exit code {exitcode} and no result"


def _peak(pid: int) -> int:
    """Most memory that the process has had resident so far, in bytes."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
