"""The command line: `./gym list | run | test | show | <tool>`; installed, the same is `pypto-gym`."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(argv: list[str] | None = None) -> int:
    """Parses and runs one command line; returns the exit code: 0 all passed, 1 something failed, 2 wrong usage."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    return _report_errors(arguments.func, arguments)


def parser() -> argparse.ArgumentParser:
    """The command line, with the commands of every tool."""
    parser = argparse.ArgumentParser(prog="gym", description="PyPTO operators: run, check and time them on any machine.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_list(subparsers)
    _add_run(subparsers)
    _add_test(subparsers)
    _add_show(subparsers)
    for path in sorted((ROOT / "tools").glob("*/cli.py")):
        if path.parent.name != "harness":
            importlib.import_module(f"pypto_gym.tools.{path.parent.name}.cli").add_parser(subparsers)
    return parser


def parse(given: list[str]) -> argparse.Namespace:
    """The arguments of one command line; `rest` is what follows `--`, which is pytest's."""
    cut = given.index("--") if "--" in given else len(given)
    arguments = parser().parse_args(given[:cut])
    arguments.rest = given[cut + 1 :]
    return arguments


def operator_main(operator, argv: list[str] | None = None) -> int:
    """`python <op>.py`: the cases of one operator. `--list` lists them; without --case the first one runs."""
    parser = argparse.ArgumentParser(prog=f"{operator.name}.py", description=operator.summary)
    _run_options(parser)
    parser.add_argument("--list", action="store_true", help="list implementations and cases")
    arguments = parser.parse_args(argv)
    if arguments.list:
        return _report_errors(lambda _: _list([operator], detail=True), arguments)
    return _report_errors(lambda a: _run(operator, a), arguments)


def _report_errors(function, arguments) -> int:
    """A user's mistake is one sentence, not a traceback; a reader that has seen enough (`| head`) is no error."""
    try:
        code = function(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered would raise again at exit
        return 0
    except (ValueError, RuntimeError) as error:
        print(f"gym: {error}", file=sys.stderr)
        return 2


# list ----------------------------------------------------------------------------------------------------------------


def _add_list(subparsers) -> None:
    parser = subparsers.add_parser("list", help="operators, implementations, cases, and which ran where")
    parser.add_argument("operator", nargs="?", help="only this one, with its cases")
    parser.add_argument("--update-readme", action="store_true", help="write the operator table of README.md anew")

    def run(arguments) -> int:
        from pypto_gym.tools.harness import overview, registry

        if arguments.update_readme:
            print("\n".join(f"rewritten: {path}" for path in overview.update()) or "the README is up to date")
            return 0
        if arguments.operator:
            return _list([registry.load(arguments.operator)], detail=True)
        return _list(registry.load_all(), detail=False)

    parser.set_defaults(func=run)


def _list(operators, detail: bool) -> int:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from pypto_gym.tools.harness import cases, history

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("operator", "case" if detail else "cases", "implementation", "last on sim", "last on npu"):
        table.add_column(heading, overflow="fold")
    for operator in operators:
        rows = cases.load(operator)
        for impl in operator.impls:
            mine = [case for case in rows if case.runs(impl)]
            last = {b: [history.last(operator.name, c.id, impl, b) for c in mine] for b in ("sim", "npu")}
            if detail:
                for i, case in enumerate(mine):
                    tier = " (full)" if case.tier == "full" else ""
                    table.add_row(operator.name, case.id + tier, impl, *(_status(last[b][i]) for b in ("sim", "npu")))
            else:
                table.add_row(f"{operator.family}/{operator.name}", str(len(mine)), impl, *(_counts(last[b]) for b in ("sim", "npu")))
    Console().print(table)
    return 0


def _status(outcome: dict | None) -> str:
    if outcome is None:
        return "-"
    return outcome["status"] + (f": {outcome['reason'][:60]}" if outcome["reason"] else "")


def _counts(outcomes: list[dict | None]) -> str:
    ran = [outcome["status"] for outcome in outcomes if outcome]
    return ", ".join(f"{ran.count(s)} {s}" for s in ("PASS", "FAIL", "NOT-RUN") if s in ran) or "-"


# run -----------------------------------------------------------------------------------------------------------------


def _run_options(parser) -> None:
    parser.add_argument("--case", action="append", metavar="ID", help="this case (may be repeated; default: the first of cases.yaml)")
    parser.add_argument("--all", action="store_true", help="every case of the quick tier")
    parser.add_argument("--full", action="store_true", help="every case")
    parser.add_argument("--impl", action="append", metavar="NAME", help="this implementation (may be repeated; default: all)")
    parser.add_argument("--backend", choices=("auto", "sim", "npu"), default="auto")
    parser.add_argument("--device", type=int, help="NPU number (default: TILE_FWK_DEVICE_ID or 0)")
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory that a case may use (default: 0.8 of the machine)")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="time that a case may take (default: 600)")
    parser.add_argument("--keep", action="store_true", help="keep what PyPTO writes, and say where")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes as JSON lines")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page")


def _add_run(subparsers) -> None:
    parser = subparsers.add_parser("run", help="run cases of an operator and judge them")
    parser.add_argument("operator")
    _run_options(parser)

    def run(arguments) -> int:
        start(arguments)
        from pypto_gym.tools.harness import registry

        return _run(registry.load(arguments.operator), arguments)

    parser.set_defaults(func=run)


def start(arguments) -> None:
    """Chooses the backend and starts the process that cases are forked from: before torch is imported here."""
    from pypto_gym.tools import runtime
    from pypto_gym.tools.runtime import template

    if arguments.backend != "auto":
        os.environ[runtime.BACKEND_VARIABLE] = arguments.backend
    template.warm(runtime.backend())


def settings(arguments):
    """`Settings` from the options of a command line."""
    start(arguments)
    from pypto_gym.tools.harness.runner import Settings

    given = {"timeout": arguments.timeout, "keep": arguments.keep}
    if arguments.device is not None:
        given["device"] = arguments.device
    if arguments.memory is not None:
        given["memory"] = int(arguments.memory * 2**30)
    return Settings(**given)


def _run(operator, arguments) -> int:
    chosen = settings(arguments)
    from rich.console import Console

    from pypto_gym.tools.harness import cases, report
    from pypto_gym.tools.harness.runner import run_case

    for impl in arguments.impl or ():
        if impl not in operator.impls:
            raise ValueError(f"--impl: {operator.name} has no implementation {impl!r}; it has {', '.join(operator.impls)}")
    if arguments.case:
        rows = [cases.find(operator, case_id) for case_id in arguments.case]
    else:
        rows = cases.load(operator)
        if not arguments.full:
            rows = [case for case in rows if case.tier == "quick"] if arguments.all else rows[:1]
    console, results = Console(), []
    for case in rows:
        for impl in arguments.impl or operator.impls:
            results.append(run_case(operator, case, impl, chosen))
            report.show(console, results[-1], operator)
    if len(results) > 1:
        report.summary(console, results)
    if arguments.json:
        report.write_json(arguments.json, results)
    if arguments.html:
        report.write_html(arguments.html, results, {operator.name: operator})
    return 1 if any(result.status == "FAIL" for result in results) else 0


# test ----------------------------------------------------------------------------------------------------------------


def _add_test(subparsers) -> None:
    parser = subparsers.add_parser(
        "test", help="run the tests: every quick case of every operator, and the rest of tests/",
        epilog="What follows -- goes to pytest as it is, as do paths: ./gym test tests/tools -- -k compare",
    )  # fmt: skip
    parser.add_argument("paths", nargs="*", help="what to test (default: everything)")
    parser.add_argument("--full", action="store_true", help="every case, not only the quick tier")
    parser.add_argument("-n", "--workers", default=None, help="workers (default: one a core, or one a device)")
    parser.add_argument("--device", default=None, metavar="LIST", help="NPUs that the workers take in turn: 0-7 or 0,2,4")
    parser.add_argument("--junitxml", metavar="FILE", help="write a JUnit report")

    def run(arguments) -> int:
        # One thread a worker: with more threads than cores torch's threads spend their time waiting for one another.
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.call(pytest_command(arguments), cwd=ROOT, env=environment)

    parser.set_defaults(func=run)


def pytest_command(arguments) -> list[str]:
    """The pytest command line of `gym test`."""
    devices = parse_devices(arguments.device) if arguments.device else []
    workers = arguments.workers or str(len(devices) or os.cpu_count() or 1)
    command = [sys.executable, "-m", "pytest", "-n", workers, *arguments.paths]
    if devices:
        command += ["--gym-device", ",".join(map(str, devices))]
    if arguments.full:
        command.append("--full")
    if arguments.junitxml:
        command += ["--junitxml", str(Path(arguments.junitxml).absolute())]
    return command + arguments.rest


def parse_devices(text: str) -> list[int]:
    """[0, 1, 2, 5] from "0-2,5". Raises ValueError."""
    devices: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"--device: got {text!r}, takes numbers and ranges such as 0-7 or 0,2,4")
        devices += range(int(first), int(last or first) + 1)
    return devices


