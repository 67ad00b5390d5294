"""`./gym explain`: what does this error mean?"""

from __future__ import annotations

import re
import sys

from pypto_gym.tools import explain

MARKERS = ("<!-- signatures:begin -->", "<!-- signatures:end -->")


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("explain", help="cause, fix and handbook page for an error code, a message or a log")
    parser.add_argument("text", nargs="*", help="a code or message; without it, a log is read from standard input")
    parser.add_argument("--all", action="store_true", help="everything that matches, not only the likeliest three")
    parser.add_argument("--update", action="store_true", help="write the table of signatures into the handbook")
    parser.set_defaults(func=run)


def run(arguments) -> int:
    """0 when something is known, 1 when not."""
    if arguments.update:
        return _update()
    if not arguments.text and sys.stdin.isatty():
        raise ValueError("explain: takes a code or message, or a log on standard input")
    text = " ".join(arguments.text) if arguments.text else sys.stdin.read()
    found = explain.find(text)
    if not found and explain.component(text):
        print(f"{text.strip().upper()}: {explain.component(text)}; the message beside the code says more: explain that")
        return 0
    if not found:
        print(f"nothing is known about this; the index is {explain.HANDBOOK.name}/DEBUG_GUIDEBOOK.md")
        return 1
    shown = found if arguments.all else found[:3]
    for matched, signature in shown:
        heading = " ".join(matched.split())[:100]
        if signature.code and signature.code != heading:
            heading = f"{signature.code} {heading}"
        elif signature.code:
            heading = f"{signature.code} {signature.text}"
        print(f"{heading}\n{signature.show()}\n")
    if len(shown) < len(found):
        print(f"{len(found) - len(shown)} more match: --all shows them")
    return 0


def _update() -> int:
    path = explain.HANDBOOK / "error-codes.md"
    path.write_text(with_table(path.read_text()))
    print(path)
    return 0


def with_table(page: str) -> str:
    """The page with the current table between its markers."""
    begin, end = MARKERS
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{explain.table()}\n{end}", page, flags=re.DOTALL)
