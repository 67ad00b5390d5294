"""Inputs, golden and truth of sparse_attention: pure torch. `selected_rows` is also what the torch function calls."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import reference

TILE = 1024
"""Keys that the kernels look at in one step. Weights are rounded relative to the maximum of a step, so it matters."""


def selected_rows(indices, counts, cu_seqlens_q, cu_seqlens_kv, block_size):
    """What the kernels read: the selected tokens of every (query, kv head) as rows of k.flatten(0, 1).

    Arguments as `sparse_attention` takes them. Returns rows INT32 [total_q, kv_heads, n] and counts INT32
    [total_q, kv_heads], the rows that count; n is what the kernels' tiles take. Entries behind the count repeat the first:
    kernels read them, too, and a row that nobody selected may hold anything.
    """
    total_q, kv_heads, topk = indices.shape
    device = indices.device
    starts, lengths = cu_seqlens_kv[:-1], cu_seqlens_kv.diff()
    starts, lengths = (x.repeat_interleave(cu_seqlens_q.diff().long())[:, None, None] for x in (starts, lengths))
    tokens = indices[..., None] * block_size + torch.arange(block_size, device=device)
    used = torch.arange(topk, device=device)[:, None].expand(topk, block_size) < counts[:, None, None, None]
    tokens, used = tokens.flatten(2), used.expand(total_q, kv_heads, topk, block_size).flatten(2)
    used = used & (tokens < lengths)  # the last block of a sequence may be shorter
    rows = (tokens + starts) * kv_heads + torch.arange(kv_heads, device=device)[:, None]
    rows = rows.masked_fill(~used, 0)
    front = used.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    rows = rows.gather(-1, front)
    n = rows.shape[-1]
    padded = -(-n // TILE) * TILE if n > TILE else -(-n // 16) * 16
    counts = used.sum(-1)
    rows = torch.nn.functional.pad(rows, (0, padded - n))
    rows = torch.where(torch.arange(padded, device=device) < counts[..., None], rows, rows[..., :1])
    return rows.to(torch.int32).contiguous(), counts.to(torch.int32)


def make_inputs(case, generator):
    """Arguments of `launch`. Query i of a sequence selects up to topk of its blocks, at random and in no order."""
    q_lens, kv_lens, heads, kv_heads = case["q_lens"], case["kv_lens"], case["heads"], case["kv_heads"]
    head_dim, topk, block_size = case["head_dim"], case["topk"], case["block_size"]
    q = torch.randn(sum(q_lens), heads, head_dim, generator=generator).bfloat16()
    k, v = (torch.randn(sum(kv_lens), kv_heads, head_dim, generator=generator).bfloat16() for _ in range(2))
    indices = torch.zeros(sum(q_lens), kv_heads, topk, dtype=torch.int32)
    counts = torch.zeros(sum(q_lens), dtype=torch.int32)
    query = 0
    for q_len, kv_len in zip(q_lens, kv_lens):
        blocks = -(-kv_len // block_size)
        most = min(topk, blocks)
        for _ in range(q_len):
            counts[query] = int(torch.randint(most // 2, most + 1, (), generator=generator))
            for h in range(kv_heads):
                indices[query, h, :most] = torch.randperm(blocks, generator=generator)[:most]
            query += 1
    rows, counts = selected_rows(
        indices, counts, reference.cu_seqlens(q_lens), reference.cu_seqlens(kv_lens), block_size
    )
    return dict(q=q, k=k, v=v, rows=rows, counts=counts, scale=head_dim**-0.5)


def golden(*, q, k, v, rows, counts, scale, drop=None):
    """With the kernel's conversions: BF16 operands, FP32 scores and softmax, BF16 weights, FP32 merge of tiles."""
    tile = min(rows.shape[-1], TILE)
    scale = 1.0 if drop == "scale" else scale

    def attend(q, k, v):
        l, m = reference.statistics(reference.scores(q.float(), k.float(), scale))
        return reference.split_flow(q, k, v, scale, tile, use_decay=drop != "decay"), l, m

    return _by_query(attend, q, k, v, rows, None if drop == "counts" else counts, torch.float32, q.dtype)


def truth(*, q, k, v, rows, counts, scale):
    """The mathematics in FP64."""

    def attend(q, k, v):
        return reference.attention(q.double(), k.double(), v.double(), scale)

    return _by_query(attend, q, k, v, rows, counts, torch.float64, torch.float64)


def terms(case):
    """What `golden(drop=…)` can leave out."""
    result = ["counts"]
    if max(case["kv_lens"]) > 1 and case["topk"] * case["block_size"] > 1:
        result.append("scale")
    if min(case["topk"] * case["block_size"] // 2, max(case["kv_lens"]) // 2) > TILE:
        result.append("decay")
    return tuple(result)


def _by_query(attend, q, k, v, rows, counts, statistics_dtype, o_dtype):
    """`attend(q, k, v)` for every (query, kv head) over its selected keys; a query that selects none gives 0, 0, 0."""
    total_q, heads, head_dim = q.shape
    group = heads // k.shape[1]
    o = torch.zeros(q.shape, dtype=o_dtype)
    l, m = (torch.zeros(total_q, heads, 1, dtype=statistics_dtype) for _ in range(2))
    for i in range(total_q):
        for h in range(k.shape[1]):
            n = rows.shape[-1] if counts is None else int(counts[i, h])
            if n:
                keys = rows[i, h, :n].long()
                own = slice(h * group, (h + 1) * group)
                selected = (x.flatten(0, 1)[keys][None] for x in (k, v))
                o[i, own], l[i, own], m[i, own] = (x[0] for x in attend(q[i, own][None], *selected))
    return {"o": o, "l": l, "m": m}
