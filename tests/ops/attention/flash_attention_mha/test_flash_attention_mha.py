"""What the case matrix cannot say: bad input, and the band's arithmetic."""

import pytest
import torch

from pypto_gym.ops.attention import reference
from pypto_gym.ops.attention.flash_attention_mha.flash_attention_mha import flash_attention_mha


def _good():
    q, k, v = torch.zeros(6, 4, 64).bfloat16(), torch.zeros(8, 2, 64).bfloat16(), torch.zeros(8, 2, 64).bfloat16()
    offsets = {"cu_seqlens_q": reference.cu_seqlens([2, 4]), "cu_seqlens_kv": reference.cu_seqlens([3, 5])}
    return {"q": q, "k": k, "v": v, **offsets}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": [1.0]}, TypeError, "q: got list, takes a torch.Tensor"),
        ({"q": torch.zeros(6, 4, 64)}, TypeError, "q: got float32, takes bfloat16"),
        ({"k": torch.zeros(8, 2, 64).half()}, TypeError, "k: got float16, takes bfloat16"),
        ({"q": torch.zeros(6, 256).bfloat16()}, ValueError, "q: got shape [6, 256], takes 3 dimensions"),
        ({"v": torch.zeros(7, 2, 64).bfloat16()}, ValueError, "v: got shape [7, 2, 64], takes that of k, [8, 2, 64]"),
        ({"k": torch.zeros(8, 2, 32).bfloat16()}, ValueError, "v: got shape [8, 2, 64], takes that of k, [8, 2, 32]"),
        ({"q": torch.zeros(6, 3, 64).bfloat16()}, ValueError, "k: got 2 heads, takes a divisor of q's 3"),
        ({"q": torch.zeros(6, 4, 32).bfloat16()}, ValueError, "k: got head_dim 64, takes that of q, 32"),
        ({"q": torch.zeros(4, 6, 64).bfloat16().transpose(0, 1)}, ValueError, "takes a contiguous tensor; call .contiguous()"),
        ({"k": torch.zeros(8, 2, 64, device="meta").bfloat16()}, ValueError, "k: got a tensor on meta, takes one on cpu"),
        ({"cu_seqlens_q": torch.tensor([0, 6])}, TypeError, "cu_seqlens_q: got int64, takes int32"),
        ({"cu_seqlens_q": torch.tensor([0, 5]).int()}, ValueError, "cu_seqlens_q: got [0, 5], takes offsets that rise from 0 to 6"),
        ({"cu_seqlens_kv": torch.tensor([0, 9, 8]).int()}, ValueError, "takes offsets that rise from 0 to 8"),
        ({"cu_seqlens_kv": torch.tensor([0, 8]).int()}, ValueError, "got 1 sequences, takes as many as cu_seqlens_q, 2"),
        ({"cu_seqlens_q": torch.tensor([0]).int()}, ValueError, "got 1 elements, takes batch + 1, at least 2"),
        ({"causal": 1}, TypeError, "causal: got int, takes a bool"),
        ({"scale": torch.tensor(0.1)}, TypeError, "scale: got Tensor, takes a Python number"),
        ({"scale": -1.0}, ValueError, "scale: got -1.0, takes a positive finite number"),
        ({"impl": "fast"}, ValueError, "impl: got 'fast', flash_attention_mha has general, a3"),
    ],
)
def test_bad_input_is_named(change, error, message):
    with pytest.raises(error) as caught:
        flash_attention_mha(**{**_good(), **change})
    assert message in str(caught.value)


def test_head_dim_that_the_tiles_cannot_take():
    q, k = torch.zeros(6, 4, 40).bfloat16(), torch.zeros(8, 2, 40).bfloat16()
    with pytest.raises(ValueError, match="q: got head_dim 40, takes a multiple of 16 from 16 to 256"):
        flash_attention_mha(**{**_good(), "q": q, "k": k, "v": k})
