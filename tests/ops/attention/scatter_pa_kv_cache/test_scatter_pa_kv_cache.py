"""What the case matrix cannot say: bad input."""

import pytest
import torch

from pypto_gym.ops.attention.scatter_pa_kv_cache.scatter_pa_kv_cache import scatter_pa_kv_cache


def _good():
    return {
        "k": torch.zeros(3, 2, 64).bfloat16(),
        "v": torch.zeros(3, 2, 64).bfloat16(),
        "slot_mapping": torch.tensor([5, 0, 31]).int(),
        "k_cache": torch.zeros(2, 16, 2, 64).bfloat16(),
        "v_cache": torch.zeros(2, 16, 2, 64).bfloat16(),
    }


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"k": torch.zeros(3, 2, 64)}, TypeError, "k: got float32, takes bfloat16"),
        ({"k": torch.zeros(3, 128).bfloat16()}, ValueError, "k: got shape [3, 128], takes 3 dimensions"),
        ({"v": torch.zeros(2, 2, 64).bfloat16()}, ValueError, "v: got shape [2, 2, 64], takes that of k, [3, 2, 64]"),
        ({"k": torch.zeros(3, 1, 64).bfloat16(), "v": torch.zeros(3, 1, 64).bfloat16()}, ValueError, "k: got 1 heads of 64, takes those of the cache, 2 of 64"),
        ({"slot_mapping": torch.tensor([5, 0, 31])}, TypeError, "slot_mapping: got int64, takes int32"),
        ({"slot_mapping": torch.tensor([5, 0]).int()}, ValueError, "slot_mapping: got 2 slots, takes one for each of 3 tokens"),
        ({"slot_mapping": torch.tensor([5, 0, 32]).int()}, ValueError, "slot_mapping: got slot 32 for token 2, takes 0 to 31, what 2 blocks of 16 hold"),
        ({"slot_mapping": torch.tensor([5, -1, 3]).int()}, ValueError, "slot_mapping: got slot -1 for token 1, takes 0 to 31"),
        ({"slot_mapping": torch.tensor([5, 0, 5]).int()}, ValueError, "slot_mapping: got slot 5 for token 2 and for an earlier one, takes it once"),
        ({"k_cache": torch.zeros(2, 16, 2, 64).bfloat16().transpose(0, 1)}, ValueError, "takes a contiguous tensor"),
        ({"impl": "fast"}, ValueError, "impl: got 'fast', scatter_pa_kv_cache has general, a3"),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, error, message):
    with pytest.raises(error) as caught:
        scatter_pa_kv_cache(**{**_good(), **change})
    assert message in str(caught.value)


def test_no_tokens_change_nothing():
    empty = torch.zeros(0, 2, 64).bfloat16()
    arguments = {**_good(), "k": empty, "v": empty, "slot_mapping": torch.zeros(0).int()}
    scatter_pa_kv_cache(**arguments)
    assert not arguments["k_cache"].any()
