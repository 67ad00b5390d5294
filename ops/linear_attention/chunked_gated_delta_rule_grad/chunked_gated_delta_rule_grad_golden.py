"""Inputs, golden and truth of chunked_gated_delta_rule_grad: pure torch.

The backward pass of one chunk in the WY form. With the names of `reference.chunked` (G the running sum of g, gamma =
exp(G), L_ij = exp(G_i - G_j) on and below the diagonal, e = exp(G_last - G), T the inverse of I + A), S the state that
enters the chunk, N the state that leaves it, and dN the gradient that comes back for N:

    att = (Q K^T) * L              U = T diag(beta) V             W = T diag(beta gamma) K          V' = U - W S

    dV'  = att^T dO + diag(e) K dN
    dS   = P^T dN + X^T dO         P = gamma_last I - (diag(e) K)^T W          X = diag(gamma) Q - att W
    dVb  = T^T dV'                 dWb = -T^T (dV' S^T)           (gradients of diag(beta) V and diag(beta gamma) K)
    B    = -strictly_lower(dVb U^T + dWb W^T) * L                 (gradient of A, times the decay)
    C    = lower(dO V'^T) * L                                     (gradient of att, times the decay)
    Y    = B K + diag(gamma) dWb                                  (gradient of diag(beta) K where it leads a pair)
    Z    = B^T diag(beta) K + C^T Q + diag(e) V' dN^T             (gradient of K where it trails)

    dQ = C K + diag(gamma) dO S^T          dK = diag(beta) Y + Z          dV = diag(beta) dVb
    dbeta = rowsum(dVb * V + Y * K)
    dG    = rowsum(Q * dQ + diag(beta) Y * K - Z * K),   and at the last token also <dN, N>
    dg_t  = sum of dG_i over i >= t in the chunk

dG has this short form because q_i and the leading k_i are met only as products with exp(G_i), the trailing k_j only
with exp(-G_j), and N only with exp(G_last). The gradient of x / |x| is (d - x_hat <x_hat, d>) / |x|.

Only dS depends on the chunk after it, and S only on the chunk before; all else is independent for each chunk.
Source: own derivation from the recurrence in `reference.py`; proven against autograd in the tests.
"""

from __future__ import annotations

import torch

from pypto_gym.ops.linear_attention import reference


def make_inputs(case, generator):
    """Arguments of `launch`: those of the forward operator, and gradients of its outputs, `do` and `d_final_state`."""
    gate, beta = ("model" if case[name] is None else case[name] for name in ("gate", "beta"))
    dtype = getattr(torch, case["dtype"])
    inputs = reference.model_like(
        case["lengths"], case["qk_heads"], case["value_heads"], case["key_dim"], case["value_dim"], dtype, generator,
        gate=gate, beta=beta,
    )  # fmt: skip
    inputs["do"] = torch.randn(inputs["v"].shape, generator=generator).to(dtype)
    inputs["d_final_state"] = torch.randn(inputs["initial_state"].shape, generator=generator)
    return inputs | {"chunk_size": case["chunk_size"]}


def golden(*, q, k, v, g, beta, initial_state, cu_seqlens, do, d_final_state, chunk_size, drop=None):
    """The gradients chunk by chunk in FP32, as the kernel computes them; dq, dk, dv are then rounded to the dtype of q.

    `drop` leaves out what `terms` names.
    """
    inputs = (q, k, v, g, beta, initial_state, cu_seqlens, do, d_final_state)
    gradients = backward(*inputs, chunk_size, torch.float32, drop)
    return {name: x.to(q.dtype) if name in ("dq", "dk", "dv") else x for name, x in gradients.items()}


def truth(*, q, k, v, g, beta, initial_state, cu_seqlens, do, d_final_state, **_):
    """Autograd through the token by token recurrence in FP64, one sequence and one query and key head at a time."""
    names = ("q", "k", "v", "g", "beta", "initial_state")
    leaves = {n: x.double().requires_grad_() for n, x in zip(names, (q, k, v, g, beta, initial_state))}
    group = v.shape[1] // q.shape[1]
    bounds = cu_seqlens.tolist()
    do, d_final_state = do.double(), d_final_state.double()
    for b, (begin, end) in enumerate(zip(bounds, bounds[1:])):
        for h in range(q.shape[1]):
            t, heads = slice(begin, end), slice(h * group, (h + 1) * group)
            o, state = reference.recurrent(
                leaves["q"][t, h : h + 1], leaves["k"][t, h : h + 1], leaves["v"][t, heads], leaves["g"][t, heads],
                leaves["beta"][t, heads], leaves["initial_state"][b : b + 1, heads], torch.tensor([0, end - begin]),
            )  # fmt: skip
            loss = (o * do[t, heads]).sum() + (state[0] * d_final_state[b, heads]).sum()
            loss.backward()
    return {f"d{name}": x.grad if x.grad is not None else torch.zeros_like(x) for name, x in leaves.items()}


def terms(case):
    """What `golden(drop=…)` can leave out so that a comparison must see it.

    state_grad  what a chunk hands back to the one before      state  what a chunk hands to the next
    inverse     the gradient through the triangular inverse    norm   the gradient through the L2 norms
    carry       <dN, N>, the share of dg that comes through the state
    """
    length = max(case["lengths"])
    names = ["norm"]
    if case["gate"] is None or case["gate"] > -10:  # else nothing survives from one token to the next
        names.append("carry")
        if length > 1 and case["beta"] != 0:
            names.append("inverse")
        if length > case["chunk_size"]:
            names += ["state_grad", "state"]
    return tuple(names)


def output_shapes(*, q, k, v, g, beta, initial_state, **_):
    """Name -> (shape, dtype) of the outputs."""
    inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": initial_state}
    return {f"d{name}": (tuple(x.shape), x.dtype) for name, x in inputs.items()}


