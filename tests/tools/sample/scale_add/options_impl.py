"""Uses what 0.2.0 does not know: the polyfill takes it."""

import pypto


@pypto.frontend.jit(runtime_options={"max_workspace_kb": 1024, "stitch_function_max_num": 64})
def options_kernel(
    a: pypto.Tensor([pypto.DYNAMIC, 64], pypto.DT_FP32),
    b: pypto.Tensor([pypto.DYNAMIC, 64], pypto.DT_FP32),
    y: pypto.Tensor([pypto.DYNAMIC, 64], pypto.DT_FP32),
):
    pypto.set_vec_tile_shapes(16, 64)
    pypto.set_pass_options(sg_set_ooo_scope=1)
    rows = a.shape[0]
    for i in pypto.loop((rows + 15) // 16, name="LOOP_rows", idx_name="i"):
        valid = [(rows - i * 16).min(16), 64]
        tile_a = pypto.view(a, [16, 64], [i * 16, 0], valid_shape=valid)
        tile_b = pypto.view(b, [16, 64], [i * 16, 0], valid_shape=valid)
        half = pypto.div(tile_a, 0.5, precision_type=pypto.PrecisionType.INTRINSIC)
        pypto.assemble(half + tile_b, [i * 16, 0], y)


def launch(*, a, b, y):
    options_kernel(a, b, y)
