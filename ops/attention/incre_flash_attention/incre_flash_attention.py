"""Attention of a few new tokens over a paged key/value cache: the decode step of a served model."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import checks, paging
from pypto_gym.ops.attention.incre_flash_attention import incre_flash_attention_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work


def _visible(inputs):
    """Pairs (query token, visible key), summed over the batch."""
    q_len = inputs["q"].shape[1]
    return sum(max(length - t, 0) for length in inputs["kv_lens"].tolist() for t in range(q_len))


def _work(inputs):
    q, (_, _, kv_heads, head_dim) = inputs["q"], inputs["k_cache"].shape
    cached = int(inputs["kv_lens"].sum()) * kv_heads * head_dim
    return Work(cube_flops=4 * _visible(inputs) * q.shape[2] * head_dim, bytes=2 * (2 * q.numel() + 2 * cached))


def _executions(inputs, impl):
    q, k = inputs["q"], inputs["k_cache"]
    steps = sum(
        -(-max(length - t, 0) // golden.TILE) for length in inputs["kv_lens"].tolist() for t in range(q.shape[1])
    )
    group = q.shape[2] // k.shape[2]
    tiles = 2 * 2 * golden.TILE * k.shape[3] + 6 * 4 * group * golden.TILE
    return [Executions(steps * k.shape[2], (q, k, inputs["v_cache"]), (q,), tiles)]


OPERATOR = Operator(
    file=__file__,
    summary="decode attention over a paged KV cache, BF16, GQA, several new tokens",
    params={
        "kv_lens": list[int], "q_len": int, "heads": int, "kv_heads": int, "head_dim": int, "block_size": int,
    },  # fmt: skip
    golden=golden,
    impls={"general": "incre_flash_attention_impl", "a3": "incre_flash_attention_impl_a3"},
    # Zeroed: a token that sees nothing is not visited, and its output is 0.
    outputs={"o": Output(rtol=2**-7, atol=1e-4, budget=1.5, zeroed=True)},
    work=_work,
    sim_executions=_executions,
)


def incre_flash_attention(q, k_cache, v_cache, block_table, kv_lens, scale=None, impl=None):
    """softmax(q K^T * scale) V of the newest tokens of each sequence over its cached keys and values.

    Token t of the q_len new ones sees the first kv_lens - (q_len - 1 - t) keys, so the last sees all of them. The keys
    and values of the new tokens are in the cache already: see `scatter_pa_kv_cache`.

    Args:
        q: BF16 [batch, q_len, heads, head_dim].
        k_cache, v_cache: BF16 [blocks, block_size, kv_heads, head_dim]; block_size a power of two from 16 to 1024;
            heads is a multiple of kv_heads (GQA: query head h reads kv head h // (heads // kv_heads)).
        block_table: INT32 [batch, blocks_per_sequence]. Entry j of a row is the block that holds tokens j * block_size
            and on of that sequence; entries behind its length are not looked at.
        kv_lens: INT32 [batch], cached tokens of each sequence, 0 to blocks_per_sequence * block_size.
        scale: factor of the scores, a Python number; default head_dim ** -0.5.
        impl: "general" or "a3"; default: a3.

    Returns:
        o BF16, shaped as q; 0 for a token that sees no key.

    Raises:
        TypeError, ValueError: an argument of another kind, a length beyond the table, a block outside the cache. The
            table is read back to the host for that.
    """
    checks.tensor("q", q, torch.bfloat16, 4)
    paging.caches(k_cache, v_cache, q.device)
    checks.heads("k_cache", q.shape[2], k_cache.shape[2], q.shape[3], k_cache.shape[3])
    paging.tables(block_table, kv_lens, q.shape[0], k_cache, q.device)
    scale = checks.scale(scale, q.shape[3])
    o = torch.zeros_like(q)
    OPERATOR.launch(
        impl or "a3", q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, kv_lens=kv_lens, scale=scale, o=o
    )
    return o


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
