"""What the simulator is asked for, and how its results are read."""

import json
import os

import pytest
import torch

from pypto_gym.tools.harness.backends import figures
from pypto_gym.tools.runtime import sim


def test_options_nest_and_end():
    with sim.options(numbers=False, cost=True):
        with sim.options(overrides={"runtime_options": {"stitch_function_max_num": 8}}) as inner:
            assert (inner.numbers, inner.cost, inner.overrides["runtime_options"]) == (False, True, {"stitch_function_max_num": 8})
        assert sim._options.get().overrides == {}
    assert sim._options.get().numbers


@pytest.mark.parametrize("key", ["1", "y"], ids=["0.2.0 counts the arguments", "newer releases name them"])
def test_results_are_read_into_the_argument_they_belong_to(tmp_path, key):
    folder = tmp_path / "verify_1" / "tensor_graph"
    folder.mkdir(parents=True)
    (folder / f"tensor_graph~{key}~golden~17.data").write_bytes(torch.zeros(4).numpy().tobytes())
    (folder / f"tensor_graph~{key}~17.data").write_bytes(torch.arange(4.0).numpy().tobytes())
    x, y = torch.full((4,), 9.0), torch.zeros(2, 2)
    sim.read_results(tmp_path, ["x", "y"], [x, y])
    assert x.eq(9).all() and y.flatten().tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="16 bytes, argument y has 12"):
        sim.read_results(tmp_path, ["x", "y"], [x, torch.zeros(3)])


def test_pypto_writes_where_it_is_told_and_draws_nothing(tmp_path, monkeypatch):
    for variable in (sim.OUTPUT_VARIABLE, sim.CONFIG_VARIABLE):
        monkeypatch.setenv(variable, "")
    sim.use_folder(tmp_path / "out")
    assert os.environ[sim.OUTPUT_VARIABLE] == str(tmp_path / "out")
    simulation = json.loads(open(os.environ[sim.CONFIG_VARIABLE]).read())["global"]["simulation"]
    assert simulation["draw_function_graph"] is False and "Model.drawPngThresholdCycle=0" in simulation["args"]


def test_a_pass_that_was_not_compared_is_missing(tmp_path):
    folder = tmp_path / "output_1" / "verify_1"
    folder.mkdir(parents=True)
    rows = ["passName,verifyResult", "tensor_graph,FAILED", "Pass_14_SplitK,PASS", "Pass_14_SplitK,FAILED", "Pass_04_ExpandFunction,PASS"]
    (folder / "verify_result_brief.csv").write_text("\n".join(rows) + "\n")
    exceptions = "SplitK Verify for 1 data view list index 0 result PASS\n[VERIFY] Pass_26_InferDynShape, TENSOR_loop_2, COPY_OUT\n"
    (folder / "verify_exception.log").write_text(exceptions)
    verdicts = figures.passes(tmp_path)
    assert verdicts["InferDynShape"] == {"MISSING": 1, "EXCEPTION": 1}
    assert verdicts["SplitK"] == {"PASS": 1, "FAILED": 1} and verdicts["ExpandFunction"] == {"PASS": 1}
    assert verdicts["CodegenPreproc"] == {"MISSING": 1} and "tensor_graph" not in verdicts


def test_cycles_are_first_start_to_last_end(tmp_path):
    folder = tmp_path / "output_1" / "CostModelSimulationOutput"
    folder.mkdir(parents=True)
    lanes = [
        {"coreType": "AIC", "tasks": [{"execStart": 100, "execEnd": 300}]},
        {"coreType": "AIV", "tasks": [{"execStart": 200, "execEnd": 600}]},
        {"coreType": "AICPU", "tasks": [{"execStart": 0, "execEnd": 9000}]},
    ]
    (folder / "_simulate.swim.json").write_text(json.dumps(lanes))
    (folder / "_simulate.stat.report.txt").write_text("Used Cube Pipe Number......: 2\nAverage Cube Usage.....:  120.0  3.0%\n")
    (kernel,) = figures.kernels(tmp_path)
    assert (kernel["cycles"], kernel["tasks"]) == (500, 2)
    assert kernel["utilisation"] == pytest.approx(100 * 600 / (72 * 500))
    assert kernel["cube_pipe"] == pytest.approx(100 * 240 / (24 * 500))
