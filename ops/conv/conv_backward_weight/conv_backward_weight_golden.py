"""Inputs, golden and truth of conv_backward_weight: pure torch."""

from __future__ import annotations

import torch

from pypto_gym.ops.conv import reference


def make_inputs(case, generator):
    """x as a layer's rectified input; dy scaled by the number of terms in the sum, so that dW has about unit variance."""
    layer = reference.layer(case)
    dtype = reference.DTYPES[case["dtype"]]
    height, width = layer.output_sizes()
    x = torch.randn(layer.batch, layer.cin, *layer.size, generator=generator).relu()
    dy = torch.randn(layer.batch, layer.cout, height, width, generator=generator) * (2 / (layer.batch * height * width)) ** 0.5
    return dict(
        x=x.to(dtype), grad_output=dy.to(dtype), weight_size=[layer.cout, layer.cin, *layer.kernel], **layer.geometry()
    )


def golden(*, x, grad_output, weight_size, stride, padding, dilation, drop=None):
    """dW, summed in FP32 and rounded once."""
    dy = grad_output.float()
    if drop == "row":
        dy = dy.clone()
        dy[:, :, -1] = 0
    dw = torch.ops.aten.convolution_backward(
        dy, x.float(), x.new_zeros(weight_size, dtype=torch.float32), None,
        stride, padding, dilation, False, [0, 0], 1, [False, True, False],
    )[1]  # fmt: skip
    return {"dw": dw.to(x.dtype)}


def truth(*, x, grad_output, weight_size, stride, padding, dilation):
    """dW in FP64."""
    return {
        "dw": torch.nn.grad.conv2d_weight(x.double(), weight_size, grad_output.double(), stride, padding, dilation)
    }


def terms(case):
    return ("row",)
