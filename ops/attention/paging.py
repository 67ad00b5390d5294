"""Argument checks of the operators on a paged key/value cache. They raise before anything is compiled."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import checks


def caches(k_cache, v_cache, device):
    """BF16 [blocks, block_size, kv_heads, head_dim], both of one shape; block_size a power of two from 16 to 1024."""
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        checks.tensor(name, cache, torch.bfloat16, 4, device)
    if k_cache.shape != v_cache.shape:
        raise ValueError(f"v_cache: got shape {list(v_cache.shape)}, takes that of k_cache, {list(k_cache.shape)}")
    blocks, block_size = k_cache.shape[:2]
    if blocks == 0:
        raise ValueError("k_cache: got 0 blocks, takes at least 1")
    if not 16 <= block_size <= 1024 or block_size & (block_size - 1):
        raise ValueError(f"k_cache: got block_size {block_size}, takes a power of two from 16 to 1024")


def tables(block_table, kv_lens, batch: int, cache, device):
    """A row of blocks and a length for each of `batch` sequences, all of it inside the cache."""
    checks.tensor("block_table", block_table, torch.int32, 2, device)
    checks.tensor("kv_lens", kv_lens, torch.int32, 1, device)
    for name, x in (("block_table", block_table), ("kv_lens", kv_lens)):
        if len(x) != batch:
            raise ValueError(f"{name}: got {len(x)} sequences, takes {batch}")
    blocks, block_size = cache.shape[:2]
    capacity = block_table.shape[1] * block_size
    lengths = kv_lens.cpu()
    for b, length in enumerate(lengths.tolist()):
        if not 0 <= length <= capacity:
            raise ValueError(
                f"kv_lens: got {length} for sequence {b}, takes 0 to {capacity}, what "
                f"{block_table.shape[1]} blocks of {block_size} hold"
            )
    used = torch.arange(block_table.shape[1]) * block_size < lengths[:, None]
    wrong = (used & ((block_table.cpu() < 0) | (block_table.cpu() >= blocks))).nonzero().tolist()
    if wrong:
        b, j = wrong[0]
        raise ValueError(
            f"block_table: got block {int(block_table[b, j])} at [{b}, {j}], takes 0 to {blocks - 1}, "
            "the blocks of the cache"
        )


def row_width(cache, limit=16384):
    """What the kernels that move whole rows take: kv_heads * head_dim a multiple of 16, and not above `limit`."""
    width = cache.shape[2] * cache.shape[3]
    if width % 16 or not 16 <= width <= limit:
        raise ValueError(f"k_cache: got rows of {width} elements, takes a multiple of 16 from 16 to {limit}")


def slots(slot_mapping, tokens: int, cache, device):
    """A slot of the cache for each of `tokens` tokens, none of them twice."""
    checks.tensor("slot_mapping", slot_mapping, torch.int32, 1, device)
    if len(slot_mapping) != tokens:
        raise ValueError(f"slot_mapping: got {len(slot_mapping)} slots, takes one for each of {tokens} tokens")
    capacity = cache.shape[0] * cache.shape[1]
    seen = set()
    for i, slot in enumerate(slot_mapping.tolist()):
        if not 0 <= slot < capacity:
            raise ValueError(
                f"slot_mapping: got slot {slot} for token {i}, takes 0 to {capacity - 1}, "
                f"what {cache.shape[0]} blocks of {cache.shape[1]} hold"
            )
        if slot in seen:
            raise ValueError(f"slot_mapping: got slot {slot} for token {i} and for an earlier one, takes it once")
        seen.add(slot)
