"""The record of an operator: what the harness has to know about it, and nothing that it can find out."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Mapping

import torch


@dataclass(frozen=True)
class Output:
    """How one output is judged. Its shape and dtype are the golden's.

    rtol, atol   contract: |y - golden| <= atol + rtol * |golden| for every element
    budget       gauge: RMSE(y - truth) / floor may be at most this (1.1 elementwise and norm, 1.5 matmul and attention)
    worst_tile   the same ratio for the worst 16x16 tile
    max_ulp      worst element, in ULP of max(|truth|, row RMS)
    flips        share of elements (at most 1e-4) that may break the contract while inside `max_ulp`, because a rounded
                 intermediate fell to the other side; `flips_why` carries the measurement that justifies the grant
    zeroed       starts as zeros, because the kernel accumulates into it; otherwise it starts as NaN
    exact        compared bit for bit (integers, copies, casts); the other figures are then not used
    ulp_dtype    dtype whose unit `max_ulp` counts; default: the output's own, or, for an FP32 output of a
                 low-precision computation, the dtype of the inputs
    """

    rtol: float = 2**-7
    atol: float = 1e-4
    budget: float = 1.5
    worst_tile: float = 3.0
    max_ulp: float = 4.0
    flips: float = 0.0
    flips_why: str = ""
    zeroed: bool = False
    exact: bool = False
    ulp_dtype: torch.dtype | None = None

    def __post_init__(self):
        if not 0 <= self.flips <= 1e-4:
            raise ValueError(f"flips: got {self.flips}, takes 0 to 1e-4")
        if self.flips and not self.flips_why:
            raise ValueError("flips_why: a grant of flips carries the measurement that justifies it")


@dataclass(frozen=True)
class Work:
    """What a case has to do at least, for the roofline.

    cube_flops   floating point operations of the matrix products (2 * m * n * k each)
    bytes        bytes that must cross between global memory and the cores (inputs once, outputs once)
    dtype        of the operands of the matrix products
    """

    cube_flops: float
    bytes: float
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True)
class Executions:
    """What one loop body costs PyPTO's interpreter in memory; see CONTRIBUTING.md, "Memory in simulation".

    count       how often the body runs (iterations times graphs in the body)
    viewed      tensors, or their bytes, that the body reads (whole tensors, not tiles)
    assembled   tensors, or their bytes, that it only writes
    tiles       bytes of its intermediate tiles
    """

    count: int
    viewed: tuple = ()
    assembled: tuple = ()
    tiles: int = 0


@dataclass(frozen=True)
class Operator:
    """The record of an operator. CONTRIBUTING.md explains each field with an example.

    `pass_tolerance`, rtol and atol of what PyPTO compares after each verified compiler pass, and the share of elements
    that may be beyond it. The default is PyPTO's; a record that raises it carries the measurement.
    """

    file: str
    summary: str
    params: Mapping[str, Any]
    golden: ModuleType
    impls: Mapping[str, str]
    outputs: Mapping[str, Output]
    work: Callable[[dict], Work] | None = None
    sim_executions: Callable[[dict, str], list[Executions]] | None = None
    sim_overrides: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    pass_tolerance: float = 1e-3

    @property
    def folder(self) -> Path:
        return Path(self.file).resolve().parent

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def family(self) -> str:
        return self.folder.parent.name

    @property
    def package(self) -> str:
        """Import name of the folder."""
        return f"pypto_gym.ops.{self.family}.{self.name}"

    @property
    def default_impl(self) -> str:
        return next(iter(self.impls))

    def impl(self, name: str) -> ModuleType:
        """The implementation's module, imported on a runtime that is ready for it (polyfill, calculator)."""
        if name not in self.impls:
            raise ValueError(f"impl: got {name!r}, {self.name} has {', '.join(self.impls)}")
        from pypto_gym.tools import runtime

        runtime.prepare()
        return importlib.import_module(f"{self.package}.{self.impls[name]}")

    def launch(self, impl: str, **tensors) -> None:
        """Runs implementation `impl` on these inputs and outputs, in this process."""
        from pypto_gym.tools import runtime

        module = self.impl(impl)
        with runtime.session(self.sim_overrides.get(impl, {})):
            module.launch(**tensors)

    def main(self, argv: list[str] | None = None) -> int:
        """`python <op>.py [--case ID] [--impl NAME] [--backend npu|sim] [--list]`"""
        from pypto_gym.tools.harness.cli import operator_main

        return operator_main(self, argv)
