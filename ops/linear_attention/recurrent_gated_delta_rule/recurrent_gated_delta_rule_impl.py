"""Gated delta rule, decode: one token or a few per sequence, the state updated in place. For any architecture.

Per token and head, with a = exp(g), all on the vector units, the state [Dk, Dv] held in UB:

    u  = beta (v - a (k^T S))
    S <- a S + k u^T
    o  = q^T S

k and q are columns [Dk, 1], so that they scale the rows of S; k^T S is a sum over rows. A matrix unit would compute 2 of
its 16 rows and would have to read S once more.
"""

import functools
from dataclasses import dataclass, field

import pypto

from ..atoms import EPS

FP32 = pypto.DT_FP32
DTYPES = {"torch.float32": pypto.DT_FP32, "torch.bfloat16": pypto.DT_BF16}


@dataclass(frozen=True, eq=False)
class Tuning:
    """What may differ between targets; compared by identity, so that a kernel is compiled once for each.

    heads            value heads in one loop body, at most; the largest divisor of their number is taken
    runtime, passes  options of `pypto.frontend.jit`
    """

    heads: int = 1
    runtime: dict = field(default_factory=lambda: {"stitch_function_max_num": 128})
    passes: dict = field(default_factory=dict)


TUNING = Tuning()


def launch(*, q, k, v, g, beta, state, cu_seqlens, o, tuning=TUNING):
    """Fills o [T, Hv, Dv] and replaces state [B, Hv, Dk, Dv]."""
    batch, value_heads, key_dim, value_dim = state.shape
    shape = (batch, q.shape[1], value_heads, key_dim, value_dim, DTYPES[str(q.dtype)])
    rows = state.flatten(0, 2)
    # The state goes in twice: a graph that reads and writes one argument would be a cycle.
    _kernel(*shape, tuning)(*(x.view(-1, 1) for x in (q, k)), v.flatten(1), g, beta, rows, cu_seqlens, o.flatten(1), rows)


def group(value_heads, most):
    """How many value heads one loop body takes: the largest divisor of their number, `most` or less."""
    return max(n for n in range(1, most + 1) if value_heads % n == 0)


@functools.lru_cache
def _kernel(batch, qk_heads, value_heads, key_dim, value_dim, dtype, tuning):
    t = pypto.DYNAMIC
    together = group(value_heads, tuning.heads)
    state_shape = [batch * value_heads * key_dim, value_dim]

    @pypto.frontend.jit(runtime_options=tuning.runtime, pass_options=tuning.passes)
    def recurrent_gated_delta_rule(
        q: pypto.Tensor([t, 1], dtype),
        k: pypto.Tensor([t, 1], dtype),
        v: pypto.Tensor([t, value_heads * value_dim], dtype),
        g: pypto.Tensor([t, value_heads], FP32),
        beta: pypto.Tensor([t, value_heads], FP32),
        state: pypto.Tensor(state_shape, FP32),
        cu_seqlens: pypto.Tensor([batch + 1], pypto.DT_INT32),
        o: pypto.Tensor([t, value_heads * value_dim], dtype),
        new_state: pypto.Tensor(state_shape, FP32),
    ):
        pypto.set_vec_tile_shapes(key_dim, value_dim)
        for b in pypto.loop(batch, name="sequence", idx_name="b"):
            for first in pypto.loop(0, value_heads, together, name="heads", idx_name="first"):
                _decode(
                    b, range(together), first, value_heads // qk_heads, cu_seqlens, q, k, v, g, beta, state, o, new_state,
                    [value_heads, key_dim, value_dim],
                )  # fmt: skip

    return recurrent_gated_delta_rule


def _decode(b, heads, first, sharing, cu_seqlens, q, k, v, g, beta, state, o, new_state, sizes):
    """All tokens of sequence b for value heads first + heads; `sharing` of them share a head of q and k.

    Between two tokens the state passes through global memory; with one token it is read once and written once.
    """
    value_heads, key_dim, value_dim = sizes
    qk_heads = value_heads // sharing
    between = [pypto.tensor([key_dim, value_dim], FP32, f"between_{n}") for n in heads]
    tokens = cu_seqlens[b + 1] - cu_seqlens[b]
    for i in pypto.loop(tokens, name="tokens", idx_name="i"):
        token = cu_seqlens[b] + i
        for n in heads:
            head = first + n
            row, column = (b * value_heads + head) * key_dim, head * value_dim
            if pypto.cond(pypto.is_loop_begin(i)):
                s = pypto.view(state, [key_dim, value_dim], [row, 0])
            else:
                s = pypto.view(between[n], [key_dim, value_dim], [0, 0])
            q_n, k_n = (_unit(pypto.view(x, [key_dim, 1], [(token * qk_heads + head // sharing) * key_dim, 0])) for x in (q, k))
            a = pypto.view(g, [1, 1], [token, head]).exp()
            v_n = _fp32(pypto.view(v, [1, value_dim], [token, column]))
            u = (v_n - (s * k_n).sum(0, keepdim=True) * a) * pypto.view(beta, [1, 1], [token, head])
            s = s * pypto.expand_clone(a, [key_dim, 1]) + k_n * u
            y = (s * (q_n * key_dim**-0.5)).sum(0, keepdim=True)
            pypto.assemble(y if o.dtype == FP32 else pypto.cast(y, o.dtype), [token, column], o)
            if pypto.cond(pypto.is_loop_end(i)):
                pypto.assemble(s, [row, 0], new_state)
            else:
                between[n][:] = s


def _fp32(x):
    return x if x.dtype == FP32 else pypto.cast(x, FP32)


def _unit(x):
    """A column, FP32, of length 1."""
    x = _fp32(x)
    return x / pypto.sqrt((x * x).sum(0, keepdim=True) + EPS)
