"""dW of a 2-D convolution: the gradient of its weight."""

from __future__ import annotations

from pypto_gym.ops.conv import limits, reference
from pypto_gym.ops.conv.conv_backward_weight import conv_backward_weight_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work


def _work(inputs):
    x, dy, (cout, cin, kh, kw) = inputs["x"], inputs["grad_output"], inputs["weight_size"]
    flops = 2.0 * dy.numel() * cin * kh * kw
    return Work(cube_flops=flops, bytes=x.nbytes + dy.nbytes + cout * cin * kh * kw * 2, dtype=x.dtype)


def _executions(inputs, impl):
    x, dy, (cout, cin, kh, kw) = inputs["x"], inputs["grad_output"], inputs["weight_size"]
    columns = dy.nbytes // cout * cin * kh * kw
    return [Executions(1, (x, dy), (cout * cin * kh * kw * 2,), 3 * columns + 2 * dy.nbytes)]


OPERATOR = Operator(
    file=__file__,
    summary="gradient of a 2-D convolution's weight, FP16 or BF16, any stride, padding and dilation",
    params=reference.PARAMS,
    golden=golden,
    impls={"general": "conv_backward_weight_impl"},
    outputs={"dw": Output()},
    work=_work,
    sim_executions=_executions,
)


def conv_backward_weight(x, weight_size, grad_output, stride=1, padding=0, dilation=1, groups=1, bias=None):
    """dW[o, c, kh, kw] = sum over n, i, j of dy[n, o, i, j] * x[n, c, i*stride + kh*dilation - padding, …].

    Args:
        x: FP16 or BF16 [N, Cin, H, W], contiguous.
        weight_size: [Cout, Cin, Kh, Kw].
        grad_output: dy [N, Cout, Hout, Wout] of x's dtype.
        stride, padding, dilation: an int or a pair (height, width); padding is symmetric.
        groups, bias: 1 and None.

    Returns:
        dW of x's dtype, summed in FP32.

    Raises:
        TypeError, ValueError: an argument outside the limits; see ops/conv/limits.py.
    """
    limits.tensor("grad_output", grad_output)
    limits.tensor("x", x, like=("grad_output", grad_output))
    if not isinstance(weight_size, (tuple, list)) or len(weight_size) != 4:
        raise TypeError(f"weight_size: got {weight_size!r}, takes four ints, [Cout, Cin, Kh, Kw]")
    stride, padding, dilation = limits.geometry(weight_size[2:], 2, stride, padding, dilation, groups, bias)
    limits.shapes(tuple(grad_output.shape), tuple(x.shape), tuple(weight_size), stride, padding, dilation, "x")
    dw = x.new_empty(list(weight_size))
    OPERATOR.launch(
        "general", x=x, grad_output=grad_output, dw=dw, weight_size=list(weight_size),
        stride=stride, padding=padding, dilation=dilation,
    )  # fmt: skip
    return dw


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
