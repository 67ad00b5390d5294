"""What the case matrix cannot say: bad input."""

import pytest
import torch

from pypto_gym.ops.conv.conv_backward_bias.conv_backward_bias import conv_backward_bias


@pytest.mark.parametrize(
    ("grad_output", "error", "message"),
    [
        (torch.zeros(1, 8, 6, 6), TypeError, "grad_output: got float32, takes float16 or bfloat16"),
        (torch.zeros(8, 6, 6).half(), ValueError, "grad_output: got shape [8, 6, 6], takes 4 dimensions"),
        (torch.zeros(1, 8, 0, 6).half(), ValueError, "grad_output: got shape [1, 8, 0, 6], takes no empty dimension"),
    ],
)
def test_bad_input_is_named(grad_output, error, message):
    with pytest.raises(error) as caught:
        conv_backward_bias(grad_output)
    assert message in str(caught.value)
