"""`./gym new NAME --from SOURCE [--family FAMILY]`, `./gym new --list`"""

from __future__ import annotations

from pathlib import Path


def add_parser(subparsers) -> None:
    """Registers `new`."""
    parser = subparsers.add_parser("new", help="make an operator from a skeleton or from another operator")
    parser.add_argument("name", nargs="?", help="name of the new operator, in snake_case")
    parser.add_argument("--from", dest="source", metavar="SOURCE", help="a skeleton (SK-16) or an operator")
    parser.add_argument("--family", help="folder below ops/ (default: that of the source)")
    parser.add_argument("--list", action="store_true", help="what there is to start from")
    parser.add_argument("--root", type=Path, help="where ops/ and tests/ are (default: this repository)")
    parser.set_defaults(func=run)


def run(arguments) -> int:
    """Makes the operator and prints the places to change."""
    from pypto_gym.tools.harness import overview, registry
    from pypto_gym.tools.harness.cli import ROOT
    from pypto_gym.tools.scaffold import copy, sources

    if arguments.list:
        for skeleton, operator in sources.skeletons().items():
            print(f"{skeleton}: {operator}")
        for operator in registry.load_all():
            print(f"{operator.name}: {operator.summary}")
        return 0
    if not arguments.name or not arguments.source:
        raise ValueError("new: takes a NAME and --from SOURCE, or --list")
    source = sources.resolve(arguments.source)
    root = arguments.root or ROOT
    marks = copy.create(arguments.name, source, arguments.family, root)
    if root == ROOT:
        overview.update()
    for mark in marks:
        print(f"{mark.path.relative_to(root)}:{mark.line}: {mark.what}")
    print(f"It works as it stands: ./gym run {arguments.name}")
    return 0
