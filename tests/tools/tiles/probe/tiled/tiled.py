"""A matrix product and a sum with tiles of the caller's choice: what the compiler says to them."""

from pypto_gym.tools.harness import Operator, Output

OPERATOR = Operator(
    file=__file__,
    summary="tiles of the caller's choice",
    params={},
    golden=None,
    impls={"matmul": "matmul_impl", "vector": "vector_impl"},
    outputs={"c": Output()},
)
