"""Argument checks that the attention functions share. They raise before anything is compiled, and name the argument."""

from __future__ import annotations

import torch


def tensor(name: str, x, dtype: torch.dtype, rank: int, device: torch.device | None = None):
    """`x` must be a contiguous tensor of this dtype and rank (and on this device)."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: got {type(x).__name__}, takes a torch.Tensor")
    if x.dtype != dtype:
        raise TypeError(f"{name}: got {_short(x.dtype)}, takes {_short(dtype)}")
    if x.dim() != rank:
        raise ValueError(f"{name}: got shape {list(x.shape)}, takes {rank} dimensions")
    if device is not None and x.device != device:
        raise ValueError(f"{name}: got a tensor on {x.device}, takes one on {device}, where q is")
    if not x.is_contiguous():
        raise ValueError(f"{name}: got strides {list(x.stride())}, takes a contiguous tensor; call .contiguous()")


def tnd(*, q, k, v, cu_seqlens_q, cu_seqlens_kv):
    """q [total_q, heads, head_dim], k and v [total_kv, kv_heads, head_dim], BF16, and their offsets, INT32."""
    tensor("q", q, torch.bfloat16, 3)
    for name, x in (("k", k), ("v", v)):
        tensor(name, x, torch.bfloat16, 3, q.device)
    if k.shape != v.shape:
        raise ValueError(f"v: got shape {list(v.shape)}, takes that of k, {list(k.shape)}")
    heads("k", q.shape[1], k.shape[1], q.shape[2], k.shape[2])
    offsets("cu_seqlens_q", cu_seqlens_q, q.shape[0], q.device)
    offsets("cu_seqlens_kv", cu_seqlens_kv, k.shape[0], q.device)
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


def offsets(name: str, x, total: int, device: torch.device):
    """Cumulative lengths: INT32 [batch + 1], from 0 to `total`, never falling."""
    tensor(name, x, torch.int32, 1, device)
    values = x.tolist()
    if len(values) < 2:
        raise ValueError(f"{name}: got {len(values)} elements, takes batch + 1, at least 2")
    if values[0] != 0 or values[-1] != total or any(b < a for a, b in zip(values, values[1:])):
        raise ValueError(f"{name}: got {values}, takes offsets that rise from 0 to {total}")


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


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
