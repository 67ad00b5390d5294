"""c = op(a) @ op(b) for any architecture: a loop over tiles of M and N, all of K inside one product."""

import functools

import pypto

M_TILE, N_TILE = 128, 128
K_L0_BYTES, K_L1_BYTES = 128, 512
"""K tile in bytes of a row: a double buffer of L0A and L0B each, and of L1, whatever the dtype."""


def _dtypes():
    import torch

    return {
        torch.bfloat16: (pypto.DT_BF16, 2),
        torch.float16: (pypto.DT_FP16, 2),
        torch.float32: (pypto.DT_FP32, 4),
    }


@functools.cache
def general_matmul_kernel(dtype, size, a_trans, b_trans):
    """The kernel for one element type and one storage of the operands; `size` is the bytes of an element."""

    @pypto.frontend.jit(runtime_options={"stitch_function_max_num": 128})
    def kernel(a: pypto.Tensor([], dtype), b: pypto.Tensor([], dtype), c: pypto.Tensor([], dtype)):
        """a [m, k] (a_trans: [k, m]), b [k, n] (b_trans: [n, k]), c [m, n]."""
        rows, columns = c.shape
        depth = a.shape[0] if a_trans else a.shape[1]
        pypto.set_cube_tile_shapes([M_TILE, M_TILE], [K_L0_BYTES // size, K_L1_BYTES // size], [N_TILE, N_TILE])
        pypto.set_vec_tile_shapes(64, N_TILE)
        for i in pypto.loop((rows + M_TILE - 1) // M_TILE, name="LOOP_m", idx_name="i"):
            for j in pypto.loop((columns + N_TILE - 1) // N_TILE, name="LOOP_n", idx_name="j"):
                m = (rows - i * M_TILE).min(M_TILE)
                n = (columns - j * N_TILE).min(N_TILE)
                if a_trans:
                    a_i = pypto.view(a, [depth, M_TILE], [0, i * M_TILE], valid_shape=[depth, m])
                else:
                    a_i = pypto.view(a, [M_TILE, depth], [i * M_TILE, 0], valid_shape=[m, depth])
                if b_trans:
                    b_j = pypto.view(b, [N_TILE, depth], [j * N_TILE, 0], valid_shape=[n, depth])
                else:
                    b_j = pypto.view(b, [depth, N_TILE], [0, j * N_TILE], valid_shape=[depth, n])
                c_ij = pypto.matmul(a_i, b_j, dtype, a_trans=a_trans, b_trans=b_trans)
                pypto.assemble(c_ij, [i * M_TILE, j * N_TILE], c)

    return kernel


def launch(*, a, b, c, a_trans, b_trans):
    dtype, size = _dtypes()[c.dtype]
    general_matmul_kernel(dtype, size, a_trans, b_trans)(a, b, c)
