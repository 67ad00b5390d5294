"""The rules of the comparator, one by one."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
import torch
from pypto_gym.tools.harness import heatmap
from pypto_gym.tools.harness.compare import compare, tile_ratios
from pypto_gym.tools.harness.floors import FP32_NOISE, floor, spacing
from pypto_gym.tools.harness.records import Output
from pypto_gym.tools.harness.tiling import Tiling, where

from .goldens import EXAMPLES

torch.set_num_threads(1)  # many small operations: threads would only wait for each other

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
SPEC = Output(budget=1.1)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=FP64)


def judge(actual, truth, spec=SPEC, golden=None, input_dtype=BF16):
    golden = truth.to(actual.dtype) if golden is None else golden
    return compare("y", actual, golden, truth, spec, input_dtype)


def only_reason(verdict):
    assert not verdict.passed
    (reason,) = verdict.reasons
    return reason


# What always fails


def test_another_shape_or_dtype():
    truth = randn(4, 8)
    assert (
        only_reason(compare("y", truth[:3].float(), truth.float(), truth, SPEC))
        == "shape: got [3, 8], the golden is [4, 8]"
    )
    assert "dtype: got torch.float32, the golden is torch.bfloat16" == only_reason(
        compare("y", truth.float(), truth.bfloat16(), truth, SPEC)
    )
    assert "truth: its shape is [3, 8]" in only_reason(compare("y", truth.float(), truth.float(), truth[:3], SPEC))
    assert "truth: its shape is None" in only_reason(compare("y", truth.float(), truth.float(), None, SPEC))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_nan_where_the_golden_has_none(dtype):
    truth = randn(40, 20)
    y = truth.to(dtype)
    y[32:] = torch.nan
    verdict = judge(y, truth)
    assert "NaN: 160 elements, in [32:40, 0:20], were never written" in only_reason(verdict)
    assert (
        verdict.worst_index == (32, 0) and verdict.diagnosis == "last tile not stored: [32:40, 0:20] is never written"
    )
    y[:] = torch.nan
    verdict = judge(y, truth)
    assert "never wrote this output" in only_reason(verdict) and verdict.diagnosis == "nothing was written"


def test_a_nan_in_the_golden_fails_even_where_the_kernel_has_it_too():
    truth = randn(4, 8)
    y = truth.bfloat16()
    y[1, 2] = torch.nan
    assert "golden: 1 elements are NaN, in [1, 2]" in only_reason(judge(y, truth, golden=y.clone()))


def test_inf_passes_only_in_the_same_place_with_the_same_sign():
    truth = randn(4, 8)
    truth[1, 2] = torch.inf
    y = truth.bfloat16()
    assert judge(y, truth).passed
    y[1, 2] = -torch.inf
    assert "Inf: 1 elements, in [1, 2]; the first at [1, 2]: got -inf, golden inf" in only_reason(judge(y, truth))
    y[1, 2] = 3.0
    assert "got 3, golden inf" in only_reason(judge(y, truth))
    y[1, 2], y[0, 0] = torch.inf, torch.inf
    assert "Inf: 1 elements, in [0, 0]" in only_reason(judge(y, truth))


def test_a_truth_that_is_not_finite_where_the_golden_is():
    truth = randn(4, 8)
    golden = truth.bfloat16()
    truth[0, 1] = torch.nan
    assert "truth: 1 elements are not finite where the golden is" in only_reason(judge(golden, truth, golden=golden))


def test_a_golden_that_is_far_from_its_truth():
    truth = randn(64, 64)
    golden = (1.5 * truth).float()
    assert "one of the two is wrong" in only_reason(
        judge(golden.clone(), truth, golden=golden, spec=Output(max_ulp=1e9))
    )


# Exact outputs


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool, BF16, FP32])
def test_exact_outputs_are_compared_bit_for_bit(dtype):
    golden = (torch.arange(24).reshape(4, 6) % 3).to(dtype)
    spec = Output(exact=dtype.is_floating_point)
    assert compare("y", golden.clone(), golden, None, spec).passed
    y = golden.clone()
    y[2, 3] = y[2, 3] == 0
    verdict = compare("y", y, golden, None, spec)
    assert "1 of 24 elements differ from the golden; the first at [2, 3]" in only_reason(verdict)
    assert verdict.worst_index == (2, 3) and verdict.violations == 1 and verdict.diagnosis == "one wrong element"


def test_exact_tells_signs_of_zero_and_unwritten_integers():
    assert not compare("y", torch.tensor([-0.0]), torch.tensor([0.0]), None, Output(exact=True)).passed
    golden = torch.arange(8, dtype=torch.int32)
    y = golden.clone()
    y[6:] = torch.iinfo(torch.int32).min
    assert (
        "2 elements still have the value they started with: never written"
        in compare("y", y, golden, None, SPEC).reasons
    )


# The two gates


def test_each_gate_holds_where_the_other_does_not():
    tiny = 1e-5 * randn(64, 64)
    verdict = judge(torch.zeros(64, 64, dtype=BF16), tiny)
    assert verdict.violations == 0 and not verdict.passed  # zeros are within atol: the gauge's business
    assert all(reason.startswith(("gauge", "worst")) for reason in verdict.reasons) and verdict.diagnosis == "zeros"
    truth = randn(512, 512)
    y = truth.bfloat16()
    y[100, 200] *= 1 + 2**-6
    verdict = judge(y, truth)  # one element in 262144, two units off: the contract's business
    assert "contract: 1 of 262144" in only_reason(verdict) and verdict.rmse_ratio < 1.1
    assert verdict.worst_index == (100, 200)


def test_every_reason_carries_figures_and_places():
    truth = randn(3, 40, 40)
    y = truth.bfloat16()
    y[1, 32:, 16:32] = 0
    verdict = judge(y, truth)
    contract, gauge, tile, element = verdict.reasons
    assert "128 of 4800 elements are further from the golden than 0.0001 + 0.0078125 * |golden|" in contract
    assert "times the floor" in gauge and "the budget is 1.1" in gauge
    assert "worst tile: RMSE of [1, 32:40, 16:32] is" in tile
    assert "ULP of bfloat16 from truth; the limit is 4" in element
    assert verdict.worst_tile == ((1, 2), (32, 40), (16, 32))
    assert verdict.diagnosis == "a tile not stored: [1, 32:40, 16:32] is zero"


def test_a_budget_that_the_golden_cannot_keep_is_said():
    truth = randn(64, 64)
    golden = (truth.bfloat16().double() + 0.004 * randn(64, 64, seed=1)).bfloat16()
    verdict = judge(golden.clone(), truth, golden=golden)
    assert "the golden itself has" in verdict.reasons[0] and verdict.golden_ratio == verdict.rmse_ratio > 1.1


def test_flips_are_granted_counted_and_bounded():
    truth = randn(200, 200)
    y = truth.bfloat16()
    for index in ((10, 10), (20, 20), (30, 30)):
        y[index] *= 1 + 2**-6
    refused = judge(y, truth)
    assert refused.violations == refused.flips == 3 and "contract" in only_reason(refused)
    assert refused.diagnosis == "rounding flips of an intermediate: all within 4 ULP of truth"
    granted = judge(y, truth, Output(budget=1.1, flips=1e-4, flips_why="test"))
    assert granted.passed and granted.violations == granted.flips == 3
    y[40, 40] += 1  # beyond the ULP bound: no grant covers it
    beyond = judge(y, truth, Output(budget=1.1, flips=1e-4, flips_why="test"))
    assert not beyond.passed and (beyond.violations, beyond.flips) == (4, 3)


def test_bias_and_figures():
    truth = randn(100, 100)
    y = truth.float() + 0.01
    verdict = judge(y, truth, Output(atol=1, budget=1e9, worst_tile=1e9, max_ulp=1e9))
    assert verdict.passed
    assert verdict.bias == pytest.approx(0.01 / truth.square().mean().sqrt().item(), rel=1e-3)
    assert verdict.max_abs == pytest.approx(0.01, rel=1e-3)


def test_a_verdict_is_json():
    truth = randn(20, 20)
    y = truth.bfloat16()
    y[0, 0] = torch.inf
    verdict = dataclasses.replace(judge(y, truth), max_ulp=math.inf)
    loaded = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert loaded["passed"] is False and loaded["max_ulp"] == "inf" and loaded["worst_tile"] == [[0, 16], [0, 16]]
    assert set(loaded) == {field.name for field in dataclasses.fields(verdict)}


# Floors


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float8_e4m3fn])
def test_spacing_is_the_distance_to_the_next_number(dtype):
    positive = torch.arange(1, 2 ** (8 * dtype.itemsize - 1), dtype=torch.int32)
    integer = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
    numbers = positive.to(integer).view(dtype).double()
    numbers = numbers[numbers.isfinite()]
    assert torch.equal(spacing(numbers[:-1], dtype), numbers.diff())
    assert torch.equal(spacing(-numbers[:-1], dtype), numbers.diff())


def test_floor_of_a_low_precision_output_is_the_rounding_of_truth():
    truth = randn(256, 256)
    rounding = (truth.bfloat16().double() - truth).square().mean().sqrt().item()
    assert floor(truth.bfloat16(), truth) == pytest.approx(rounding, rel=0.01)
    exact = torch.full((16, 16), 3.0, dtype=FP64)
    assert floor(exact.bfloat16(), exact) == pytest.approx(2**-6 / math.sqrt(12))


def test_floor_of_an_fp32_output_is_the_goldens_error_and_at_least_the_noise_of_sums():
    truth = randn(256, 256)
    rms = truth.square().mean().sqrt().item()
    low = truth.bfloat16().float()
    assert floor(low, truth) == pytest.approx((low.double() - truth).square().mean().sqrt().item())
    assert floor(truth.float(), truth) == pytest.approx(FP32_NOISE * rms)


def test_floor_of_what_has_no_scale_is_atol():
    zeros = torch.zeros(8, 8, dtype=FP64)
    for dtype in (BF16, FP32):
        assert floor(zeros.to(dtype), zeros, atol=1e-3) == pytest.approx(1e-3)
    assert floor(torch.zeros(0, 8), torch.zeros(0, 8)) == 0.0


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_terms_that_cancel_exactly_are_judged_by_atol(dtype):
    truth = 1e-17 * randn(8, 8)  # what FP64 leaves of a zero
    golden, y = (1e-8 * randn(8, 8, seed=1)).to(dtype), (3e-8 * randn(8, 8, seed=2)).to(dtype)
    assert judge(y, truth, golden=golden).passed
    assert not judge(y + 1e-3, truth, golden=golden).passed


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_a_tile_of_zeros_is_judged_by_the_scale_around_it(dtype):
    truth = randn(64, 64)
    truth[16:32] = 0
    y = truth.to(dtype)
    y[16:32] = 1e-7
    assert judge(y, truth).passed
    y[16:32] = 1e-3
    assert not judge(y, truth).passed


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0,)])
def test_an_empty_output_passes(dtype, shape):
    empty = torch.zeros(shape, dtype=dtype)
    assert compare("y", empty, empty.clone(), empty.double(), SPEC).passed
    assert not compare("y", torch.zeros(1, 8), torch.zeros(0, 8), torch.zeros(0, 8), SPEC).passed


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_a_scalar(dtype):
    truth = torch.tensor(0.3, dtype=FP64)
    verdict = judge(truth.to(dtype), truth)
    assert verdict.passed and verdict.worst_index == () and verdict.worst_tile == ()
    assert not judge(truth.to(dtype) * 1.05, truth).passed


def test_fp32_throughout_takes_any_order_of_summation_and_nothing_coarser():
    a, b = randn(64, 4096).float(), randn(4096, 64, seed=1).float()
    truth, golden = a.double() @ b.double(), a @ b
    running = torch.zeros(64, 64)
    for k in range(4096):
        running += a[:, k, None] * b[k]
    spec = Output(rtol=1e-5, atol=1e-3)
    assert judge(running, truth, spec, golden, FP32).passed
    half = (a.half().float() @ b.half().float()).float()
    verdict = judge(half, truth, spec, golden, FP32)
    assert not verdict.passed and verdict.rmse_ratio > 50


TINY = {
    "softmax": [(1, 1), (1, 7), (3, 5)],
    "matmul": [(1, 1, 1), (1, 40, 3), (5, 1, 5), (16, 300, 1)],
    "rms_norm": [(1, 1), (1, 16), (5, 3)],
    "attention_backward": [([1], [1], 1, 16), ([1, 0], [2, 3], 1, 16), ([3], [5], 4, 8), ([17], [1], 1, 8)],
}


@pytest.mark.parametrize("store", [BF16, FP32])
@pytest.mark.parametrize("operator, size", [(name, size) for name, sizes in TINY.items() for size in sizes])
def test_no_correct_kernel_fails_on_a_tiny_shape(operator, size, store):
    example = EXAMPLES[operator]
    for seed in range(20):
        inputs = example.inputs(torch.Generator().manual_seed(seed), *size)
        golden, truth, result = example.golden(**inputs), example.truth(**inputs), example.kernel(**inputs)
        for name in golden:
            verdict = compare(name, result[name].to(store), golden[name].to(store), truth[name], example.spec, BF16)
            assert verdict.passed, (seed, verdict)


# Tiles


@pytest.mark.parametrize(
    "shape, tile",
    [
        ((64, 64), (16, 16)),
        ((2, 3, 20, 40), (16, 16)),
        ((1000,), (1, 256)),
        ((), (1, 1)),
        ((100, 4), (64, 4)),
        ((4, 100), (4, 64)),
        ((300, 8, 1), (32, 8)),
        ((40, 1, 40), (16, 16)),
        ((5, 3), (5, 3)),
    ],
)
def test_a_tile_has_256_elements_where_there_are_so_many(shape, tile):
    tiling = Tiling(shape)
    assert (tiling.height, tiling.width) == tile


@pytest.mark.parametrize("shape", [(40, 20), (3, 17, 33), (2, 1, 40, 7), (700,), (300, 8, 1), (4, 100), ()])
def test_tiles_cover_a_shape_and_know_where_they_are(shape):
    tiling = Tiling(shape)
    values = torch.rand(shape, dtype=FP64)
    sums = tiling.sums(values)
    counts = tiling.counts().expand_as(sums).flatten()
    assert counts.sum() == values.numel()
    for tile, total in enumerate(sums.flatten()):
        part = values[tuple(slice(*run) for run in tiling.span(tile))]
        assert part.numel() == counts[tile]
        torch.testing.assert_close(part.sum(), total)


def test_a_place_is_written_as_an_index():
    assert where(((3, 4), (0, 16))) == "[3, 0:16]"


# The picture


def test_the_picture_shows_every_floating_point_output(tmp_path):
    truth = {"y": randn(3, 40, 40), "l": randn(50), "index": torch.arange(4)}
    golden = {"y": truth["y"].bfloat16(), "l": truth["l"].float(), "index": truth["index"]}
    outputs = {name: tensor.clone() for name, tensor in golden.items()}
    outputs["y"][1, 16:32, :16] = 0
    outputs["l"][7] = torch.nan
    result = SimpleNamespace(case="B3", impl="general", run=SimpleNamespace(outputs=outputs))
    operator = SimpleNamespace(name="op", outputs=dict.fromkeys(golden, SPEC))
    path = tmp_path / "op.png"
    heatmap.draw(path, result, SimpleNamespace(golden=golden, truth=truth), operator)
    assert path.read_bytes().startswith(b"\x89PNG")
    _, ratios = tile_ratios(outputs["y"], golden["y"], truth["y"])
    assert ratios.shape == (3, 3, 3) and ratios.argmax() == 9 + 3
    _, ratios = tile_ratios(outputs["l"], golden["l"], truth["l"])
    assert ratios.isnan().all() and ratios.shape == (1, 1, 1)


def test_the_picture_of_nothing_is_an_error():
    index = {"index": torch.arange(4)}
    result = SimpleNamespace(case="a", impl="b", run=SimpleNamespace(outputs=index))
    with pytest.raises(ValueError, match="op: nothing to draw"):
        heatmap.draw(
            "x.png", result, SimpleNamespace(golden=index, truth=index), SimpleNamespace(name="op", outputs={})
        )
