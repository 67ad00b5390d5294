import pypto


def launch(*, a, b, c, m, k, n, split_k, a_trans, reuse):
    options = {} if reuse is None else {"cube_l1_reuse_setting": {-1: reuse}}

    @pypto.frontend.jit(pass_options=options)
    def kernel(
        a: pypto.Tensor([], pypto.DT_BF16),
        b: pypto.Tensor([], pypto.DT_BF16),
        c: pypto.Tensor([], pypto.DT_FP32),
    ):
        pypto.set_cube_tile_shapes(m, k, n, split_k)
        pypto.set_vec_tile_shapes(64, 128)
        c[:] = pypto.matmul(a, b, pypto.DT_FP32, a_trans=a_trans)

    kernel(a, b, c)
