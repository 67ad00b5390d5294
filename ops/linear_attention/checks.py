"""Argument checks that the delta rule's functions share. They raise before anything is compiled, and name the argument."""

from __future__ import annotations

import torch

from pypto_gym.ops import checks
from pypto_gym.ops.linear_attention.atoms import CHUNK_SIZES

DTYPES = (torch.float32, torch.bfloat16)
MAX_DIM = 128


def tensor(name: str, x, shape: list, dtypes=(torch.float32,), device: torch.device | None = None):
    """`x` must be a contiguous tensor of this shape (None: any size), one of these dtypes, and on this device."""
    checks.tensor(name, x, dtypes, shape, device)


def inputs(q, k, v, g, beta, state, cu_seqlens, chunk_size=None, channel_gate=False, state_name="initial_state"):
    """The arguments of a forward pass; shapes as in `reference.py`. `channel_gate`: g is [T, Hv, Dk]."""
    tensor("q", q, [None, None, None], DTYPES)
    tokens, qk_heads, key_dim = q.shape
    tensor("k", k, [tokens, qk_heads, key_dim], (q.dtype,), q.device)
    tensor("v", v, [tokens, None, None], (q.dtype,), q.device)
    _, heads, value_dim = v.shape
    if qk_heads == 0 or heads == 0 or heads % qk_heads:
        raise ValueError(f"v: got {heads} heads, takes a multiple of q's {qk_heads}")
    for name, dim in (("q", key_dim), ("v", value_dim)):
        if dim % 16 or not 16 <= dim <= MAX_DIM:
            raise ValueError(f"{name}: got a head of {dim}, takes a multiple of 16 from 16 to {MAX_DIM}")
    tensor("g", g, [tokens, heads, key_dim] if channel_gate else [tokens, heads], device=q.device)
    tensor("beta", beta, [tokens, heads], device=q.device)
    tensor(state_name, state, [None, heads, key_dim, value_dim], device=q.device)
    checks.offsets("cu_seqlens", cu_seqlens, tokens, q.device, state.shape[0])
    if chunk_size is not None and chunk_size not in CHUNK_SIZES:
        raise ValueError(f"chunk_size: got {chunk_size}, takes one of {', '.join(map(str, CHUNK_SIZES))}")
