"""Refused by PyPTO: no vector tile is set."""

import pypto


@pypto.frontend.jit
def refused_kernel(
    a: pypto.Tensor([64, 64], pypto.DT_FP32), b: pypto.Tensor([64, 64], pypto.DT_FP32), y: pypto.Tensor([64, 64], pypto.DT_FP32)
):
    for _ in pypto.loop(1):
        pypto.assemble(a + b, [0, 0], y)


def launch(*, a, b, y):
    refused_kernel(a, b, y)
