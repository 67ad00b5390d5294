"""Rules and solver of the convolution's backward input, against a second, plain writing of the documented rules."""

import time
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pypto_gym.tools.tiles import conv_backward_input as conv
from pypto_gym.tools.tiles.conv_backward_input import Layer, Tile


def legal(layer, m1, k1, n1, m0, k0, n0):
    """The documented rules, word by word."""
    window = layer.kh * layer.kw
    if min(m1, k1, n1, m0, k0, n0) <= 0:
        return False
    aligned = (
        (m1 <= layer.win or m1 % layer.win == 0) and n1 % 16 == 0 and k1 % (16 * window) == 0
        and m0 % 16 == 0 and n0 % 16 == 0 and k0 % 16 == 0
        and m0 <= (m1 + 15) // 16 * 16 and n0 <= n1 and k0 <= k1
    )  # fmt: skip
    l0 = m0 * k0 * 2 <= 65536 and k0 * n0 * 2 <= 65536 and m0 * n0 * 4 <= 131072
    hout_l1 = min((m1 + layer.win - 1) // layer.win + (layer.kh - 1) * layer.dilation[0], (layer.hout - 1) * layer.stride[0] + 1)
    wout_l1 = min(min(m1, layer.win) + (layer.kw - 1) * layer.dilation[1], (layer.wout - 1) * layer.stride[1] + 1)
    return aligned and l0 and (k1 * n1 + hout_l1 * wout_l1 * (k1 // window)) * 2 <= 524288


@some.composite
def layers(draw, most=96):
    kh, kw = draw(some.integers(1, 7)), draw(some.integers(1, 7))
    dilation = draw(some.tuples(some.integers(1, 2), some.integers(1, 2)))
    hin = draw(some.integers((kh - 1) * dilation[0] + 1, 40))
    win = draw(some.integers((kw - 1) * dilation[1] + 1, 40))
    return Layer(
        draw(some.integers(1, 2)), draw(some.integers(1, most)), hin, win, draw(some.integers(1, most)), kh, kw,
        draw(some.tuples(some.integers(1, 3), some.integers(1, 3))), draw(some.tuples(some.integers(0, 3), some.integers(0, 3))),
        dilation,
    )  # fmt: skip


NEAR = some.one_of(some.integers(1, 12).map(lambda i: 16 * i), some.integers(-1, 700))


@settings(max_examples=300, deadline=None)
@given(layers(), some.lists(NEAR, min_size=6, max_size=6), some.integers(1, 6), some.booleans())
def test_check_agrees_with_the_rules_written_out(layer, values, times, align):
    m1, k1, n1, m0, k0, n0 = values
    if align:
        m1, k1 = layer.win * times, layer.k_step * times
    assert (conv.check(layer, Tile.of((m1, k1, n1), (m0, k0, n0))) == []) == legal(layer, m1, k1, n1, m0, k0, n0)


@settings(max_examples=25, deadline=None)
@given(layers())
def test_what_solve_returns_is_legal_and_sorted(layer):
    try:
        choices = conv.solve(layer, 20)
    except ValueError as error:
        assert "no tile fits L1" in str(error)
        return
    cycles = [choice.estimate.cycles for choice in choices]
    assert cycles == sorted(cycles) and len({choice.tile for choice in choices}) == len(choices)
    for choice in choices:
        assert conv.check(layer, choice.tile) == []
        assert 0 < choice.estimate.fill <= 1 and max(choice.estimate.memory.values()) <= 1


@settings(max_examples=200, deadline=None)
@given(layers(), some.lists(some.integers(1, 2000), min_size=6, max_size=6))
def test_the_nearest_value_keeps_the_rule(layer, values):
    """With the value that a violation names in its place, that rule is kept."""
    m1, k1, n1, m0, k0, n0 = values
    fields = {"tileML1": m1, "tileKL1": k1, "tileNL1": n1, "tileML0": m0, "tileKL0": k0, "tileNL0": n0}

    def check(changed):
        f = {**fields, **changed}
        return conv.check(layer, Tile.of([f[f"tile{a}L1"] for a in "MKN"], [f[f"tile{a}L0"] for a in "MKN"]))

    for violation in check({}):
        if violation.nearest:
            field = next(iter(violation.nearest))
            again = [v for v in check(violation.nearest) if v.rule == violation.rule and field in v.says.split(" = ")[0]]
            assert not again, f"{violation} -> {again[0]}"


def test_the_search_finds_the_cheapest_of_all():
    """Against every legal tile of two small layers, one by one."""
    for layer in (Layer(1, 32, 6, 20, 32, 3, 3, padding=(1, 1)), Layer(2, 40, 5, 7, 24, 1, 2, (2, 1))):
        sixteens = range(16, 129, 16)
        least = min(
            conv.estimate(layer, Tile.of((m1, k1, n1), l0)).cycles
            for m1 in [*range(1, layer.win), *range(layer.win, layer.win * layer.hin + 1, layer.win)]
            for k1 in range(layer.k_step, layer.k + 1, layer.k_step)
            for n1 in range(16, 49, 16)
            for l0 in product(sixteens, [k for k in range(16, k1 + 1, 16)], [n for n in range(16, n1 + 1, 16)])
            if legal(layer, m1, k1, n1, *l0)
        )
        assert conv.solve(layer, 1)[0].estimate.cycles == least


@pytest.mark.parametrize("name,layer", conv.networks()["resnet50"].items())
def test_every_layer_of_resnet50_in_under_a_second(name, layer):
    start = time.process_time()
    best = conv.solve(layer)[0]
    assert time.process_time() - start < 1
    assert conv.check(layer, best.tile) == [] and best.estimate.cycles < conv.estimate(layer, conv.smallest(layer)).cycles


def test_resnet50_is_whole():
    """Each layer as often as torchvision has it: the weights are the 25,557,032 of the network less those of fc and norms."""
    often = {"conv1": 1, "layer1.0.conv1": 1, "layer1.conv2": 3, "layer1.conv3": 3 + 1, "layer1.conv1": 2}  # + downsample
    for stage, blocks in ((2, 4), (3, 6), (4, 3)):
        often |= {f"layer{stage}.0.{name}": 1 for name in ("conv1", "conv2", "downsample")}
        often |= {f"layer{stage}.conv1": blocks - 1, f"layer{stage}.conv2": blocks - 1, f"layer{stage}.conv3": blocks}
    layers = conv.networks()["resnet50"]
    assert layers.keys() == often.keys()
    weights = sum(often[name] * layer.cin * layer.cout * layer.kh * layer.kw for name, layer in layers.items())
    assert weights == 25_557_032 - 2_049_000 - 53_120


def test_all_violations_at_once():
    layer = Layer(1, 64, 56, 56, 64, 5, 5, padding=(2, 2))
    broken = [str(v) for v in conv.check(layer, Tile.of((60, 144, 24), (512, 160, 512)))]
    assert broken[:3] == [
        "align: tileML1 = 60, takes at most Win = 56 or a multiple of it (a tile is whole rows of dx); nearest: tileML1 = 56",
        "align: tileNL1 = 24, takes multiples of 16 (Cin0 = 16); nearest: tileNL1 = 16",
        "align: tileKL1 = 144, takes multiples of 400 (Cout0*Kh*Kw = 16*5*5); nearest: tileKL1 = 400",
    ]
    assert [b.split(":")[0] for b in broken[3:]] == ["order", "order", "order", "L0A", "L0B", "L0C"]
    assert "tileML0*tileNL0*4 = 1,048,576 bytes, L0C holds 131,072; nearest: tileML0 = 64" in broken[-1]


def test_the_halo_of_l1():
    """10 rows of dx under a 3x3 kernel of dilation 2 reach 14 rows, and 56 columns reach 55 = (28 - 1) * 2 + 1 at most."""
    layer = Layer(1, 64, 56, 56, 64, 3, 3, (2, 2), (2, 2), (2, 2))
    [broken] = conv.check(layer, Tile.of((560, 1152, 256), (16, 16, 16)))
    assert broken.rule == "L1" and "(1152*256 + 14*55*128)*2 = 786,944 bytes, L1 holds 524,288" in broken.says
    assert broken.nearest == {"tileKL1": 720}


@pytest.mark.parametrize(
    "change,message",
    [
        ({"dtype": "fp32"}, "dtype: got 'fp32', takes fp16, bf16"),
        ({"kh": 9}, "kernel 9x3 is larger than the padded input"),
        ({"stride": (0, 1)}, "takes positive sizes"),
        ({"padding": (-1, 0)}, "padding: got"),
    ],
)
def test_a_layer_that_is_none(change, message):
    with pytest.raises(ValueError, match=message):
        Layer(**{**dict(batch=1, cin=16, hin=8, win=8, cout=16, kh=3, kw=3), **change})


def test_an_illegal_tile_has_no_estimate():
    with pytest.raises(ValueError, match="tile: align: tileNL1 = 8"):
        conv.estimate(Layer(1, 16, 8, 8, 16, 1, 1), Tile.of((8, 16, 8), (16, 16, 16)))
