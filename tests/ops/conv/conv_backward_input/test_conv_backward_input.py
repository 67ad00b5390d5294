"""What the case matrix cannot say: bad input, the proof of the golden, the geometry of the phases, the tiles."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pypto_gym.ops.conv import limits, reference
from pypto_gym.ops.conv.conv_backward_input import conv_backward_input_golden as golden
from pypto_gym.ops.conv.conv_backward_input.conv_backward_input import conv_backward_input
from pypto_gym.tools.tiles import conv_backward_input as conv_tiles
from pypto_gym.tools.tiles import conv_gemm


def _good():
    return {
        "grad_output": torch.zeros(2, 16, 4, 5).half(),
        "input_size": [2, 8, 8, 10],
        "weight": torch.zeros(16, 8, 3, 3).half(),
        "stride": 2,
        "padding": 1,
    }


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"grad_output": [1.0]}, TypeError, "grad_output: got list, takes a torch.Tensor"),
        ({"grad_output": torch.zeros(2, 16, 4, 5)}, TypeError, "grad_output: got float32, takes float16 or bfloat16"),
        ({"weight": torch.zeros(16, 8, 3, 3).bfloat16()}, TypeError, "weight: got bfloat16, takes that of grad_output, float16"),
        ({"weight": torch.zeros(16, 8, 3).half()}, ValueError, "weight: got shape [16, 8, 3], takes 4 dimensions"),
        ({"weight": torch.zeros(16, 8, 0, 3).half()}, ValueError, "weight: got shape [16, 8, 0, 3], takes no empty dimension"),
        ({"weight": torch.zeros(16, 8, 3, 3, device="meta").half()}, ValueError, "weight: got a tensor on meta, takes one on cpu"),
        ({"grad_output": torch.zeros(2, 4, 5, 16).half().permute(0, 3, 1, 2)}, ValueError, "takes a contiguous tensor; call .contiguous()"),
        ({"grad_output": torch.zeros(2, 15, 4, 5).half()}, ValueError, "grad_output: got 15 channels, takes those of weight, Cout = 16"),
        ({"input_size": [8, 10]}, TypeError, "input_size: got [8, 10], takes four ints, [N, Cin, Hin, Win]"),
        ({"input_size": [2, 9, 8, 10]}, ValueError, "input_size: got N = 2 and Cin = 9, takes 2 of grad_output and 8 of weight"),
        ({"input_size": [2, 8, 6, 10]}, ValueError, "input_size: got 6 along H, takes 7 to 8"),
        ({"input_size": [2, 8, 8, 11]}, ValueError, "input_size: got 11 along W, takes 9 to 10"),
        ({"stride": 64}, ValueError, "stride: got (64, 64), takes 1 to 63 each"),
        ({"stride": 2.0}, TypeError, "stride: got 2.0, takes an int or a pair of ints"),
        ({"dilation": (0, 1)}, ValueError, "dilation: got (0, 1), takes 1 to 63 each"),
        ({"padding": (1, 1, 1, 1)}, TypeError, "padding: got (1, 1, 1, 1), takes an int or a pair of ints"),
        ({"padding": 256}, ValueError, "padding: got (256, 256), takes 0 to 255 each"),
        ({"padding": 3}, ValueError, "padding: got 3 along H, takes less than (K-1)*dilation+1 = 3"),
        ({"groups": 2}, ValueError, "groups: got 2, takes 1"),
        ({"bias": torch.zeros(16)}, ValueError, "bias: got one, takes None"),
        ({"weight": torch.zeros(16, 8, 256, 1).half()}, ValueError, "weight: got (256, 1), takes 1 to 255 each"),
        ({"weight": torch.zeros(16, 8, 65, 64).half()}, ValueError, "weight: got kernel 65x64, takes Kh*Kw*32/2 up to 65535"),
        ({"impl": "fast"}, ValueError, "impl: got 'fast', conv_backward_input has general, gemm, a3"),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, error, message):
    with pytest.raises(error) as caught:
        conv_backward_input(**{**_good(), **change})
    assert message in str(caught.value)


CASES = [
    dict(size=[8, 10], kernel=[3, 3], stride=[2, 2], padding=[1, 1], dilation=[1, 1]),
    dict(size=[9, 9], kernel=[3, 5], stride=[1, 3], padding=[0, 2], dilation=[2, 1]),
]


@pytest.mark.parametrize("shape", CASES)
def test_golden_and_truth_are_the_gradient(shape):
    """Against autograd through conv2d, in FP64; and the golden, given FP64-exact inputs, within FP32 of it."""
    case = dict(batch=2, cin=5, cout=6, dtype="fp16", **shape)
    inputs = golden.make_inputs(case, torch.Generator().manual_seed(0))
    x = torch.zeros(inputs["input_size"], dtype=torch.float64, requires_grad=True)
    y = torch.nn.functional.conv2d(x, inputs["weight"].double(), None, **reference.layer(case).geometry())
    (expected,) = torch.autograd.grad(y, x, inputs["grad_output"].double())
    torch.testing.assert_close(golden.truth(**inputs)["dx"], expected)
    torch.testing.assert_close(golden.golden(**inputs)["dx"].double(), expected, rtol=2**-10, atol=1e-6)


def test_input_range_is_what_the_output_size_says():
    for size in range(1, 9):
        for k, s, p, d in ((3, 2, 1, 1), (5, 3, 2, 2), (1, 2, 0, 1), (7, 2, 3, 1)):
            low, high = limits.input_range(size, k, s, p, d)
            assert [n for n in range(1, 80) if limits.output_size(n, k, s, p, d) == size] == list(range(max(1, low), high + 1))


def test_phases_are_the_gradient():
    """The blocks of the kernel, summed with torch: dx at row stride*q + phase is the sum over its blocks."""
    from pypto_gym.tools import runtime

    runtime.prepare()
    from pypto_gym.ops.conv import atoms

    for kernel, stride, padding, dilation in ((3, 2, 1, 1), (5, 3, 2, 2), (1, 2, 0, 1), (3, 1, 0, 2)):
        dy, w = torch.randn(6, dtype=torch.float64), torch.randn(kernel, dtype=torch.float64)
        n = limits.input_range(6, kernel, stride, padding, dilation)[1]
        dx = torch.zeros(n, dtype=torch.float64)
        for (phase, _), blocks in atoms.phases((kernel, 1), (stride, 1), (padding, 0), (dilation, 1)).items():
            for q, h in enumerate(range(phase, n, stride)):
                rows = [(b.position, q + b.shift_h) for b in blocks]
                dx[h] = sum(w[k] * dy[i] for k, i in rows if 0 <= i < 6)
        x = torch.zeros(1, 1, n, dtype=torch.float64, requires_grad=True)
        y = torch.nn.functional.conv1d(x, w.view(1, 1, -1), None, stride, padding, dilation)
        torch.testing.assert_close(dx, torch.autograd.grad(y, x, dy.view(1, 1, -1))[0].view(-1))


@pytest.mark.parametrize("name,layer", conv_tiles.networks()["resnet50"].items())
def test_tiles_are_the_solvers(name, layer):
    from pypto_gym.tools import runtime

    runtime.prepare()
    from pypto_gym.ops.conv.conv_backward_input import conv_backward_input_impl as native
    from pypto_gym.ops.conv.conv_backward_input import conv_backward_input_impl_a3 as a3

    values = [getattr(layer, field.name) for field in dataclasses.fields(layer) if field.name != "dtype"]
    assert conv_tiles.check(layer, conv_tiles.Tile.of(*native.tiles(*values))) == []
    assert conv_gemm.check(layer, a3.tiles(*values)) == []


def test_a_layer_without_a_native_tile_still_has_tiles():
    """31 x 31 on 64 columns: the halo alone is more than L1 holds. The polyfill computes it all the same."""
    from pypto_gym.tools import runtime

    runtime.prepare()
    from pypto_gym.ops.conv.conv_backward_input import conv_backward_input_impl as native

    layer = 1, 64, 64, 64, 128, 31, 31, (1, 1), (15, 15), (1, 1)
    assert native.tiles(*layer) == ((16, 16 * 31 * 31, 16), (16, 16, 16))


@pytest.mark.parametrize("width", [1, 7, 14, 28, 56, 112, 224, 300])
def test_default_tiles_are_legal(width):
    from pypto_gym.tools import runtime

    runtime.prepare()
    from pypto_gym.ops.conv import atoms

    for cin, cout in ((3, 64), (13, 20), (128, 128), (512, 2048)):
        tiles = atoms.default_tiles(cin, cout, width, width)
        layer = conv_tiles.Layer(1, cin, width, width, cout, 3, 3, padding=(1, 1))
        assert conv_gemm.check(layer, tiles) == []


def test_tile_shapes_belong_to_a_function():
    from pypto_gym.tools import runtime

    runtime.prepare()
    import pypto

    tiles = pypto.ConvBpTileL1Info(16, 144, 16), pypto.ConvBpTileL0Info(16, 16, 16)
    with pytest.raises(RuntimeError, match="outside of pypto.function or a jit kernel"):
        pypto.set_convbp_input_tile_shapes(*tiles)
    with pytest.raises(RuntimeError, match="outside of pypto.function or a jit kernel"):
        pypto.get_convbp_input_tile_shapes()


@pytest.mark.sim
def test_native_call_in_a_function():
    """In a process of its own: what other kernels left in PyPTO is not this call's business, nor its crash that of others."""
    script = Path(__file__).with_name("native_call.py")
    outcome = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
