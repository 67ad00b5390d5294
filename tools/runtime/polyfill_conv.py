"""`pypto.conv_backward_input` and its tile shapes, for releases that lack them (0.2.0, 0.2.1).

Same names, signature and checks as the real ones; a name that the installed release has is left alone. The operation is
lowered to the implicit GEMM of ops/conv, which chooses its own tiles: the tile shapes are checked for presence, kept and
returned, and have no other effect. Rules between tiles and a layer are the business of `./gym tiles check`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import ModuleType


@dataclass
class ConvBpTileL1Info:
    """Tile in L1, elements: M (positions of dx), K (Cout * Kh * Kw), N (Cin)."""

    tileML1: int = 0
    tileKL1: int = 0
    tileNL1: int = 0


@dataclass
class ConvBpTileL0Info:
    """Tile in L0, elements."""

    tileML0: int = 0
    tileKL0: int = 0
    tileNL0: int = 0


def install(pypto: ModuleType) -> None:
    """Adds to `pypto` (and to `pypto.pypto_impl`) what it lacks."""
    if hasattr(pypto, "conv_backward_input"):
        return
    for info in (ConvBpTileL1Info, ConvBpTileL0Info):
        for module in (getattr(pypto, "pypto_impl", pypto), pypto):
            if not hasattr(module, info.__name__):
                setattr(module, info.__name__, info)
    scope = _Scope(pypto)
    pypto.set_convbp_input_tile_shapes = scope.set
    pypto.get_convbp_input_tile_shapes = scope.get
    pypto.conv_backward_input = functools.partial(_conv_backward_input, pypto, scope)


class _Scope:
    """The tile shapes of the function that is being compiled. They end with it, as PyPTO's own do."""

    def __init__(self, pypto: ModuleType):
        from pypto._controller import Controller

        self._controller = Controller
        self._tiles = None
        plain = Controller.end_function.__func__

        @functools.wraps(plain)
        def end_function(cls):
            self._tiles = None
            return plain(cls)

        Controller.end_function = classmethod(end_function)

    def _inside(self, name: str) -> None:
        if not self._controller.in_function:
            raise RuntimeError(f"{name}: called outside of pypto.function or a jit kernel, whose scope it belongs to")

    def set(self, tile_l1_info, tile_l0_info) -> None:
        """Sets the tile shapes of the conv_backward_input calls that follow in this function.

        Raises RuntimeError outside of a function, TypeError for other than the two tile classes, ValueError for a tile
        that is not positive.
        """
        self._inside("set_convbp_input_tile_shapes")
        for name, value, fields in (
            ("tile_l1_info", tile_l1_info, ("tileML1", "tileKL1", "tileNL1")),
            ("tile_l0_info", tile_l0_info, ("tileML0", "tileKL0", "tileNL0")),
        ):
            if not all(hasattr(value, field) for field in fields):
                raise TypeError(f"{name}: got {type(value).__name__}, takes a tile with {', '.join(fields)}")
            for field in fields:
                if getattr(value, field) <= 0:
                    raise ValueError(f"{name}.{field}: got {getattr(value, field)}, takes a positive number of elements")
        self._tiles = (tile_l1_info, tile_l0_info)

    def get(self, caller: str = "get_convbp_input_tile_shapes"):
        """(ConvBpTileL1Info, ConvBpTileL0Info) of this function. Raises RuntimeError where none were set."""
        self._inside(caller)
        if self._tiles is None:
            raise RuntimeError(f"{caller}: set_convbp_input_tile_shapes was not called in this function")
        return self._tiles


def _conv_backward_input(
    pypto, scope, grad_output, input_size, weight, out_dtype, strides, paddings, dilations, groups=1
):
    """dx [N, Cin, Hin, Win] of a 2-D convolution; a graph of matmuls and vector operations.

    Args:
        grad_output: [N, Cout, Hout, Wout], DT_FP16 or DT_BF16, static shape.
        input_size: [N, Cin, Hin, Win].
        weight: [Cout, Cin, Kh, Kw], as grad_output.
        out_dtype: their dtype.
        strides, dilations: [height, width].
        paddings: [top, bottom, left, right], symmetric.
        groups: 1.

    Raises:
        RuntimeError: no tile shapes set. TypeError, ValueError: an argument outside the limits of ops/conv/limits.py.
    """
    from pypto_gym.ops.conv import limits
    from pypto_gym.ops.conv.conv_backward_input import conv_backward_input_impl_gemm as gemm

    scope.get("conv_backward_input")
    vector_tile = pypto.get_vec_tile_shapes()
    if len(vector_tile) != 4:
        raise ValueError(f"set_vec_tile_shapes: got {list(vector_tile)}, takes one tile for each of the 4 dimensions")
    for name, dtype in (("grad_output", grad_output.dtype), ("weight", weight.dtype), ("out_dtype", out_dtype)):
        if dtype not in (pypto.DT_FP16, pypto.DT_BF16):
            raise TypeError(f"{name}: got {dtype}, takes DT_FP16 or DT_BF16")
        if dtype != grad_output.dtype:
            raise TypeError(f"{name}: got {dtype}, takes that of grad_output, {grad_output.dtype}")
    for name, x in (("grad_output", grad_output), ("weight", weight)):
        if len(x.shape) != 4:
            raise ValueError(f"{name}: got {len(x.shape)} dimensions, takes 4")
        if not all(isinstance(n, int) and n > 0 for n in x.shape):
            raise ValueError(f"{name}: got shape {list(x.shape)}, takes a static shape")
    if len(paddings) != 4 or paddings[0] != paddings[1] or paddings[2] != paddings[3]:
        raise ValueError(f"paddings: got {list(paddings)}, takes [top, bottom, left, right] with top = bottom, left = right")
    kernel = tuple(weight.shape[2:])
    geometry = limits.geometry(kernel, 2, list(strides), (paddings[0], paddings[2]), list(dilations), groups)
    limits.shapes(tuple(grad_output.shape), list(input_size), tuple(weight.shape), *geometry)

    dx = gemm.dx_tensor(grad_output, list(input_size), weight, geometry)
    pypto.set_vec_tile_shapes(*vector_tile)
    return dx
