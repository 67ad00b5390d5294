"""c = op(a) @ op(b) for Atlas A3: one product over the whole result, cut by the compiler into tiles of the ranked list."""

import functools

import pypto

TILES = (
    # up to m, up to k,  m tile, k tile in L0 and L1 (16-bit), n tile
    (16, 1 << 30, 16, (256, 1024), 128),
    (64, 1 << 30, 64, (128, 1024), 96),
    (1 << 30, 512, 128, (128, 512), 128),
    (1 << 30, 1 << 30, 128, (64, 256), 256),
)
"""First choices of `./gym tiles matmul` for the shapes that DESIGN.md lists; the first row that holds m and k is taken."""

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
def matmul_kernel(dtype, m_tile, k_l0, k_l1, n_tile, reuse, a_trans, b_trans):
    """The kernel for one element type, one storage of the operands and one tile."""

    @pypto.frontend.jit(
        runtime_options={"stitch_function_max_num": 128},
        pass_options={"cube_l1_reuse_setting": {-1: reuse}},
    )
    def kernel(a: pypto.Tensor([], dtype), b: pypto.Tensor([], dtype), c: pypto.Tensor([], dtype)):
        """a [m, k] (a_trans: [k, m]), b [k, n] (b_trans: [n, k]), c [m, n]."""
        pypto.set_cube_tile_shapes([m_tile, m_tile], [k_l0, k_l1], [n_tile, n_tile])
        pypto.set_vec_tile_shapes(64, 128)
        c[:] = pypto.matmul(a, b, dtype, a_trans=a_trans, b_trans=b_trans)

    return kernel


def launch(*, a, b, c, a_trans, b_trans):
    dtype, size = _dtypes()[c.dtype]
    k = a.shape[0] if a_trans else a.shape[1]
    m_tile, (k_l0, k_l1), n_tile, reuse = tiles(c.shape[0], k, c.shape[1], size)
    matmul_kernel(dtype, m_tile, k_l0, k_l1, n_tile, reuse, a_trans, b_trans)(a, b, c)
