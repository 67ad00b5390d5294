"""Reads the test matrix of an operator, `cases.yaml`, and says file, line and key of whatever is wrong in it."""

from __future__ import annotations

import types
import typing
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping

import yaml

from pypto_gym.tools.harness.records import Operator

TIERS = ("quick", "full")


class CaseError(ValueError):
    """Something in a cases.yaml is wrong; the message names file, line and key."""


@dataclass(frozen=True)
class Case:
    """One row of cases.yaml. `params` are the operator's own keys, the rest is explained in CONTRIBUTING.md."""

    operator: str
    id: str
    params: Mapping[str, Any]
    seed: int
    tier: str = "quick"
    perf: bool = False
    impls: tuple[str, ...] = ()
    soc: tuple[str, ...] = ()
    cards: int = 1
    why: str = ""
    line: int = 0

    def runs(self, impl: str) -> bool:
        """Whether this row is meant for that implementation."""
        return not self.impls or impl in self.impls


@dataclass
class _Row:
    """A mapping of the file, with the line of every key."""

    line: int
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


def load(operator: Operator) -> list[Case]:
    """The operator's cases, in the order of the file. Raises CaseError."""
    path = operator.folder / "cases.yaml"
    return parse(path.read_text(encoding="utf-8"), path, operator)


def find(operator: Operator, case_id: str) -> Case:
    """The case of that id. Raises CaseError that lists what there is."""
    cases = load(operator)
    for case in cases:
        if case.id == case_id:
            return case
    raise CaseError(f"{operator.name} has no case {case_id!r}; it has {', '.join(case.id for case in cases)}")


def parse(text: str, path: Path, operator: Operator) -> list[Case]:
    """The cases in `text`, which was read from `path`."""
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise CaseError(f"{path}:{mark.line + 1 if mark else 1}: not YAML: {error.problem}") from None
    top = _row(document, path, "the file")
    for key in top.values.keys() - {"defaults", "cases"}:
        raise CaseError(f"{path}:{top.lines[key]}: {key}: unknown key; the file takes defaults and cases")
    if "cases" not in top.values:
        raise CaseError(f"{path}:{top.line}: cases: missing")
    defaults = _row(top.values["defaults"], path, "defaults") if "defaults" in top.values else _Row(1)
    node = top.values["cases"]
    if not isinstance(node, yaml.SequenceNode):
        raise CaseError(f"{path}:{top.lines['cases']}: cases: got {_kind(node)}, takes a list of rows")
    cases: list[Case] = []
    for entry in node.value:
        case = _case(_row(entry, path, "a row of cases"), defaults, path, operator)
        for other in cases:
            if other.id == case.id:
                raise CaseError(f"{path}:{case.line}: id: {case.id!r} stands already in line {other.line}")
        cases.append(case)
    return cases


def _kind(node: yaml.Node) -> str:
    return {"scalar": f"{node.value!r}", "sequence": "a list", "mapping": "a mapping"}[node.id]


def _row(node: yaml.Node | None, path: Path, what: str) -> _Row:
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1 if node else 1
        raise CaseError(f"{path}:{line}: {what}: got {_kind(node) if node else 'nothing'}, takes a mapping")
    row = _Row(node.start_mark.line + 1)
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.value in row.values:
            raise CaseError(f"{path}:{line}: {key.value}: given twice")
        row.values[key.value], row.lines[key.value] = value, line
    return row


_COMMON: dict[str, Any] = {
    "id": str, "seed": int, "tier": str, "perf": bool, "impls": list[str], "soc": list[str], "cards": int, "why": str,
}  # fmt: skip


def _case(row: _Row, defaults: _Row, path: Path, operator: Operator) -> Case:
    merged = {**defaults.values, **row.values}
    lines = {**defaults.lines, **row.lines}
    known = {**_COMMON, **operator.params}
    values = {}
    for key, node in merged.items():
        where = f"{path}:{lines[key]}: {key}"
        if key not in known:
            raise CaseError(f"{where}: unknown key; {operator.name} takes {', '.join(known)}")
        values[key] = _convert(node, known[key], where)
    if "id" not in values:
        raise CaseError(f"{path}:{row.line}: id: missing")
    missing = [key for key, kind in operator.params.items() if key not in values and not _optional(kind)]
    if missing:
        raise CaseError(f"{path}:{row.line}: {missing[0]}: missing in case {values['id']!r}")
    common = {key: values.pop(key) for key in list(values) if key in _COMMON}
    if common.get("tier", "quick") not in TIERS:
        raise CaseError(f"{path}:{lines['tier']}: tier: got {common['tier']!r}, takes {' or '.join(TIERS)}")
    for impl in common.get("impls", ()):
        if impl not in operator.impls:
            raise CaseError(f"{path}:{lines['impls']}: impls: got {impl!r}, {operator.name} has {', '.join(operator.impls)}")
    common["impls"], common["soc"] = tuple(common.get("impls", ())), tuple(common.get("soc", ()))
    common.setdefault("seed", zlib.crc32(common["id"].encode()))
    params = {key: values.get(key) for key in operator.params}
    return Case(operator=operator.name, params=params, line=row.line, **common)


def _optional(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _convert(node: yaml.Node, kind: Any, where: str) -> Any:
    """The value of a YAML node as the Python type `kind`: int, float, bool, str, list[kind], or a union with None."""
    value = yaml.SafeLoader("").construct_document(node)
    if not _fits(value, kind):
        name = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
        raise CaseError(f"{where}: got {value!r}, takes {name}")
    return float(value) if kind is float else value


def _fits(value: Any, kind: Any) -> bool:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if kind is type(None):
        return value is None
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