def backward(q, k, v, g, beta, initial_state, cu_seqlens, do, d_final_state, chunk_size, dtype, drop=None):
    """The formulas at the head of this module, all in `dtype`. Returns the six gradients by name."""
    q, k, v, g, beta, do = (x.to(dtype).transpose(0, 1) for x in (q, k, v, g, beta, do))  # heads first
    group, scale = v.shape[0] // q.shape[0], q.shape[-1] ** -0.5
    qn, q_length = _unit(q)
    kn, k_length = _unit(k)
    qn = qn * scale
    dq, dk = torch.zeros_like(q), torch.zeros_like(k)
    dv, dg, dbeta = torch.zeros_like(v), torch.zeros_like(g), torch.zeros_like(beta)
    d_initial = torch.empty(initial_state.shape, dtype=dtype)
    bounds = cu_seqlens.tolist()
    for b, (begin, end) in enumerate(zip(bounds, bounds[1:])):
        parts = [slice(t, min(t + chunk_size, end)) for t in range(begin, end, chunk_size)]
        state, chunks = initial_state[b].to(dtype), []
        for part in parts:
            if drop == "state" and part.start > begin:
                state = torch.zeros_like(state)
            queries, keys = (x[:, part].repeat_interleave(group, dim=0) for x in (qn, kn))
            chunk = _Chunk(queries, keys, v[:, part], g[:, part], beta[:, part], state)
            chunks.append(chunk)
            state = chunk.next_state
        d_state = d_final_state[b].to(dtype)
        for part, chunk in zip(reversed(parts), reversed(chunks)):
            if drop == "state_grad" and part.stop < end:
                d_state = torch.zeros_like(d_state)
            dq_part, dk_part, dv[:, part], dg[:, part], dbeta[:, part], d_state = chunk.gradients(
                do[:, part], d_state, drop
            )  # fmt: skip
            dq[:, part] = dq_part.unflatten(0, (-1, group)).sum(1)
            dk[:, part] = dk_part.unflatten(0, (-1, group)).sum(1)
        d_initial[b] = d_state
    dq = _unit_grad(qn / scale, q_length, dq * scale, drop)
    dk = _unit_grad(kn, k_length, dk, drop)
    tokens_first = {"dq": dq, "dk": dk, "dv": dv, "dg": dg, "dbeta": dbeta}
    return {n: x.transpose(0, 1).contiguous() for n, x in tokens_first.items()} | {"dinitial_state": d_initial}


class _Chunk:
    """One chunk of every value head: what the forward pass leaves for the backward pass."""

    def __init__(self, q, k, v, g, beta, state):
        """q, k [H, C, Dk] normalised (q scaled), v [H, C, Dv], g, beta [H, C], state [H, Dk, Dv]."""
        n = g.shape[1]
        # The decay of a pair is the sum of the gates between them: a difference of running sums would cancel.
        between = g[:, :, None].expand(-1, -1, n).tril(-1)
        self.decay = between.cumsum(1).exp().tril()
        total = g.cumsum(1)[..., None]
        self.gamma = total.exp()
        after = g.flip(1).cumsum(1).flip(1) - g
        self.to_end = after[..., None].exp()
        self.q, self.k, self.v, self.beta, self.state = q, k, v, beta[..., None], state
        a = (self.beta * (k @ k.mT) * self.decay).tril(-1)
        eye = torch.eye(n, dtype=a.dtype).expand_as(a)
        self.inverse = torch.linalg.solve_triangular(a + eye, eye, upper=False, unitriangular=True)
        self.u = self.inverse @ (self.beta * v)
        self.w = self.inverse @ (self.beta * self.gamma * k)
        self.att = q @ k.mT * self.decay
        self.v_new = self.u - self.w @ state
        self.next_state = self.gamma[:, -1:] * state + (self.to_end * k).mT @ self.v_new

    def gradients(self, do, d_next, drop):
        """dq, dk (of the normalised q, k), dv, dg, dbeta of this chunk, and the gradient of the state that enters it."""
        q, k, v, beta, gamma, state = self.q, self.k, self.v, self.beta, self.gamma, self.state
        dv_new = self.att.mT @ do + self.to_end * k @ d_next
        d_state = gamma[:, -1:] * d_next + (gamma * q).mT @ do - self.w.mT @ dv_new
        dvb = self.inverse.mT @ dv_new
        dwb = -self.inverse.mT @ (dv_new @ state.mT)
        b = -(dvb @ self.u.mT + dwb @ self.w.mT).tril(-1) * self.decay
        if drop == "inverse":
            b = torch.zeros_like(b)
        c = do @ self.v_new.mT * self.decay
        y = b @ k + gamma * dwb
        z = b.mT @ (beta * k) + c.mT @ q + self.to_end * (self.v_new @ d_next.mT)
        dq = c @ k + gamma * (do @ state.mT)
        yk = (y * k).sum(-1)
        dbeta = (dvb * v).sum(-1) + yk
        d_total = (q * dq).sum(-1) + beta[..., 0] * yk - (z * k).sum(-1)
        if drop != "carry":
            d_total[:, -1] += (d_next * self.next_state).sum((1, 2))
        dg = d_total.flip(1).cumsum(1).flip(1)
        return dq, beta * y + z, beta * dvb, dg, dbeta, d_state


def _unit(x):
    """x / |x| and |x|, with the EPS of `reference.l2norm`."""
    length = (x.square().sum(-1, keepdim=True) + reference.EPS).sqrt()
    return x / length, length


def _unit_grad(unit, length, d, drop):
    if drop == "norm":
        return d / length
    return (d - unit * (unit * d).sum(-1, keepdim=True)) / length
