"""The operator table of the README, made from the records; a test fails when the README's is another."""

from __future__ import annotations

from pathlib import Path

from pypto_gym.tools.harness import cases, registry
from pypto_gym.tools.harness.cli import ROOT

BEGIN, END = "<!-- operators:begin -->", "<!-- operators:end -->"
READMES = ("README.md", "README.zh.md")


def table() -> str:
    """Markdown: a row an operator, with its implementations and the number of its cases."""
    lines = ["| operator | what it computes | implementations | cases |", "|---|---|---|---:|"]
    for operator in registry.load_all():
        link = f"[{operator.name}](ops/{operator.family}/{operator.name}/README.md)"
        lines.append(f"| {link} | {operator.summary} | {', '.join(operator.impls)} | {len(cases.load(operator))} |")
    return "\n".join(lines)


def rewritten(text: str) -> str:
    """The README's text with the table as it should be. Raises ValueError when it has no marks for it."""
    if BEGIN not in text or END not in text:
        raise ValueError(f"README: no {BEGIN} … {END} for the operator table")
    head, rest = text.split(BEGIN, 1)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.split(END, 1)[1]}"


def update() -> list[Path]:
    """Rewrites the tables; returns the files that changed."""
    changed = []
    for path in (ROOT / name for name in READMES):
        text = path.read_text(encoding="utf-8")
        if (new := rewritten(text)) != text:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed
