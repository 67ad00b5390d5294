"""What the case matrix cannot say: bad input, and a network that trains."""

import pytest
import torch

from pypto_gym.ops.conv.conv_backward_bias.conv_backward_bias import conv_backward_bias
from pypto_gym.ops.conv.conv_backward_input.conv_backward_input import conv_backward_input
from pypto_gym.ops.conv.conv_backward_weight.conv_backward_weight import conv_backward_weight
from pypto_gym.ops.conv.conv_forward.conv_forward import conv_forward


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": torch.zeros(1, 8, 6, 6)}, TypeError, "x: got float32, takes float16 or bfloat16"),
        ({"x": torch.zeros(1, 7, 6, 6).half()}, ValueError, "x: got 7 channels, takes those of weight, Cin = 8"),
        ({"x": torch.zeros(1, 8, 2, 2).half()}, ValueError, "weight: got kernel [3, 3], takes one inside the padded input [2, 2]"),
        ({"weight": torch.zeros(16, 8, 3, 3).bfloat16()}, TypeError, "weight: got bfloat16, takes that of x, float16"),
        ({"groups": 8}, ValueError, "groups: got 8, takes 1"),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, error, message):
    good = {"x": torch.zeros(1, 8, 6, 6).half(), "weight": torch.zeros(16, 8, 3, 3).half()}
    with pytest.raises(error) as caught:
        conv_forward(**{**good, **change})
    assert message in str(caught.value)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, stride):
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        return conv_forward(x, weight, stride, 1) + bias.view(1, -1, 1, 1)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dy = dy.contiguous()
        dx = conv_backward_input(dy, list(x.shape), weight, ctx.stride, 1)
        dw = conv_backward_weight(x, list(weight.shape), dy, ctx.stride, 1)
        return dx, dw, conv_backward_bias(dy), None


@pytest.mark.sim
def test_two_layers_train():
    """One step of two layers, the second with a stride, against torch in FP64."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 16, 6, 6, generator=generator)
    w1, w2 = (torch.randn(16, 16, 3, 3, generator=generator) / 8 for _ in range(2))
    b1, b2 = (torch.randn(16, generator=generator) / 8 for _ in range(2))

    def step(convolution, dtype):
        parameters = [p.to(torch.float16).to(dtype).requires_grad_() for p in (x, w1, b1, w2, b2)]
        hidden = convolution(parameters[0], parameters[1], parameters[2], 1).relu()
        loss = convolution(hidden, parameters[3], parameters[4], 2).square().mean()
        return torch.autograd.grad(loss, parameters)

    def exact(x, weight, bias, stride):
        return torch.nn.functional.conv2d(x, weight, bias, stride, 1)

    for got, want in zip(step(_Convolution.apply, torch.float16), step(exact, torch.float64)):
        assert (got.double() - want).norm() <= 5e-3 * want.norm()
