"""What the case matrix cannot say: bad input, and masks that come as a tensor."""

import pytest
import torch

from pypto_gym.ops.attention import reference
from pypto_gym.ops.attention.flash_attention_score.flash_attention_score import flash_attention_score

BAD_INPUT = [
    ({"layout": "SBH"}, ValueError, "layout: got 'SBH', takes BSH or BNSD"),
    ({"head_num": 0}, ValueError, "head_num: got 0, takes a positive int"),
    ({"head_num": 3}, ValueError, "head_num: got 3, takes a divisor of q's last dimension, 128"),
    ({"q": torch.zeros(1, 5, 128)}, TypeError, "q: got float32, takes bfloat16"),
    ({"q": torch.zeros(5, 128).bfloat16()}, ValueError, "q: got shape [5, 128], takes 3 dimensions"),
    ({"q": torch.zeros(2, 5, 128).bfloat16()}, ValueError, "k: got batch 1, takes that of q, 2"),
    ({"q": torch.zeros(1, 0, 128).bfloat16()}, ValueError, "q, k: got batch 1, lengths 0 and 6, takes at least 1 of each"),
    ({"v": torch.zeros(1, 7, 64).bfloat16()}, ValueError, "v: got shape [1, 7, 64], takes that of k, [1, 6, 64]"),
    ({"sparse_mode": 6}, ValueError, "sparse_mode: got 6, takes 0 to 4"),
    ({"sparse_mode": 4, "pre_tokens": -1}, ValueError, "pre_tokens, next_tokens: got -1"),
    ({"sparse_mode": 1}, ValueError, "atten_mask: got None, sparse_mode 1 (allMask) takes a mask"),
    ({"sparse_mode": 3, "atten_mask": torch.zeros(5, 6).bool()}, ValueError, "atten_mask: got one with sparse_mode 3"),
    ({"atten_mask": torch.zeros(5, 6)}, TypeError, "atten_mask: got float32, takes bool"),
    ({"atten_mask": torch.zeros(4, 6).bool()}, ValueError, "atten_mask: got shape [1, 1, 4, 6], takes [1, 2, 5, 6]"),
    ({"atten_mask": torch.ones(5, 6).bool()}, ValueError, "atten_mask: got a query that sees no key"),
    ({"pse": torch.zeros(1, 3, 5, 6)}, ValueError, "pse: got shape [1, 3, 5, 6], takes [1, 2, 5, 6]"),
    ({"pse": torch.zeros(1, 2, 5, 6).half()}, TypeError, "pse: got float16, takes float32"),
    ({"keep_prob": 0.0}, ValueError, "keep_prob: got 0.0, takes a number in (0, 1]"),
    ({"keep_prob": 0.5}, ValueError, "drop_mask: got none with keep_prob 0.5"),
    ({"keep_prob": 0.5, "drop_mask": torch.ones(1, 2, 5, 6)}, TypeError, "drop_mask: got float32, takes uint8"),
    ({"keep_prob": 0.5, "drop_mask": torch.ones(1, 1, 5, 6).byte()}, ValueError, "drop_mask: got shape [1, 1, 5, 6]"),
    ({"scale": "1"}, TypeError, "scale: got str, takes a Python number"),
]


def good_input():
    q, k = torch.zeros(1, 5, 128).bfloat16(), torch.zeros(1, 6, 64).bfloat16()
    return {"q": q, "k": k, "v": k, "head_num": 2}


@pytest.mark.parametrize(("change", "error", "message"), BAD_INPUT)
def test_bad_input_is_named(change, error, message):
    with pytest.raises(error) as caught:
        flash_attention_score(**{**good_input(), **change})
    assert message in str(caught.value)


def test_mask_tensor_and_bias_together():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 20, 64, generator=generator).bfloat16() for _ in range(3))
    pse = torch.randn(1, 2, 20, 20, generator=generator)
    hidden = torch.rand(20, 20, generator=generator) < 0.5
    hidden.fill_diagonal_(False)
    o, l, m = flash_attention_score(q, k, v, 2, "BNSD", pse=pse, atten_mask=hidden, sparse_mode=1)
    wanted = reference.attention(q.double(), k.double(), v.double(), 0.125, ~hidden, pse.double())
    torch.testing.assert_close(o.double(), wanted[0], rtol=2**-6, atol=4e-3)
    torch.testing.assert_close((l.double(), m.double()), wanted[1:], rtol=1e-5, atol=1e-5)
