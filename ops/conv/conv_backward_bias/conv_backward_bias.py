"""db of a convolution: the gradient of its bias."""

from __future__ import annotations

from pypto_gym.ops.conv import limits
from pypto_gym.ops.conv.conv_backward_bias import conv_backward_bias_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work


OPERATOR = Operator(
    file=__file__,
    summary="gradient of a convolution's bias: dy summed over images and positions",
    params={"batch": int, "cout": int, "size": list[int], "dtype": str},
    golden=golden,
    impls={"general": "conv_backward_bias_impl"},
    outputs={"db": Output(budget=1.1)},
    work=lambda inputs: Work(cube_flops=0, bytes=inputs["grad_output"].nbytes, dtype=inputs["grad_output"].dtype),
    sim_executions=lambda inputs, impl: [Executions(1, (inputs["grad_output"],), (), 4 * inputs["grad_output"].nbytes)],
)


def conv_backward_bias(grad_output):
    """db[o] = sum over n, i, j of dy[n, o, i, j].

    Args:
        grad_output: dy, FP16 or BF16 [N, Cout, Hout, Wout], contiguous.

    Returns:
        db [Cout] of dy's dtype, summed in FP32.

    Raises:
        TypeError, ValueError: another dtype or rank, an empty or non-contiguous tensor.
    """
    limits.tensor("grad_output", grad_output)
    db = grad_output.new_empty(grad_output.shape[1])
    OPERATOR.launch("general", grad_output=grad_output, db=db)
    return db


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
