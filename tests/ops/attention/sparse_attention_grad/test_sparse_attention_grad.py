"""What the case matrix cannot say: bad input, and the truth against torch's autograd."""

import pytest
import torch

from pypto_gym.ops.attention import atoms, reference
from pypto_gym.ops.attention.sparse_attention import sparse_attention_golden as forward
from pypto_gym.ops.attention.sparse_attention_grad import sparse_attention_grad_golden as golden
from pypto_gym.ops.attention.sparse_attention_grad.sparse_attention_grad import OPERATOR, sparse_attention_grad
from pypto_gym.ops.attention.sparse_attention_grad.sparse_attention_grad_impl_a3 import choose_tiles, visits
from pypto_gym.tools.harness.compare import compare


def _good():
    q = torch.zeros(3, 4, 64).bfloat16()
    statistics = torch.ones(3, 4, 1)
    return {
        "q": q,
        "k": torch.zeros(9, 2, 64).bfloat16(),
        "v": torch.zeros(9, 2, 64).bfloat16(),
        "indices": torch.tensor([[[0, 3], [1, 2]], [[4, 0], [0, 4]], [[3, 9], [0, 9]]]).int(),
        "counts": torch.tensor([2, 2, 1]).int(),
        "cu_seqlens_q": reference.cu_seqlens([2, 1]),
        "cu_seqlens_kv": reference.cu_seqlens([5, 4]),
        "o": q,
        "l": statistics,
        "m": statistics,
        "do": q,
    }


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"do": torch.zeros(3, 4, 64)}, TypeError, "do: got float32, takes bfloat16"),
        ({"o": torch.zeros(3, 2, 64).bfloat16()}, ValueError, "o: got shape [3, 2, 64], takes [3, 4, 64]"),
        ({"l": torch.ones(3, 4)}, ValueError, "l: got shape [3, 4], takes 3 dimensions"),
        ({"m": torch.ones(3, 4, 1).bfloat16()}, TypeError, "m: got bfloat16, takes float32"),
        ({"m": torch.ones(4, 4, 1)}, ValueError, "m: got shape [4, 4, 1], takes [3, 4, 1]"),
        ({"do": torch.zeros(3, 4, 32).bfloat16()}, ValueError, "do: got shape [3, 4, 32], takes [3, 4, 64]"),
        ({"l": torch.ones(3, 2, 1)}, ValueError, "l: got shape [3, 2, 1], takes [3, 4, 1]"),
        ({"cu_seqlens_q": reference.cu_seqlens([2, 2])}, ValueError, "cu_seqlens_q: got [0, 2, 4], takes offsets that rise from 0 to 3"),
        ({"cu_seqlens_kv": reference.cu_seqlens([5, 5])}, ValueError, "cu_seqlens_kv: got [0, 5, 10], takes offsets that rise from 0 to 9"),
        ({"indices": torch.full((3, 2, 2), 5).int()}, ValueError, "indices: got 5 at [0, 0, 0], takes 0 to 4, the blocks of 1 in 5 keys"),
        ({"indices": torch.zeros(3, 2, 2).int()}, ValueError, "indices: got 0 twice at [0, 0], takes a block once"),
        ({"impl": "two_pass"}, ValueError, "impl: got 'two_pass', sparse_attention_grad has general, a3"),
        ({"counts": torch.tensor([2, 3, 1]).int()}, ValueError, "counts: got 3 for query 1, takes 0 to 2"),
        ({"block_size": 4}, ValueError, "indices: got 3 at [0, 0, 1], takes 0 to 1, the blocks of 4 in 5 keys"),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, error, message):
    with pytest.raises(error) as caught:
        sparse_attention_grad(**{**_good(), **change})
    assert message in str(caught.value)


def test_nothing_selected_is_zeros():
    for x in sparse_attention_grad(**{**_good(), "counts": torch.zeros(3).int()}):
        assert not x.any()


