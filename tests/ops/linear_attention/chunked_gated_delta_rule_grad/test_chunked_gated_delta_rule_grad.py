"""What the matrix cannot say of chunked_gated_delta_rule_grad: proof of the golden, properties, bad input."""

from __future__ import annotations

import pytest
import torch

from pypto_gym.ops.linear_attention.chunked_gated_delta_rule_grad import chunked_gated_delta_rule_grad as op
from pypto_gym.ops.linear_attention.chunked_gated_delta_rule_grad import chunked_gated_delta_rule_grad_golden as golden

CASE = {
    "lengths": [70, 0, 1, 33], "qk_heads": 2, "value_heads": 4, "key_dim": 32, "value_dim": 16, "chunk_size": 32,
    "dtype": "float32", "gate": None, "beta": None,
}  # fmt: skip


def drawn(**changes):
    return golden.make_inputs(CASE | changes, torch.Generator().manual_seed(1))


def exact(inputs):
    """The golden's formulas in FP64."""
    inputs = dict(inputs)
    chunk_size = inputs.pop("chunk_size")
    return golden.backward(*inputs.values(), chunk_size, torch.float64)


@pytest.mark.parametrize("chunk_size", (16, 64))
@pytest.mark.parametrize("gate, beta", ((None, None), (0.0, None), (-30.0, None), (None, 0.0), (None, 1.0)))
def test_golden_is_what_autograd_finds_for_the_recurrence(chunk_size, gate, beta):
    inputs = drawn(chunk_size=chunk_size, gate=gate, beta=beta)
    found, truth = exact(inputs), golden.truth(**inputs)
    for name, expected in truth.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-11, atol=1e-12, msg=lambda text: f"{name}: {text}")


def test_two_calls_with_a_carried_state_are_one_call():
    """The second half first: what it hands back for its initial state is the first half's d_final_state."""
    from pypto_gym.ops.linear_attention import reference

    whole = drawn(lengths=[90])
    halves = [slice(0, 50), slice(50, 90)]
    tokens = ("q", "k", "v", "g", "beta", "do")
    forward = [whole[name][halves[0]] for name in ("q", "k", "v", "g", "beta")]
    _, middle = reference.recurrent(*forward, whole["initial_state"], torch.tensor([0, 50]))
    second = whole | {n: whole[n][halves[1]] for n in tokens} | {"initial_state": middle, "cu_seqlens": torch.tensor([0, 40])}
    after = exact(second)
    first = whole | {n: whole[n][halves[0]] for n in tokens}
    first |= {"d_final_state": after["dinitial_state"], "cu_seqlens": torch.tensor([0, 50])}
    before, both = exact(first), exact(whole)
    for name in ("dq", "dk", "dv", "dg", "dbeta"):
        torch.testing.assert_close(torch.cat([before[name], after[name]]), both[name], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(before["dinitial_state"], both["dinitial_state"])


def test_scaling_what_comes_in_scales_what_goes_back():
    inputs = drawn()
    doubled = inputs | {"do": 2 * inputs["do"], "d_final_state": 2 * inputs["d_final_state"]}
    for name, gradient in exact(inputs).items():
        torch.testing.assert_close(exact(doubled)[name], 2 * gradient)


def changed(name, change):
    inputs = drawn()
    inputs[name] = change(inputs[name])
    return inputs


@pytest.mark.parametrize(
    "name, change, error, message",
    (
        ("q", lambda x: x.half(), TypeError, "q: got float16, takes float32 or bfloat16"),
        ("q", lambda x: x[0], ValueError, r"q: got shape \[2, 32\], takes \[any, any, any\]"),
        ("k", lambda x: x[1:], ValueError, r"k: got shape \[103, 2, 32\], takes \[104, 2, 32\]"),
        ("k", lambda x: x.bfloat16(), TypeError, "k: got bfloat16, takes float32"),
        ("v", lambda x: x[:, :3].contiguous(), ValueError, "v: got 3 heads, takes a multiple of q's 2"),
        ("v", lambda x: x[..., :8].contiguous(), ValueError, "v: got a head of 8, takes a multiple of 16 from 16 to 128"),
        ("v", lambda x: x.mT.contiguous().mT, ValueError, "v: got strides .* takes a contiguous tensor"),
        ("g", lambda x: x.double(), TypeError, "g: got float64, takes float32"),
        ("beta", lambda x: x[:, :2], ValueError, r"beta: got shape \[104, 2\], takes \[104, 4\]"),
        ("initial_state", lambda x: x[..., :8], ValueError, "initial_state: got shape .* takes .any, 4, 32, 16."),
        ("cu_seqlens", lambda x: x[:-1], ValueError, r"cu_seqlens: got shape \[4\], takes \[5\]"),
        ("cu_seqlens", lambda x: x.flip(0), ValueError, "cu_seqlens: got .* takes offsets that rise from 0 to 104"),
        ("cu_seqlens", lambda x: x.long(), TypeError, "cu_seqlens: got int64, takes int32"),
        ("chunk_size", lambda x: 48, ValueError, "chunk_size: got 48, takes one of 16, 32, 64, 128"),
        ("do", lambda x: x[:-1], ValueError, r"do: got shape \[103, 4, 16\], takes \[104, 4, 16\]"),
        ("do", lambda x: x.tolist(), TypeError, "do: got list, takes a torch.Tensor"),
        ("d_final_state", lambda x: x[:1], ValueError, r"d_final_state: got shape \[1, 4, 32, 16\], takes \[4, 4, 32, 16\]"),
        ("q", lambda x: x.to("meta"), ValueError, "k: got a tensor on cpu, takes one on meta, where q is"),
    ),
)
def test_bad_input_is_named_before_anything_is_compiled(name, change, error, message):
    with pytest.raises(error, match=message):
        op.chunked_gated_delta_rule_grad(**changed(name, change))
