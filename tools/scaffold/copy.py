"""Copies an operator under a new name."""

from __future__ import annotations

import ast
import keyword
import re
from dataclasses import dataclass
from pathlib import Path

from pypto_gym.tools.harness import registry
from pypto_gym.tools.harness.cli import ROOT
from pypto_gym.tools.perf.record import BEGIN, END, with_table

MARK = "CHANGE"
NO_FIGURES = "No figures yet: `./gym perf {name} --update` measures the perf cases and writes them here."

# What is to change in a file, by the name of the function, the keyword argument or the assignment that it stands at.
PLACES = {
    "summary": "what it computes, in one line",
    "params": "the keys that a row of cases.yaml may have",
    "outputs": "the outputs and how each is judged",
    "work": "the least work that a case is, for the roofline",
    "make_inputs": "inputs as a model would have them",
    "golden": "the kernel's formula with its dtype conversions, in torch",
    "truth": "the formula alone, in FP64",
    "terms": "what golden(drop=…) can leave out",
    "launch": "the choice of tiles, and the kernels that are called",
}
KERNEL = "the kernel"


@dataclass(frozen=True)
class Mark:
    """A place to change, in a file that was made."""

    path: Path
    line: int
    what: str


def check_name(what: str, name: str) -> None:
    """Raises ValueError unless `name` can be a folder, a module and part of a function's name."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ValueError(f"{what}: got {name!r}, takes a name in snake_case: letters, digits and single underscores")


def create(name: str, source: str, family: str | None = None, root: Path = ROOT) -> list[Mark]:
    """Makes operator `name` from operator `source`, below `root`: ops/<family>/<name>/ and its tests.

    family   default: that of the source
    Returns the places to change. Raises ValueError when a name is not legal or stands already.
    """
    families = registry.names()
    check_name("NAME", name)
    family = family or families[source]
    check_name("--family", family)
    if name in families:
        raise ValueError(f"NAME: ops/{families[name]}/{name} is there already")
    old_folder = registry.load(source).folder
    rename = Renaming(source, name, families[source], family, sorted(families))
    folder, marks = root / "ops" / family / name, []
    old_tests = ROOT / "tests" / "ops" / families[source] / source
    for old, new in ((old_folder, folder), (old_tests, root / "tests" / "ops" / family / name)):
        for path in sorted(old.rglob("*")) if old.is_dir() else ():
            if path.is_file() and path.suffix in (".py", ".yaml", ".md") and path.name not in ("perf.yaml", "DESIGN.md"):
                target = new / rename(str(path.relative_to(old)))
                target.parent.mkdir(parents=True, exist_ok=True)
                text = rename(path.read_text(encoding="utf-8"))
                marks += _write(target, text, name, marked=new is folder)
    marks += _write(folder / "DESIGN.md", _design(name), name, marked=False)
    return marks


class Renaming:
    """Replaces one operator's name by another's in a text, in every spelling, and leaves longer names alone."""

    def __init__(self, old: str, new: str, old_family: str, new_family: str, operators: list[str]):
        longer = [re.escape(other[len(old) :]) for other in operators if other.startswith(old) and other != old]
        after = f"(?!{'|'.join(longer)})" if longer else ""
        before = "".join(f"(?<!{re.escape(o[: o.index(old)])})" for o in operators if old in o and not o.startswith(old))
        # What PyPTO and the tile tool call the same (pypto.conv_backward_input) keeps its name.
        self.pattern = re.compile(r"(?<!pypto\.)(?<!tools\.tiles import )" + before + re.escape(old) + after)
        camel = "".join(part.title() for part in old.split("_"))
        self.replacements = [
            (re.compile(rf"(ops[./]){old_family}(?=[./]{re.escape(old)}{after}(?![a-z0-9_]))"), rf"\g<1>{new_family}"),
            (re.compile(rf"{old_family}(?=/{re.escape(old)}{after}(?![a-z0-9_]))"), new_family),
            (self.pattern, new),
            (re.compile(rf"\b{camel}\b"), "".join(part.title() for part in new.split("_"))),
        ]
        if "_" in old:
            self.replacements.append((re.compile(re.escape(old.replace("_", " "))), new.replace("_", " ")))
        if old_family != new_family:  # family modules are one folder further away
            self.replacements += [
                (re.compile(r"^(\s*from) \.\.(\w+) import", re.M), rf"\1 ...{old_family}.\2 import"),
                (re.compile(r"^(\s*from) \.\. import", re.M), rf"\1 ...{old_family} import"),
            ]

    def __call__(self, text: str) -> str:
        for pattern, replacement in self.replacements:
            text = pattern.sub(replacement, text)
        return text


def _write(path: Path, text: str, name: str, marked: bool) -> list[Mark]:
    if path.suffix == ".md" and BEGIN in text:
        text = with_table(text, NO_FIGURES.format(name=name))
    if marked and path.suffix == ".py":
        text = _marked(text)
    elif marked and path.suffix == ".yaml":
        text = f"# {MARK}: the shapes; one row is one test for each implementation\n{text}"
    elif marked:
        text = f"<!-- {MARK}: semantics, shapes, dtype flow and support are those of the operator this was copied from -->\n{text}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    lines = enumerate(text.splitlines(), 1)
    return [Mark(path, i, line.split(f"{MARK}: ", 1)[1].removesuffix(" -->")) for i, line in lines if f"{MARK}: " in line]


def _marked(source: str) -> str:
    """The source with a comment above each place of PLACES and each kernel."""
    above: dict[int, str] = {}
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and "jit" in ast.unparse(node.func)]
    kernels = {argument.id for call in calls for argument in call.args if isinstance(argument, ast.Name)}  # jit(…)(kernel)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Operator":
            above |= {argument.lineno: PLACES[argument.arg] for argument in node.keywords if argument.arg in PLACES}
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if node.name in kernels or any("jit" in ast.unparse(decorator) for decorator in node.decorator_list):
                above[first] = KERNEL
            elif node.col_offset == 0 and node.name in PLACES:
                above[first] = PLACES[node.name]
    lines = source.splitlines(keepends=True)
    for line in sorted(above, reverse=True):
        indent = re.match(r"\s*", lines[line - 1])[0]
        lines.insert(line - 1, f"{indent}# {MARK}: {above[line]}\n")
    return "".join(lines)


def _design(name: str) -> str:
    return f"""# Design of {name}

{MARK}: this page says why the kernel is built as it is. What stands below is what it has to answer.

## Structure

Which loops there are and why in that order, what is carried from one iteration to the next, single pass or two.

## Tiles

Each tile with its reason: buffers it fills, what was tried beside it.

## Task count

The formula, and its value at the perf case.

## Measured

Each step with the simulated cycles before and after it, from one run of the cost model.
"""

