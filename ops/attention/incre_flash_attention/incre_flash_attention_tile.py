"""What both kernels of incre_flash_attention do with one kv tile: collect its pages, attend to them."""

import pypto

from ..atoms import partial_attention

TILE = 1024
"""Keys of one step: as many as make the scores of a group of query heads fill the vector buffers."""


def attend_tile(q_tile, k_cache, v_cache, block_size, block_table, b, h, s, visible, scale):
    """Partial result (o, l, m) of kv tile number `s` of sequence `b`, for the query heads of kv head `h`.

    q_tile             [group, head_dim] BF16
    k_cache, v_cache   [blocks * block_size, kv_heads * head_dim] BF16
    visible            how many keys the query token sees
    """
    group, head_dim = q_tile.shape
    keys = (visible - s * TILE).min(TILE)
    k = _pages(k_cache, block_size, block_table, b, h * head_dim, head_dim, s)
    v = _pages(v_cache, block_size, block_table, b, h * head_dim, head_dim, s)
    v = pypto.view(v, [TILE, head_dim], [0, 0], valid_shape=[keys, head_dim])
    # A cube tile that reaches over the border of a page would have the pages copied into one tensor first, by the
    # vector cores. The weights, which lie in one piece, are loaded at once.
    side, page = min(128, block_size), min(256, block_size)
    pypto.set_cube_tile_shapes([16, 16], [min(128, head_dim), head_dim], [side, page])
    scores = pypto.matmul(q_tile, k, pypto.DT_FP32, b_trans=True)
    scores = pypto.view(scores, [group, TILE], [0, 0], valid_shape=[group, keys])
    pypto.set_vec_tile_shapes(16, TILE)
    cube_pv = [16, 16], [side, TILE, page], [min(128, head_dim), head_dim]
    return partial_attention(pypto.mul(scores, scale), v, cube_pv)


def _pages(cache, block_size, block_table, b, column, width, s):
    """Columns `column` to `column + width` of the cache in kv tile `s` of sequence `b`: [TILE, width].

    Entries of the table that the sequence does not use may be anything, and the last tile may reach over its end:
    these are read from some page of the cache, and what they bring lies outside the valid shape.
    """
    blocks = cache.shape[0] // block_size
    tile = pypto.tensor([TILE, width], cache.dtype, "pages")
    pypto.set_vec_tile_shapes(min(128, block_size), width)
    pages = TILE // block_size
    for i in range(pages):
        entry = (s * pages + i).min(block_table.shape[1] - 1)
        row = block_table[b, entry].max(0).min(blocks - 1) * block_size
        tile[i * block_size : (i + 1) * block_size, 0:] = pypto.view(cache, [block_size, width], [row, column])
    return tile
