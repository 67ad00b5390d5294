"""What a new operator can be made from: every operator, and every skeleton card that names the operator that shows it."""

from __future__ import annotations

from pathlib import Path

import yaml

from pypto_gym.tools.harness import registry
from pypto_gym.tools.harness.cli import ROOT

CARDS = ROOT / "cannbot-skills" / "ops" / "pypto-op-design" / "patterns" / "skeletons"


def skeletons() -> dict[str, str]:
    """Skeleton (SK-16) -> operator that shows it, from the front matter of the cards (`skeleton`, `example`)."""
    found = {}
    for card in sorted(CARDS.glob("SK-*.md")):
        matter = front_matter(card)
        if "example" in matter:
            found[matter["skeleton"]] = Path(matter["example"]).name
    return found


def front_matter(page: Path) -> dict:
    """The YAML between the two `---` lines that a page begins with; empty when there is none."""
    parts = page.read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0] else {}


def resolve(source: str) -> str:
    """The operator that `source`, a skeleton or an operator, stands for. Raises ValueError that lists what there is."""
    operators, cards = registry.names(), skeletons()
    name = cards.get(source.upper(), source)
    if name not in operators:
        raise ValueError(f"--from: got {source!r}, takes {', '.join([*cards, *sorted(operators)])}")
    return name
