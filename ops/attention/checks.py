"""Argument checks that the attention functions share. They raise before anything is compiled, and name the argument."""

from __future__ import annotations

import torch

from pypto_gym.ops import checks


def tensor(name: str, x, dtype: torch.dtype, rank: int, device: torch.device | None = None):
    """`x` must be a contiguous tensor of this dtype and rank (and on this device)."""
    checks.tensor(name, x, (dtype,), rank, device)


def tnd(*, q, k, v, cu_seqlens_q, cu_seqlens_kv):
    """q [total_q, heads, head_dim], k and v [total_kv, kv_heads, head_dim], BF16, and their offsets, INT32."""
    tensor("q", q, torch.bfloat16, 3)
    for name, x in (("k", k), ("v", v)):
        tensor(name, x, torch.bfloat16, 3, q.device)
    if k.shape != v.shape:
        raise ValueError(f"v: got shape {list(v.shape)}, takes that of k, {list(k.shape)}")
    heads("k", q.shape[1], k.shape[1], q.shape[2], k.shape[2])
    checks.offsets("cu_seqlens_q", cu_seqlens_q, q.shape[0], q.device)
    checks.offsets("cu_seqlens_kv", cu_seqlens_kv, k.shape[0], q.device)
    if cu_seqlens_q.shape != cu_seqlens_kv.shape:
        raise ValueError(
            f"cu_seqlens_kv: got {len(cu_seqlens_kv) - 1} sequences, takes as many as cu_seqlens_q, {len(cu_seqlens_q) - 1}"
        )


def heads(name: str, q_heads: int, kv_heads: int, q_dim: int, kv_dim: int):
    """Head counts and head_dim of q and of k that belong together, and that the kernels take."""
    if kv_dim != q_dim:
        raise ValueError(f"{name}: got head_dim {kv_dim}, takes that of q, {q_dim}")
    if q_dim % 16 or not 16 <= q_dim <= 256:
        raise ValueError(f"q: got head_dim {q_dim}, takes a multiple of 16 from 16 to 256")
    if kv_heads == 0 or q_heads % kv_heads:
        raise ValueError(f"{name}: got {kv_heads} heads, takes a divisor of q's {q_heads}")


def flag(name: str, x) -> bool:
    """A Python bool."""
    if not isinstance(x, bool):
        raise TypeError(f"{name}: got {type(x).__name__}, takes a bool")
    return x


def scale(x, head_dim: int) -> float:
    """A positive Python number, folded into the kernel; None stands for head_dim ** -0.5."""
    if x is None:
        return head_dim**-0.5
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        raise TypeError(f"scale: got {type(x).__name__}, takes a Python number (it is compiled in) or None")
    if not 0 < x < float("inf"):
        raise ValueError(f"scale: got {x}, takes a positive finite number")
    return float(x)
