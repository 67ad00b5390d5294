"""Inputs, golden and truth of c = op(a) @ op(b). Pure torch."""

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def make_inputs(case, generator):
    """Activations of unit variance and a weight scaled by 1/sqrt(k), so that c has unit variance."""
    m, k, n, dtype = case["m"], case["k"], case["n"], DTYPES[case["dtype"]]
    a = torch.randn((k, m) if case["a_trans"] else (m, k), generator=generator)
    b = torch.randn((n, k) if case["b_trans"] else (k, n), generator=generator) / k**0.5
    return {"a": a.to(dtype), "b": b.to(dtype), "a_trans": case["a_trans"], "b_trans": case["b_trans"]}


def _operands(a, b, a_trans, b_trans, dtype):
    a, b = a.to(dtype), b.to(dtype)
    return a.T if a_trans else a, b.T if b_trans else b


def golden(*, a, b, a_trans, b_trans, drop=None):
    """Accumulated in FP32, rounded once. `drop="tail"` leaves out the last element of the K axis."""
    left, right = _operands(a, b, a_trans, b_trans, torch.float32)
    if drop == "tail":
        left, right = left[:, :-1], right[:-1]
    return {"c": (left @ right).to(a.dtype)}


def truth(*, a, b, a_trans, b_trans):
    """In FP64."""
    left, right = _operands(a, b, a_trans, b_trans, torch.float64)
    return {"c": left @ right}


def terms(case):
    return ("tail",)


def output_shapes(*, a, b, a_trans, b_trans):
    """Shape and dtype of the output, without computing it."""
    return {"c": ((a.shape[1] if a_trans else a.shape[0], b.shape[0] if b_trans else b.shape[1]), a.dtype)}