def _autograd(inputs, kv_heads):
    """dq, dk, dv of torch's attention under a mask, FP64."""
    q, k, v = (inputs[name].double().requires_grad_() for name in ("q", "k", "v"))
    selected = torch.zeros(len(q), kv_heads, len(k), dtype=torch.bool)
    for i in range(len(q)):
        for h in range(kv_heads):
            selected[i, h, inputs["rows"][i, h, : inputs["counts"][i, h]].long() // kv_heads] = True
    mask = selected.repeat_interleave(q.shape[1] // kv_heads, 1).transpose(0, 1)
    heads_first = (x.transpose(0, 1) for x in (q, k, v))
    o = torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=mask, enable_gqa=True)
    o.transpose(0, 1).backward(inputs["do"].double())
    return {"dq": q.grad, "dk": k.grad, "dv": v.grad}


CASE = {"q_lens": [3, 2], "kv_lens": [9, 12], "heads": 4, "kv_heads": 2, "head_dim": 16, "topk": 6, "block_size": 1}


def test_truth_is_autograd_of_plain_attention_under_a_mask():
    inputs = golden.make_inputs(CASE, torch.Generator().manual_seed(0))
    exact = forward.truth(**{name: inputs[name] for name in ("q", "k", "v", "rows", "counts", "scale")})
    expected = _autograd(inputs, 2)
    for name, x in golden.truth(**{**inputs, **exact}).items():
        torch.testing.assert_close(x, expected[name])


def test_weights_near_one():
    """dP - D cancels there. What the BF16 rounding of the forward pass's o, 2^-9 of it, comes to is bounded, and the
    golden is as near to the truth at that o as elsewhere."""
    inputs = golden.make_inputs(CASE, torch.Generator().manual_seed(0))
    inputs["q"] = inputs["q"] * 8
    problem = {name: inputs[name] for name in ("q", "k", "v", "rows", "counts", "scale")}
    inputs |= forward.golden(**problem)
    assert (inputs["l"] < 1.01).double().mean() > 0.1
    truth, flow = golden.truth(**inputs), golden.golden(**inputs)
    for name, spec in OPERATOR.outputs.items():
        assert compare(name, flow[name], flow[name], truth[name], spec, torch.bfloat16).passed
    of_d = 2**-9 * (inputs["o"].double() * inputs["do"].double()).abs().sum(-1, keepdim=True)
    of_k = forward.truth(**{**problem, "v": problem["k"].abs()})["o"]
    error = (truth["dq"] - _autograd(inputs, 2)["dq"]).abs()
    assert (error <= inputs["scale"] * of_d * of_k + 1e-6).all()


def test_visits_are_the_pairs_of_tiles_with_a_selection():
    """Two sequences of 300 queries and 600 keys, tiles of 256 and 512, two kv heads."""
    case = dict(CASE, q_lens=[300, 300], kv_lens=[600, 600], topk=3, block_size=16)
    inputs = golden.make_inputs(case, torch.Generator().manual_seed(0))
    rows, counts = inputs["rows"], inputs["counts"]
    tiles = choose_tiles(600, 1200, 16)
    got, most_of_q, most_of_kv = visits(rows, counts, 1200, tiles, torch.zeros(0))
    dense = torch.full((2, 3 * tiles.q, 3 * tiles.kv), atoms.MASKED)  # as the lists of pairs say
    for a in range(2 * 3):
        for number in range(got.first_of_q[a], got.first_of_q[a + 1]):
            i, j = a % 3 * tiles.q, int(got.kv_tile[number]) * tiles.kv
            mask = got.masks[number * tiles.q : (number + 1) * tiles.q]
            assert not mask.all()
            dense[a // 3, i : i + tiles.q, j : j + tiles.kv] = mask
    expected = torch.full_like(dense, atoms.MASKED)
    for i in range(600):
        for h in range(2):
            expected[h, i, rows[i, h, : counts[i, h]].long() // 2] = 0
    assert torch.equal(dense, expected)
    of_q = [(a, n) for a in range(6) for n in range(got.first_of_q[a], got.first_of_q[a + 1])]
    of_kv = [(c, n) for c in range(6) for n in range(got.first_of_kv[c], got.first_of_kv[c + 1])]
    by_q = {(a // 3, a % 3, int(got.kv_tile[n]), n) for a, n in of_q}
    by_kv = {(c // 3, int(got.q_tile[n]), c % 3, int(got.pair[n])) for c, n in of_kv}
    assert by_q == by_kv
    assert most_of_q == max(got.first_of_q.diff()) and most_of_kv == max(got.first_of_kv.diff())
