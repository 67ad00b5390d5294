"""The PyPTO runtime as this repository uses it: which release is installed, what it lacks, and where it runs.

    prepare()            makes the installed PyPTO ready for a kernel to be imported (idempotent)
    session(overrides)   the kernels called inside run on the prepared backend, in this process
    backend()            "npu" where torch_npu and CANN are present, else "sim"
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
from typing import Iterator, Mapping

BACKEND_VARIABLE = "PYPTO_GYM_BACKEND"


def release() -> str:
    """Version of the installed PyPTO, as its distribution names it."""
    return importlib.metadata.version("pypto")


def has_npu() -> bool:
    """Whether this machine can run kernels on a device: torch_npu is installed and CANN is set up."""
    return bool(os.environ.get("ASCEND_HOME_PATH")) and importlib.util.find_spec("torch_npu") is not None


def backend() -> str:
    """The backend that `auto` means here; PYPTO_GYM_BACKEND=sim or npu decides otherwise."""
    chosen = os.environ.get(BACKEND_VARIABLE, "auto")
    if chosen not in ("auto", "npu", "sim"):
        raise ValueError(f"{BACKEND_VARIABLE}: got {chosen!r}, takes auto, npu or sim")
    if chosen == "auto":
        return "npu" if has_npu() else "sim"
    return chosen


@functools.cache
def prepare() -> None:
    """Makes the installed PyPTO ready: the language completed, and the simulator able to compute where there is no NPU.

    Raises RuntimeError in one sentence when the simulator cannot be built (no g++ or cmake).
    """
    if backend() == "sim":
        from pypto_gym.tools.runtime import sim

        sim.install()
    else:
        import torch_npu  # noqa: F401  registers the device with torch
    import pypto

    from pypto_gym.tools.runtime import polyfill

    polyfill.install(pypto)


@contextlib.contextmanager
def session(overrides: Mapping[str, Mapping] | None = None) -> Iterator[None]:
    """Kernels called inside run in this process; `overrides` replaces jit options in simulation only.

    overrides   {"runtime_options": {...}, "pass_options": {...}}: the record's `sim_overrides` of the implementation
    """
    prepare()
    if backend() == "npu":
        yield
        return
    from pypto_gym.tools.runtime import sim

    with sim.options(overrides=overrides or {}):
        yield
