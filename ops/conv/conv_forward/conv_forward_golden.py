"""Inputs, golden and truth of conv_forward: pure torch."""

from __future__ import annotations

import torch

from pypto_gym.ops.conv import reference


def make_inputs(case, generator):
    """x of unit variance, rectified as a layer's input is; the weight scaled as at initialisation."""
    layer = reference.layer(case)
    dtype = reference.DTYPES[case["dtype"]]
    x = torch.randn(layer.batch, layer.cin, *layer.size, generator=generator).relu().to(dtype)
    return dict(x=x, weight=reference.weight(layer, generator).to(dtype), **layer.geometry())


def golden(*, x, weight, stride, padding, dilation, drop=None):
    """y, summed in FP32 and rounded once."""
    weight = reference.dropped(weight.float(), drop)
    y = torch.nn.functional.conv2d(x.float(), weight, None, stride, padding, dilation)
    return {"y": y.to(x.dtype)}


def truth(*, x, weight, stride, padding, dilation):
    """y in FP64."""
    return {"y": torch.nn.functional.conv2d(x.double(), weight.double(), None, stride, padding, dilation)}


terms = reference.terms
