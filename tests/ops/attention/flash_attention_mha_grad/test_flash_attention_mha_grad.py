"""What the matrix cannot say: golden and truth proven, bad input, tiles that fit, the torch-facing function."""

from __future__ import annotations

import importlib

import pytest
import torch

from pypto_gym.ops.attention.flash_attention_mha_grad import flash_attention_mha_grad as op
from pypto_gym.ops.attention.flash_attention_mha_grad import flash_attention_mha_grad_golden as golden
from pypto_gym.tools.harness.runner import judge
from pypto_gym.tools.harness.reference import Reference

CASE = {"q_lens": [37, 5, 0, 1], "kv_lens": [20, 1, 4, 33], "heads": 2, "head_dim": 32}


def exact_inputs():
    """Inputs of the golden in FP64, with exact o, l and m, and the gradients that autograd finds for them."""
    drawn = golden.make_inputs(CASE, torch.Generator().manual_seed(3))
    q, k, v = (drawn[name].double().requires_grad_() for name in ("q", "k", "v"))
    do = drawn["do"].double()
    o, l, m = torch.zeros_like(do), torch.zeros_like(do[..., :1]), torch.zeros_like(do[..., :1])
    for rows, columns in golden.sequences(drawn["cu_seqlens_q"], drawn["cu_seqlens_kv"]):
        scores = torch.einsum("qhd,khd->qhk", q[rows], k[columns]) * CASE["head_dim"] ** -0.5
        output = torch.einsum("qhk,khd->qhd", scores.softmax(-1), v[columns])
        output.backward(do[rows])
        o[rows], m[rows] = output.detach(), scores.detach().amax(-1, keepdim=True)
        l[rows] = (scores.detach() - m[rows]).exp().sum(-1, keepdim=True)
    inputs = {**drawn, "q": q.detach(), "k": k.detach(), "v": v.detach(), "o": o, "do": do, "l": l, "m": m}
    return inputs, {"dq": q.grad.flatten(1), "dk": k.grad.flatten(1), "dv": v.grad.flatten(1)}


def test_truth_is_the_gradient_of_attention():
    inputs, gradients = exact_inputs()
    found = golden.truth(**inputs)
    for name, expected in gradients.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-12, atol=1e-12)


def test_golden_is_the_gradient_up_to_bf16():
    inputs, gradients = exact_inputs()
    drawn = golden.make_inputs(CASE, torch.Generator().manual_seed(3))
    found = golden.golden(**drawn)
    for name, expected in gradients.items():
        assert found[name].dtype == torch.float32
        error = (found[name] - expected).square().mean().sqrt() / expected.square().mean().sqrt()
        assert error < 2**-8, f"{name}: {error:.2g}"


@pytest.mark.parametrize("term", ("scale", "row_sum", "max", "normaliser"))
def test_a_dropped_term_fails(term):
    inputs = golden.make_inputs(CASE, torch.Generator().manual_seed(3))
    expected = Reference(inputs, golden.golden(**inputs), golden.truth(**inputs))
    verdicts = judge(op.OPERATOR, expected, golden.golden(drop=term, **inputs))
    assert not all(verdict.passed for verdict in verdicts)


