"""What the case matrix cannot say: bad input. The options are checked by the forward pass's own function."""

import pytest
import torch

from pypto_gym.ops.attention.flash_attention_score_grad.flash_attention_score_grad import flash_attention_score_grad


def _good():
    q, k = torch.zeros(1, 5, 128).bfloat16(), torch.zeros(1, 6, 64).bfloat16()
    l = torch.ones(1, 2, 5, 1)
    return {"q": q, "k": k, "v": k, "o": q, "do": q, "l": l, "m": l, "head_num": 2}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sparse_mode": 7}, ValueError, "sparse_mode: got 7, takes 0 to 4"),
        ({"o": torch.zeros(1, 5, 128)}, TypeError, "o: got float32, takes bfloat16"),
        ({"o": torch.zeros(5, 128).bfloat16()}, ValueError, "o: got shape [5, 128], takes 3 dimensions"),
        ({"o": torch.zeros(1, 5, 64).bfloat16()}, ValueError, "o: got shape [1, 5, 64], takes that of q, [1, 5, 128]"),
        ({"do": torch.zeros(1, 5, 128).half()}, TypeError, "do: got float16, takes bfloat16"),
        ({"do": torch.zeros(1, 4, 128).bfloat16()}, ValueError, "do: got shape [1, 4, 128], takes that of q, [1, 5, 128]"),
        ({"do": torch.zeros(1, 128, 5).bfloat16().mT}, ValueError, "do: got strides"),
        ({"l": torch.ones(1, 2, 5, 1).half()}, TypeError, "l: got float16, takes float32"),
        ({"l": torch.ones(1, 2, 5)}, ValueError, "l: got shape [1, 2, 5], takes 4 dimensions"),
        ({"m": torch.ones(1, 2, 5, 1).double()}, TypeError, "m: got float64, takes float32"),
        ({"m": torch.ones(1, 5, 2, 1)}, ValueError, "m: got shape [1, 5, 2, 1], takes [1, 2, 5, 1]"),
        ({"impl": "a2"}, ValueError, "impl: got 'a2', flash_attention_score_grad has general, a3, single_pass"),
    ],
)
def test_bad_input_is_named(change, error, message):
    with pytest.raises(error) as caught:
        flash_attention_score_grad(**{**_good(), **change})
    assert message in str(caught.value)
