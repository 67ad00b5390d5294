"""The figures on record: `perf.yaml` of an operator, and the table in its README that shows them."""

from __future__ import annotations

import fcntl
from dataclasses import asdict
from pathlib import Path

import yaml

from pypto_gym.tools.harness.records import Operator
from pypto_gym.tools.perf.measure import Row

BEGIN, END = "<!-- perf:begin -->", "<!-- perf:end -->"
TOLERANCE = 0.01  # cycles repeat exactly; this much may change without being called a regression


class Record:
    """`perf.yaml`: measured rows, and peers (figures of other kernels for the same work) that are written by hand.

    peers: list of {case, what, us, utilisation (optional), note (optional)}
    """

    def __init__(self, operator: Operator):
        self.operator = operator
        self.path = operator.folder / "perf.yaml"
        content = yaml.safe_load(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        self.rows = [Row(**row) for row in content.get("rows", [])]
        self.peers: list[dict] = content.get("peers", [])

    def find(self, case: str, impl: str, release: str) -> Row | None:
        """The measurement on record, or None."""
        return next((r for r in self.rows if (r.case, r.impl, r.release) == (case, impl, release)), None)

    def put(self, row: Row) -> None:
        """Replaces the measurement of the same case, implementation and release; the same cycles change nothing."""
        known = self.find(row.case, row.impl, row.release)
        if known is None:
            self.rows.append(row)
        elif known.cycles != row.cycles:
            self.rows[self.rows.index(known)] = row

    def write(self) -> None:
        """Writes perf.yaml, and the table into README.md between its marks."""
        content = {"rows": [asdict(row) for row in self.rows], "peers": self.peers}
        self.path.write_text(yaml.safe_dump(content, sort_keys=False, width=200, default_flow_style=None), encoding="utf-8")
        readme = self.operator.folder / "README.md"
        if readme.exists():
            readme.write_text(with_table(readme.read_text(encoding="utf-8"), self.table()), encoding="utf-8")

    def table(self) -> str:
        """Markdown: every measurement beside the roofline and the peers."""
        lines = [
            "| case | kernel | us | cycles | utilisation | cube pipe | tasks | roofline us |",
            "|---|---|---:|---:|---:|---:|---:|---:|",
        ]
        for row in self.rows:
            lines.append(
                f"| {row.case} | {row.impl} (PyPTO {row.release}) | {row.us:g} | {row.cycles:,} | {row.utilisation:g} % "
                f"| {row.cube_pipe:g} % | {row.tasks} | {row.roofline_us:g} |"
            )
        for peer in self.peers:
            used = f"{peer['utilisation']:g} %" if "utilisation" in peer else ""
            lines.append(f"| {peer['case']} | peer: {peer['what']} | {peer['us']:g} | | {used} | | | |")
        lines.append("")
        lines.append("From PyPTO's cost model (1800 cycles to the microsecond, platform DAV_2201), not from a device.")
        return "\n".join(lines)


def update(operator: Operator, row: Row) -> None:
    """Puts one measurement on record. Several processes may do so at once: each reads what the others have written."""
    with open(operator.folder / "cases.yaml") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = Record(operator)
        record.put(row)
        record.write()


def with_table(text: str, table: str) -> str:
    """The README's text with the table between its marks. Text without marks stays as it is."""
    if BEGIN not in text or END not in text:
        return text
    head, rest = text.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{table}\n{END}{rest.split(END, 1)[1]}"


def regression(row: Row, on_record: Row) -> str:
    """A sentence when `row` is slower than what is on record, else ''."""
    if row.cycles <= on_record.cycles * (1 + TOLERANCE):
        return ""
    more = 100 * (row.cycles / on_record.cycles - 1)
    return f"{row.case} {row.impl}: {row.cycles:,} cycles, {more:.1f} % more than the {on_record.cycles:,} on record"
