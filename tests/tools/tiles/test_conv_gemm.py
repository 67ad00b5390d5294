"""Rules and solver of the implicit GEMM, against the kernel's own geometry and against the compiler."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from pypto_gym.ops.conv.geometry import Tiles
from pypto_gym.tools.tiles import conv_gemm
from pypto_gym.tools.tiles.conv_backward_input import Layer, networks

RESNET = networks()["resnet50"]


@some.composite
def layers(draw, most=300):
    kh, kw = draw(some.integers(1, 5)), draw(some.integers(1, 5))
    dilation = draw(some.tuples(some.integers(1, 2), some.integers(1, 2)))
    hin = draw(some.integers((kh - 1) * dilation[0] + 1, 60))
    win = draw(some.integers((kw - 1) * dilation[1] + 1, 60))
    padding = (draw(some.integers(0, (kh - 1) * dilation[0])), draw(some.integers(0, (kw - 1) * dilation[1])))
    stride = draw(some.tuples(some.integers(1, 3), some.integers(1, 3)))
    return Layer(
        draw(some.integers(1, 3)), draw(some.integers(1, most)), hin, win, draw(some.integers(1, most)), kh, kw,
        stride, padding, dilation,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(layers())
def test_what_solve_returns_is_legal_and_sorted(layer):
    choices = conv_gemm.solve(layer, 20)
    cycles = [choice.estimate.cycles for choice in choices]
    assert choices and cycles == sorted(cycles) and len({choice.tile for choice in choices}) == len(choices)
    for choice in choices:
        assert conv_gemm.check(layer, choice.tile) == []
        assert 0 < choice.estimate.fill <= 1 and max(choice.estimate.memory.values()) <= 1


@pytest.mark.parametrize("name,layer", RESNET.items())
def test_every_layer_of_resnet50_in_under_a_second(name, layer):
    start = time.process_time()
    best = conv_gemm.solve(layer, 1)[0]
    assert time.process_time() - start < 1
    assert conv_gemm.check(layer, best.tile) == []


def test_all_violations_at_once():
    layer = RESNET["layer4.conv2"]
    broken = [str(v) for v in conv_gemm.check(layer, Tiles(7, (128, 128), (24, 384), (64, 64), 512, 2048))]
    assert broken[0] == "align: kL0 = 24, takes multiples of 16 (32 bytes, and 16 elements); nearest: kL0 = 16"
    assert [b.split(":")[0] for b in broken] == ["align", "UB", "UB"]
    broken = [str(v) for v in conv_gemm.check(layer, Tiles(8, (128, 128), (128, 384), (64, 64), 513, 0))]
    assert broken == [
        "range: rows = 8, takes 1 to 7; nearest: rows = 7",
        "range: channels = 513, takes 1 to 512; nearest: channels = 512",
        "range: pack = 0, takes 1 or more; nearest: pack = 1",
    ]


def test_transposes_that_are_joined_need_room_for_two():
    """2048 pairs of a 3x3 kernel fit UB once; of 512 x 512 channels more than 48 tasks are joined, and that does not."""
    small, large = RESNET["layer2.conv2"], RESNET["layer4.conv2"]
    tile = Tiles(7, (64, 64), (128, 512), (64, 64), 64, 2048)
    assert conv_gemm.check(small, tile._replace(n=(208, 208), k=(128, 256))) == []
    [broken] = conv_gemm.check(large, tile)
    assert "transposes of the weight: pack" in str(broken)
    assert conv_gemm.check(large, tile._replace(pack=broken.nearest["pack"])) == []


def test_an_illegal_tile_has_no_estimate():
    with pytest.raises(ValueError, match="tile: range: rows = 0"):
        conv_gemm.estimate(RESNET["layer2.conv2"], Tiles(0, (64, 64), (128, 256), (112, 112), 64, 1024))


ODD = [
    Layer(1, 20, 5, 7, 13, 3, 3, padding=(1, 1)),
    Layer(2, 17, 11, 13, 9, 3, 2, stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    Layer(1, 5, 23, 19, 33, 5, 5, stride=(3, 3), padding=(2, 2)),
    Layer(1, 48, 10, 10, 40, 1, 1, stride=(2, 2)),
]


@pytest.mark.sim
@pytest.mark.parametrize("layer", ODD, ids=lambda layer: f"{layer.cin}x{layer.hin}-{layer.cout}x{layer.kh}")
def test_the_compiler_takes_the_first_choice(layer):
    """The kernel with the solver's tiles compiles, passes verification and computes dx."""
    from pypto_gym.tools.harness import registry
    from pypto_gym.tools.harness.backends import process

    operator = registry.load("conv_backward_input")
    case = dict(
        batch=layer.batch, cin=layer.cin, cout=layer.cout, size=[layer.hin, layer.win], kernel=[layer.kh, layer.kw],
        stride=list(layer.stride), padding=list(layer.padding), dilation=list(layer.dilation), dtype="bf16",
    )  # fmt: skip
    inputs = operator.golden.make_inputs(case, torch.Generator().manual_seed(0))
    dx = torch.full(inputs["input_size"], float("nan"), dtype=torch.bfloat16)
    run = process.run(operator, "a3", {**inputs, "dx": dx}, backend="sim", memory=4 << 30, timeout=300)
    assert not run.error and all(set(verdicts) == {"PASS"} for verdicts in run.passes.values())
    torch.testing.assert_close(run.outputs["dx"].double(), operator.golden.truth(**inputs)["dx"], rtol=2**-7, atol=1e-2)


@pytest.mark.sim
@pytest.mark.parametrize("name", ["layer2.conv2", "layer4.conv1"])
def test_the_estimate_is_within_a_half_of_the_simulation(name):
    from pypto_gym.tools.harness import registry
    from pypto_gym.tools.harness.backends import process

    layer, operator = RESNET[name], registry.load("conv_backward_input")
    tensors = dict(
        grad_output=torch.zeros(layer.batch, layer.cout, layer.hout, layer.wout, dtype=torch.bfloat16),
        weight=torch.zeros(layer.cout, layer.cin, layer.kh, layer.kw, dtype=torch.bfloat16),
        dx=torch.zeros(layer.batch, layer.cin, layer.hin, layer.win, dtype=torch.bfloat16),
        input_size=[layer.batch, layer.cin, layer.hin, layer.win],
        stride=layer.stride, padding=layer.padding, dilation=layer.dilation,
    )  # fmt: skip
    run = process.run(operator, "a3", tensors, backend="sim", memory=4 << 30, timeout=300, numbers=False)
    assert 2 / 3 < conv_gemm.solve(layer, 1)[0].estimate.cycles / run.cycles < 3 / 2
