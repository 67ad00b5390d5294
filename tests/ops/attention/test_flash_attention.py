"""The differentiable function: gradients against torch in FP64, registration, and that torch.compile leaves it whole."""

import pytest
import torch

from pypto_gym.ops.attention import reference
from pypto_gym.ops.attention.flash_attention import flash_attention, flash_attention_op


def _inputs(q_lens, kv_lens, heads=2, kv_heads=2, head_dim=64):
    generator = torch.Generator().manual_seed(1)

    def normal(lengths, n):
        return torch.randn(sum(lengths), n, head_dim, generator=generator).bfloat16().requires_grad_()

    q, k, v = normal(q_lens, heads), normal(kv_lens, kv_heads), normal(kv_lens, kv_heads)
    return q, k, v, reference.cu_seqlens(q_lens), reference.cu_seqlens(kv_lens)


def _exact_gradients(q, k, v, cu_seqlens_q, cu_seqlens_kv, causal, scale, do):
    """o and the gradients by autograd through scaled_dot_product_attention in FP64."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))

    def sdpa(_, q, k, v):
        allowed = reference.band_mask(q.shape[1], k.shape[1], after=0 if causal else None, at_end=True)
        k, v = (reference.repeat_heads(x, q.shape[0]) for x in (k, v))
        return (torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale),)

    (o,) = reference.varlen(sdpa, cu_seqlens_q, cu_seqlens_kv, [q], [k, v])
    return o, torch.autograd.grad(o, (q, k, v), do.double())


@pytest.mark.parametrize(
    ("q_lens", "kv_lens", "options", "causal", "scale"),
    [
        pytest.param([40, 7], [50, 7], {}, False, None, id="SK-16"),
        pytest.param([40, 7], [50, 7], {}, True, None, id="causal"),
        pytest.param([33], [40], {"heads": 4, "kv_heads": 1, "head_dim": 128}, False, 0.2, id="GQA-scale"),
    ],
)
def test_gradients_match_torch_in_fp64(q_lens, kv_lens, options, causal, scale):
    q, k, v, *cu_seqlens = _inputs(q_lens, kv_lens, **options)
    do = torch.randn(q.shape, generator=torch.Generator().manual_seed(2)).bfloat16()
    o = flash_attention(q, k, v, *cu_seqlens, causal=causal, scale=scale)
    o.backward(do)
    exact_o, exact = _exact_gradients(q, k, v, *cu_seqlens, causal, scale, do)
    for name, got, wanted in [("o", o, exact_o), *zip("qkv", (q.grad, k.grad, v.grad), exact)]:
        error = (got.double() - wanted).norm() / wanted.norm()
        assert error < 2**-7, f"{name}: relative error {error:.1e}"


def test_opcheck():
    q, k, v, *cu_seqlens = _inputs([9], [12], heads=1, kv_heads=1)
    torch.library.opcheck(flash_attention_op, (q, k, v, *cu_seqlens, True, 0.125))


def test_torch_compile_keeps_it_whole():
    inputs = _inputs([9], [12], heads=1, kv_heads=1)
    compiled = torch.compile(lambda *x: flash_attention(*x, causal=True) * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), flash_attention(*inputs, causal=True) * 2, rtol=0, atol=0)
