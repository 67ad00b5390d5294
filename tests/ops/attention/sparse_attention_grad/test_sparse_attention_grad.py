"""What the case matrix cannot say: bad input, and the truth against torch's autograd."""

import pytest
import torch

from pypto_gym.ops.attention import reference
from pypto_gym.ops.attention.sparse_attention_grad import sparse_attention_grad_golden as golden
from pypto_gym.ops.attention.sparse_attention_grad.sparse_attention_grad import sparse_attention_grad


def _good():
    q = torch.zeros(3, 4, 64).bfloat16()
    statistics = torch.ones(3, 4, 1)
    return {
        "q": q,
        "k": torch.zeros(9, 2, 64).bfloat16(),
        "v": torch.zeros(9, 2, 64).bfloat16(),
        "indices": torch.tensor([[[0, 3], [1, 2]], [[4, 0], [0, 4]], [[3, 9], [0, 9]]]).int(),
        "counts": torch.tensor([2, 2, 1]).int(),
        "cu_seqlens_q": reference.cu_seqlens([2, 1]),
        "cu_seqlens_kv": reference.cu_seqlens([5, 4]),
        "o": q,
        "l": statistics,
        "m": statistics,
        "do": q,
    }


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"do": torch.zeros(3, 4, 64)}, TypeError, "do: got float32, takes bfloat16"),
        ({"o": torch.zeros(3, 2, 64).bfloat16()}, ValueError, "o: got shape [3, 2, 64], takes [3, 4, 64]"),
        ({"l": torch.ones(3, 4)}, ValueError, "l: got shape [3, 4], takes 3 dimensions"),
        ({"m": torch.ones(3, 4, 1).bfloat16()}, TypeError, "m: got bfloat16, takes float32"),
        ({"m": torch.ones(4, 4, 1)}, ValueError, "m: got shape [4, 4, 1], takes [3, 4, 1]"),
        ({"counts": torch.tensor([2, 3, 1]).int()}, ValueError, "counts: got 3 for query 1, takes 0 to 2"),
        ({"block_size": 4}, ValueError, "indices: got 3 at [0, 0, 1], takes 0 to 1, the blocks of 4 in 5 keys"),
    ],
)
def test_bad_input_is_named(change, error, message):
    with pytest.raises(error) as caught:
        sparse_attention_grad(**{**_good(), **change})
    assert message in str(caught.value)


def test_truth_is_autograd_of_plain_attention_under_a_mask():
    case = {"q_lens": [3, 2], "kv_lens": [9, 12], "heads": 4, "kv_heads": 2, "head_dim": 16, "topk": 6, "block_size": 1}
    inputs = golden.make_inputs(case, torch.Generator().manual_seed(0))
    q, k, v = (inputs[name].double().requires_grad_() for name in ("q", "k", "v"))
    selected = torch.zeros(5, 2, 21, dtype=torch.bool)
    for i in range(5):
        for h in range(2):
            selected[i, h, inputs["rows"][i, h, : inputs["counts"][i, h]].long() // 2] = True
    mask = selected.repeat_interleave(2, 1).transpose(0, 1)
    heads_first = (x.transpose(0, 1) for x in (q, k, v))
    o = torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=mask, enable_gqa=True)
    o.transpose(0, 1).backward(inputs["do"].double())
    for name, x in golden.truth(**inputs).items():
        torch.testing.assert_close(x, {"dq": q, "dk": k, "dv": v}[name].grad)
