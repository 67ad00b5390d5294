"""`./gym new`: what it makes works as written, whatever it is made from."""

from pathlib import Path

import pytest

import pypto_gym.ops
from pypto_gym.tools.harness import cases, cli, registry
from pypto_gym.tools.harness.runner import Settings, run_case
from pypto_gym.tools.scaffold import copy, sources

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A temporary tree whose ops/ is searched beside the repository's."""
    (tmp_path / "ops").mkdir()
    monkeypatch.setattr(pypto_gym.ops, "__path__", [*pypto_gym.ops.__path__, str(tmp_path / "ops")])
    return tmp_path


@pytest.mark.sim
@pytest.mark.parametrize("source", sorted(registry.names()))
def test_an_operator_made_from_every_source_runs(source, tree):
    name = f"made_from_{sorted(registry.names()).index(source)}"
    marks = copy.create(name, source, root=tree)
    assert {mark.what for mark in marks} >= {copy.PLACES["summary"], copy.PLACES["golden"], copy.PLACES["launch"], copy.KERNEL}
    files = [path for path in tree.rglob("*") if path.is_file()]
    rename = copy.Renaming(source, name, "x", "x", sorted(registry.names()))
    for path in files:
        assert not rename.pattern.search(path.read_text() + path.name), f"{source} is left in {path.relative_to(tree)}"
    operator = registry.load(name)
    row = next(case for case in cases.load(operator) if case.tier == "quick")
    result = run_case(operator, row, next(impl for impl in operator.impls if row.runs(impl)), Settings(backend="sim"))
    assert result.status == "PASS", result.reason


@pytest.mark.sim
def test_another_family_and_the_command_line(tree, sample, capsys):
    """sample/scale_add lies in no family of the repository: everything is found by its package."""
    assert cli.main(["new", "fused_scale_add", "--from", "scale_add", "--family", "fused", "--root", str(tree)]) == 0
    printed = capsys.readouterr().out
    assert "ops/fused/fused_scale_add/fused_scale_add_golden.py:" in printed and "./gym run fused_scale_add" in printed
    operator = registry.load("fused_scale_add")
    assert operator.family == "fused"
    assert run_case(operator, cases.find(operator, "R75"), "general", Settings(backend="sim")).status == "PASS"


def test_family_modules_stay_reachable_from_another_family():
    rename = copy.Renaming("scale_add", "shift_add", "sample", "other", ["scale_add"])
    assert rename("from ..atoms import tail\nfrom .scale_add_impl import x\n") == (
        "from ...sample.atoms import tail\nfrom .shift_add_impl import x\n"
    )
    assert rename("from pypto_gym.ops.sample.scale_add import y") == "from pypto_gym.ops.other.shift_add import y"
    assert rename("from pypto_gym.ops.sample import checks") == "from pypto_gym.ops.sample import checks"


def test_longer_names_are_left_alone():
    rename = copy.Renaming("conv", "dconv", "conv", "conv", ["conv", "conv_grad", "my_conv"])
    assert rename("conv conv_kernel conv_grad conv_grad_impl my_conv") == "dconv dconv_kernel conv_grad conv_grad_impl my_conv"


@pytest.mark.parametrize("name", ["Softmax", "soft-max", "1st", "class", "a__b", "_a", ""])
def test_illegal_names_are_refused(name, sample, tree):
    with pytest.raises(ValueError, match="NAME: got .*, takes a name in snake_case"):
        copy.create(name, "scale_add", root=tree)
    assert not list((tree / "ops").iterdir())


def test_an_existing_name_is_refused(sample, tree):
    with pytest.raises(ValueError, match="NAME: ops/sample/scale_add is there already"):
        copy.create("scale_add", "scale_add", root=tree)


def test_an_unknown_source_is_answered_with_those_there_are(sample):
    with pytest.raises(ValueError, match="--from: got 'SK-99', takes .*scale_add"):
        sources.resolve("SK-99")


def test_every_skeleton_card_leads_to_an_operator():
    for skeleton, operator in sources.skeletons().items():
        assert sources.resolve(skeleton) == sources.resolve(skeleton.lower()) == operator


def test_the_list(capsys):
    assert cli.main(["new", "--list"]) == 0
    printed = capsys.readouterr().out
    for name in registry.names():
        assert f"{name}: " in printed
