"""The gated delta rule in plain torch: what every golden and truth of this family is made of.

Per head, with a state S of shape [Dk, Dv] and keys and queries normalised to unit length:

    S <- exp(g_t) S
    S <- S + k_t (beta_t (v_t - k_t^T S))^T
    o_t = scale S^T q_t

`g` is the logarithm of the decay, one number per token and head (Gated DeltaNet, Yang et al. 2024, as in Qwen3-Next)
or one per token, head and key channel (Kimi Delta Attention). Sequences lie one after the other on the token axis, cut
by `cu_seqlens`; value heads share the query and key head `value_head // (value_heads // qk_heads)`.

Shapes throughout this family:

    q, k           [T, Hqk, Dk]
    v              [T, Hv, Dv]
    g              [T, Hv], or [T, Hv, Dk] for a gate per channel
    beta           [T, Hv]
    initial_state  [B, Hv, Dk, Dv]
    cu_seqlens     [B + 1], int32, from 0 to T
"""

from __future__ import annotations

import torch

EPS = 1e-6  # under the root of the L2 norm, as in Qwen3-Next


def l2norm(x: torch.Tensor) -> torch.Tensor:
    """x / sqrt(sum(x^2) + EPS) over the last axis."""
    return x / (x.square().sum(-1, keepdim=True) + EPS).sqrt()


def _prepare(q, k, v, g, beta, initial_state, dtype):
    """Everything in `dtype`, q and k normalised and repeated to one per value head, q scaled by Dk^-1/2."""
    q, k, v, g, beta, state = (x.to(dtype) for x in (q, k, v, g, beta, initial_state))
    group = v.shape[1] // q.shape[1]
    q = (l2norm(q) * q.shape[-1] ** -0.5).repeat_interleave(group, dim=1)
    k = l2norm(k).repeat_interleave(group, dim=1)
    return q, k, v, g, beta, state


def recurrent(q, k, v, g, beta, initial_state, cu_seqlens, dtype=torch.float64):
    """Token by token, as the formula stands; differentiable by autograd.

    Returns o [T, Hv, Dv] and the final state [B, Hv, Dk, Dv], both in `dtype`.
    """
    q, k, v, g, beta, state = _prepare(q, k, v, g, beta, initial_state, dtype)
    decay = g.exp()
    decay = decay[..., None, None] if decay.dim() == 2 else decay[..., None]
    outputs, states = [v.new_zeros(0, *v.shape[1:])], []
    bounds = cu_seqlens.tolist()
    for s, begin, end in zip(state, bounds, bounds[1:]):
        for t in range(begin, end):
            s = s * decay[t]
            u = beta[t, :, None] * (v[t] - torch.einsum("hkv,hk->hv", s, k[t]))
            s = s + k[t, :, :, None] * u[:, None, :]
            outputs.append(torch.einsum("hkv,hk->hv", s, q[t])[None])
        states.append(s)
    return torch.cat(outputs), torch.stack(states)


def chunked(q, k, v, g, beta, initial_state, cu_seqlens, chunk_size, dtype=torch.float32, drop=None):
    """Chunk by chunk, in the WY form that the kernels use: all products of `dtype` operands, summed in `dtype`.

    With G the running sum of g in the chunk and L = exp(G_i - G_j) on and below the diagonal, else 0:

        T  = (I + strictly_lower(diag(beta) K K^T * L))^-1
        U  = T diag(beta) V             W = T diag(beta exp(G)) K
        V' = U - W S
        o  = diag(exp(G)) Q S + (Q K^T * L) V'
        S <- exp(G_last) S + (diag(exp(G_last - G)) K)^T V'

    drop: leaves one term out, to show that a comparison sees it: "state" (what one chunk hands to the next), "gate"
    (no decay), "beta" (all ones), "scale", "inverse" (T = I).
    Returns o [T, Hv, Dv] and the final state [B, Hv, Dk, Dv], both in `dtype`. A gate per token and head only.
    """
    if drop == "gate":
        g = torch.zeros_like(g)
    if drop == "beta":
        beta = torch.ones_like(beta)
    q, k, v, g, beta, state = _prepare(q, k, v, g, beta, initial_state, dtype)
    if drop == "scale":
        q = q * q.shape[-1] ** 0.5
    q, k, v, g, beta = (x.transpose(0, 1) for x in (q, k, v, g, beta))  # heads first
    outputs, states = [v.new_zeros(v.shape[0], 0, v.shape[-1])], []
    bounds = cu_seqlens.tolist()
    for s, begin, end in zip(state, bounds, bounds[1:]):
        for t in range(begin, end, chunk_size):
            if drop == "state" and t > begin:
                s = torch.zeros_like(s)
            part = slice(t, min(t + chunk_size, end))
            o, s = _chunk(q[:, part], k[:, part], v[:, part], g[:, part], beta[:, part], s, drop)
            outputs.append(o)
        states.append(s)
    return torch.cat(outputs, dim=1).transpose(0, 1).contiguous(), torch.stack(states)


def _chunk(q, k, v, g, beta, s, drop):
    """One chunk of every head: q, k [H, C, Dk], v [H, C, Dv], g, beta [H, C], s [H, Dk, Dv] -> o [H, C, Dv], new s."""
    n = g.shape[1]
    total = g.cumsum(1)[..., None]
    decay = (total - total.mT).tril().exp().tril()
    k_beta = k * beta[..., None]
    a = (k_beta @ k.mT * decay).tril(-1)
    eye = torch.eye(n, dtype=a.dtype, device=a.device).expand_as(a)
    t = eye if drop == "inverse" else torch.linalg.solve_triangular(a + eye, eye, upper=False, unitriangular=True)
    u = t @ (v * beta[..., None])
    w = t @ (k_beta * total.exp())
    v_new = u - w @ s
    o = (q * total.exp()) @ s + (q @ k.mT * decay) @ v_new
    last = total[:, -1:]
    return o, s * last.exp() + (k * (last - total).exp()).mT @ v_new


def model_like(lengths, qk_heads, value_heads, key_dim, value_dim, dtype, generator, gate="model", beta="model", shared=1.0):
    """Inputs as Qwen3-Next feeds them: g = logsigmoid(N(3, 1)), beta = sigmoid(N(0, 1)), the state of earlier tokens.

    gate, beta: "model", or the number that fills the tensor. shared: weight of a direction that all keys of a head have
    in common, against 1 for what is their own: it makes the triangular matrix of a chunk far from the identity.
    q, k, v are in `dtype`; g, beta and the state in FP32.
    Returns the keyword arguments that `recurrent` and `chunked` take.
    """
    tokens = sum(lengths)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    def filled(value, model):
        return model if value == "model" else torch.full_like(model, float(value))

    return {
        "q": normal(tokens, qk_heads, key_dim).to(dtype),
        "k": (normal(tokens, qk_heads, key_dim) + shared * normal(1, qk_heads, key_dim)).to(dtype),
        "v": normal(tokens, value_heads, value_dim).to(dtype),
        "g": filled(gate, torch.nn.functional.logsigmoid(normal(tokens, value_heads) + 3)),
        "beta": filled(beta, normal(tokens, value_heads).sigmoid()),
        "initial_state": normal(len(lengths), value_heads, key_dim, value_dim) * key_dim**-0.5,
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
    }
