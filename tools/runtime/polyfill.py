"""What an older PyPTO release lacks of the language that the kernels here are written in.

Nothing that the installed release has is replaced: on a release that has it all, `install` changes nothing. Each entry
names the release that brought the real thing, and what differs.

| entry | real since | what differs here |
|---|---|---|
| `PrecisionType`, `div(a, b, precision_type)` | 0.2.1 | the choice has no effect: 0.2.0 has one division |
| `atomic_add(src, offsets, dst)` | 0.2.1 | read, add, write back in loops of their own: same numbers, serialised, so its simulated cycles say nothing about the native one |
| runtime and pass options (`max_workspace_kb`, `sg_set_ooo_scope`, `ooo_sched_mode`, …) | 0.2.1 | left out, and said once each |
| `conv_backward_input` and its tile setters | after 0.2.1 | see polyfill_conv.py |
"""

from __future__ import annotations

import enum
import functools
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType

from pypto_gym.tools.runtime import polyfill_conv

_ignored: set[str] = set()


def ignored_options() -> list[str]:
    """Options that a kernel asked for in this process and the installed release does not know."""
    return sorted(_ignored)


def _ignore(option: str) -> None:
    if option not in _ignored:
        _ignored.add(option)
        print(f"pypto-gym: option {option} has no effect on the installed PyPTO release", file=sys.stderr)


def install(pypto: ModuleType) -> None:
    """Adds to the module `pypto` what it lacks."""
    if not hasattr(pypto, "PrecisionType"):
        _add_precision_type(pypto)
    if not hasattr(pypto, "atomic_add"):
        pypto.atomic_add = functools.partial(_atomic_add, pypto)
    polyfill_conv.install(pypto)
    _drop_unknown_pass_options(pypto)
    _drop_unknown_jit_options(pypto)


class PrecisionType(enum.Enum):
    """How `div` computes: the hardware's intrinsic, or a refined quotient."""

    INTRINSIC = 0
    HIGH_PRECISION = 1


def _add_precision_type(pypto: ModuleType) -> None:
    pypto.PrecisionType = PrecisionType
    plain = pypto.div

    @functools.wraps(plain)
    def div(input, other, precision_type=None):
        return plain(input, other)

    pypto.div = div


def _atomic_add(pypto: ModuleType, src, offsets, dst) -> None:
    """dst[offsets : offsets + src.shape] += src, inside the valid shape of `src`.

    A tensor that one graph both views and assembles is a cycle, so the sum and the write are graphs of their own; a
    valid shape is lost between graphs, so each takes it anew.
    """
    shape, valid_shape, origin = list(src.shape), src.valid_shape, [0] * len(src.shape)
    for _ in pypto.loop(1):
        term = pypto.view(src, shape, origin, valid_shape=valid_shape)
        total = pypto.view(dst, shape, offsets, valid_shape=valid_shape) + term
    for _ in pypto.loop(1):
        pypto.assemble(pypto.view(total, shape, origin, valid_shape=valid_shape), offsets, dst)


def _drop_unknown_pass_options(pypto: ModuleType) -> None:
    known = set(inspect.signature(pypto.set_pass_options).parameters)
    if {"sg_set_ooo_scope", "ooo_sched_mode"} <= known:
        return
    plain = pypto.set_pass_options

    @functools.wraps(plain)
    def set_pass_options(**options):
        for option in options.keys() - known:
            _ignore(option)
        options = {k: v for k, v in options.items() if k in known}
        if options:
            plain(**options)

    pypto.set_pass_options = set_pass_options


def _drop_unknown_jit_options(pypto: ModuleType) -> None:
    """The options of `frontend.jit`: an unknown one ends in `map::at` without a name."""
    config = Path(pypto.__file__).parent / "lib" / "configs" / "tile_fwk_config.json"
    if not config.is_file():
        return
    known = set(json.loads(config.read_text())["runtime"])
    if "max_workspace_kb" in known:
        return
    from pypto.frontend.parser.entry import JitCallableWrapper

    plain = JitCallableWrapper.__init__

    @functools.wraps(plain)
    def init(self, *args, runtime_options=None, **kwargs):
        for option in (runtime_options or {}).keys() - known:
            _ignore(option)
        runtime_options = {k: v for k, v in (runtime_options or {}).items() if k in known}
        plain(self, *args, runtime_options=runtime_options, **kwargs)

    JitCallableWrapper.__init__ = init
