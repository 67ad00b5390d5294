"""Kernels that the tests of the runtime call."""

import pypto


@pypto.frontend.jit
def accumulate(x: pypto.Tensor([60, 16], pypto.DT_FP32), y: pypto.Tensor([24, 16], pypto.DT_FP32)):
    """y[:20] += x[0:20], x[20:40], x[40:60], each in a full tile of 16 rows and a tail of 4."""
    pypto.set_vec_tile_shapes(16, 16)
    for i in pypto.loop(3, name="LOOP_parts", idx_name="i"):
        for j in pypto.loop(2, name="LOOP_tiles", idx_name="j"):
            valid = [(20 - j * 16).min(16), 16]
            part = pypto.view(x, [16, 16], [i * 20 + j * 16, 0], valid_shape=valid)
            pypto.atomic_add(part * 1.0, [j * 16, 0], y)
