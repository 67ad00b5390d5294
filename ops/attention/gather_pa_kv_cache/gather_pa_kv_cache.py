"""Reads the sequences of a paged cache into packed keys and values."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import checks, paging
from pypto_gym.ops.attention.gather_pa_kv_cache import gather_pa_kv_cache_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work


def _work(inputs):
    row = inputs["k_cache"][0, 0].nbytes
    return Work(cube_flops=0, bytes=2 * 2 * row * int(inputs["cu_seqlens_kv"][-1]))


def _executions(inputs, impl):
    k_cache, row = inputs["k_cache"], inputs["k_cache"][0, 0].nbytes
    lengths = inputs["cu_seqlens_kv"].diff().tolist()
    together = {"general": 1, "a3": 2}[impl]  # pages of one graph
    graphs = sum(sum(divmod(-(-length // k_cache.shape[1]), together)) for length in lengths)
    packed = 2 * row * sum(lengths)
    return [Executions(graphs, (k_cache, inputs["v_cache"]), (packed,), 2 * together * row * k_cache.shape[1])]


OPERATOR = Operator(
    file=__file__,
    summary="the sequences of a paged KV cache into packed k and v (TND), BF16",
    params={"kv_lens": list[int], "kv_heads": int, "head_dim": int, "block_size": int},
    golden=golden,
    impls={"general": "gather_pa_kv_cache_impl", "a3": "gather_pa_kv_cache_impl_a3"},
    outputs={"k": Output(exact=True), "v": Output(exact=True)},
    work=_work,
    sim_executions=_executions,
)


def gather_pa_kv_cache(k_cache, v_cache, block_table, kv_lens, impl=None):
    """The first kv_lens[b] cached tokens of every sequence b, one sequence after the other.

    Args:
        k_cache, v_cache: BF16 [blocks, block_size, kv_heads, head_dim]; block_size a power of two from 16 to 1024.
        block_table: INT32 [batch, blocks_per_sequence]: entry j of a row is the block of tokens j * block_size and on;
            entries behind the length are not looked at.
        kv_lens: INT32 [batch], 0 to blocks_per_sequence * block_size.
        impl: "general" or "a3"; default: a3.

    Returns:
        k, v BF16 [total_kv, kv_heads, head_dim] and cu_seqlens_kv INT32 [batch + 1], as `flash_attention_mha` takes them.

    Raises:
        TypeError, ValueError: an argument of another kind, a length beyond the table, a block outside the cache. Table
            and lengths are read back to the host for that, and to know total_kv.
    """
    checks.tensor("k_cache", k_cache, torch.bfloat16, 4)
    paging.caches(k_cache, v_cache, k_cache.device)
    paging.row_width(k_cache)
    checks.tensor("block_table", block_table, torch.int32, 2, k_cache.device)
    paging.tables(block_table, kv_lens, len(block_table), k_cache, k_cache.device)
    cu_seqlens_kv = torch.nn.functional.pad(kv_lens.cumsum(0), (1, 0)).to(torch.int32)
    k, v = (k_cache.new_empty(int(cu_seqlens_kv[-1]), *k_cache.shape[2:]) for _ in range(2))
    if len(k):
        OPERATOR.launch(
            impl or "a3", k_cache=k_cache, v_cache=v_cache, block_table=block_table, cu_seqlens_kv=cu_seqlens_kv, k=k, v=v
        )
    return k, v, cu_seqlens_kv


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