def test_forward_statistics_are_those_of_the_inputs():
    inputs = golden.make_inputs(CASE, torch.Generator().manual_seed(3))
    exact, _ = exact_inputs()
    seen = exact["l"] > 0
    for name in ("l", "m"):
        torch.testing.assert_close(inputs[name][seen].double(), exact[name][seen], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("impl", op.IMPLS)
def test_tiles_fit_the_buffers(impl):
    """L0A, L0B 64 KB, L0C 128 KB, L1 512 KB, and three FP32 score tiles in the 184 KB of UB that can be used."""
    tables = importlib.import_module(f"{op.OPERATOR.package}.{op.IMPLS[impl]}").TILES
    assert tuple(tables) == op.HEAD_DIMS
    for head_dim, table in tables.items():
        for tiles in table.values():
            for (m0, m1), (k0, k1), (n0, n1) in (tiles.cube_s, tiles.cube_dq, tiles.cube_dkv):
                assert m1 % m0 == k1 % k0 == n1 % n0 == 0
                assert max(m0, n0) * k0 * 2 <= 64 << 10 and m0 * n0 * 4 <= 128 << 10
                assert (m1 + n1) * k1 * 2 <= 512 << 10
            for rows, columns in (tiles.vec_s, tiles.vec_d):
                assert 3 * rows * columns * 4 <= 184 << 10 and columns % 8 == 0


def arguments():
    case = {"q_lens": [8, 3], "kv_lens": [5, 6], "heads": 2, "head_dim": 64}
    return golden.make_inputs(case, torch.Generator().manual_seed(0))


BAD = [
    *((name, lambda x: x.float(), TypeError, f"{name}: got float32, takes bfloat16") for name in "q k v o do".split()),
    *((name, lambda x: x.bfloat16(), TypeError, f"{name}: got bfloat16, takes float32") for name in ("l", "m")),
    ("cu_seqlens_q", lambda x: x.long(), TypeError, "cu_seqlens_q: got int64, takes int32"),
    ("cu_seqlens_kv", lambda x: x.long(), TypeError, "cu_seqlens_kv: got int64, takes int32"),
    *((name, lambda x: x.flatten(1), ValueError, f"{name}: got shape .* takes 3 dim") for name in "q k o do l".split()),
    ("o", lambda x: x[1:], ValueError, r"o: got shape \[10, 2, 64\], takes \[11, 2, 64\]"),
    ("do", lambda x: x[:, :1].contiguous(), ValueError, r"do: got shape \[11, 1, 64\], takes \[11, 2, 64\]"),
    ("l", lambda x: x[1:], ValueError, r"l: got shape \[10, 2, 1\], takes \[11, 2, 1\]"),
    ("m", lambda x: x.expand(-1, -1, 2).contiguous(), ValueError, r"m: got shape \[11, 2, 2\], takes \[11, 2, 1\]"),
    ("v", lambda x: x[1:], ValueError, r"v: got shape \[10, 2, 64\], takes that of k, \[11, 2, 64\]"),
    ("k", lambda x: x.transpose(0, 1), ValueError, "k: got strides .* takes a contiguous tensor"),
    ("do", lambda x: x.repeat(1, 1, 2)[..., :64], ValueError, "do: got strides .* takes a contiguous tensor"),
    ("o", lambda x: x.to("meta"), ValueError, "o: got a tensor on meta, takes one on cpu, where q is"),
    ("q", lambda x: x.tolist(), TypeError, "q: got list, takes a torch.Tensor"),
    ("cu_seqlens_q", lambda x: x[:2], ValueError, r"cu_seqlens_q: got \[0, 8\], takes offsets that rise from 0 to 11"),
    ("cu_seqlens_kv", lambda x: x.flip(0), ValueError, "cu_seqlens_kv: got .* takes offsets that rise from 0 to 11"),
    ("impl", lambda x: "fast", ValueError, "impl: got 'fast', takes general, a3, two_pass"),
    ("deterministic", lambda x: 1, TypeError, "deterministic: got int, takes a bool"),
]


@pytest.mark.parametrize("name, change, error, message", BAD, ids=[f"{row[0]}-{i}" for i, row in enumerate(BAD)])
def test_bad_argument(name, change, error, message):
    given = arguments()
    given[name] = change(given.get(name))
    with pytest.raises(error, match=f"^{message}"):
        op.flash_attention_mha_grad(**given)


def test_head_dim_without_tiles():
    case = {"q_lens": [8], "kv_lens": [8], "heads": 1, "head_dim": 80}
    with pytest.raises(ValueError, match="^q: got head_dim 80, takes one of 32, 64, 96, 128, 256"):
        op.flash_attention_mha_grad(**golden.make_inputs(case, torch.Generator()))


def test_fewer_key_heads():
    given = arguments()
    given["k"], given["v"] = given["k"][:, :1].contiguous(), given["v"][:, :1].contiguous()
    with pytest.raises(ValueError, match="^k: got 1 heads, takes as many as q, 2"):
        op.flash_attention_mha_grad(**given)


@pytest.mark.sim
def test_the_function_computes_the_gradients():
    """And takes the kernel without atomics where they are only emulated, or where the bits must repeat."""
    assert op.default_impl(deterministic=True) == "two_pass"
    given = arguments()
    first, second = op.flash_attention_mha_grad(**given), op.flash_attention_mha_grad(**given, deterministic=True)
    expected = golden.golden(**given)
    for name, a, b in zip(("dq", "dk", "dv"), first, second):
        torch.testing.assert_close(a, expected[name], rtol=2**-7, atol=1e-4)
        torch.testing.assert_close(b, expected[name], rtol=2**-7, atol=1e-4)
