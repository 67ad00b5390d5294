"""Argument checks of the sparse attention operators. They raise before anything is compiled."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import checks


def blocks(indices, counts, kv_heads: int, cu_seqlens_q, cu_seqlens_kv, block_size: int, device):
    """indices [total_q, kv_heads, topk] and counts [total_q]: blocks that exist in the query's sequence, none twice."""
    checks.tensor("indices", indices, torch.int32, 3, device)
    checks.tensor("counts", counts, torch.int32, 1, device)
    total_q = int(cu_seqlens_q[-1])
    for name, x in (("indices", indices), ("counts", counts)):
        if len(x) != total_q:
            raise ValueError(f"{name}: got {len(x)} queries, takes {total_q}")
    if indices.shape[1] != kv_heads or indices.shape[2] == 0:
        raise ValueError(f"indices: got shape {list(indices.shape)}, takes [{total_q}, {kv_heads}, topk] with topk >= 1")
    if isinstance(block_size, bool) or not isinstance(block_size, int):
        raise TypeError(f"block_size: got {type(block_size).__name__}, takes an int")
    if block_size < 1:
        raise ValueError(f"block_size: got {block_size}, takes 1 or more")
    indices, counts, topk = indices.cpu(), counts.cpu(), indices.shape[2]
    wrong = ((counts < 0) | (counts > topk)).nonzero().flatten().tolist()
    if wrong:
        raise ValueError(f"counts: got {int(counts[wrong[0]])} for query {wrong[0]}, takes 0 to {topk}")
    lengths = cu_seqlens_kv.cpu().diff().repeat_interleave(cu_seqlens_q.cpu().diff().long())
    limits = ((lengths + block_size - 1) // block_size)[:, None, None]
    used = (torch.arange(topk) < counts[:, None, None]).expand_as(indices)
    wrong = (used & ((indices < 0) | (indices >= limits))).nonzero().tolist()
    if wrong:
        i, h, j = wrong[0]
        raise ValueError(
            f"indices: got {int(indices[i, h, j])} at [{i}, {h}, {j}], takes 0 to {int(limits[i]) - 1}, the blocks of "
            f"{block_size} in {int(lengths[i])} keys"
        )
    # What does not count is made different from everything, so that equal neighbours are repetitions.
    ordered = torch.where(used, indices, -1 - torch.arange(topk, dtype=torch.int32)).sort(-1).values
    wrong = (ordered[..., 1:] == ordered[..., :-1]).nonzero().tolist()
    if wrong:
        i, h, j = wrong[0]
        raise ValueError(f"indices: got {int(ordered[i, h, j])} twice at [{i}, {h}], takes a block once")
