"""What the case matrix cannot say: bad input, and nothing to gather."""

import pytest
import torch

from pypto_gym.ops.attention.gather_pa_kv_cache.gather_pa_kv_cache import gather_pa_kv_cache


def _good():
    return {
        "k_cache": torch.zeros(5, 16, 2, 64).bfloat16(),
        "v_cache": torch.zeros(5, 16, 2, 64).bfloat16(),
        "block_table": torch.tensor([[1, 4], [3, -1]]).int(),
        "kv_lens": torch.tensor([20, 16]).int(),
    }


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"k_cache": torch.zeros(5, 16, 2, 64)}, TypeError, "k_cache: got float32, takes bfloat16"),
        ({"v_cache": torch.zeros(5, 16, 1, 64).bfloat16()}, ValueError, "v_cache: got shape [5, 16, 1, 64], takes that of k_cache"),
        ({"block_table": torch.tensor([1, 4]).int()}, ValueError, "block_table: got shape [2], takes 2 dimensions"),
        ({"block_table": torch.tensor([[1, 7], [3, -1]]).int()}, ValueError, "block_table: got block 7 at [0, 1], takes 0 to 4"),
        ({"kv_lens": torch.tensor([20, 40]).int()}, ValueError, "kv_lens: got 40 for sequence 1, takes 0 to 32"),
        ({"kv_lens": torch.tensor([20]).int()}, ValueError, "kv_lens: got 1 sequences, takes 2"),
        ({"k_cache": torch.zeros(5, 16, 1, 8).bfloat16(), "v_cache": torch.zeros(5, 16, 1, 8).bfloat16()}, ValueError, "k_cache: got rows of 8 elements, takes a multiple of 16"),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, error, message):
    with pytest.raises(error) as caught:
        gather_pa_kv_cache(**{**_good(), **change})
    assert message in str(caught.value)


def test_empty_sequences_give_empty_tensors():
    k, v, cu_seqlens_kv = gather_pa_kv_cache(**{**_good(), "kv_lens": torch.zeros(2).int()})
    assert k.shape == v.shape == (0, 2, 64) and cu_seqlens_kv.tolist() == [0, 0, 0]
