"""The NPU's few lines, on a stand-in for torch_npu: what is chosen, what is skipped and why, and the order of calls."""

import dataclasses
import sys
import types

import pytest
import torch

from pypto_gym.tools import runtime
from pypto_gym.tools.harness import cases, reference
from pypto_gym.tools.harness.backends import child
from pypto_gym.tools.harness.backends.job import Job
from pypto_gym.tools.harness.runner import Settings, why_not


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self): ...

    def elapsed_time(self, end):
        return 0.25  # milliseconds, as torch.npu.Event has it


@pytest.fixture
def npu(monkeypatch):
    calls = []
    stub = types.SimpleNamespace(
        set_device=lambda n: calls.append(("set_device", n)), synchronize=lambda: calls.append("synchronize"),
        get_device_name=lambda: "Ascend910_9391", device_count=lambda: 2, Event=Event,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    monkeypatch.setattr(torch, "npu", stub, raising=False)
    monkeypatch.setattr(torch.Tensor, "npu", lambda tensor: tensor.clone(), raising=False)
    return calls


def test_auto_is_npu_only_with_cann_and_torch_npu(monkeypatch):
    monkeypatch.delenv(runtime.BACKEND_VARIABLE, raising=False)
    monkeypatch.setattr(runtime, "has_npu", lambda: True)
    assert runtime.backend() == "npu"
    monkeypatch.setattr(runtime, "has_npu", lambda: False)
    assert runtime.backend() == "sim"
    monkeypatch.setenv(runtime.BACKEND_VARIABLE, "gpu")
    with pytest.raises(ValueError, match="PYPTO_GYM_BACKEND: got 'gpu', takes auto, npu or sim"):
        runtime.backend()


def test_a_job_runs_on_its_device_and_is_timed(sample, npu, tmp_path, monkeypatch):
    case = cases.find(sample, "R64")
    expected = reference.get(sample, case)
    torch.save({**expected.inputs, **reference.fresh_outputs(sample, expected)}, tmp_path / "tensors.pt")
    with child._npu(Job("scale_add", "host", str(tmp_path), "npu", device=3)) as figures:
        assert figures == {"device_us": 250.0}
    assert npu == [("set_device", 3), "synchronize", "synchronize"]
    torch.testing.assert_close(torch.load(tmp_path / "outputs.pt")["y"], expected.golden["y"])


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"soc": ("910_93",)}, ""),
        ({"soc": ("950",)}, "needs 950, this is Ascend910_9391"),
        ({"cards": 4}, "needs 4 cards, there are 2"),
        ({"impls": ("a3",)}, "the case is for a3 only"),
    ],
)
def test_what_does_not_match_is_skipped_with_its_reason(sample, npu, changes, reason):
    case = dataclasses.replace(cases.find(sample, "R64"), **changes)
    assert why_not(sample, case, "general", Settings(backend="npu")) == reason


def test_a_case_for_several_cards_is_not_run_in_simulation(sample):
    case = dataclasses.replace(cases.find(sample, "R64"), cards=2)
    assert why_not(sample, case, "general", Settings(backend="sim")) == "needs 2 cards, the simulator has one"


def test_workers_take_devices_in_turn(monkeypatch):
    from pypto_gym.tools.harness import pytest_plugin

    config = types.SimpleNamespace(getoption=lambda name: "4,5,6")
    taken = []
    for worker in ("gw0", "gw1", "gw2", "gw3"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        monkeypatch.setenv("TILE_FWK_DEVICE_ID", "")
        pytest_plugin.pytest_configure(config)
        taken.append(pytest_plugin.os.environ["TILE_FWK_DEVICE_ID"])
    assert taken == ["4", "5", "6", "4"]
    assert Settings(backend="npu").device == 4
