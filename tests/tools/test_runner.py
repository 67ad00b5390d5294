"""One case, from its row to the verdict: what works is reported whole, and what breaks ends in one sentence."""

import dataclasses

import pytest
import torch

from pypto_gym.tools.harness import Executions, cases, history, reference
from pypto_gym.tools.harness.backends import Run, figures
from pypto_gym.tools.harness.runner import Settings, failed_passes, run_case

pytestmark = pytest.mark.usefixtures("sample")


def run(sample, impl, case="R75", **settings):
    return run_case(sample, cases.find(sample, case), impl, Settings(backend="sim", **settings))


def test_a_right_kernel_passes_with_every_pass_verified_and_timed(sample):
    result = run(sample, "general")
    assert (result.status, result.reason) == ("PASS", "")
    assert set(result.run.passes) == set(figures.DEFAULT_PASSES)
    assert all(set(verdicts) == {"PASS"} for verdicts in result.run.passes.values())
    assert result.run.cycles > 1000 and 0 < result.run.mean("utilisation") < 100
    assert result.run.peak_bytes > 1 << 20 and result.run.folder == ""
    assert history.last("scale_add", "R75", "general", "sim")["status"] == "PASS"


def test_the_interpreter_gets_the_inputs_with_their_values(sample):
    """PyPTO 0.2.0 feeds zeros by itself: then two different inputs would give the same output."""
    operator, case = sample, cases.find(sample, "R75")
    expected = reference.get(operator, case)
    result = run(sample, "general")
    assert result.run.outputs["y"].abs().max() > 1
    torch.testing.assert_close(result.run.outputs["y"], expected.golden["y"])


def test_cycles_repeat_exactly(sample):
    assert run(sample, "general").run.cycles == run(sample, "general").run.cycles


def test_options_unknown_to_the_release_are_named(sample):
    result = run(sample, "options")
    assert result.status == "PASS"
    if result.run.release == "0.2.0":
        assert result.run.ignored == ["max_workspace_kb", "sg_set_ooo_scope"]


@pytest.mark.parametrize(
    "impl, settings, sentence",
    [
        ("raises", {}, "the kernel raised ValueError: the tile is too large"),
        ("segfault", {}, "the kernel crashed PyPTO (SIGSEGV)"),
        ("hangs", {"timeout": 1.0}, "the kernel did not end within 1 s"),
        ("greedy", {"memory": 3 << 28}, "the kernel ran out of memory: 0.8 GiB used, the limit is 0.8 GiB"),
        ("half", {}, "y: NaN: 1024 elements, in [59:75, 0:64], were never written or were computed as NaN"),
    ],
)
def test_a_broken_kernel_is_one_sentence(sample, impl, settings, sentence):
    result = run(sample, impl, **settings)
    assert result.status == "FAIL"
    assert result.reason == sentence
    assert result.replay == f"./gym run scale_add --case R75 --impl {impl} --backend sim"


def test_a_refused_kernel_is_told_with_its_cause_and_line(sample):
    reason = run(sample, "refused", case="R64").reason
    assert reason.startswith("the kernel was refused: RuntimeError: Errcode: F21004! op [ADD]tile shape not set")
    assert "refused_impl.py:11)" in reason


def test_a_missing_implementation_module_is_said(sample):
    operator = dataclasses.replace(sample, impls={"absent": "no_such_impl"})
    # The child reads the record itself, so the record on disk is what counts.
    result = run_case(operator, cases.find(sample, "R64"), "absent", Settings(backend="sim"))
    assert (result.status, result.reason) == ("FAIL", "the kernel raised ValueError: impl: got 'absent', scale_add has " + ", ".join(sample.impls))


def test_what_does_not_fit_is_not_run_and_says_how_much_it_needs(sample):
    operator = dataclasses.replace(sample, sim_executions=lambda inputs, impl: [Executions(100, viewed=(1 << 30,))])
    result = run_case(operator, cases.find(sample, "R64"), "general", Settings(backend="sim", memory=8 << 30))
    assert (result.status, result.reason) == ("NOT-RUN", "needs about 300.3 GiB of memory in simulation, the limit is 8.0 GiB")


def test_a_golden_that_lacks_an_output_is_said(sample, fresh_cache, monkeypatch):
    monkeypatch.setattr(sample.golden, "golden", lambda **inputs: {})
    with pytest.raises(reference.GoldenError, match=r"scale_add: golden returns \[\], the record has outputs \['y'\]"):
        reference.get(sample, cases.find(sample, "R64"))


def test_a_damaged_golden_in_the_cache_is_computed_again(sample, fresh_cache):
    case = cases.find(sample, "R64")
    first = reference.get(sample, case)
    (path,) = (fresh_cache / "golden").glob("*.pt")
    path.write_bytes(b"not a tensor")
    torch.testing.assert_close(reference.get(sample, case).golden["y"], first.golden["y"])


def test_a_failed_or_missing_pass_fails_the_case():
    run = Run("sim", "0.2.0", passes={"SplitK": {"PASS": 3, "FAILED": 1}, "InferDynShape": {"MISSING": 1}, "X": {"PASS": 1}})
    assert failed_passes(run) == [
        "compiler pass SplitK: 1 FAILED of 4 compared results",
        "compiler pass InferDynShape: 1 MISSING of 1 compared results",
    ]


def test_outputs_start_as_nan_zeros_or_the_input_of_their_name(sample):
    from pypto_gym.tools.harness import Output

    operator = dataclasses.replace(sample, outputs={"y": Output(), "z": Output(zeroed=True), "a": Output(), "n": Output(exact=True)})
    golden = {"y": torch.ones(2), "z": torch.ones(2), "a": torch.ones(2), "n": torch.ones(2, dtype=torch.int32)}
    fresh = reference.fresh_outputs(operator, reference.Reference({"a": torch.full((2,), 5.0)}, golden, golden))
    assert fresh["y"].isnan().all() and fresh["z"].eq(0).all() and fresh["a"].eq(5).all()
    assert fresh["n"].eq(torch.iinfo(torch.int32).min).all()


def test_keep_leaves_what_pypto_wrote(sample):
    import shutil
    from pathlib import Path

    result = run(sample, "general", keep=True)
    folder = Path(result.run.folder)
    try:
        assert (folder / "log.txt").exists() and list(folder.glob("pypto/output_*/program.json"))
        assert Path(result.run.kernels[0]["trace"]).exists()
    finally:
        shutil.rmtree(folder)


def test_nothing_is_written_into_the_current_folder(sample, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(sample, "general")
    assert list(tmp_path.iterdir()) == []
