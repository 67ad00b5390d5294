"""Inputs, golden and truth of chunked_gated_delta_rule: pure torch. The formulas stand in `reference.py`."""

from __future__ import annotations

import torch

from pypto_gym.ops.linear_attention import reference


def make_inputs(case, generator):
    """Arguments of `launch`, as `reference.model_like` draws them; `shared` weighs what all keys of a head have in common."""
    gate, beta = ("model" if case[name] is None else case[name] for name in ("gate", "beta"))
    return reference.model_like(
        case["lengths"], case["qk_heads"], case["value_heads"], case["key_dim"], case["value_dim"],
        getattr(torch, case["dtype"]), generator, gate=gate, beta=beta,
    ) | {"chunk_size": case["chunk_size"]}  # fmt: skip


def golden(*, v, drop=None, **inputs):
    """o and final_state chunk by chunk in FP32, as the kernel computes them; o is then rounded to the dtype of v."""
    o, state = reference.chunked(v=v, drop=drop, **inputs)
    return {"o": o.to(v.dtype), "final_state": state}


def truth(*, chunk_size, **inputs):
    """Token by token in FP64."""
    o, state = reference.recurrent(**inputs)
    return {"o": o, "final_state": state}


def output_shapes(*, v, initial_state, **_):
    """Name -> (shape, dtype) of the outputs."""
    return {"o": (tuple(v.shape), v.dtype), "final_state": (tuple(initial_state.shape), torch.float32)}


def terms(case):
    """What `golden(drop=…)` can leave out so that a comparison must see it; `reference.chunked` says what each is."""
    length, names = max(case["lengths"]), ["scale"]
    if case["beta"] != 1:
        names.append("beta")
    if case["gate"] != 0:
        names.append("gate")
    if case["gate"] is None or case["gate"] > -10:  # else nothing survives from one token to the next
        if length > 1 and case["beta"] != 0:
            names.append("inverse")
        if length > case["chunk_size"]:
            names.append("state")
    return tuple(names)
