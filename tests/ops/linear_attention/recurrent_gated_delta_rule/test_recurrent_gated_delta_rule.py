"""What the matrix cannot say of recurrent_gated_delta_rule: independent proof of the recurrence, properties, bad input."""

from __future__ import annotations

import pytest
import torch

from pypto_gym.ops.linear_attention.recurrent_gated_delta_rule import recurrent_gated_delta_rule as op
from pypto_gym.ops.linear_attention.recurrent_gated_delta_rule import recurrent_gated_delta_rule_golden as golden

CASE = {
    "tokens": [1, 3, 0, 2], "qk_heads": 2, "value_heads": 4, "key_dim": 32, "value_dim": 16, "dtype": "float32",
    "gate": None, "beta": None,
}  # fmt: skip


def drawn(**changes):
    return golden.make_inputs(CASE | changes, torch.Generator().manual_seed(1))


def test_truth_is_the_recurrence_of_transformers():
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next", reason="transformers is not installed")
    inputs = drawn(tokens=[5])
    q, k = (inputs[name].repeat_interleave(2, dim=1)[None] for name in ("q", "k"))
    o, state = qwen.torch_recurrent_gated_delta_rule(
        q, k, *(inputs[name][None] for name in ("v", "g", "beta")), initial_state=inputs["state"],
        output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    truth = golden.truth(**inputs)
    torch.testing.assert_close(o[0].double(), truth["o"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state.double(), truth["state"], rtol=1e-5, atol=1e-6)


def test_token_by_token_is_one_call():
    inputs = drawn(tokens=[4])
    whole, state, outputs = golden.truth(**inputs), inputs["state"], []
    for t in range(4):
        token = {name: inputs[name][t : t + 1] for name in ("q", "k", "v", "g", "beta")}
        step = golden.truth(**token, state=state, cu_seqlens=torch.tensor([0, 1]))
        state = step["state"]
        outputs.append(step["o"])
    torch.testing.assert_close(torch.cat(outputs), whole["o"])
    torch.testing.assert_close(state, whole["state"])


def test_a_sequence_without_tokens_keeps_its_state():
    inputs = drawn()
    assert torch.equal(golden.truth(**inputs)["state"][2], inputs["state"][2].double())


@pytest.mark.parametrize(
    "name, change, error, message",
    (
        ("q", lambda x: x.double(), TypeError, "q: got float64, takes float32 or bfloat16"),
        ("v", lambda x: torch.zeros(*x.shape[:2], 24), ValueError, "v: got a head of 24, takes a multiple of 16 from 16 to 128"),
        ("k", lambda x: x[:, :1], ValueError, r"k: got shape \[6, 1, 32\], takes \[6, 2, 32\]"),
        ("v", lambda x: x.bfloat16(), TypeError, "v: got bfloat16, takes float32"),
        ("v", lambda x: x[:, :3].contiguous(), ValueError, "v: got 3 heads, takes a multiple of q's 2"),
        ("g", lambda x: x[:, :1], ValueError, r"g: got shape \[6, 1\], takes \[6, 4\]"),
        ("beta", lambda x: x.tolist(), TypeError, "beta: got list, takes a torch.Tensor"),
        ("state", lambda x: x.bfloat16(), TypeError, "state: got bfloat16, takes float32"),
        ("state", lambda x: x.mT.contiguous(), ValueError, r"state: got shape \[4, 4, 16, 32\], takes \[any, 4, 32, 16\]"),
        ("state", lambda x: x.transpose(0, 1), ValueError, "state: got strides .*, takes a contiguous tensor"),
        ("cu_seqlens", lambda x: x.long(), TypeError, "cu_seqlens: got int64, takes int32"),
        ("cu_seqlens", lambda x: x[1:], ValueError, r"cu_seqlens: got shape \[4\], takes \[5\]"),
        ("cu_seqlens", lambda x: x.flip(0).contiguous(), ValueError, "takes offsets that rise from 0 to 6"),
        ("cu_seqlens", lambda x: None, ValueError, r"cu_seqlens: got \[0, 1, 2, 3, 4\], takes offsets that rise from 0 to 6"),
        ("impl", lambda x: "fast", ValueError, "impl: got 'fast', recurrent_gated_delta_rule has general, a3"),
    ),
)
def test_bad_input_is_named_before_anything_is_compiled(name, change, error, message):
    inputs = drawn() | {"impl": "general"}
    inputs[name] = change(inputs[name])
    with pytest.raises(error, match=message):
        op.recurrent_gated_delta_rule(**inputs)
