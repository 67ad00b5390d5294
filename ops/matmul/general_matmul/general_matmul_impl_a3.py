"""c = op(a) @ op(b) for Atlas A3: a loop over columns of tiles; within a column, tiles that share B are one task."""

import functools

import pypto

TILES = (
    # m up to, k up to, m tile, k tile in L0 and L1 (16-bit elements), n tile
    (16, 1 << 30, 16, (512, 2048), 48),
    (64, 1 << 30, 64, (256, 1024), 64),
    (1 << 30, 512, 128, (128, 512), 128),
    (1 << 30, 1 << 30, 128, (32, 352), 176),
)
"""From the ranking of `./gym tiles matmul`, see DESIGN.md; the first row that holds m and k is taken."""

CORES = 24


def _dtypes():
    import torch

    return {
        torch.bfloat16: (pypto.DT_BF16, 2),
        torch.float16: (pypto.DT_FP16, 2),
        torch.float32: (pypto.DT_FP32, 4),
    }


def tiles(m, k, n, size):
    """(m tile, [kL0, kL1], n tile, tiles of a task) for elements of `size` bytes."""
    m_tile, k_tiles, n_tile = next(row[2:] for row in TILES if m <= row[0] and k <= row[1])
    k_tiles = [k_tile * 2 // size for k_tile in k_tiles]
    n_tile = min(n_tile, (n + 15) // 16 * 16)
    count = -(-m // m_tile) * -(-n // n_tile)
    return m_tile, k_tiles, n_tile, -(-count // CORES)


@functools.cache
def general_matmul_kernel(dtype, m_tile, k_l0, k_l1, n_tile, reuse, a_trans, b_trans):
    """The kernel for one element type, one storage of the operands and one tile."""

    @pypto.frontend.jit(
        runtime_options={"stitch_function_max_num": 128},
        pass_options={"cube_l1_reuse_setting": {-1: reuse}},
    )
    def kernel(a: pypto.Tensor([], dtype), b: pypto.Tensor([], dtype), c: pypto.Tensor([], dtype)):
        """a [m, k] (a_trans: [k, m]), b [k, n] (b_trans: [n, k]), c [m, n]."""
        pypto.set_cube_tile_shapes([m_tile, m_tile], [k_l0, k_l1], [n_tile, n_tile])
        pypto.set_vec_tile_shapes(64, 128)
        rows, columns = c.shape
        depth = a.shape[0] if a_trans else a.shape[1]
        for j in pypto.loop((columns + n_tile - 1) // n_tile, name="LOOP_n", idx_name="j"):
            n = (columns - j * n_tile).min(n_tile)
            if b_trans:
                b_j = pypto.view(b, [n_tile, depth], [j * n_tile, 0], valid_shape=[n, depth])
            else:
                b_j = pypto.view(b, [depth, n_tile], [0, j * n_tile], valid_shape=[depth, n])
            pypto.assemble(pypto.matmul(a, b_j, dtype, a_trans=a_trans, b_trans=b_trans), [0, j * n_tile], c)

    return kernel


def launch(*, a, b, c, a_trans, b_trans):
    dtype, size = _dtypes()[c.dtype]
    k = a.shape[0] if a_trans else a.shape[1]
    m_tile, (k_l0, k_l1), n_tile, reuse = tiles(c.shape[0], k, c.shape[1], size)
    general_matmul_kernel(dtype, m_tile, k_l0, k_l1, n_tile, reuse, a_trans, b_trans)(a, b, c)
