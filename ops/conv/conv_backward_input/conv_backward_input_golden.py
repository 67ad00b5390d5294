"""Inputs, golden and truth of conv_backward_input: pure torch."""

from __future__ import annotations

import torch

from pypto_gym.ops.conv import reference


def make_inputs(case, generator):
    """dy of unit variance; the weight scaled as at initialisation (Kaiming, fan-in), so that dx has about unit variance."""
    layer = reference.layer(case)
    low = layer.output_sizes()
    dtype = reference.DTYPES[case["dtype"]]
    dy = torch.randn(layer.batch, layer.cout, *low, generator=generator).to(dtype)
    return dict(
        grad_output=dy,
        weight=reference.weight(layer, generator).to(dtype),
        input_size=[layer.batch, layer.cin, *layer.size],
        **layer.geometry(),
    )


def golden(*, grad_output, weight, input_size, stride, padding, dilation, drop=None):
    """dx, summed in FP32 and rounded once: what a cube accumulator in L0C does."""
    weight = reference.dropped(weight.float(), drop)
    dx = torch.ops.aten.convolution_backward(
        grad_output.float(), grad_output.new_zeros(input_size, dtype=torch.float32), weight, None,
        stride, padding, dilation, False, [0, 0], 1, [True, False, False],
    )[0]  # fmt: skip
    return {"dx": dx.to(grad_output.dtype)}


def truth(*, grad_output, weight, input_size, stride, padding, dilation):
    """dx in FP64."""
    return {
        "dx": torch.nn.grad.conv2d_input(input_size, weight.double(), grad_output.double(), stride, padding, dilation)
    }


terms = reference.terms
