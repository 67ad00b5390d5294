"""From what a failing kernel printed to cause, fix and page of the handbook."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

HANDBOOK = Path(__file__).resolve().parents[2] / "cannbot-skills" / "ops" / "pypto-general-debug"
CODE = re.compile(r"F[0-9A-F]{5}")


@dataclass(frozen=True)
class Signature:
    """One entry of signatures.yaml, which explains the fields."""

    text: str
    cause: str
    fix: str
    page: str
    code: str = ""
    consequence: bool = False
    unreproduced: str = ""

    @property
    def path(self) -> Path:
        return HANDBOOK / self.page

    def show(self) -> str:
        """Cause, fix and page in three lines."""
        page = self.path.relative_to(HANDBOOK.parents[2])
        return f"cause: {self.cause}\nfix:   {self.fix}\npage:  {page}"


def load() -> list[Signature]:
    """All signatures, in the order of the file. Raises RuntimeError where the handbook is not beside the code."""
    path = HANDBOOK / "signatures.yaml"
    if not path.is_file():
        raise RuntimeError(f"{path} is missing: explain needs a checkout of the repository")
    return [Signature(**entry) for entry in yaml.safe_load(path.read_text())]


def find(text: str) -> list[tuple[str, Signature]]:
    """What in `text` is known, as (matched text, signature), the likeliest cause first.

    text   a log, an error message, or an error code alone

    After a failure PyPTO goes on and fails again, so what comes first in a log is the cause of the rest; and signatures
    that are known as consequences of other errors come last.
    """
    signatures = load()
    if CODE.fullmatch(text.strip().upper()):
        return [(s.code, s) for s in signatures if s.code == text.strip().upper()]
    found = []
    for signature in signatures:
        match = re.search(signature.text, text)
        if match:
            found.append((signature.consequence, match.start(), match.group(), signature))
    return [(matched, signature) for _, _, matched, signature in sorted(found, key=lambda entry: entry[:2])]


def table() -> str:
    """The signatures as a Markdown table, for the handbook."""
    rows = ["| code | text | cause | page |", "|---|---|---|---|"]
    for s in load():
        text = s.text.replace("|", "\\|")
        rows.append(f"| {s.code} | `{text}` | {s.cause} | [{s.page}]({s.page}) |")
    return "\n".join(rows)
