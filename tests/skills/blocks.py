"""Finds the Python blocks of the handbook, and executes them on the installed PyPTO.

The first words after ```python say what a block is:

    run                       is executed, and asserts its own claim; every verified compiler pass must pass
    run cost                  the same, with the cost model
    fails=F21004 fails="…"    is executed, and must fail with all of these texts in its output
    fragment                  is not executed: it parses, and the names of pypto in it exist in the installed release
    npu                       is not executed here: it parses

A block is executed in a process of its own, with `pypto` and `torch` imported.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import importlib
import multiprocessing
import os
import runpy
import shlex
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

KINDS = ("run", "fails", "fragment", "npu")


@dataclass(frozen=True)
class Block:
    """One block of Python in a Markdown file.

    line    where its fence opens
    kind    one of KINDS, or "" when the fence says none of them
    fails   texts that its failure must show
    cost    whether the cost model runs
    """

    path: Path
    line: int
    source: str
    kind: str
    fails: tuple[str, ...] = ()
    cost: bool = False

    @property
    def id(self) -> str:
        return f"{self.path.stem}:{self.line}"

    @property
    def names(self) -> list[str]:
        """Dotted names below `pypto` that the block uses, and what they begin with."""
        found = set()
        for node in ast.walk(ast.parse(self.source)):
            parts: list[str] = []
            while isinstance(node, ast.Attribute):
                parts.insert(0, node.attr)
                node = node.value
            if parts and isinstance(node, ast.Name) and node.id == "pypto":
                found.add(".".join(parts))
        return sorted(found)


def find(path: Path) -> list[Block]:
    """The Python blocks of a Markdown file."""
    blocks, fence, source = [], "", []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.strip()
        if not fence and text.startswith("```"):
            fence, start, source, indent = text, number, [], len(line) - len(line.lstrip())
        elif fence and text == "```":
            if fence.startswith("```python"):
                blocks.append(_block(path, start, fence, "\n".join(source) + "\n"))
            fence = ""
        elif fence:
            source.append(line[indent:])
    if fence:
        raise ValueError(f"{path}:{start}: the fence is never closed")
    return blocks


def _block(path: Path, line: int, fence: str, source: str) -> Block:
    words = shlex.split(fence.removeprefix("```python"))
    fails = tuple(word.removeprefix("fails=") for word in words if word.startswith("fails="))
    kind = "fails" if fails else words[0] if words and words[0] in KINDS else ""
    return Block(path, line, source, kind, fails, "cost" in words)


def execute(block: Block, timeout: float = 120) -> tuple[int, str]:
    """Exit code and output of a block in a process of its own: 0 when it ended well and every verified pass passed."""
    from pypto_gym.tools.harness.backends import process

    process.warm("sim")
    with tempfile.TemporaryDirectory(prefix="pypto-gym-block-") as name:
        folder = Path(name)
        source = folder / "block.py"
        source.write_text("\n" * block.line + block.source)  # the same line numbers as in the page
        child = multiprocessing.get_context("forkserver").Process(target=_main, args=(str(folder), block.cost))
        child.start()
        child.join(timeout)
        timed_out = child.exitcode is None
        if timed_out:
            child.kill()
            child.join()
        log = folder / "log.txt"
        text = log.read_text(errors="replace") if log.exists() else ""
        code = child.exitcode
        if code < 0:
            text += f"\nthe process died of signal {-code}" + (f" after {timeout:g} s" if timed_out else "")
        elif code == 0:
            wrong = _warnings(folder, text)
            code, text = (1, text + "\n" + wrong) if wrong else (0, text)
        return code, text


def _warnings(folder: Path, text: str) -> str:
    """What went wrong without an exception."""
    from pypto_gym.tools.harness.backends import figures

    lines = [
        f"verified pass {name}: {', '.join(f'{count} {verdict}' for verdict, count in verdicts.items())}"
        for name, verdicts in figures.passes(folder / "pypto").items()
        if set(verdicts) != {"PASS"}
    ]
    if "output was resized" in text:
        lines.append("the interpreter resized an output: a valid shape was lost")
    return "\n".join(lines)


def _main(folder: str, cost: bool) -> None:
    log = os.open(Path(folder) / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(folder)
    from pypto_gym.tools.harness.backends import child  # noqa: F401  prepares the runtime, where that is not done yet
    from pypto_gym.tools.runtime import sim

    code = 0
    try:
        sim.use_folder(Path(folder) / "pypto")
        with sim.options(numbers=True, passes=None, cost=cost):
            given = {"pypto": importlib.import_module("pypto"), "torch": importlib.import_module("torch")}
            given["torch"].manual_seed(0)  # the same inputs in every run, and with them the roundings that flip
            runpy.run_path(str(Path(folder) / "block.py"), given, run_name="block")
    except BaseException:  # noqa: BLE001  whatever ends a block is its result
        traceback.print_exc()
        code = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    ctypes.CDLL(None).exit(code)  # not os._exit: PyPTO flushes its verification tables in C++ destructors
