import pypto


def launch(*, a, b, c, tile):
    @pypto.frontend.jit()
    def kernel(
        a: pypto.Tensor([], pypto.DT_FP32),
        b: pypto.Tensor([], pypto.DT_FP32),
        c: pypto.Tensor([], pypto.DT_FP32),
    ):
        pypto.set_vec_tile_shapes(*tile)
        c[:] = a + b

    kernel(a, b, c)
