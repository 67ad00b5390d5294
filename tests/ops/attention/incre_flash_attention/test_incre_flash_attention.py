"""What the case matrix cannot say: bad input, and the golden against torch's own attention."""

import pytest
import torch

from pypto_gym.ops.attention.incre_flash_attention import incre_flash_attention_golden as golden
from pypto_gym.ops.attention.incre_flash_attention.incre_flash_attention import incre_flash_attention


def _good():
    return {
        "q": torch.zeros(2, 1, 4, 64).bfloat16(),
        "k_cache": torch.zeros(5, 16, 2, 64).bfloat16(),
        "v_cache": torch.zeros(5, 16, 2, 64).bfloat16(),
        "block_table": torch.tensor([[1, 4], [3, -1]]).int(),
        "kv_lens": torch.tensor([20, 16]).int(),
    }


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": torch.zeros(2, 1, 4, 64)}, TypeError, "q: got float32, takes bfloat16"),
        ({"q": torch.zeros(2, 4, 64).bfloat16()}, ValueError, "q: got shape [2, 4, 64], takes 4 dimensions"),
        ({"q": torch.zeros(2, 1, 3, 64).bfloat16()}, ValueError, "k_cache: got 2 heads, takes a divisor of q's 3"),
        ({"q": torch.zeros(2, 1, 4, 32).bfloat16()}, ValueError, "k_cache: got head_dim 64, takes that of q, 32"),
        ({"q": torch.zeros(3, 1, 4, 64).bfloat16()}, ValueError, "block_table: got 2 sequences, takes 3"),
        ({"v_cache": torch.zeros(4, 16, 2, 64).bfloat16()}, ValueError, "v_cache: got shape [4, 16, 2, 64], takes that of k_cache, [5, 16, 2, 64]"),
        ({"k_cache": torch.zeros(5, 24, 2, 64).bfloat16(), "v_cache": torch.zeros(5, 24, 2, 64).bfloat16()}, ValueError, "k_cache: got block_size 24, takes a power of two from 16 to 1024"),
        ({"k_cache": torch.zeros(0, 16, 2, 64).bfloat16(), "v_cache": torch.zeros(0, 16, 2, 64).bfloat16()}, ValueError, "k_cache: got 0 blocks, takes at least 1"),
        ({"block_table": torch.tensor([[1, 4], [3, -1]])}, TypeError, "block_table: got int64, takes int32"),
        ({"block_table": torch.tensor([[1, 5], [3, -1]]).int()}, ValueError, "block_table: got block 5 at [0, 1], takes 0 to 4, the blocks of the cache"),
        ({"block_table": torch.tensor([[-1, 1], [3, -1]]).int()}, ValueError, "block_table: got block -1 at [0, 0], takes 0 to 4"),
        ({"kv_lens": torch.tensor([20, 33]).int()}, ValueError, "kv_lens: got 33 for sequence 1, takes 0 to 32, what 2 blocks of 16 hold"),
        ({"kv_lens": torch.tensor([-1, 3]).int()}, ValueError, "kv_lens: got -1 for sequence 0, takes 0 to 32"),
        ({"kv_lens": torch.tensor([3]).int()}, ValueError, "kv_lens: got 1 sequences, takes 2"),
        ({"scale": 0}, ValueError, "scale: got 0, takes a positive finite number"),
        ({"impl": "fast"}, ValueError, "impl: got 'fast', incre_flash_attention has general, a3"),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, error, message):
    with pytest.raises(error) as caught:
        incre_flash_attention(**{**_good(), **change})
    assert message in str(caught.value)


def test_golden_and_truth_agree_with_torch():
    case = {"kv_lens": [1500, 0, 40], "q_len": 2, "heads": 4, "kv_heads": 2, "head_dim": 32, "block_size": 16}
    inputs = golden.make_inputs(case, torch.Generator().manual_seed(0))
    truth, low = golden.truth(**inputs)["o"], golden.golden(**inputs)["o"]
    for b, length in enumerate(case["kv_lens"]):
        for t in range(2):
            visible = max(length - 1 + t, 0)
            q = inputs["q"][b, t][:, None].double()
            k, v = (golden.sequence(inputs[x], inputs["block_table"][b], visible).double() for x in ("k_cache", "v_cache"))
            expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)[:, 0] if visible else q[:, 0] * 0
            torch.testing.assert_close(truth[b, t], expected)
            torch.testing.assert_close(low[b, t].double(), expected, rtol=2**-7, atol=2e-3)
