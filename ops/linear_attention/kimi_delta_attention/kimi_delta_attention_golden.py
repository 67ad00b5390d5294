"""Inputs, golden and truth of kimi_delta_attention: pure torch.

The delta rule with a gate per key channel (`reference.recurrent` with g of [T, Hv, Dk]). In a chunk, with G the running
sum of g, [C, Dk], and all of the shape [C, Dk] or [C, C]:

    A_ij   = beta_i sum_d k_id k_jd exp(G_id - G_jd)   for i > j        att_ij = sum_d q_id k_jd exp(G_id - G_jd), i >= j
    T      = (I + A)^-1        U = T diag(beta) V        W = T (diag(beta) K * exp(G))        V' = U - W S
    o      = (Q * exp(G)) S + att V'
    S     <- exp(G_last) S + (K * exp(G_last - G))^T V'          exp(G_last) scales the rows of S

exp(G_i - G_j) is at most 1, but its factors exp(G_i) and exp(-G_j) are not: with gates of -30 a chunk of 64 would need
exp(1920). So the pairs are taken level by level: at level b = 1, 2, 4, … i lies in the second and j in the first half of
a block of 2b tokens, whose middle is the reference r: exp(G_i - G_r) and exp(G_r - G_j) are both at most 1, their
product is exact, and one product of matrices makes all pairs of a level. What underflows is 0 in the product as well.
Each exponent is a sum of gates (0/1 matrix times g), not a difference of running sums, which would cancel.
Source: Kimi Linear (arXiv:2510.26692) for the rule; the levels are those of the triangular inverse in `atoms.inverse`.
"""

from __future__ import annotations

import torch

from pypto_gym.ops.linear_attention import reference


def make_inputs(case, generator):
    """Arguments of `launch`: as `reference.model_like`, with a gate for every key channel."""
    gate, beta = ("model" if case[name] is None else case[name] for name in ("gate", "beta"))
    inputs = reference.model_like(
        case["lengths"], case["qk_heads"], case["value_heads"], case["key_dim"], case["value_dim"],
        getattr(torch, case["dtype"]), generator, beta=beta,
    )  # fmt: skip
    shape = (sum(case["lengths"]), case["value_heads"], case["key_dim"])
    if gate == "model":
        inputs["g"] = torch.nn.functional.logsigmoid(torch.randn(shape, generator=generator) + 3)
    else:
        inputs["g"] = torch.full(shape, gate)
    return inputs | {"chunk_size": case["chunk_size"]}


def golden(*, q, k, v, g, beta, initial_state, cu_seqlens, chunk_size, drop=None):
    """o and final_state chunk by chunk in FP32, as the kernel computes them; o is then rounded to the dtype of v."""
    o, state = forward(q, k, v, g, beta, initial_state, cu_seqlens, chunk_size, torch.float32, drop)
    return {"o": o.to(v.dtype), "final_state": state}


def truth(*, q, k, v, g, beta, initial_state, cu_seqlens, **_):
    """Token by token in FP64."""
    o, state = reference.recurrent(q, k, v, g, beta, initial_state, cu_seqlens)
    return {"o": o, "final_state": state}


def output_shapes(*, v, initial_state, **_):
    """Name -> (shape, dtype) of the outputs."""
    return {"o": (tuple(v.shape), v.dtype), "final_state": (tuple(initial_state.shape), torch.float32)}


def terms(case):
    """What `golden(drop=…)` can leave out so that a comparison must see it.

    scale     Dk^-1/2                          state     what a chunk hands to the next
    channel   the gate of a channel: all channels of a token get their mean
    beta      all ones                         inverse   T = I
    """
    length, names = max(case["lengths"]), ["scale"]
    if case["beta"] != 1:
        names.append("beta")
    if case["gate"] is None:
        names.append("channel")
    if case["gate"] is None or case["gate"] > -10:  # else nothing survives from one token to the next
        if length > 1 and case["beta"] != 0:
            names.append("inverse")
        if length > case["chunk_size"]:
            names.append("state")
    return tuple(names)


def forward(q, k, v, g, beta, initial_state, cu_seqlens, chunk_size, dtype, drop=None):
    """The formulas at the head of this module, all in `dtype`. Returns o [T, Hv, Dv], final state [B, Hv, Dk, Dv]."""
    group, scale = v.shape[1] // q.shape[1], 1.0 if drop == "scale" else q.shape[-1] ** -0.5
    q = (reference.l2norm(q.to(dtype)) * scale).repeat_interleave(group, dim=1)
    k = reference.l2norm(k.to(dtype)).repeat_interleave(group, dim=1)
    if drop == "channel":
        g = g.mean(-1, keepdim=True).expand_as(g)
    if drop == "beta":
        beta = torch.ones_like(beta)
    q, k, v, g = (x.to(dtype).transpose(0, 1) for x in (q, k, v, g))  # heads first
    beta = beta.to(dtype).T[..., None]
    o, states, bounds = torch.empty_like(v), [], cu_seqlens.tolist()
    for state, begin, end in zip(initial_state.to(dtype), bounds, bounds[1:]):
        for t in range(begin, end, chunk_size):
            part = slice(t, min(t + chunk_size, end))
            if drop == "state" and t > begin:
                state = torch.zeros_like(state)
            o[:, part], state = _chunk(q[:, part], k[:, part], v[:, part], g[:, part], beta[:, part], state, drop)
        states.append(state)
    return o.transpose(0, 1).contiguous(), torch.stack(states)


def _chunk(q, k, v, g, beta, state, drop):
    """One chunk of every head: q, k, g [H, C, Dk], v [H, C, Dv], beta [H, C, 1], state [H, Dk, Dv]."""
    n = g.shape[1]
    i = torch.arange(n)
    eye = torch.eye(n, dtype=g.dtype)
    a, att = torch.zeros(2, g.shape[0], n, n, dtype=g.dtype)
    att = eye * (q * k).sum(-1, keepdim=True)
    b = 1
    while b < n:
        middle = i // (2 * b) * 2 * b + b
        # Gates between a token and the middle of its block: behind it for the second half, ahead for the first.
        second = (i[:, None] >= middle[:, None]) & (i >= middle[:, None]) & (i <= i[:, None])
        first = (i[:, None] < middle[:, None]) & (i > i[:, None]) & (i < middle[:, None])
        factor = ((first | second).to(g.dtype) @ g).exp()
        pairs = (i[:, None] // b % 2 == 1) & (i[:, None] // b - 1 == i // b)
        trailing = (k * factor).mT
        a = a + beta * (k * factor @ trailing) * pairs
        att = att + (q * factor @ trailing) * pairs
        b *= 2
    t = eye.expand_as(a) if drop == "inverse" else torch.linalg.solve_triangular(a + eye, eye.expand_as(a), upper=False, unitriangular=True)
    gamma = g.cumsum(1).exp()
    to_end = (g.flip(1).cumsum(1).flip(1) - g).exp()
    v_new = t @ (beta * v) - t @ (beta * k * gamma) @ state
    o = (q * gamma) @ state + att @ v_new
    return o, gamma[:, -1, :, None] * state + (k * to_end).mT @ v_new
