"""Writes tokens into their slots of a paged cache, tuned for Atlas A3 and many tokens.

The compiler makes a task of every move between two tensors in global memory, and dispatching a task per row is what
bounds the general kernel. A multiplication by 1 (exact) in between lets it merge the moves of up to `MERGED` rows.
"""

import pypto

ROWS = 32
"""Tokens of one iteration."""
TILE_ELEMENTS = 32768
"""Elements of a vector tile of the multiplication."""
MERGED = 64
"""Moves that may share a task."""


@pypto.frontend.jit(
    runtime_options={"stitch_function_max_num": 128},
    pass_options={"vec_nbuffer_setting": {-1: MERGED}},
)
def scatter_pa_kv_cache_merged_kernel(
    k: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    slot_mapping: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    k_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    rows,
):  # fmt: skip
    """k and v [tokens, width], caches [slots, width]; rows at most tokens."""
    tokens, width = k.shape
    pypto.set_vec_tile_shapes(min(rows, TILE_ELEMENTS // width), width)
    for i in pypto.loop((tokens + rows - 1) // rows, name="LOOP_tokens", idx_name="i"):
        first = (i * rows).min(tokens - rows)  # the last iteration may write some rows a second time, and the same
        k_tile = pypto.mul(pypto.view(k, [rows, width], [first, 0]), 1.0)
        v_tile = pypto.mul(pypto.view(v, [rows, width], [first, 0]), 1.0)
        for j in range(rows):
            slot = slot_mapping[first + j]
            pypto.assemble(pypto.view(k_tile, [1, width], [j, 0]), [slot, 0], k_cache)
            pypto.assemble(pypto.view(v_tile, [1, width], [j, 0]), [slot, 0], v_cache)


def launch(*, k, v, slot_mapping, k_cache, v_cache):
    k, v, k_cache, v_cache = (x.view(-1, x.shape[-2] * x.shape[-1]) for x in (k, v, k_cache, v_cache))
    scatter_pa_kv_cache_merged_kernel(k, v, slot_mapping, k_cache, v_cache, min(ROWS, len(k)))
