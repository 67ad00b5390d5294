"""`./gym perf [OPERATOR …] [--update | --check]`"""

from __future__ import annotations


def add_parser(subparsers) -> None:
    """Registers `perf`."""
    parser = subparsers.add_parser("perf", help="simulated time of the perf cases, beside the roofline and the record")
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help="default: all")
    parser.add_argument("--case", action="append", metavar="ID")
    parser.add_argument("--impl", action="append", metavar="NAME")
    parser.add_argument("--update", action="store_true", help="put the figures on record: perf.yaml and the table in README.md")
    parser.add_argument("--check", action="store_true", help="fail when a kernel is slower than on record")
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory that one measurement may use")
    parser.add_argument("--timeout", type=float, default=900, metavar="SECONDS")
    parser.set_defaults(func=run)


def run(arguments) -> int:
    """Measures, prints, and keeps or compares."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from pypto_gym.tools.harness import cases, registry
    from pypto_gym.tools.harness.runner import default_memory
    from pypto_gym.tools.perf.measure import measure
    from pypto_gym.tools.perf.record import Record, regression, update

    memory = int(arguments.memory * 2**30) if arguments.memory else default_memory()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("operator", "case", "kernel", "us", "cycles", "util", "cube", "tasks", "roofline us", "on record"):
        table.add_column(heading, justify="left" if heading in ("operator", "case", "kernel") else "right")
    troubles = []
    for name in arguments.operators or registry.names():
        operator = registry.load(name)
        record = Record(operator)
        for case in cases.load(operator):
            if not case.perf or (arguments.case and case.id not in arguments.case):
                continue
            for impl in operator.impls:
                if not case.runs(impl) or (arguments.impl and impl not in arguments.impl):
                    continue
                try:
                    row = measure(operator, case, impl, memory, arguments.timeout)
                except RuntimeError as error:
                    troubles.append(str(error))
                    continue
                known = record.find(case.id, impl, row.release)
                table.add_row(
                    name, case.id, impl, f"{row.us:g}", f"{row.cycles:,}", f"{row.utilisation:g} %", f"{row.cube_pipe:g} %",
                    str(row.tasks), f"{row.roofline_us:g}", f"{known.cycles:,}" if known else "-",
                )  # fmt: skip
                if arguments.check:
                    troubles.append(regression(row, known) if known else f"{name} {case.id} {impl}: nothing on record")
                if arguments.update:
                    update(operator, row)
    console = Console()
    console.print(table)
    troubles = [trouble for trouble in troubles if trouble]
    for trouble in troubles:
        console.print(trouble, style="red", soft_wrap=True)
    return 1 if troubles else 0
