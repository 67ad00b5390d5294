"""What the case matrix cannot say: bad input, the proof of the golden, and where the tiles of the A3 kernel come from."""

import pytest
import torch

from pypto_gym.ops.matmul.general_matmul import general_matmul_golden as golden
from pypto_gym.ops.matmul.general_matmul.general_matmul import general_matmul
from pypto_gym.tools.tiles.matmul import Product, Tile, check


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"a": [1.0]}, TypeError, "a: got list, takes a torch.Tensor"),
        ({"a": torch.zeros(4, 8).double()}, TypeError, "a: got torch.float64, takes torch.bfloat16, torch.float16 or torch.float32"),
        ({"b": torch.zeros(8, 6).half()}, TypeError, "b: got torch.float16, takes that of a, torch.bfloat16"),
        ({"a": torch.zeros(4, 8, 1).bfloat16()}, ValueError, "a: got shape [4, 8, 1], takes 2 dimensions of 1 or more"),
        ({"b": torch.zeros(8, 0).bfloat16()}, ValueError, "b: got shape [8, 0], takes 2 dimensions of 1 or more"),
        ({"a": torch.zeros(1, 65536).bfloat16()}, ValueError, "a: got an inner axis of 65536, takes at most 65535"),
        ({"a": torch.zeros(8, 4).bfloat16().T}, ValueError, "takes a contiguous tensor; a transpose is a_trans=True"),
        ({"b": torch.zeros(7, 6).bfloat16()}, ValueError, "b: got 7 on the K axis, takes that of a, 8"),
        ({"b_trans": True}, ValueError, "b: got 6 on the K axis, takes that of a, 8"),
        ({"a_trans": 1}, TypeError, "a_trans: got 1, takes True or False"),
        ({"b": torch.zeros(8, 6, dtype=torch.bfloat16, device="meta")}, ValueError, "b: got a tensor on meta, takes one on cpu"),
        ({"impl": "fast"}, ValueError, "impl: got 'fast', general_matmul has general, a3"),
    ],
)
def test_bad_input_is_named(change, error, message):
    good = {"a": torch.zeros(4, 8).bfloat16(), "b": torch.zeros(8, 6).bfloat16()}
    with pytest.raises(error) as caught:
        general_matmul(**{**good, **change})
    assert message in str(caught.value)


@pytest.mark.parametrize("a_trans", [False, True])
@pytest.mark.parametrize("b_trans", [False, True])
def test_the_golden_is_the_definition(a_trans, b_trans):
    """c[i, j] = sum over x of a[i, x] * b[x, j], written out, for operands that are stored either way."""
    a, b = torch.randn(3, 5, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    want = torch.tensor([[sum(a[i, x] * b[x, j] for x in range(5)) for j in range(4)] for i in range(3)])
    given = {"a": a.T.contiguous() if a_trans else a, "b": b.T.contiguous() if b_trans else b, "a_trans": a_trans, "b_trans": b_trans}
    torch.testing.assert_close(golden.truth(**given)["c"], want, rtol=1e-13, atol=1e-13)
    single = {name: x.float() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    torch.testing.assert_close(golden.golden(**single)["c"].double(), want, rtol=1e-5, atol=1e-6)
    assert golden.output_shapes(**single)["c"] == ((3, 4), torch.float32)


@pytest.mark.sim
def test_every_tile_of_the_a3_kernel_is_legal():
    from pypto_gym.tools import runtime

    runtime.prepare()
    from pypto_gym.ops.matmul.general_matmul.general_matmul_impl_a3 import tiles

    for m, k, n in ((1, 16, 16), (16, 4096, 1024), (33, 7168, 130), (512, 512, 512), (75, 80, 79), (2048, 1024, 2048), (9000, 64, 9000)):
        for dtype, size in (("bf16", 2), ("fp32", 4)):
            for trans in (False, True):
                m_tile, k_tiles, n_tile, reuse = tiles(m, k, n, size)
                product = Product(m, k, n, dtype, a_trans=trans, b_trans=trans)
                assert check(product, Tile.of([m_tile, m_tile], k_tiles, [n_tile, n_tile])) == []
                assert reuse >= 1
