"""Argument checks that the torch-facing functions of all families share. They raise before anything is compiled, and
name the argument, what came and what is taken."""

from __future__ import annotations

import torch


def tensor(name: str, x, dtypes: tuple[torch.dtype, ...], shape: int | list, device: torch.device | None = None) -> None:
    """`x` must be a contiguous tensor of one of these dtypes, on this device; `shape` is a rank, or sizes (None: any).

    Raises TypeError (no tensor, another dtype) or ValueError (shape, device, strides).
    """
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: got {type(x).__name__}, takes a torch.Tensor")
    if x.dtype not in dtypes:
        raise TypeError(f"{name}: got {short(x.dtype)}, takes {' or '.join(map(short, dtypes))}")
    if isinstance(shape, int):
        if x.dim() != shape:
            raise ValueError(f"{name}: got shape {list(x.shape)}, takes {shape} dimensions")
    elif x.dim() != len(shape) or any(size is not None and size != got for size, got in zip(shape, x.shape)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name}: got shape {list(x.shape)}, takes [{wanted}]")
    if device is not None and x.device != device:
        raise ValueError(f"{name}: got a tensor on {x.device}, takes one on {device}, where q is")
    if not x.is_contiguous():
        raise ValueError(f"{name}: got strides {list(x.stride())}, takes a contiguous tensor; call .contiguous()")


def offsets(name: str, x, total: int, device: torch.device, batch: int | None = None) -> None:
    """Cumulative lengths: INT32 [batch + 1], from 0 to `total`, never falling. They are read back to the host."""
    tensor(name, x, (torch.int32,), 1 if batch is None else [batch + 1], device)
    values = x.tolist()
    if len(values) < 2:
        raise ValueError(f"{name}: got {len(values)} elements, takes batch + 1, at least 2")
    if values[0] != 0 or values[-1] != total or any(b < a for a, b in zip(values, values[1:])):
        raise ValueError(f"{name}: got {values}, takes offsets that rise from 0 to {total}")


def short(dtype: torch.dtype) -> str:
    """float32 for torch.float32."""
    return str(dtype).removeprefix("torch.")
