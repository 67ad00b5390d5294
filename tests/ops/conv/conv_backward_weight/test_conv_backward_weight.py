"""What the case matrix cannot say: bad input."""

import pytest
import torch

from pypto_gym.ops.conv.conv_backward_weight.conv_backward_weight import conv_backward_weight


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": torch.zeros(1, 8, 6, 6).bfloat16()}, TypeError, "x: got bfloat16, takes that of grad_output, float16"),
        ({"x": torch.zeros(1, 7, 6, 6).half()}, ValueError, "x: got N = 1 and Cin = 7, takes 1 of grad_output and 8 of weight"),
        ({"weight_size": [16, 8]}, TypeError, "weight_size: got [16, 8], takes four ints, [Cout, Cin, Kh, Kw]"),
        ({"weight_size": [16, 8, 2, 3]}, ValueError, "x: got 6 along H, takes 5 to 5"),
        ({"padding": 3}, ValueError, "padding: got 3 along H, takes less than (K-1)*dilation+1 = 3"),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, error, message):
    good = {"x": torch.zeros(1, 8, 6, 6).half(), "weight_size": [16, 8, 3, 3], "grad_output": torch.zeros(1, 16, 4, 4).half()}
    with pytest.raises(error) as caught:
        conv_backward_weight(**{**good, **change})
    assert message in str(caught.value)
