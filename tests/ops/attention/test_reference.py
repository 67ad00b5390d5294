"""The family's reference is itself proven: against torch's attention and its autograd, in FP64."""

import pytest
import torch

from pypto_gym.ops.attention import reference


def _inputs(heads=4, kv_heads=2, q_len=9, kv_len=13, head_dim=8):
    generator = torch.Generator().manual_seed(0)
    q, do = torch.randn(2, 2, heads, q_len, head_dim, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, 2, kv_heads, kv_len, head_dim, generator=generator, dtype=torch.float64)
    return q, k, v, do


@pytest.mark.parametrize("band", [{}, {"after": 0}, {"after": 0, "at_end": True}, {"before": 3, "after": 2, "at_end": True}])
@pytest.mark.parametrize("extras", [False, True])
def test_attention_and_gradients_are_those_of_torch(band, extras):
    q, k, v, do = _inputs()
    allowed = reference.band_mask(9, 13, **band)
    bias = torch.randn(1, 4, 9, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) if extras else None
    keep = (torch.rand(2, 4, 9, 13, generator=torch.Generator().manual_seed(2)) < 0.8).double() / 0.8 if extras else None
    for x in (q, k, v):
        x.requires_grad_()
    s = q @ reference.repeat_heads(k, 4).mT * 0.3 + (0 if bias is None else bias)
    p = torch.softmax(s.masked_fill(~allowed, -torch.inf), -1) * (1 if keep is None else keep)
    o = p @ reference.repeat_heads(v, 4)
    wanted = torch.autograd.grad(o, (q, k, v), do)

    got_o, l, m = reference.attention(q, k, v, 0.3, allowed, bias, keep)
    torch.testing.assert_close(got_o, o)
    torch.testing.assert_close(l.log() + m, s.masked_fill(~allowed, -torch.inf).logsumexp(-1, keepdim=True))
    got = reference.attention_grad(q, k, v, do, 0.3, allowed, bias, keep)[:3]
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("kv_tile", [4, 13, 64])
def test_online_flow_is_plain_attention_in_any_tiling(kv_tile):
    q, k, v, _ = (x.float() for x in _inputs())
    allowed = reference.band_mask(9, 13, before=5, after=0)
    for got, wanted in zip(
        reference.attention_flow(q, k, v, 0.3, kv_tile, allowed), reference.attention(q, k, v, 0.3, allowed)
    ):
        torch.testing.assert_close(got, wanted)


def test_rows_that_see_nothing():
    q, k, v, _ = _inputs(q_len=5, kv_len=2)
    allowed = reference.band_mask(5, 2, after=0, at_end=True)
    for function in (lambda: reference.attention(q, k, v, 0.3, allowed), lambda: reference.attention_flow(q, k, v, 0.3, 4, allowed)):
        o, l, m = function()
        assert (o[..., :3, :] == 0).all() and (l[..., :3, :] == 0).all() and (m[..., :3, :] == -torch.inf).all()
        assert (l[..., 3:, :] > 0).all()


def test_varlen_is_each_sequence_alone():
    q, k = torch.randn(7, 2, 8), torch.randn(9, 2, 8)
    cu_q, cu_kv = reference.cu_seqlens([3, 0, 4]), reference.cu_seqlens([5, 4, 0])
    (o,) = reference.varlen(lambda b, q, k: (reference.attention(q, k, k, 0.3)[0],), cu_q, cu_kv, [q], [k])
    alone = reference.attention(q[:3].transpose(0, 1), k[:5].transpose(0, 1), k[:5].transpose(0, 1), 0.3)[0]
    torch.testing.assert_close(o[:3], alone.transpose(0, 1))
    assert (o[3:] == 0).all()
