"""db as a row reduction: [N*Cout, Hout*Wout] in FP32, then over the images."""

import functools

import pypto

from .. import atoms

UB_FP32 = 8192
"""FP32 elements of a tile: with its 16-bit source and the scratch of the reduction, well inside UB."""


def backward(grad_output, db, batch, cout):
    """db [cout, 1] from grad_output [batch * cout, hout * wout]."""
    size = grad_output.shape[1]
    step = min(size, UB_FP32)
    total = None
    for image in range(batch):
        for start in range(0, size, step):
            width = min(step, size - start)
            pypto.set_vec_tile_shapes(max(1, UB_FP32 // atoms.align(width)), atoms.align(width))
            part = pypto.cast(pypto.view(grad_output, [cout, width], [image * cout, start]), pypto.DT_FP32)
            part = pypto.sum(part, -1, True)
            total = part if total is None else total + part
    pypto.set_vec_tile_shapes(128, 16)
    pypto.assemble(pypto.cast(total, db.dtype), [0, 0], db)


@functools.cache
def kernel(dtype):
    """The jit kernel for one element type."""

    @pypto.frontend.jit()
    def db_of(grad_output: pypto.Tensor([], dtype), db: pypto.Tensor([], dtype), batch, cout):
        backward(grad_output, db, batch, cout)

    return db_of


def launch(*, grad_output, db):
    batch, cout = grad_output.shape[:2]
    kernel(atoms.DTYPES[str(db.dtype)])(grad_output.view(batch * cout, -1), db.view(cout, 1), batch, cout)
