"""Inputs, golden and truth of conv_backward_bias: pure torch."""

from __future__ import annotations

import torch

from pypto_gym.ops.conv.reference import DTYPES


def make_inputs(case, generator):
    """dy with a mean, so that the sum is not all cancellation."""
    dy = torch.randn(case["batch"], case["cout"], *case["size"], generator=generator) * 0.1 + 0.05
    return dict(grad_output=dy.to(DTYPES[case["dtype"]]))


def golden(*, grad_output, drop=None):
    """db, summed in FP32 and rounded once."""
    dy = grad_output.float()
    if drop == "row":
        dy = dy[:, :, :-1]
    return {"db": dy.sum((0, 2, 3)).to(grad_output.dtype)}


def truth(*, grad_output):
    """db in FP64."""
    return {"db": grad_output.double().sum((0, 2, 3))}


def terms(case):
    return ("row",) if case["size"][0] > 1 else ()
