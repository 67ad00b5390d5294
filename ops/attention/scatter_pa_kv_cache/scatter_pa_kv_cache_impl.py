"""Writes tokens into their slots of a paged cache, for any architecture: one row after the other, moved and not computed."""

import pypto

ROWS = 8
"""Tokens of one iteration."""


@pypto.frontend.jit(runtime_options={"stitch_function_max_num": 128})
def scatter_pa_kv_cache_kernel(
    k: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    slot_mapping: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    k_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    rows,
):  # fmt: skip
    """k and v [tokens, width], caches [slots, width]; rows at most tokens."""
    tokens, width = k.shape
    pypto.set_vec_tile_shapes(1, width)
    for i in pypto.loop((tokens + rows - 1) // rows, name="LOOP_tokens", idx_name="i"):
        first = (i * rows).min(tokens - rows)  # the last iteration may write some rows a second time, and the same
        for j in range(rows):
            slot = slot_mapping[first + j]
            pypto.assemble(pypto.view(k, [1, width], [first + j, 0]), [slot, 0], k_cache)
            pypto.assemble(pypto.view(v, [1, width], [first + j, 0]), [slot, 0], v_cache)


def launch(*, k, v, slot_mapping, k_cache, v_cache):
    k, v, k_cache, v_cache = (x.view(-1, x.shape[-2] * x.shape[-1]) for x in (k, v, k_cache, v_cache))
    scatter_pa_kv_cache_kernel(k, v, slot_mapping, k_cache, v_cache, min(ROWS, len(k)))
