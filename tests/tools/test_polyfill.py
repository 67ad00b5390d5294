"""The polyfill: complete on a release that lacks things, and nothing at all on one that has them."""

import json
import types

import pytest
import torch

from pypto_gym.tools import runtime
from pypto_gym.tools.runtime import polyfill


def newer_release(tmp_path):
    """A stand-in for a release that has everything; its functions are told apart by identity."""

    def set_pass_options(*, sg_set_scope=None, sg_set_ooo_scope=None, ooo_sched_mode=None): ...

    configs = tmp_path / "lib" / "configs"
    configs.mkdir(parents=True)
    (configs / "tile_fwk_config.json").write_text(json.dumps({"runtime": {"max_workspace_kb": 0, "stitch_function_max_num": 0}}))
    pypto = types.ModuleType("pypto")
    pypto.__file__ = str(tmp_path / "__init__.py")
    names = ("atomic_add", "PrecisionType", "div", "conv_backward_input", "set_convbp_input_tile_shapes", "get_convbp_input_tile_shapes")
    for name in (*names, "ConvBpTileL1Info", "ConvBpTileL0Info"):
        setattr(pypto, name, object())
    pypto.pypto_impl = types.SimpleNamespace(ConvBpTileL1Info=object(), ConvBpTileL0Info=object())
    pypto.set_pass_options = set_pass_options
    return pypto


def test_nothing_is_replaced_on_a_release_that_has_it_all(tmp_path):
    pypto = newer_release(tmp_path)
    before = dict(vars(pypto))
    polyfill.install(pypto)
    assert dict(vars(pypto)) == before


@pytest.fixture
def pypto():
    runtime.prepare()
    import pypto

    if hasattr(pypto.pypto_impl, "PrecisionType"):
        pytest.skip(f"PyPTO {runtime.release()} has the language by itself")
    return pypto


def test_an_unknown_option_is_said_once(pypto, capsys, monkeypatch):
    monkeypatch.setattr(polyfill, "_ignored", set())
    with pypto.options("scope"):
        pypto.set_pass_options(sg_set_ooo_scope=1, sg_set_scope=3)
        pypto.set_pass_options(sg_set_ooo_scope=-1)
        assert pypto.get_pass_options()["sg_set_scope"] == 3
    assert capsys.readouterr().err.count("sg_set_ooo_scope has no effect") == 1
    assert polyfill.ignored_options() == ["sg_set_ooo_scope"]


def test_div_takes_a_precision(pypto):
    assert pypto.PrecisionType.INTRINSIC is not pypto.PrecisionType.HIGH_PRECISION


def test_atomic_add_adds_into_what_is_there_tails_included(pypto):
    from .kernels import accumulate

    x = torch.arange(3 * 20 * 16, dtype=torch.float32).reshape(60, 16)
    y = torch.full((24, 16), 100.0)
    with runtime.session():
        accumulate(x, y)
    expected = torch.full((24, 16), 100.0)
    for i in range(3):
        expected[:20] += x[20 * i : 20 * i + 20]
    torch.testing.assert_close(y, expected)