# show ----------------------------------------------------------------------------------------------------------------


def _add_show(subparsers) -> None:
    parser = subparsers.add_parser("show", help="run one case and draw where each output is wrong, as PNG")
    parser.add_argument("operator")
    parser.add_argument("--case", metavar="ID", help="default: the first of cases.yaml")
    parser.add_argument("--impl", metavar="NAME", help="default: the first of the record")
    parser.add_argument("--backend", choices=("auto", "sim", "npu"), default="auto")
    parser.add_argument("--device", type=int)
    parser.add_argument("--memory", type=float, metavar="GIB")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--png", type=Path, metavar="FILE", help="default: <operator>-<case>-<impl>.png in the current folder")
    parser.set_defaults(func=_show)


def _show(arguments) -> int:
    chosen = settings(arguments)
    from rich.console import Console

    from pypto_gym.tools.harness import cases, heatmap, reference, registry, report
    from pypto_gym.tools.harness.runner import run_case

    operator = registry.load(arguments.operator)
    impl = arguments.impl or operator.default_impl
    case = cases.find(operator, arguments.case) if arguments.case else cases.load(operator)[0]
    result = run_case(operator, case, impl, chosen)
    report.show(Console(), result, operator)
    if not result.run.outputs:
        return 1
    expected = reference.get(operator, case)
    path = arguments.png or Path(f"{operator.name}-{case.id}-{impl}.png")
    heatmap.draw(path, result, expected, operator)
    print(path)
    return 0 if result.status == "PASS" else 1


if __name__ == "__main__":
    raise SystemExit(main())
