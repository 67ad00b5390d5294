"""The handbook is executed: every block of Python, link and command line in it."""

import ast
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import blocks

ROOT = Path(__file__).resolve().parents[2]
HANDBOOK = ROOT / "cannbot-skills"
PAGES = sorted(HANDBOOK.rglob("*.md"))
BLOCKS = [block for page in PAGES for block in blocks.find(page)]
EXECUTED = [block for block in BLOCKS if block.kind in ("run", "fails")]
IGNORED = {".git", ".venv", ".venv-host", "build", "dist", "node_modules"}


def markdown_files() -> list[Path]:
    """Every Markdown file of the repository."""
    return sorted(path for path in ROOT.rglob("*.md") if not IGNORED & set(path.relative_to(ROOT).parts))


@pytest.mark.sim
@pytest.mark.parametrize("block", EXECUTED, ids=lambda block: block.id)
def test_block_does_what_it_says(block):
    code, text = blocks.execute(block)
    if block.kind == "run":
        assert code == 0, f"{block.path}:{block.line} failed:\n{text[-3000:]}"
    else:
        assert code != 0, f"{block.path}:{block.line} was to fail with {block.fails} and did not"
        missing = [wanted for wanted in block.fails if wanted not in text]
        assert not missing, f"{block.path}:{block.line} failed without {missing}:\n{text[-3000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HANDBOOK)))
def test_every_block_says_what_it_is_and_parses(page):
    for block in blocks.find(page):
        assert block.kind, f"{page}:{block.line}: a block of Python is one of {', '.join(blocks.KINDS)}"
        ast.parse(block.source)


def test_names_in_fragments_exist():
    from pypto_gym.tools import runtime

    runtime.prepare()
    pypto = importlib.import_module("pypto")
    for block in BLOCKS:
        if block.kind == "fragment":
            for name in block.names:
                here = pypto
                for part in name.split("."):
                    assert hasattr(here, part), f"{block.path}:{block.line}: this release has no pypto.{name}"
                    here = getattr(here, part)


@pytest.mark.parametrize("page", markdown_files(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.relative_to(ROOT)} links {target}, which does not exist"
        if anchor:
            assert anchor in anchors(linked), f"{page.relative_to(ROOT)} links {target}, which has no such heading"


def anchors(page: Path) -> set[str]:
    """The headings of a Markdown file as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", markdown_files(), ids=lambda page: str(page.relative_to(ROOT)))
def test_command_lines_exist(page):
    """Complete command lines (in code blocks) parse; those within a sentence name a command and options that exist."""
    from pypto_gym.tools.harness import cli

    text = page.read_text()
    fences = re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL)
    complete = [line.strip() for fence in fences for line in fence.splitlines() if line.strip().startswith("./gym ")]
    for command in complete + re.findall(r"`(\./gym [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        words = shlex.split(command, comments=True)[1:]
        words = words[: next((i for i, word in enumerate(words) if word in ("|", "<", ">", "&&")), len(words))]
        words = [word for word in words if word != "…"]
        what = f"{page.relative_to(ROOT)}: {command}"
        options = option_strings(cli.parser(), words, what)
        given = [word.split("=")[0] for word in words if word.startswith("--") and word != "--"]
        unknown = [option for option in given if option not in options]
        assert not unknown, f"{what}: there is no {', '.join(unknown)}"
        if command in complete and "…" not in command:
            try:
                cli.parse(words)
            except SystemExit:
                pytest.fail(f"{what} does not parse")


def option_strings(parser, words, what) -> set[str]:
    """The options of the command that `words` name; fails where there is no such command."""
    options = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action.choices, dict) and words and not words[0].startswith("-"):
            assert words[0] in action.choices, f"{what}: there is no command {words[0]!r}"
            options |= option_strings(action.choices[words[0]], words[1:], what)
    return options


def test_signatures_are_shown_by_a_block():
    from pypto_gym.tools import explain

    signatures = explain.load()
    for signature in signatures:
        assert signature.path.is_file(), f"{signature.text}: there is no page {signature.page}"
        shown = any(re.search(signature.text, text) for b in blocks.find(signature.path) for text in b.fails)
        others = any(re.search(signature.text, text) for b in EXECUTED for text in b.fails)
        assert shown or others or signature.unreproduced, f"{signature.page}: no block fails with {signature.text!r}"
        assert not (shown and signature.unreproduced), f"{signature.text}: is reproduced on {signature.page}"
    assert sum(not s.unreproduced for s in signatures) >= 0.9 * len(signatures)


def test_the_table_of_signatures_is_current():
    from pypto_gym.tools import explain
    from pypto_gym.tools.explain.cli import with_table

    page = explain.HANDBOOK / "error-codes.md"
    assert page.read_text() == with_table(page.read_text()), "run ./gym explain --update"


@pytest.mark.parametrize("page", sorted(HANDBOOK.rglob("SKILL.md")), ids=lambda page: page.parent.name)
def test_a_skill_has_its_front_matter_and_is_short(page):
    import yaml

    text = page.read_text()
    front = yaml.safe_load(text.split("---")[1])
    assert set(front) == {"name", "description", "when_to_use"} and front["name"] == page.parent.name
    assert len(text.splitlines()) <= 60


def test_every_page_is_reached_from_the_index():
    reached, waiting = set(), [HANDBOOK / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text()):
            if not re.match(r"[a-z]+:", target):
                waiting.append((page.parent / target).resolve())
    assert not set(PAGES) - reached
