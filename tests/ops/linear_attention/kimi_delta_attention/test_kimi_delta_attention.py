"""What the matrix cannot say of kimi_delta_attention: proof of the golden, properties, bad input."""

from __future__ import annotations

import pytest
import torch

from pypto_gym.ops.linear_attention import reference
from pypto_gym.ops.linear_attention.kimi_delta_attention import kimi_delta_attention as op
from pypto_gym.ops.linear_attention.kimi_delta_attention import kimi_delta_attention_golden as golden

CASE = {
    "lengths": [70, 0, 1, 33], "qk_heads": 2, "value_heads": 4, "key_dim": 32, "value_dim": 16, "chunk_size": 32,
    "dtype": "float32", "gate": None, "beta": None,
}  # fmt: skip


def drawn(**changes):
    return golden.make_inputs(CASE | changes, torch.Generator().manual_seed(1))


def exact(inputs):
    """The golden's formulas in FP64."""
    return golden.forward(**inputs, dtype=torch.float64)


@pytest.mark.parametrize("chunk_size", (16, 64))
@pytest.mark.parametrize("gate, beta", ((None, None), (0.0, None), (-30.0, None), (None, 0.0), (None, 1.0)))
def test_golden_is_the_recurrence(chunk_size, gate, beta):
    inputs = drawn(chunk_size=chunk_size, gate=gate, beta=beta)
    for found, expected in zip(exact(inputs), golden.truth(**inputs).values()):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def test_gates_of_very_different_size_in_one_chunk():
    """Channels that forget at once beside channels that keep everything: no overflow, full FP32 accuracy."""
    inputs = drawn()
    inputs["g"] = torch.where(torch.rand(inputs["g"].shape, generator=torch.Generator().manual_seed(2)) < 0.2, -80.0, -1e-3)
    for found, expected in zip(golden.golden(**inputs).values(), golden.truth(**inputs).values()):
        assert found.isfinite().all()
        assert (found - expected).norm() / expected.norm() < 1e-6


def test_with_one_gate_for_all_channels_it_is_the_gated_delta_rule():
    inputs = drawn()
    g = inputs["g"].mean(-1)
    inputs["g"] = g[..., None].expand_as(inputs["g"])
    plain = {name: inputs[name] for name in ("q", "k", "v", "beta", "initial_state", "cu_seqlens", "chunk_size")}
    for found, expected in zip(exact(inputs), reference.chunked(**plain, g=g, dtype=torch.float64)):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_two_calls_with_a_carried_state_are_one_call():
    whole = drawn(lengths=[90])
    state, outputs = whole["initial_state"], []
    for part in (slice(0, 50), slice(50, 90)):
        tokens = {name: whole[name][part] for name in ("q", "k", "v", "g", "beta")}
        cut = {"initial_state": state, "cu_seqlens": torch.tensor([0, part.stop - part.start])}
        o, state = exact(whole | tokens | cut)
        outputs.append(o)
    o, final = exact(whole)
    torch.testing.assert_close(torch.cat(outputs), o, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(state, final, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "name, change, error, message",
    (
        ("g", lambda x: x[..., 0].contiguous(), ValueError, r"g: got shape \[104, 4\], takes \[104, 4, 32\]"),
        ("g", lambda x: x.bfloat16(), TypeError, "g: got bfloat16, takes float32"),
        ("q", lambda x: x.double(), TypeError, "q: got float64, takes float32 or bfloat16"),
        ("k", lambda x: x[:, :1], ValueError, r"k: got shape \[104, 1, 32\], takes \[104, 2, 32\]"),
        ("chunk_size", lambda x: 256, ValueError, "chunk_size: got 256, takes one of 16, 32, 64, 128"),
    ),
)
def test_bad_input_is_named_before_anything_is_compiled(name, change, error, message):
    inputs = drawn()
    inputs[name] = change(inputs[name])
    with pytest.raises(error, match=message):
        op.kimi_delta_attention(**inputs)
