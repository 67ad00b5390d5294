"""Reads what PyPTO's simulation leaves in its output folder: verdicts of verified passes, cycles, utilisation."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path

CYCLES_PER_US = 1800  # PyPTO's own scale for "AICore End-to-End Time"
CUBE_CORES, VECTOR_CORES = 24, 48  # of the simulated platform (DAV_2201: Atlas A2, A3)
DEFAULT_PASSES = ("ExpandFunction", "SplitK", "L1CopyInReuseMerge", "InferDynShape", "InferParamIndex", "CodegenPreproc")


def passes(folder: Path) -> dict[str, dict[str, int]]:
    """Pass -> verdict -> number of compared results.

    A default pass that PyPTO did not compare counts as MISSING; one whose graph the interpreter could not execute, which
    leaves no row in the table but an entry in a log beside it, as EXCEPTION.
    """
    verdicts: dict[str, Counter] = {}
    for path in sorted(folder.glob("output_*/verify*/verify*_result_brief.csv")):
        seen = set()
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                name = re.sub(r"^Pass_\d+_", "", row["passName"])
                if name == "tensor_graph":
                    continue  # the interpreter's own result against the tensors as they were before the call
                seen.add(name)
                verdicts.setdefault(name, Counter())[row["verifyResult"] or "NONE"] += 1
        for name in DEFAULT_PASSES:
            if name not in seen:
                verdicts.setdefault(name, Counter())["MISSING"] += 1
    for path in sorted(folder.glob("output_*/verify*/verify_exception.log")):
        for name in re.findall(r"^\[VERIFY\] Pass_\d+_(\w+),", path.read_text(errors="replace"), re.MULTILINE):
            verdicts.setdefault(name, Counter())["EXCEPTION"] += 1
    return {name: dict(counts) for name, counts in verdicts.items()}


def kernels(folder: Path) -> list[dict]:
    """Per kernel that the cost model ran: cycles, utilisation, cube and vector core usage, tasks, trace files."""
    figures = []
    for path in sorted(folder.glob("output_*/CostModelSimulationOutput/_simulate.swim.json")):
        busy, tasks, first, last = Counter(), Counter(), None, 0
        for lane in json.loads(path.read_text()):
            if lane["coreType"] not in ("AIC", "AIV"):
                continue
            for task in lane["tasks"]:
                first = task["execStart"] if first is None else min(first, task["execStart"])
                last = max(last, task["execEnd"])
                busy[lane["coreType"]] += task["execEnd"] - task["execStart"]
                tasks[lane["coreType"]] += 1
        if first is None:
            continue
        cycles = last - first

        def percent(spent: float, lanes: int) -> float:
            return 100 * spent / (lanes * cycles) if cycles else 0.0

        figures.append(
            {
                "cycles": cycles,
                "us": cycles / CYCLES_PER_US,
                "utilisation": percent(busy["AIC"] + busy["AIV"], CUBE_CORES + VECTOR_CORES),
                "cube_cores": percent(busy["AIC"], CUBE_CORES),
                "vector_cores": percent(busy["AIV"], VECTOR_CORES),
                "cube_pipe": percent(_cube_cycles(path.parent), CUBE_CORES),
                "tasks": tasks["AIC"] + tasks["AIV"],
                "trace": str(path.parent / "_simulate.pefetto.trace.json"),
            }
        )
    return figures


def _cube_cycles(folder: Path) -> float:
    """Cycles that the cube pipes of all cores were busy: number of pipes used times their average."""
    report = folder / "_simulate.stat.report.txt"
    if not report.is_file():
        return 0.0
    text = report.read_text()
    used = re.search(r"Used Cube Pipe Number\.*:\s*(\d+)", text)
    average = re.search(r"Average Cube Usage\.*:\s*([\d.]+)", text)
    return int(used[1]) * float(average[1]) if used and average else 0.0
