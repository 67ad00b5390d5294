"""The process that simulated cases are forked from. It imports torch and PyPTO once, while its parent does other things."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

CHILD = "pypto_gym.tools.harness.backends.child"


def warm(backend: str) -> None:
    """Starts that process, if it is not there yet; it takes about three seconds. Nothing to do for the npu backend."""
    if backend == "sim":
        from pypto_gym.tools.runtime import calculator

        calculator.ensure_built()
        multiprocessing.get_context("forkserver").set_forkserver_preload([CHILD])
        forkserver.ensure_running()
