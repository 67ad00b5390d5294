"""What the tile tool says, and what PyPTO's compiler and cost model say to the same tiles."""

from pathlib import Path

import pytest
import torch

import pypto_gym.ops
from pypto_gym.tools.tiles import conv_backward_input as conv
from pypto_gym.tools.tiles import matmul, vector
from pypto_gym.tools.tiles.conv_backward_input import Layer
from pypto_gym.tools.tiles.matmul import Product, Tile
from pypto_gym.tools.tiles.rules import ceil_align
from pypto_gym.tools.tiles.vector import Elementwise

pytestmark = pytest.mark.sim


@pytest.fixture(autouse=True)
def probe(monkeypatch):
    monkeypatch.setattr(pypto_gym.ops, "__path__", [*pypto_gym.ops.__path__, str(Path(__file__).parent)])


def simulate(impl, **tensors):
    from pypto_gym.tools.harness import registry
    from pypto_gym.tools.harness.backends import process

    process.warm("sim")
    operator = registry.load("tiled")
    return process.run(operator, impl, tensors, backend="sim", memory=4 << 30, timeout=120, numbers=False)


def run_matmul(product, tile, reuse=None):
    a = torch.zeros((product.k, product.m) if product.a_trans else (product.m, product.k), dtype=torch.bfloat16)
    return simulate(
        "matmul", a=a, b=torch.zeros(product.k, product.n, dtype=torch.bfloat16), c=torch.zeros(product.m, product.n),
        m=tile.m, k=tile.k, n=tile.n, split_k=product.split_k, a_trans=product.a_trans, reuse=reuse,
    )  # fmt: skip


def run_vector(shape, tile):
    return simulate("vector", a=torch.zeros(shape), b=torch.zeros(shape), c=torch.zeros(shape), tile=tile)


def short(value):
    """Test id: the numbers that matter."""
    if isinstance(value, Product):
        return f"{value.m}x{value.k}x{value.n}" + "-a_trans" * value.a_trans + "-split" * value.split_k
    if isinstance(value, Tile):
        return f"m{value.m}-k{value.k}-n{value.n}".replace(", ", ",")
    if isinstance(value, Layer):
        return f"{value.cin}x{value.hin}x{value.win}-{value.cout}x{value.kh}x{value.kw}"
    return str(value)


SMALL = Product(128, 128, 128)
ACCEPTED = [
    (SMALL, Tile(20, 40, 64, 64, 64, 64)),  # the M of L0 needs no alignment
    (Product(256, 128, 64), Tile(256, 256, 128, 128, 64, 64)),  # exactly L0A
    (Product(128, 64, 256), Tile(128, 128, 64, 64, 256, 256)),  # exactly L0C
    (Product(64, 256, 64), Tile(64, 64, 64, 256, 64, 64, 128)),  # kL1 of A and of B differ
    (Product(64, 512, 64, split_k=True), Tile(64, 64, 64, 256, 64, 64)),
    (Product(96, 64, 64, a_trans=True), Tile(32, 96, 64, 64, 64, 64)),
]
REJECTED = [
    (SMALL, Tile(64, 64, 8, 64, 64, 64), "FC4001"),
    (SMALL, Tile(64, 64, 64, 64, 24, 48), "FC4001"),
    (SMALL, Tile(64, 96, 64, 64, 64, 64), "FC4000"),
    (Product(128, 128, 128, a_trans=True), Tile(24, 48, 64, 64, 64, 64), "FC4001"),
    (Product(256, 256, 64), Tile(256, 256, 256, 256, 64, 64), "L0A"),
    (Product(64, 256, 256), Tile(64, 64, 256, 256, 256, 256), "L0B"),
    (Product(256, 64, 256), Tile(256, 256, 64, 64, 256, 256), "L0C"),
]


