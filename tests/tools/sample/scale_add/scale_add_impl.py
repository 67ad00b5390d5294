import pypto

TILE = 16


@pypto.frontend.jit
def scale_add_kernel(
    a: pypto.Tensor([pypto.DYNAMIC, 64], pypto.DT_FP32),
    b: pypto.Tensor([pypto.DYNAMIC, 64], pypto.DT_FP32),
    y: pypto.Tensor([pypto.DYNAMIC, 64], pypto.DT_FP32),
):
    pypto.set_vec_tile_shapes(TILE, 64)
    rows = a.shape[0]
    for i in pypto.loop((rows + TILE - 1) // TILE, name="LOOP_rows", idx_name="i"):
        valid = [(rows - i * TILE).min(TILE), 64]
        tile_a = pypto.view(a, [TILE, 64], [i * TILE, 0], valid_shape=valid)
        tile_b = pypto.view(b, [TILE, 64], [i * TILE, 0], valid_shape=valid)
        pypto.assemble(tile_a * 2.0 + tile_b, [i * TILE, 0], y)


def launch(*, a, b, y):
    scale_add_kernel(a, b, y)
