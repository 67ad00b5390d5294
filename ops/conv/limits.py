"""What the convolution operators take, checked on the host before anything is compiled. Each error names the argument.

The limits are those that PyPTO documents for `conv_backward_input`; the other operators of the family share them.
"""

from __future__ import annotations

import torch

from pypto_gym.ops import checks

DTYPES = (torch.float16, torch.bfloat16)
KERNEL_BYTES = 65535


def tensor(name: str, x, rank: int = 4, like: tuple[str, torch.Tensor] | None = None) -> None:
    """`x` is a contiguous FP16 or BF16 tensor of `rank` dimensions, none empty; of the dtype and device of `like`."""
    checks.tensor(name, x, DTYPES, rank)
    if 0 in x.shape:
        raise ValueError(f"{name}: got shape {list(x.shape)}, takes no empty dimension")
    if like is not None:
        other, y = like
        if x.dtype != y.dtype:
            raise TypeError(f"{name}: got {checks.short(x.dtype)}, takes that of {other}, {checks.short(y.dtype)}")
        if x.device != y.device:
            raise ValueError(f"{name}: got a tensor on {x.device}, takes one on {y.device}, where {other} is")


def pair(name: str, value, low: int, high: int) -> tuple[int, int]:
    """(height, width) from an int or a pair of ints, each from `low` to `high`."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value, value)
    ok = isinstance(value, (tuple, list)) and len(value) == 2
    if not ok or any(not isinstance(v, int) or isinstance(v, bool) for v in value):
        raise TypeError(f"{name}: got {value!r}, takes an int or a pair of ints")
    if not all(low <= v <= high for v in value):
        raise ValueError(f"{name}: got {tuple(value)}, takes {low} to {high} each")
    return tuple(value)


def geometry(kernel, element_size: int, stride, padding, dilation, groups: int = 1, bias=None):
    """(stride, padding, dilation) as pairs, after all limits that concern the kernel window.

    kernel         (Kh, Kw)
    element_size   bytes of an element

    Raises ValueError, TypeError: a stride or dilation outside 1..63; a padding outside 0..255 or not below the window;
    a kernel outside 1..255 or with Kh * Kw * 32 / element_size above 65535; groups other than 1; a bias.
    """
    if groups != 1:
        raise ValueError(f"groups: got {groups}, takes 1")
    if bias is not None:
        raise ValueError("bias: got one, takes None: its gradient is conv_backward_bias")
    stride, dilation = pair("stride", stride, 1, 63), pair("dilation", dilation, 1, 63)
    padding = pair("padding", padding, 0, 255)
    pair("weight", tuple(kernel), 1, 255)
    if kernel[0] * kernel[1] * 32 // element_size > KERNEL_BYTES:
        raise ValueError(
            f"weight: got kernel {kernel[0]}x{kernel[1]}, takes Kh*Kw*32/{element_size} up to {KERNEL_BYTES}, "
            f"that is {KERNEL_BYTES * element_size // 32} positions"
        )
    for axis, p, k, d in zip("HW", padding, kernel, dilation):
        window = (k - 1) * d + 1
        if p >= window:
            raise ValueError(f"padding: got {p} along {axis}, takes less than (K-1)*dilation+1 = {window}")
    return stride, padding, dilation


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Height or width of a convolution's output."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def input_range(size: int, kernel: int, stride: int, padding: int, dilation: int) -> tuple[int, int]:
    """The smallest and the largest input height or width whose output has this `size`."""
    low = (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
    return low, low + stride - 1


def backward_input(grad_output, input_size, weight, stride, padding, dilation, groups=1, bias=None):
    """Checks all arguments of conv_backward_input; returns (stride, padding, dilation) as pairs."""
    tensor("grad_output", grad_output)
    tensor("weight", weight, like=("grad_output", grad_output))
    kernel = tuple(weight.shape[2:])
    stride, padding, dilation = geometry(kernel, weight.element_size(), stride, padding, dilation, groups, bias)
    shapes(tuple(grad_output.shape), input_size, tuple(weight.shape), stride, padding, dilation)
    return stride, padding, dilation


def shapes(grad_output, input_size, weight, stride, padding, dilation, name="input_size") -> None:
    """Shapes that belong together: grad_output [N, Cout, Hout, Wout], input_size [N, Cin, Hin, Win], weight OIHW.

    name   what the caller calls input_size
    """
    if not isinstance(input_size, (tuple, list, torch.Size)) or len(input_size) != 4:
        raise TypeError(f"{name}: got {input_size!r}, takes four ints, [N, Cin, Hin, Win]")
    if grad_output[1] != weight[0]:
        raise ValueError(f"grad_output: got {grad_output[1]} channels, takes those of weight, Cout = {weight[0]}")
    if input_size[0] != grad_output[0] or input_size[1] != weight[1]:
        raise ValueError(
            f"{name}: got N = {input_size[0]} and Cin = {input_size[1]}, "
            f"takes {grad_output[0]} of grad_output and {weight[1]} of weight"
        )
    for i, axis in enumerate("HW"):
        low, high = input_range(grad_output[2 + i], weight[2 + i], stride[i], padding[i], dilation[i])
        if not max(low, 1) <= input_size[2 + i] <= high:
            raise ValueError(f"{name}: got {input_size[2 + i]} along {axis}, takes {max(low, 1)} to {high}")
