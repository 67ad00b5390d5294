"""What the goldens of the convolution family share: layers from case rows, inputs at a layer's own scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pypto_gym.ops.conv import limits

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

PARAMS = {
    "batch": int, "cin": int, "cout": int, "size": list[int], "kernel": list[int],
    "stride": list[int], "padding": list[int], "dilation": list[int], "dtype": str,
}  # fmt: skip
"""Keys of a case: `size` is (Hin, Win); the others as in torch.nn.Conv2d."""


@dataclass(frozen=True)
class Layer:
    batch: int
    cin: int
    cout: int
    size: list[int]
    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]

    def geometry(self) -> dict:
        return dict(stride=tuple(self.stride), padding=tuple(self.padding), dilation=tuple(self.dilation))

    def output_sizes(self) -> list[int]:
        return [limits.output_size(*args) for args in zip(self.size, self.kernel, self.stride, self.padding, self.dilation)]

    def flops(self) -> float:
        """Of one of the three products; positions that fall on padding are counted."""
        height, width = self.output_sizes()
        return 2.0 * self.batch * self.cout * self.cin * self.kernel[0] * self.kernel[1] * height * width


def layer(case) -> Layer:
    return Layer(**{key: case[key] for key in PARAMS if key != "dtype"})


def weight(layer: Layer, generator) -> torch.Tensor:
    """[cout, cin, kh, kw] FP32, variance 2 / fan-in."""
    fan_in = layer.cin * layer.kernel[0] * layer.kernel[1]
    return torch.randn(layer.cout, layer.cin, *layer.kernel, generator=generator) * (2 / fan_in) ** 0.5


def dropped(weight: torch.Tensor, drop: str | None) -> torch.Tensor:
    """The weight without one kernel position, or without its last channel."""
    weight = weight.clone()
    if drop == "position":
        weight[..., -1, -1] = 0
    elif drop == "channel":
        weight[-1] = 0
    return weight


def terms(case) -> tuple[str, ...]:
    return ("channel", "position") if case["kernel"] != [1, 1] else ("channel",)
