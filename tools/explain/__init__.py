"""From what a failing kernel printed to cause, fix and page of the handbook."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

HANDBOOK = Path(__file__).resolve().parents[2] / "cannbot-skills" / "ops" / "pypto-general-debug"
CODE = re.compile(r"F[0-9A-F]{5}")
COMPONENTS = {  # the first digits of a code; source: docs/trouble_shooting of PyPTO 0.2.0
    "F1": "limits of the environment",
    "F2": "building the tensor graph",
    "F3": "building the tensor graph",
    "F4": "compiler passes",
    "F5": "compiler passes",
    "F6": "code generation and the device compiler",
    "F7": "scheduling on the device",
    "F8": "scheduling on the device",
    "F9": "the cost model",
    "FA": "communication between devices",
    "FB": "the interpreter and the verification of passes",
    "FC0": "checks of vector operations",
    "FC1": "checks of vector operations",
    "FC2": "checks of vector operations",
    "FC3": "checks of matmul",
    "FC4": "checks of matmul",
    "FC5": "checks of matmul",
    "FC6": "checks of convolution",
    "FC7": "checks of convolution",
    "FC8": "checks of convolution",
    "FC9": "checks of views",
}


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


def likeliest(reason: str, log: str = "") -> Signature | None:
    """The one signature to show for a failed case, by reason and log; a mere consequence only when it is the reason."""
    return next((s for _, s in find(f"{log}\n{reason}") if not s.consequence or re.search(s.text, reason)), None)


def component(code: str) -> str:
    """The part of PyPTO that raises this code, or ''."""
    code = code.strip().upper()
    if not CODE.fullmatch(code):
        return ""
    return next((name for start, name in COMPONENTS.items() if code.startswith(start)), "")


def table() -> str:
    """The signatures as a Markdown table, for the handbook."""
    rows = ["| code | text | cause | page |", "|---|---|---|---|"]
    for s in load():
        text = s.text.replace("|", "\\|")
        rows.append(f"| {s.code} | `{text}` | {s.cause} | [{s.page}]({s.page}) |")
    return "\n".join(rows)
