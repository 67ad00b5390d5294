"""Rules and solver of the matrix product, against a second, plain writing of the documented rules."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pypto_gym.tools.tiles import matmul
from pypto_gym.tools.tiles.matmul import Product, Tile

BYTES = {"int8": 1, "fp16": 2, "bf16": 2, "fp32": 4}


def legal(p, t):
    """The documented rules, word by word."""
    size, unit = BYTES[p.dtype], 32 if p.dtype == "int8" else 16
    up = lambda x: (x + unit - 1) // unit * unit  # noqa: E731
    k_right = t.k_l1 if t.k_l1b is None else t.k_l1b
    if min(t.m_l0, t.m_l1, t.k_l0, t.k_l1, t.n_l0, t.n_l1, k_right) <= 0:
        return False
    if t.m_l1 % t.m_l0 or t.k_l1 % t.k_l0 or k_right % t.k_l0 or t.n_l1 % t.n_l0:
        return False
    if max(t.k_l1, k_right) < p.k and max(t.k_l1, k_right) % min(t.k_l1, k_right):
        return False
    if t.k_l0 % 16 or t.n_l0 % 16 or t.k_l0 * size % 32 or t.n_l0 * size % 32:
        return False
    if p.a_trans and t.m_l0 * size % 32:
        return False
    if p.a_nz and t.m_l0 % 16:
        return False
    if up(t.m_l0) * up(t.k_l0) * size > 65536 or up(t.n_l0) * up(t.k_l0) * size > 65536 or up(t.m_l0) * up(t.n_l0) * 4 > 131072:
        return False
    if (up(t.m_l1) * up(t.k_l1) + up(t.n_l1) * up(k_right)) * size > 524288:
        return False
    return not (p.bias and t.n_l0 * 4 > 1024) and not (p.scale and t.n_l0 * 8 > 2048)


@some.composite
def products(draw, most=3000):
    dtype = draw(some.sampled_from(sorted(BYTES)))
    size = some.integers(1, most)
    nz = some.booleans() if dtype != "fp32" else some.just(False)
    return Product(
        draw(size), draw(size), draw(size), dtype, draw(some.booleans()), draw(some.booleans()), draw(nz), draw(nz),
        draw(some.booleans()), draw(some.booleans()),
    )  # fmt: skip


LEVEL = some.one_of(some.integers(1, 16).map(lambda i: 16 * i), some.integers(-1, 300))
TIMES = some.one_of(some.integers(1, 4), some.sampled_from([0.5, 1.5]))


@settings(max_examples=250, deadline=None)
@given(products(), LEVEL, LEVEL, LEVEL, TIMES, TIMES, TIMES, some.one_of(some.none(), some.integers(1, 3)))
def test_check_agrees_with_the_rules_written_out(product, m0, k0, n0, m, k, n, right):
    tile = Tile(m0, int(m0 * m), k0, int(k0 * k), n0, int(n0 * n), None if right is None else k0 * right)
    assert (matmul.check(product, tile) == []) == legal(product, tile)


@settings(max_examples=25, deadline=None)
@given(products(), some.booleans())
def test_what_solve_returns_is_legal_and_sorted(product, split):
    if split and not product.bias and not product.scale:
        product = Product(product.m, product.k, product.n, product.dtype, split_k=True)
    choices = matmul.solve(product, 10)
    cycles = [choice.estimate.cycles for choice in choices]
    assert choices and cycles == sorted(cycles)
    for choice in choices:
        assert matmul.check(product, choice.tile) == []
        assert 0 < choice.estimate.fill <= 1 and max(choice.estimate.memory.values()) <= 1
        assert matmul.estimate(product, choice.tile, choice.reuse) == choice.estimate


@settings(max_examples=200, deadline=None)
@given(products(), *[some.integers(1, 1200)] * 6)
def test_the_nearest_value_keeps_the_rule(product, m0, m1, k0, k1, n0, n1):
    fields = {"mL0": m0, "mL1": m1, "kL0": k0, "kL1": k1, "nL0": n0, "nL1": n1}
    for violation in matmul.check(product, Tile(*fields.values())):
        for field, value in violation.nearest.items():
            again = matmul.check(product, Tile(*{**fields, field: value}.values()))
            assert not [v for v in again if v.rule == violation.rule and v.says.split(" = ")[0] == violation.says.split(" = ")[0]]


@pytest.mark.parametrize(
    "rows,columns,reuse,tasks",
    [(16, 16, 2, 128), (16, 16, 4, 64), (16, 16, 5, 52), (16, 16, 6, 43), (16, 16, 11, 25), (16, 8, 3, 43), (16, 8, 6, 22), (1, 1, 9, 1)],
)
def test_tasks_are_counted_as_the_compiler_joins_them(rows, columns, reuse, tasks):
    """Figures of PyPTO 0.2.0: 2048 x 1024 x 2048 in tiles of 128 x 128 and 128 x 256."""
    assert matmul.tasks_of(rows, columns, reuse) == tasks


def test_what_the_installed_compiler_would_split_by_itself():
    """64 tasks of 8 x 16 tiles: 128 // 48 = 2 each."""
    estimate = matmul.estimate(Product(2048, 1024, 2048), Tile(128, 128, 64, 256, 256, 256))
    assert (estimate.tasks, estimate.waves) == (64, 3)


def test_all_violations_at_once():
    broken = matmul.check(Product(128, 128, 128, a_trans=True, bias=True), Tile.of([20, 30], [24, 48], [512, 512]))
    assert [str(v) for v in broken] == [
        "align: kL0 = 24, takes multiples of 16 (32 bytes, and 16 elements); nearest: kL0 = 16",
        "align: mL0 = 20, takes multiples of 16 (32 bytes, the inner axis of a transposed A); nearest: mL0 = 16",
        "divide: mL1 = 30, takes multiples of mL0 = 20; nearest: mL1 = 20",
        "bias table: nL0*4 = 2,048 bytes, bias table holds 1,024; nearest: nL0 = 256",
    ]


@pytest.mark.parametrize(
    "change,message",
    [
        ({"dtype": "fp64"}, "dtype: got 'fp64'"),
        ({"m": 0}, "m, k, n: got 0"),
        ({"split_k": True, "out_dtype": "bf16"}, "out_dtype: got 'bf16', a split K takes fp32"),
        ({"split_k": True, "batched": True}, "split_k: got operands of 3 or 4 dimensions"),
        ({"split_k": True, "bias": True}, "split_k: got a bias or a scale"),
        ({"dtype": "fp32", "b_nz": True}, "got fp32 with the format NZ"),
    ],
)
def test_a_product_that_is_none(change, message):
    with pytest.raises(ValueError, match=message):
        Product(**{**dict(m=64, k=64, n=64), **change})


def test_lists_of_a_wrong_length():
    with pytest.raises(ValueError, match=r"m: got \[64\], takes 2 values, L0 first"):
        Tile.of([64], [64, 64], [64, 64])
    assert Tile.of([64, 64], [32, 64, 128], [64, 64]).k == [32, 64, 128]
