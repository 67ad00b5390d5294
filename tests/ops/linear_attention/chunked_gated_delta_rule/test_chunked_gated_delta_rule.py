"""What the matrix cannot say of chunked_gated_delta_rule: proof of the golden, properties, bad input."""

from __future__ import annotations

import pytest
import torch

from pypto_gym.ops.linear_attention import reference
from pypto_gym.ops.linear_attention.chunked_gated_delta_rule import chunked_gated_delta_rule as op
from pypto_gym.ops.linear_attention.chunked_gated_delta_rule import chunked_gated_delta_rule_golden as golden

CASE = {
    "lengths": [70, 0, 1, 33], "qk_heads": 2, "value_heads": 4, "key_dim": 32, "value_dim": 16, "chunk_size": 32,
    "dtype": "float32", "gate": None, "beta": None,
}  # fmt: skip
TOKENS = ("q", "k", "v", "g", "beta")


def drawn(**changes):
    return golden.make_inputs(CASE | changes, torch.Generator().manual_seed(1))


def exact(inputs):
    """The golden's formulas in FP64."""
    return reference.chunked(**inputs, dtype=torch.float64)


@pytest.mark.parametrize("chunk_size", (64, 128))
@pytest.mark.parametrize("length", (1, 63, 64, 65, 500))
def test_golden_is_the_recurrence_at_any_length(chunk_size, length):
    inputs = drawn(lengths=[length], chunk_size=chunk_size)
    for found, expected in zip(exact(inputs), golden.truth(**inputs).values()):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("gate, beta", ((0.0, None), (-30.0, None), (None, 0.0), (None, 1.0), (0.0, 1.0)))
def test_golden_is_the_recurrence_in_the_corners(gate, beta):
    inputs = drawn(gate=gate, beta=beta)
    for found, expected in zip(exact(inputs), golden.truth(**inputs).values()):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("function", ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"))
def test_truth_is_that_of_transformers(function):
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next", reason="transformers is not installed")
    inputs = drawn(lengths=[100])
    q, k = (inputs[name].repeat_interleave(2, dim=1)[None] for name in ("q", "k"))
    o, state = getattr(qwen, function)(
        q, k, *(inputs[name][None] for name in ("v", "g", "beta")), initial_state=inputs["initial_state"],
        output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    truth = golden.truth(**inputs)
    torch.testing.assert_close(o[0].double(), truth["o"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.double(), truth["final_state"], rtol=1e-4, atol=1e-5)


def test_two_calls_with_a_carried_state_are_one_call():
    whole = drawn(lengths=[90])
    state, outputs = whole["initial_state"], []
    for part in (slice(0, 50), slice(50, 90)):
        tokens = {name: whole[name][part] for name in TOKENS}
        o, state = exact(whole | tokens | {"initial_state": state, "cu_seqlens": torch.tensor([0, part.stop - part.start])})
        outputs.append(o)
    o, final = exact(whole)
    torch.testing.assert_close(torch.cat(outputs), o)
    torch.testing.assert_close(state, final)


def test_permuting_heads_permutes_the_outputs():
    inputs, qk_order, order = drawn(), [1, 0], [2, 3, 0, 1]
    permuted = inputs | {name: inputs[name][:, qk_order] for name in ("q", "k")}
    permuted |= {name: inputs[name][:, order] for name in ("v", "g", "beta", "initial_state")}
    for found, expected in zip(exact(permuted), exact(inputs)):
        torch.testing.assert_close(found, expected[:, order])


def test_scaling_values_and_state_scales_the_outputs():
    inputs = drawn()
    scaled = inputs | {name: inputs[name] * 3 for name in ("v", "initial_state")}
    for found, expected in zip(exact(scaled), exact(inputs)):
        torch.testing.assert_close(found, expected * 3)


def test_kernel_carries_its_state_over_two_calls():
    """One sequence in two calls of the compiled kernel is the truth of the whole."""
    inputs = drawn(lengths=[50], qk_heads=1, value_heads=1)
    state, outputs = inputs["initial_state"], []
    for part in (slice(0, 40), slice(40, 50)):
        tokens = {name: inputs[name][part] for name in TOKENS}
        cut = torch.tensor([0, part.stop - part.start], dtype=torch.int32)
        o, state = op.chunked_gated_delta_rule(**tokens, initial_state=state, cu_seqlens=cut, chunk_size=32)
        outputs.append(o)
    truth = golden.truth(**inputs)
    for found, expected in ((torch.cat(outputs), truth["o"]), (state, truth["final_state"])):
        assert (found - expected).norm() / expected.norm() < 1e-6


@pytest.mark.parametrize(
    "name, change, error, message",
    (
        ("q", lambda x: x.half(), TypeError, "q: got float16, takes float32 or bfloat16"),
        ("v", lambda x: torch.zeros(*x.shape[:2], 24), ValueError, "v: got a head of 24, takes a multiple of 16 from 16 to 128"),
        ("q", lambda x: x[0], ValueError, r"q: got shape \[2, 32\], takes \[any, any, any\]"),
        ("k", lambda x: x[:-1], ValueError, r"k: got shape \[103, 2, 32\], takes \[104, 2, 32\]"),
        ("v", lambda x: x.bfloat16(), TypeError, "v: got bfloat16, takes float32"),
        ("v", lambda x: x[:, :3].contiguous(), ValueError, "v: got 3 heads, takes a multiple of q's 2"),
        ("g", lambda x: x[:, :1], ValueError, r"g: got shape \[104, 1\], takes \[104, 4\]"),
        ("beta", lambda x: x.tolist(), TypeError, "beta: got list, takes a torch.Tensor"),
        ("initial_state", lambda x: x.mT.contiguous(), ValueError, r"initial_state: got shape \[4, 4, 16, 32\], takes \[any, 4, 32, 16\]"),
        ("initial_state", lambda x: x.to("meta"), ValueError, "initial_state: got a tensor on meta, takes one on cpu"),
        ("cu_seqlens", lambda x: x.long(), TypeError, "cu_seqlens: got int64, takes int32"),
        ("cu_seqlens", lambda x: x[1:], ValueError, r"cu_seqlens: got shape \[4\], takes \[5\]"),
        ("cu_seqlens", lambda x: x - 1, ValueError, "takes offsets that rise from 0 to 104"),
        ("chunk_size", lambda x: 48, ValueError, "chunk_size: got 48, takes one of 16, 32, 64, 128"),
        ("impl", lambda x: "fast", ValueError, "impl: got 'fast', chunked_gated_delta_rule has general, a3"),
    ),
)
def test_bad_input_is_named_before_anything_is_compiled(name, change, error, message):
    inputs = drawn() | {"impl": "general"}
    inputs[name] = change(inputs[name])
    with pytest.raises(error, match=message):
        op.chunked_gated_delta_rule(**inputs)
