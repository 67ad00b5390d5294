"""The order that a case's process gets. Importing it is cheap; PyPTO is imported where the job is done."""

from __future__ import annotations

from dataclasses import dataclass, field

import pypto_gym.ops


@dataclass(frozen=True)
class Job:
    """One launch. The folder holds tensors.pt and takes the results; `ops` are the folders that operators are found in."""

    operator: str
    impl: str
    folder: str
    backend: str
    device: int = 0
    numbers: bool = True
    cost: bool = True
    ops: tuple[str, ...] = field(default_factory=lambda: tuple(pypto_gym.ops.__path__))


def start(job: Job) -> None:
    """Does the job in this process, and ends it."""
    from pypto_gym.tools.harness.backends import child

    child.main(job)
