"""Draws where the outputs of a case are wrong: RMSE over floor for each 16x16 tile."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from pypto_gym.tools.harness import compare


def draw(path: Path, result, reference, operator) -> None:
    """Writes a PNG with a picture for every floating-point output.

    result     CaseResult of a case that ran
    reference  its Reference
    operator   its Operator

    A pixel is a tile; leading dimensions (batches, heads) are stacked downwards. Colours are logarithmic and turn from
    blue to red at the limit of the worst tile, so that a good output is blue throughout. Tiles with NaN are black.
    """
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # PyPTO has set the root logger to DEBUG
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm

    outputs = result.run.outputs
    names = [name for name in outputs if _can_be_drawn(outputs[name], reference.golden[name])]
    if not names:
        raise ValueError(f"{operator.name}: nothing to draw, no output is floating-point and of the golden's shape")
    figure, axes = plt.subplots(1, len(names), figsize=(5 * len(names), 5), squeeze=False, layout="constrained")
    figure.suptitle(f"{operator.name} {result.case} {result.impl}: RMSE over floor, by tile")
    for name, axis in zip(names, axes[0]):
        spec = operator.outputs[name]
        tiling, ratios = compare.tile_ratios(outputs[name], reference.golden[name], reference.truth[name], spec.atol)
        limit = spec.worst_tile
        colours = matplotlib.colormaps["RdBu_r"].with_extremes(bad="black")
        picture = ratios.reshape(-1, tiling.across).clamp(min=limit / 100)
        image = axis.imshow(
            picture.numpy(),
            aspect="auto",
            interpolation="nearest",
            cmap=colours,
            norm=LogNorm(limit / 100, limit * 100),
        )
        axis.locator_params(integer=True)
        axis.set_title(f"{name} {list(tiling.shape)}")
        axis.set_xlabel(f"tiles of {tiling.width} columns")
        sheets = f", {ratios.shape[0]} sheets" if ratios.shape[0] > 1 else ""
        axis.set_ylabel(f"tiles of {tiling.height} rows{sheets}")
        figure.colorbar(image, ax=axis, extend="both")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _can_be_drawn(actual: torch.Tensor, golden: torch.Tensor) -> bool:
    return golden.is_floating_point() and actual.shape == golden.shape and golden.numel() > 0
