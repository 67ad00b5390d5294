"""What the case matrix cannot say: bad input, how a selection becomes rows, and the golden against torch's attention."""

import pytest
import torch

from pypto_gym.ops.attention import reference
from pypto_gym.ops.attention.sparse_attention import sparse_attention_golden as golden
from pypto_gym.ops.attention.sparse_attention.sparse_attention import sparse_attention


def _good():
    return {
        "q": torch.zeros(3, 4, 64).bfloat16(),
        "k": torch.zeros(9, 2, 64).bfloat16(),
        "v": torch.zeros(9, 2, 64).bfloat16(),
        "indices": torch.tensor([[[0, 3], [1, 2]], [[4, 0], [0, 4]], [[3, 9], [0, 9]]]).int(),
        "counts": torch.tensor([2, 2, 1]).int(),
        "cu_seqlens_q": reference.cu_seqlens([2, 1]),
        "cu_seqlens_kv": reference.cu_seqlens([5, 4]),
    }


def _indices(i, h, j, value):
    indices = _good()["indices"].clone()
    indices[i, h, j] = value
    return {"indices": indices}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": torch.zeros(3, 4, 64)}, TypeError, "q: got float32, takes bfloat16"),
        ({"q": torch.zeros(3, 3, 64).bfloat16()}, ValueError, "k: got 2 heads, takes a divisor of q's 3"),
        ({"cu_seqlens_kv": reference.cu_seqlens([5, 5])}, ValueError, "cu_seqlens_kv: got [0, 5, 10], takes offsets that rise from 0 to 9"),
        ({"cu_seqlens_q": reference.cu_seqlens([2, 2])}, ValueError, "cu_seqlens_q: got [0, 2, 4], takes offsets that rise from 0 to 3"),
        ({"cu_seqlens_q": reference.cu_seqlens([3])}, ValueError, "cu_seqlens_kv: got 2 sequences, takes as many as cu_seqlens_q, 1"),
        ({"v": torch.zeros(8, 2, 64).bfloat16()}, ValueError, "v: got shape [8, 2, 64], takes that of k, [9, 2, 64]"),
        ({"k": torch.zeros(9, 2, 32).bfloat16()}, ValueError, "v: got shape [9, 2, 64], takes that of k, [9, 2, 32]"),
        ({"scale": torch.ones(())}, TypeError, "scale: got Tensor"),
        ({"indices": torch.zeros(3, 2, 2)}, TypeError, "indices: got float32, takes int32"),
        ({"indices": torch.zeros(2, 2, 2).int()}, ValueError, "indices: got 2 queries, takes 3"),
        ({"indices": torch.zeros(3, 1, 2).int()}, ValueError, "indices: got shape [3, 1, 2], takes [3, 2, topk] with topk >= 1"),
        ({"counts": torch.tensor([2, 3, 1]).int()}, ValueError, "counts: got 3 for query 1, takes 0 to 2"),
        ({"counts": torch.tensor([-1, 2, 1]).int()}, ValueError, "counts: got -1 for query 0, takes 0 to 2"),
        ({"counts": torch.tensor([2, 2]).int()}, ValueError, "counts: got 2 queries, takes 3"),
        (_indices(1, 0, 1, 5), ValueError, "indices: got 5 at [1, 0, 1], takes 0 to 4, the blocks of 1 in 5 keys"),
        (_indices(2, 1, 0, 4), ValueError, "indices: got 4 at [2, 1, 0], takes 0 to 3, the blocks of 1 in 4 keys"),
        (_indices(0, 0, 0, -1), ValueError, "indices: got -1 at [0, 0, 0], takes 0 to 4"),
        (_indices(0, 0, 0, 3), ValueError, "indices: got 3 twice at [0, 0], takes a block once"),
        ({"block_size": 4}, ValueError, "indices: got 3 at [0, 0, 1], takes 0 to 1, the blocks of 4 in 5 keys"),
        ({"block_size": 0}, ValueError, "block_size: got 0, takes 1 or more"),
        ({"block_size": 1.5}, TypeError, "block_size: got float, takes an int"),
        ({"impl": "fast"}, ValueError, "impl: got 'fast', sparse_attention has general, a3"),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, error, message):
    with pytest.raises(error) as caught:
        sparse_attention(**{**_good(), **change})
    assert message in str(caught.value)


def test_a_selection_of_blocks_becomes_rows():
    """Two kv heads; the sequence of the last query starts at token 5 and has 4 keys, so its block 1 of 3 has one."""
    indices = torch.tensor([[[0, 1], [1, 0]], [[0, 0], [1, 0]], [[1, 0], [0, 7]]]).int()
    offsets = reference.cu_seqlens([2, 1]), reference.cu_seqlens([5, 4])
    rows, counts = golden.selected_rows(indices, torch.tensor([2, 1, 2]).int(), *offsets, block_size=3)
    assert counts.tolist() == [[5, 5], [3, 2], [4, 3]]
    tokens = [[rows[i, h, : counts[i, h]].tolist() for h in range(2)] for i in range(3)]
    assert tokens[0] == [[0, 2, 4, 6, 8], [7, 9, 1, 3, 5]]  # row = 2 * token + head
    assert tokens[1] == [[0, 2, 4], [7, 9]]
    assert tokens[2] == [[16, 10, 12, 14], [11, 13, 15]]
    assert rows.shape == (3, 2, 16) and rows.dtype == counts.dtype == torch.int32
    assert all(set(rows[i, h].tolist()) == set(tokens[i][h]) for i in range(3) for h in range(2))  # no other row is read


def test_everything_selected_is_plain_attention():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 4, 32, generator=generator).bfloat16()
    k, v = (torch.randn(40, 2, 32, generator=generator).bfloat16() for _ in range(2))
    indices = torch.randperm(40, generator=generator).int().expand(3, 2, 40).contiguous()
    offsets = reference.cu_seqlens([3]), reference.cu_seqlens([40])
    rows, counts = golden.selected_rows(indices, torch.full((3,), 40).int(), *offsets, block_size=1)
    inputs = dict(q=q, k=k, v=v, rows=rows, counts=counts, scale=32**-0.5)
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(0, 1)
    torch.testing.assert_close(golden.truth(**inputs)["o"], expected)
    torch.testing.assert_close(golden.golden(**inputs)["o"].double(), expected, rtol=2**-7, atol=2e-3)


def test_nothing_selected_is_zeros():
    for x in sparse_attention(**{**_good(), "counts": torch.zeros(3).int()}):
        assert not x.any()


@pytest.mark.sim
def test_rows_that_nobody_selected_may_hold_anything():
    inputs = {name: torch.rand(x.shape).bfloat16() if name in ("q", "k", "v") else x for name, x in _good().items()}
    inputs["k"][[0, 8]] = inputs["v"][[0, 8]] = torch.nan
    inputs["indices"] = torch.tensor([[[1, 0], [1, 2]], [[4, 2], [2, 4]], [[2, 3], [0, 3]]]).int()
    inputs["counts"] = torch.tensor([1, 2, 1]).int()
    assert all(x.isfinite().all() for x in sparse_attention(**inputs))
