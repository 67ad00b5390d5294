"""Gradients of multi-head attention over sequences of any length, from the forward pass's o, l and m (skeleton SK-16)."""

from pypto_gym.ops.attention.flash_attention_mha_grad import flash_attention_mha_grad_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work

OPERATOR = Operator(
    file=__file__,
    summary="dq, dk, dv of multi-head attention, varlen TND, BF16",
    params={"q_lens": list[int], "kv_lens": list[int], "heads": int, "head_dim": int},
    golden=golden,
    impls={
        "general": "flash_attention_mha_grad_impl",
        "a3": "flash_attention_mha_grad_impl_a3",
        "two_pass": "flash_attention_mha_grad_impl_two_pass",
    },
    outputs={name: Output(rtol=2**-7, atol=1e-4, budget=1.5, zeroed=True) for name in ("dq", "dk", "dv")},
)

if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
