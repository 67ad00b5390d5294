"""Collects the pages of every sequence into packed keys and values, for any architecture: moved, not computed."""

import pypto

TILE_ELEMENTS = 65536
"""Elements that one move takes through the vector buffer: 128 KB of its 192 KB."""

RUNTIME = {"stitch_function_max_num": 128}


def gather(
    k_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    block_table: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    cu_seqlens_kv: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    k: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    block_size, unroll,
):  # fmt: skip
    """Caches [blocks * block_size, width], k and v [total_kv, width]; unroll: list of the loop over pages."""
    width = k_cache.shape[1]
    pypto.set_vec_tile_shapes(min(block_size, TILE_ELEMENTS // width), width)
    for b in pypto.loop(block_table.shape[0], name="LOOP_batch", idx_name="b"):
        first = cu_seqlens_kv[b]
        length = cu_seqlens_kv[b + 1] - first
        pages = (length + block_size - 1) // block_size
        for j in pypto.loop(pages, name="LOOP_pages", idx_name="j", unroll_list=list(unroll)):
            valid = [(length - j * block_size).min(block_size), width]
            page = [block_table[b, j] * block_size, 0]
            row = [first + j * block_size, 0]
            pypto.assemble(pypto.view(k_cache, [block_size, width], page, valid_shape=valid), row, k)
            pypto.assemble(pypto.view(v_cache, [block_size, width], page, valid_shape=valid), row, v)


gather_pa_kv_cache_kernel = pypto.frontend.jit(runtime_options=RUNTIME)(gather)


def run(kernel, unroll, *, k_cache, v_cache, block_table, cu_seqlens_kv, k, v):
    """Launches `kernel` on matrix views of the tensors."""
    block_size = k_cache.shape[1]
    k_cache, v_cache, k, v = (x.view(-1, x.shape[-2] * x.shape[-1]) for x in (k_cache, v_cache, k, v))
    kernel(k_cache, v_cache, block_table, cu_seqlens_kv, k, v, block_size, unroll)


def launch(**tensors):
    """Writes k and v; arguments as in gather_pa_kv_cache.py."""
    run(gather_pa_kv_cache_kernel, (1,), **tensors)
