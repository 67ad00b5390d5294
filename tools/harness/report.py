"""Shows outcomes: console tables, JSON lines, an HTML page. JUnit comes from pytest."""

from __future__ import annotations

import json
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pypto_gym.tools import explain
from pypto_gym.tools.harness import tiling
from pypto_gym.tools.harness.records import Operator
from pypto_gym.tools.harness.runner import CaseResult

COLOUR = {"PASS": "green", "FAIL": "red", "NOT-RUN": "yellow"}


def show(console: Console, result: CaseResult, operator: Operator) -> None:
    """Everything about one outcome: status, every output, compiler passes, cycles, memory, how to run it again."""
    colour = COLOUR[result.status]
    where = f"{result.impl} · {result.run.backend}, PyPTO {result.run.release}"
    title = f"{result.family}/[bold]{result.operator}[/] {escape(result.case)} · {where}"
    console.print(f"[{colour} bold]{result.status}[/] {title}", highlight=False)
    if result.reason:
        console.print(f"  {escape(result.reason)}", style=colour, highlight=False, soft_wrap=True)
    if result.verdicts:
        console.print(_outputs(result, operator))
    for line in _facts(result):
        console.print(f"  {escape(line)}", style="dim", highlight=False, soft_wrap=True)
    if result.status == "FAIL":
        for verdict in result.verdicts:
            for reason in verdict.reasons:
                console.print(f"  {verdict.name}: {escape(reason)}", style="red", highlight=False, soft_wrap=True)
            if not verdict.passed:
                tile = tiling.where(verdict.worst_tile) if verdict.worst_tile else "-"
                at = f"worst element {list(verdict.worst_index)}, worst tile {tile}"
                looks = f"; looks like: {verdict.diagnosis}" if verdict.diagnosis else ""
                console.print(f"  {verdict.name}: {escape(at + looks)}", highlight=False, soft_wrap=True)
        known = explain.likeliest(result.reason, result.run.log)
        for line in known.show().splitlines() if known else []:
            console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
        console.print(f"  again: {result.replay}", highlight=False, soft_wrap=True)


def _outputs(result: CaseResult, operator: Operator) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("output")
    table.add_column("verdict")
    for heading in ("max error", "beyond", "RMSE/floor", "worst tile", "ULP", "bias"):
        table.add_column(heading, justify="right")
    for v in result.verdicts:
        spec = operator.outputs[v.name]
        gauge = [""] * 4
        if not spec.exact:
            gauge = [_of(v.rmse_ratio, spec.budget), _of(v.worst_tile_ratio, spec.worst_tile), _of(v.max_ulp, spec.max_ulp), f"{v.bias:+.0e}"]
        status = "PASS" if v.passed else "FAIL"
        flips = f" ({v.flips} flips)" if v.flips else ""
        table.add_row(v.name, f"[{COLOUR[status]}]{status}[/]", f"{v.max_abs:.1e}", f"{v.violations}{flips}", *gauge)
    return table


def _of(value: float, limit: float) -> str:
    return f"{value:.2g}/{limit:g}"


def _facts(result: CaseResult) -> list[str]:
    run, lines = result.run, []
    if run.passes:
        good = [name for name, verdicts in run.passes.items() if set(verdicts) == {"PASS"}]
        lines.append(f"verified compiler passes: {len(good)} of {len(run.passes)} PASS ({', '.join(good)})")
    if run.cycles:
        from pypto_gym.tools.harness.backends.figures import CYCLES_PER_US

        lines.append(
            f"simulated: {run.cycles:,} cycles = {run.cycles / CYCLES_PER_US:.1f} us, utilisation {run.mean('utilisation'):.1f} %, "
            f"cube cores {run.mean('cube_cores'):.1f} %, vector cores {run.mean('vector_cores'):.1f} %, "
            f"cube pipe {run.mean('cube_pipe'):.1f} %, {sum(k['tasks'] for k in run.kernels)} tasks"
        )
    if run.no_cost:
        lines.append(f"no simulated cycles: {run.no_cost}")
    if run.device_us:
        lines.append(f"device time: {run.device_us:.1f} us")
    if run.peak_bytes:
        foreseen = f" (estimated {run.estimate / 2**30:.2f})" if run.estimate else ""
        lines.append(f"process: {run.seconds:.1f} s, peak memory {run.peak_bytes / 2**30:.2f} GiB{foreseen}")
    if run.overrides:
        lines.append(f"options replaced for the simulator: {run.overrides}")
    if run.ignored:
        lines.append(f"options without effect on PyPTO {run.release}: {', '.join(run.ignored)}")
    if run.folder:
        lines.append(f"kept: {run.folder}")
    return lines


def summary(console: Console, results: list[CaseResult]) -> None:
    """One line that counts, and every case that did not run with its reason."""
    count = {status: sum(r.status == status for r in results) for status in COLOUR}
    console.print(", ".join(f"[{COLOUR[status]}]{n} {status}[/]" for status, n in count.items()), highlight=False)


def write_json(path: Path, results: list[CaseResult]) -> None:
    """One JSON object a line, one line an outcome."""
    path.write_text("".join(json.dumps(result.to_dict()) + "\n" for result in results))


def write_html(path: Path, results: list[CaseResult], operators: dict[str, Operator]) -> None:
    """The console report as a page."""
    import io

    console = Console(record=True, width=180, file=io.StringIO())
    for result in results:
        show(console, result, operators[result.operator])
    summary(console, results)
    console.save_html(str(path))
