"""The smallest operator there can be: what the tests of the harness run."""

from pypto_gym.ops.sample.scale_add import scale_add_golden as golden
from pypto_gym.tools.harness import Operator, Output, Work

OPERATOR = Operator(
    file=__file__,
    summary="y = 2 a + b",
    params={"rows": int},
    golden=golden,
    impls={"general": "scale_add_impl", "raises": "raises_impl", "segfault": "segfault_impl", "hangs": "hangs_impl",
           "greedy": "greedy_impl", "half": "half_impl", "options": "options_impl", "host": "host_impl", "refused": "refused_impl"},
    outputs={"y": Output(rtol=1e-6, atol=1e-6, budget=1.1)},
    work=lambda inputs: Work(cube_flops=0, bytes=3 * 4 * inputs["a"].numel()),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
