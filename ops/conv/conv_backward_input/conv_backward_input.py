"""dx of a 2-D convolution: the gradient of its input, from the gradient of its output and the weight."""

from __future__ import annotations

import torch

from pypto_gym.ops.conv import limits, reference
from pypto_gym.ops.conv.conv_backward_input import conv_backward_input_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work


def _work(inputs):
    dy, w = inputs["grad_output"], inputs["weight"]
    dx = torch.Size(inputs["input_size"]).numel() * dy.element_size()
    return Work(cube_flops=2.0 * dy.numel() * w[0].numel(), bytes=dy.nbytes + w.nbytes + dx, dtype=dy.dtype)


def _executions(inputs, impl):
    dy, w = inputs["grad_output"], inputs["weight"]
    dx = torch.Size(inputs["input_size"]).numel() * dy.element_size()
    columns = dy.nbytes * w[0, 0].numel()
    return [Executions(1, (dy, w), (dx,), 3 * columns + 2 * dx + 2 * w.nbytes)]


OPERATOR = Operator(
    file=__file__,
    summary="gradient of a 2-D convolution's input, FP16 or BF16, any stride, padding and dilation",
    params=reference.PARAMS,
    golden=golden,
    impls={
        "general": "conv_backward_input_impl",
        "gemm": "conv_backward_input_impl_gemm",
        "a3": "conv_backward_input_impl_a3",
    },
    outputs={"dx": Output()},
    work=_work,
    sim_executions=_executions,
)


def conv_backward_input(grad_output, input_size, weight, stride=1, padding=0, dilation=1, groups=1, bias=None, impl=None):
    """dx[n, c, h, w] = sum over o, kh, kw of dy[n, o, i, j] * weight[o, c, kh, kw], h = i*stride + kh*dilation - padding.

    Args:
        grad_output: dy, FP16 or BF16 [N, Cout, Hout, Wout], contiguous.
        input_size: [N, Cin, Hin, Win] of dx: with a stride, several inputs have an output of one size.
        weight: [Cout, Cin, Kh, Kw] of dy's dtype.
        stride, padding, dilation: an int or a pair (height, width); padding is symmetric.
        groups, bias: 1 and None; there for the sentence.
        impl: "general", "gemm" or "a3"; default: a3.

    Returns:
        dx of dy's dtype, summed in FP32.

    Raises:
        TypeError, ValueError: an argument outside the limits; see ops/conv/limits.py.
    """
    stride, padding, dilation = limits.backward_input(
        grad_output, input_size, weight, stride, padding, dilation, groups, bias
    )
    dx = grad_output.new_empty(list(input_size))
    OPERATOR.launch(
        impl or "a3", grad_output=grad_output, weight=weight, dx=dx, input_size=list(input_size),
        stride=stride, padding=padding, dilation=dilation,
    )  # fmt: skip
    return dx


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
