"""y of a 2-D convolution without bias."""

from __future__ import annotations

from pypto_gym.ops.conv import limits, reference
from pypto_gym.ops.conv.conv_forward import conv_forward_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work


def _size(inputs):
    """[N, Cout, Hout, Wout]"""
    x, w = inputs["x"], inputs["weight"]
    geometry = zip(x.shape[2:], w.shape[2:], inputs["stride"], inputs["padding"], inputs["dilation"])
    return [x.shape[0], w.shape[0], *(limits.output_size(*args) for args in geometry)]


def _elements(size):
    return size[0] * size[1] * size[2] * size[3]


def _work(inputs):
    x, w = inputs["x"], inputs["weight"]
    y = _elements(_size(inputs))
    return Work(cube_flops=2.0 * y * w[0].numel(), bytes=x.nbytes + w.nbytes + y * 2, dtype=x.dtype)


def _executions(inputs, impl):
    x, w = inputs["x"], inputs["weight"]
    batch, _, height, width = _size(inputs)
    columns = batch * w[0].numel() * height * width * 2
    return [Executions(1, (x, w), (_elements(_size(inputs)) * 2,), 3 * columns + 3 * w.nbytes)]


OPERATOR = Operator(
    file=__file__,
    summary="2-D convolution as a GEMM over columns, FP16 or BF16, any stride, padding and dilation",
    params=reference.PARAMS,
    golden=golden,
    impls={"general": "conv_forward_impl"},
    outputs={"y": Output()},
    work=_work,
    sim_executions=_executions,
)


def conv_forward(x, weight, stride=1, padding=0, dilation=1, groups=1, bias=None):
    """y[n, o, i, j] = sum over c, kh, kw of x[n, c, i*stride + kh*dilation - padding, …] * weight[o, c, kh, kw].

    Args:
        x: FP16 or BF16 [N, Cin, H, W], contiguous.
        weight: [Cout, Cin, Kh, Kw] of x's dtype.
        stride, padding, dilation: an int or a pair (height, width); padding is symmetric.
        groups, bias: 1 and None.

    Returns:
        y [N, Cout, Hout, Wout] of x's dtype, summed in FP32.

    Raises:
        TypeError, ValueError: an argument outside the limits; see ops/conv/limits.py.
    """
    limits.tensor("x", x)
    limits.tensor("weight", weight, like=("x", x))
    stride, padding, dilation = limits.geometry(weight.shape[2:], 2, stride, padding, dilation, groups, bias)
    if x.shape[1] != weight.shape[1]:
        raise ValueError(f"x: got {x.shape[1]} channels, takes those of weight, Cin = {weight.shape[1]}")
    arguments = dict(x=x, weight=weight, stride=stride, padding=padding, dilation=dilation)
    size = _size(arguments)
    if min(size) < 1:
        raise ValueError(f"weight: got kernel {list(weight.shape[2:])}, takes one inside the padded input {list(x.shape[2:])}")
    y = x.new_empty(size)
    OPERATOR.launch("general", y=y, **arguments)
    return y


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
