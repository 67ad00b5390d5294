"""Matrix product with FP32 accumulation, transposes by argument, any size."""

from __future__ import annotations

import torch

from pypto_gym.ops.matmul.general_matmul import general_matmul_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work


def _work(inputs):
    a, b = inputs["a"], inputs["b"]
    (m, n), _ = golden.output_shapes(**inputs)["c"]
    k = a.numel() // m
    return Work(cube_flops=2 * m * n * k, bytes=a.nbytes + b.nbytes + m * n * a.element_size(), dtype=a.dtype)


def _executions(inputs, impl):
    a, b = inputs["a"], inputs["b"]
    (m, n), _ = golden.output_shapes(**inputs)["c"]
    count = -(-m // 128) * -(-n // 128) if impl == "general" else -(-n // 32)
    size = a.element_size()
    return [Executions(count, (a, b), (m * n * size,), (a.nbytes + b.nbytes + m * n * size) // count)]


OPERATOR = Operator(
    file=__file__,
    summary="matrix product, FP32 accumulation, BF16, FP16 or FP32, transposed operands, any size",
    params={"m": int, "k": int, "n": int, "dtype": str, "a_trans": bool, "b_trans": bool},
    golden=golden,
    impls={"general": "general_matmul_impl", "a3": "general_matmul_impl_a3"},
    outputs={"c": Output(rtol=2**-7, atol=1e-4, budget=1.5)},
    work=_work,
    sim_executions=_executions,
)


def general_matmul(a, b, *, a_trans=False, b_trans=False, impl=None):
    """op(a) @ op(b), where op transposes if asked; accumulated in FP32 and rounded once.

    Args:
        a: BF16, FP16 or FP32, [m, k], with a_trans [k, m]; the inner axis at most 65535.
        b: the same dtype, [k, n], with b_trans [n, k].
        impl: "general" or "a3"; default: a3.

    Returns:
        [m, n] in the dtype of a.

    Raises:
        TypeError, ValueError: an argument of another kind, named with what it got and what it takes.
    """
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: got {type(x).__name__}, takes a torch.Tensor")
        if x.dtype not in golden.DTYPES.values():
            raise TypeError(f"{name}: got {x.dtype}, takes torch.bfloat16, torch.float16 or torch.float32")
        if x.dim() != 2 or 0 in x.shape:
            raise ValueError(f"{name}: got shape {list(x.shape)}, takes 2 dimensions of 1 or more")
        if x.shape[1] > 65535:
            raise ValueError(f"{name}: got an inner axis of {x.shape[1]}, takes at most 65535")
        if not x.is_contiguous():
            raise ValueError(f"{name}: got strides {list(x.stride())}, takes a contiguous tensor; a transpose is {name}_trans=True")
    if b.dtype != a.dtype:
        raise TypeError(f"b: got {b.dtype}, takes that of a, {a.dtype}")
    if b.device != a.device:
        raise ValueError(f"b: got a tensor on {b.device}, takes one on {a.device}, where a is")
    for name, flag in (("a_trans", a_trans), ("b_trans", b_trans)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name}: got {flag!r}, takes True or False")
    k, b_k = a.shape[0 if a_trans else 1], b.shape[1 if b_trans else 0]
    if b_k != k:
        raise ValueError(f"b: got {b_k} on the K axis, takes that of a, {k}")
    shape, dtype = golden.output_shapes(a=a, b=b, a_trans=a_trans, b_trans=b_trans)["c"]
    c = a.new_empty(shape, dtype=dtype)
    OPERATOR.launch(impl or "a3", a=a, b=b, c=c, a_trans=a_trans, b_trans=b_trans)
    return c


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