@pytest.mark.parametrize("product,tile", ACCEPTED, ids=short)
def test_what_check_accepts_compiles(product, tile):
    assert matmul.check(product, tile) == []
    run = run_matmul(product, tile)
    assert not run.error and run.cycles


@pytest.mark.parametrize("product,tile,code", REJECTED, ids=short)
def test_what_check_rejects_the_compiler_rejects(product, tile, code):
    assert matmul.check(product, tile)
    error = run_matmul(product, tile).error
    assert code in error or "FFFFFF" in error, error


def test_an_l1_that_overflows_compiles_but_spills():
    """The one limit that 0.2.0 does not enforce: what the documentation forbids runs ten times as long."""
    product = Product(128, 2048, 128)
    fits, spills = Tile(128, 128, 64, 1024, 128, 128), Tile(128, 128, 64, 2048, 128, 128)
    assert not matmul.check(product, fits) and [v.rule for v in matmul.check(product, spills)] == ["L1"]
    assert run_matmul(product, spills).cycles > 10 * run_matmul(product, fits).cycles


@pytest.mark.parametrize("m,k,n", [(128, 1024, 128), (320, 256, 384)])
def test_first_choice_of_matmul_against_the_usual_tile(m, k, n):
    """[128, 128], [64, 256], [128, 128] is what PyPTO's guide recommends. The estimate is within a third of the simulation."""
    product = Product(m, k, n)
    best = matmul.solve(product, 1)[0]
    run = run_matmul(product, best.tile, best.reuse)
    assert run.cycles <= run_matmul(product, Tile(128, 128, 64, 256, 128, 128)).cycles
    assert 2 / 3 < best.estimate.cycles / run.cycles < 3 / 2
    assert sum(kernel["tasks"] for kernel in run.kernels) == best.estimate.tasks


@pytest.mark.parametrize(
    "layer",
    [
        Layer(1, 16, 16, 16, 16, 3, 3, padding=(1, 1)),
        Layer(1, 32, 7, 9, 24, 1, 1),
        Layer(1, 16, 4, 4, 16, 3, 3, padding=(1, 1)),
    ],
    ids=short,
)
def test_first_choice_of_a_layer_is_never_slower_than_the_smallest_tile(layer):
    """As an implicit GEMM, since 0.2.0 has no conv_backward_input; the K of L1 is filled up to whole steps of L0."""
    product = Product(layer.hin * layer.win, layer.k, layer.cin)

    def cycles(tile):
        k = [tile.l0.tileKL0, ceil_align(tile.l1.tileKL1, tile.l0.tileKL0)]
        m, n = tile.l0.tileML0, tile.l0.tileNL0
        return run_matmul(product, Tile.of([m, m], k, [n, n])).cycles

    assert cycles(conv.solve(layer, 1)[0].tile) <= cycles(conv.smallest(layer))


@pytest.mark.parametrize("shape,tile", [((64, 60), (16, 64)), ((1, 65536), (1, 15360))], ids=str)
def test_vector_tiles_that_compile(shape, tile):
    assert vector.check(Elementwise(shape), tile) == []
    assert not run_vector(shape, tile).error


@pytest.mark.parametrize(
    "shape,tile,rule,reason",
    [((64, 64), (64,), "rank", "Tile shape size 1 is not matched"), ((1, 131072), (1, 65536), "UB", "UB")],
    ids=str,
)
def test_vector_tiles_that_do_not(shape, tile, rule, reason):
    assert [v.rule for v in vector.check(Elementwise(shape), tile)] == [rule]
    assert reason in run_vector(shape, tile).error


def test_more_dimensions_than_the_tensor_has_take_the_first_ones():
    """Why check rejects them although the compiler does not: (1, 1, 8, 8) makes a task of every element."""
    assert [v.rule for v in vector.check(Elementwise((8, 8)), (1, 1, 8, 8))] == ["rank"]
    assert sum(kernel["tasks"] for kernel in run_vector((8, 8), (1, 1, 8, 8)).kernels) == 64
