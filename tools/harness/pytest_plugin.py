"""pytest's door to the runner: every `cases.yaml` is collected, each case with each implementation is a test.

A test's id is the case's with the implementation: `cases.yaml::B2-Q75-H4-D64[a3]`. Beside them stands
`[sensitivity]`: with a term dropped from the golden the verdict must turn, so that no test is one that cannot fail; and
`[a3-perf]`: the simulated cycles of a perf case are not more than those on record.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pypto_gym.tools import runtime
from pypto_gym.tools.harness import cases, reference, registry
from pypto_gym.tools.harness.runner import Settings, judge, run_case
from pypto_gym.tools.perf.measure import measure
from pypto_gym.tools.perf.record import Record, regression

QUICK_SECONDS = 12  # a perf case that took longer when it was put on record is timed with --full only


def pytest_addoption(parser):
    group = parser.getgroup("pypto-gym")
    group.addoption("--full", action="store_true", help="every case, not only the quick tier")
    group.addoption("--gym-device", default="", help="NPUs that the workers take in turn, as 0,1,2")


def pytest_configure(config):
    devices = [int(d) for d in config.getoption("--gym-device").split(",") if d]
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if devices:
        os.environ["TILE_FWK_DEVICE_ID"] = str(devices[int(worker.removeprefix("gw")) % len(devices)])


def pytest_collect_file(file_path: Path, parent):
    if file_path.name == "cases.yaml" and file_path.parents[2] in registry.folders():
        return Matrix.from_parent(parent, path=file_path)
    return None


class Matrix(pytest.File):
    """The cases of one operator."""

    def collect(self):
        operator = registry.load(self.path.parent.name)
        for case in cases.load(operator):
            for impl in operator.impls:
                if not case.runs(impl):
                    continue
                if case.tier == "quick" or self.config.getoption("--full"):
                    yield Run.from_parent(self, name=f"{case.id}[{impl}]", operator=operator, case=case, impl=impl)
                on_record = Record(operator).find(case.id, impl, runtime.release())
                if on_record and (on_record.seconds <= QUICK_SECONDS or self.config.getoption("--full")):
                    yield Perf.from_parent(self, name=f"{case.id}[{impl}-perf]", operator=operator, case=case, on_record=on_record)
            if case.tier == "full" and not self.config.getoption("--full"):
                continue
            if operator.golden.terms(case.params):
                yield Sensitivity.from_parent(self, name=f"{case.id}[sensitivity]", operator=operator, case=case)


class _Item(pytest.Item):
    def __init__(self, *, operator, case, **kwargs):
        super().__init__(**kwargs)
        self.operator, self.case = operator, case

    def repr_failure(self, excinfo):
        return str(excinfo.value) if isinstance(excinfo.value, Failed) else super().repr_failure(excinfo)

    def reportinfo(self):
        return self.path, self.case.line - 1, self.name


class Failed(Exception):
    """A case failed; the message is the report."""


class Run(_Item):
    """One case with one implementation."""

    def __init__(self, *, impl, **kwargs):
        super().__init__(**kwargs)
        self.impl = impl
        self.add_marker("sim")

    def runtest(self):
        result = run_case(self.operator, self.case, self.impl, Settings())
        self.user_properties += [("status", result.status), ("cycles", result.run.cycles)]
        if result.status == "NOT-RUN":
            pytest.skip(f"NOT-RUN: {result.reason}")
        if result.status == "FAIL":
            raise Failed(_text(result, self.operator))


def _text(result, operator) -> str:
    import io

    from rich.console import Console

    from pypto_gym.tools.harness import report

    console = Console(file=io.StringIO(), width=160)
    report.show(console, result, operator)
    log = "\n".join(result.run.log.splitlines()[-30:]) if result.run.error else ""
    return console.file.getvalue() + log


class Sensitivity(_Item):
    """A golden with a term dropped, taken for the kernel's result, must fail."""

    def runtest(self):
        expected = reference.get(self.operator, self.case)
        for term in self.operator.golden.terms(self.case.params):
            wrong = self.operator.golden.golden(drop=term, **expected.inputs)
            if all(verdict.passed for verdict in judge(self.operator, expected, wrong)):
                raise Failed(f"{self.operator.name} {self.case.id}: without {term!r} in the formula the case still passes")


class Perf(_Item):
    """The kernel is not slower in the cost model than on record."""

    def __init__(self, *, on_record, **kwargs):
        super().__init__(**kwargs)
        self.on_record = on_record
        self.add_marker("sim")

    def runtest(self):
        row = measure(self.operator, self.case, self.on_record.impl, Settings().memory)
        slower = regression(row, self.on_record)
        if slower:
            raise Failed(f"{slower}; if that is meant: ./gym perf {self.operator.name} --update")
