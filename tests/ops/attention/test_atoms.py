"""The arithmetic of bands and tiles, against the mask itself. Python integers stand for the kernels' symbolic ones."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pypto_gym.ops.attention import reference

atoms = pytest.importorskip("pypto_gym.ops.attention.atoms")
lengths = st.integers(1, 40)
limits = st.none() | st.integers(0, 12)


@given(lengths, lengths, limits, limits, st.booleans(), st.integers(1, 9), st.integers(1, 9))
def test_band_spans_the_visible_rows_and_tiles(q_len, kv_len, before, after, at_end, q_tile, kv_tile):
    band = atoms.Band(before, after, at_end)
    mask = reference.band_mask(q_len, kv_len, before, after, at_end)
    first, end = band.rows(q_len, kv_len)
    seeing = mask.any(1).nonzero().flatten().tolist()
    assert list(range(first, end)) == seeing
    for row in range(first, end, q_tile):
        rows = min(q_tile, end - row)
        first_tile, end_tile = band.tiles(row, rows, q_len, kv_len, kv_tile)
        visible = [j for j, tile in enumerate(mask[row : row + rows].split(kv_tile, dim=1)) if tile.any()]
        assert first_tile == visible[0] and end_tile == visible[-1] + 1


@given(st.integers(0, 12), st.integers(0, 12), st.integers(-30, 30))
def test_edge_masks_slide_to_every_diagonal(before, after, diagonal):
    tiles = atoms.Tiles(q=4, kv=8, vec_s=4, vec_o=4, cube_qk=(), cube_pv=())
    upper, lower = atoms.edges(atoms.Band(before, after), tiles, torch.zeros(1))
    distance = torch.arange(8)[None, :] - torch.arange(4)[:, None]
    x = max(tiles.kv - 1 - (diagonal + after), 0)
    if x + 8 <= upper.shape[1]:
        assert torch.equal(upper[:, x : x + 8] < 0, distance > diagonal + after)
    x = min(tiles.kv - (diagonal - before), tiles.kv - 1 + tiles.q)
    if x >= 0:
        assert torch.equal(lower[:, x : x + 8] < 0, distance < diagonal - before)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("head_dim", range(16, 257, 16))
def test_tiles_fit_the_buffers(head_dim, large):
    for q_len in (1, 65, 300, 5000):
        for kv_len in (1, 65, 300, 5000):
            tiles = atoms.forward_tiles(q_len, kv_len, head_dim, large)
            for (m, m1), (k, k1), (n, n1) in (tiles.cube_qk, tiles.cube_pv):
                assert m1 % m == k1 % k == n1 % n == 0
                assert max(m, n) * k * 2 <= 64 * 1024 and m * n * 4 <= 128 * 1024
            assert 2 * 4 * max(tiles.vec_o * head_dim, tiles.vec_s * tiles.kv) <= 184 * 1024
            assert tiles.cube_qk[0][0] % tiles.vec_s == 0 and tiles.cube_pv[0][0] % tiles.vec_o == 0
