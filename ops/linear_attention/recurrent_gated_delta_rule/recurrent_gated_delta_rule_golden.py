"""Inputs, golden and truth of recurrent_gated_delta_rule: pure torch. The formula stands in `reference.py`."""

from __future__ import annotations

import torch

from pypto_gym.ops.linear_attention import reference


def make_inputs(case, generator):
    """Arguments of `launch`, as `reference.model_like` draws them."""
    gate, beta = ("model" if case[name] is None else case[name] for name in ("gate", "beta"))
    inputs = reference.model_like(
        case["tokens"], case["qk_heads"], case["value_heads"], case["key_dim"], case["value_dim"],
        getattr(torch, case["dtype"]), generator, gate=gate, beta=beta,
    )  # fmt: skip
    inputs["state"] = inputs.pop("initial_state")
    return inputs


def golden(*, q, v, g, beta, state, drop=None, **inputs):
    """o and the new state token by token in FP32, as the kernel computes them; o is then rounded to the dtype of v.

    drop: "state" (nothing is remembered from before the call), "gate" (no decay), "beta" (all ones) or "scale".
    """
    g = torch.zeros_like(g) if drop == "gate" else g
    beta = torch.ones_like(beta) if drop == "beta" else beta
    initial = torch.zeros_like(state) if drop == "state" else state
    o, state = reference.recurrent(q=q, v=v, g=g, beta=beta, initial_state=initial, **inputs, dtype=torch.float32)
    if drop == "scale":
        o = o * q.shape[-1] ** 0.5
    return {"o": o.to(v.dtype), "state": state}


def truth(*, state, **inputs):
    """Token by token in FP64."""
    o, state = reference.recurrent(initial_state=state, **inputs)
    return {"o": o, "state": state}


def output_shapes(*, v, state, **_):
    """Name -> (shape, dtype) of the outputs."""
    return {"o": (tuple(v.shape), v.dtype), "state": (tuple(state.shape), torch.float32)}


def terms(case):
    """What `golden(drop=…)` can leave out so that a comparison must see it."""
    names = ["scale"]
    if case["beta"] != 1:
        names.append("beta")
    if case["gate"] != 0:
        names.append("gate")
    if case["gate"] is None or case["gate"] > -10:  # else the state from before is gone
        names.append("state")
    return tuple(names)
