"""Draws how tiles cover a result, and how full they make the memories."""

from __future__ import annotations

from pathlib import Path

from pypto_gym.tools.tiles.core import CUBE_CORES, Estimate

MOST = 1500
"""Tiles that are drawn one by one; of a longer list only the first are."""


def draw(
    path: Path, title: str, rows: int, columns: int, tile: tuple[int, int], labels: tuple[str, str], estimate: Estimate,
    reuse: int = 1, row_length: int = 0, cores: int = CUBE_CORES,
) -> None:  # fmt: skip
    """Writes a PNG to `path`: left `rows` x `columns` cut into `tile`, coloured by the wave that computes each tile, right
    the share of each memory that a tile takes (the line marks a half: beyond it there is no double buffer).

    reuse       consecutive tiles of a column that are one task
    row_length  tiles shorter than this many rows do not cross a multiple of it (Win of a convolution); 0: no such bound
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch, Rectangle

    tall, wide = tile
    starts = list(range(0, rows, tall))
    if row_length and tall < row_length:
        starts = [start + offset for start in range(0, rows, row_length) for offset in range(0, row_length, tall)]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 5), width_ratios=(3, 1), layout="constrained")
    figure.suptitle(title)
    colours = pyplot.get_cmap("tab10")
    number, used = 0, set()
    for column in range(0, columns, wide):
        for i, row in enumerate(starts):
            end = min(row + tall, starts[i + 1] if i + 1 < len(starts) else rows)
            wave = number // reuse // cores
            used.add(wave)
            if number < MOST:
                box = Rectangle(
                    (column, row), min(wide, columns - column), end - row,
                    facecolor=colours(wave % 10), edgecolor="white", linewidth=0.4, alpha=0.55 + 0.45 * (number // reuse % 2),
                )  # fmt: skip
                left.add_patch(box)
            number += 1
    left.set(xlim=(0, columns), ylim=(rows, 0), ylabel=labels[0], xlabel=labels[1])
    counted = f"{number:,} tiles in {estimate.tasks:,} tasks" + (f", the first {MOST:,} drawn" if number > MOST else "")
    left.set_title(f"{tall} x {wide}: {counted}, fill {estimate.fill:.0%}")
    shown = sorted(used)[:8]
    left.legend(handles=[Patch(color=colours(w % 10), label=f"wave {w + 1}") for w in shown], fontsize=8, loc="upper right")
    names = list(estimate.memory)
    shares = [estimate.memory[name] for name in names]
    right.bar(names, shares, color=["tab:red" if share > 0.5 else "tab:green" for share in shares])
    right.axhline(0.5, color="grey", linestyle="--", linewidth=1)
    right.set(ylim=(0, 1), title="share of memory")
    for i, share in enumerate(shares):
        right.text(i, min(share + 0.01, 0.96), f"{share:.0%}", ha="center")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
