"""Rules and solver of the vector tiles."""

from math import ceil, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pypto_gym.tools.tiles import vector
from pypto_gym.tools.tiles.vector import Elementwise

BYTES = {"int8": 1, "fp16": 2, "bf16": 2, "fp32": 4}
SHAPES = some.lists(some.integers(1, 200), min_size=1, max_size=4).map(tuple)
WORK = some.builds(Elementwise, SHAPES, some.sampled_from(sorted(BYTES)), some.integers(1, 3), some.one_of(some.none(), some.integers(1, 6)))


def legal(work, tile):
    if len(tile) != len(work.shape) or min(tile) < 1 or tile[-1] * BYTES[work.dtype] % 32:
        return False
    tiles = prod(ceil(n / t) for n, t in zip(work.shape, tile))
    live = work.inputs + 1 if work.buffers is None else work.buffers
    return prod(tile) * BYTES[work.dtype] * live <= 184 * 1024 and tiles * (1 + work.inputs) < 18000


@settings(max_examples=300, deadline=None)
@given(WORK, some.lists(some.one_of(some.integers(0, 70), some.integers(1, 8).map(lambda i: 32 * i)), min_size=1, max_size=4))
def test_check_agrees_with_the_rules_written_out(work, tile):
    assert (vector.check(work, tuple(tile)) == []) == legal(work, tile)


@settings(max_examples=25, deadline=None)
@given(WORK)
def test_what_solve_returns_is_legal_and_sorted(work):
    try:
        choices = vector.solve(work, 10)
    except ValueError as error:
        assert "has no legal tile" in str(error)
        return
    assert [c.estimate.cycles for c in choices] == sorted(c.estimate.cycles for c in choices)
    assert all(vector.check(work, choice.tile) == [] for choice in choices)


def test_the_search_finds_the_cheapest_of_all():
    work = Elementwise((9, 40), "fp16")
    every = [(a, b) for a in range(1, 12) for b in range(16, 65, 16)]
    least = min(vector.estimate(work, tile).cycles for tile in every if legal(work, tile))
    assert vector.solve(work, 1)[0].estimate.cycles == least


def test_all_violations_at_once():
    broken = [str(v) for v in vector.check(Elementwise((64, 4096)), (64, 1004))]
    assert broken == [
        "align: tile[1] = 1004, takes multiples of 8 (32 bytes of fp32); nearest: tile[1] = 1000",
        "UB: 64*1004*4, 3 buffers = 771,072 bytes, UB holds 188,416; nearest: tile[1] = 240",
    ]
    [few] = vector.check(Elementwise((4096, 4096)), (16, 16))
    assert few.rule == "expressions" and "65,536 tiles * (1 + 2 inputs) = 196,608, takes less than 18,000" in few.says


@pytest.mark.parametrize("shape", [(), (1, 1, 1, 1, 1), (0, 4)], ids=str)
def test_a_shape_that_is_none(shape):
    with pytest.raises(ValueError, match="takes 1 to 4 dimensions of 1 or more"):
        Elementwise(shape)
