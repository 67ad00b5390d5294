"""`flash_attention`: differentiable attention of packed sequences, opaque to torch.compile.

Forward: flash_attention_mha, whose l and m are saved. Backward: flash_attention_mha_grad (skeleton SK-16), which is
plain multi-head attention without a mask; causal attention, grouped heads, a scale of one's own and a head_dim for which
it has no tiles go to flash_attention_score_grad on the TND layout, which consumes the same l and m.
"""

from __future__ import annotations

import torch

from pypto_gym.ops.attention.flash_attention_mha import flash_attention_mha as forward
from pypto_gym.ops.attention.flash_attention_mha_grad import flash_attention_mha_grad as plain_grad
from pypto_gym.ops.attention.flash_attention_score_grad import flash_attention_score_grad as general_grad


def flash_attention(q, k, v, cu_seqlens_q, cu_seqlens_kv, causal=False, scale=None):
    """softmax(Q K^T * scale) V of every sequence and head, with gradients for q, k and v.

    Args:
        q: BF16 [total_q, heads, head_dim].
        k, v: BF16 [total_kv, kv_heads, head_dim]; heads is a multiple of kv_heads (GQA).
        cu_seqlens_q, cu_seqlens_kv: INT32 [batch + 1], offsets of the sequences from 0 to total_q and total_kv.
        causal: query i of a sequence sees keys up to i + kv_len - q_len (aligned at the ends).
        scale: factor of the scores, a Python number; default head_dim ** -0.5.

    Returns:
        o, BF16 [total_q, heads, head_dim]; zero for a query that sees no key.

    Raises:
        TypeError, ValueError: as `flash_attention_mha`.
    """
    scale = forward.checks.scale(scale, q.shape[-1])
    return flash_attention_op(q, k, v, cu_seqlens_q, cu_seqlens_kv, forward.checks.flag("causal", causal), scale)[0]


@torch.library.custom_op("pypto_gym::flash_attention", mutates_args=())
def flash_attention_op(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_kv: torch.Tensor,
    causal: bool, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """o, l and m; see `flash_attention_mha`."""
    return forward.flash_attention_mha(q, k, v, cu_seqlens_q, cu_seqlens_kv, causal, scale)


@flash_attention_op.register_fake
def _(q, k, v, cu_seqlens_q, cu_seqlens_kv, causal, scale):
    l, m = (q.new_empty(q.shape[0], q.shape[1], 1, dtype=torch.float32) for _ in range(2))
    return torch.empty_like(q), l, m


@torch.library.custom_op("pypto_gym::flash_attention_grad", mutates_args=())
def flash_attention_grad_op(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, do: torch.Tensor, l: torch.Tensor,
    m: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_kv: torch.Tensor, causal: bool, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """dq, dk, dv in FP32, shapes of q, k and v."""
    head_dim = q.shape[2]
    if not causal and k.shape[1] == q.shape[1] and scale == head_dim**-0.5 and head_dim in plain_grad.HEAD_DIMS:
        gradients = plain_grad.flash_attention_mha_grad(q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv)
        return tuple(gradient.view(x.shape) for gradient, x in zip(gradients, (q, k, v)))
    gradients = {name: torch.empty_like(x, dtype=torch.float32) for name, x in (("dq", q), ("dk", k), ("dv", v))}
    general_grad.OPERATOR.launch(
        "a3", q=q, k=k, v=v, o=o, do=do, l=l, m=m, head_num=q.shape[1], layout="TND", scale=scale,
        sparse_mode=3 if causal else 0, pre_tokens=0, next_tokens=0, bias=None, keep=None, keep_prob=1.0,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, **gradients,
    )  # fmt: skip
    return tuple(gradients.values())


@flash_attention_grad_op.register_fake
def _(q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv, causal, scale):
    return tuple(torch.empty_like(x, dtype=torch.float32) for x in (q, k, v))


def _setup_context(ctx, inputs, output):
    *tensors, ctx.causal, ctx.scale = inputs
    o, l, m = output
    ctx.mark_non_differentiable(l, m)
    ctx.save_for_backward(*tensors, o, l, m)


def _backward(ctx, do, dl, dm):
    q, k, v, cu_seqlens_q, cu_seqlens_kv, o, l, m = ctx.saved_tensors
    gradients = flash_attention_grad_op(
        q, k, v, o, do.contiguous(), l, m, cu_seqlens_q, cu_seqlens_kv, ctx.causal, ctx.scale
    )
    return *(gradient.to(q.dtype) for gradient in gradients), None, None, None, None


flash_attention_op.register_autograd(_backward, setup_context=_setup_context)
