"""Makes PyPTO compute and be timed on a machine without an NPU.

PyPTO's own simulation compiles the kernel and runs the cost model. Its interpreter, meant for checking compiler passes,
also computes real numbers; this module feeds it the real inputs, brings its results back, and keeps what PyPTO writes
out of the current folder. Everything here is about PyPTO's outside; no computation is replaced.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import json
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from pypto_gym.tools.runtime import calculator

OUTPUT_VARIABLE = "TILE_FWK_OUTPUT_DIR"
CONFIG_VARIABLE = "TILEFWK_CONFIG_PATH"


@dataclass(frozen=True)
class Options:
    """What a kernel call does in simulation.

    numbers     let the interpreter compute the outputs
    passes      compiler passes whose result is computed again and compared; None is PyPTO's own choice of six
    tolerance   rtol and atol of that comparison
    cost        run the cost model
    overrides   jit options replaced in simulation: {"runtime_options": {...}, "pass_options": {...}}
    """

    numbers: bool = True
    passes: tuple[str, ...] | None = ()
    tolerance: float = 1e-3
    cost: bool = False
    overrides: Mapping[str, Mapping] = field(default_factory=dict)


_options: contextvars.ContextVar[Options] = contextvars.ContextVar("options", default=Options())


@contextlib.contextmanager
def options(**changes) -> Iterator[Options]:
    """Kernel calls inside use these options (fields of `Options`); what is not named stays as around it."""
    current = _options.get()
    token = _options.set(Options(**{**current.__dict__, **changes}))
    try:
        yield _options.get()
    finally:
        _options.reset(token)


def use_folder(folder: Path) -> None:
    """PyPTO writes its files below `folder` from now on, and draws no pictures (they cost 8 to 40 s a kernel)."""
    import importlib.util

    folder.mkdir(parents=True, exist_ok=True)
    package = Path(importlib.util.find_spec("pypto").origin).parent
    config = json.loads((package / "lib" / "configs" / "tile_fwk_config.json").read_text())
    simulation = config["global"]["simulation"]
    simulation["draw_function_graph"] = False
    simulation["args"].append("Model.drawPngThresholdCycle=0")
    path = folder / "tile_fwk_config.json"
    path.write_text(json.dumps(config))
    os.environ[CONFIG_VARIABLE] = str(path)
    os.environ[OUTPUT_VARIABLE] = str(folder)


def install() -> None:
    """Prepares this process: output folder, interpreter library, inputs fed with their values, results read back."""
    if OUTPUT_VARIABLE not in os.environ:
        scratch = Path(tempfile.mkdtemp(prefix="pypto-gym-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        use_folder(scratch)
    os.environ.pop("ASCEND_HOME_PATH", None)  # PyPTO takes its presence for an NPU
    calculator.ensure_built()

    import pypto  # noqa: F401  its libraries must be in the process before the calculator
    from pypto.frontend.parser import entry

    calculator.load()
    if hasattr(entry, "_gen_pto_tensor"):
        _feed_values(entry)
    _collect_results(entry)
    _apply_options(entry)


def _feed_values(entry) -> None:
    """0.2.0 hands the interpreter zero-filled copies of CPU tensors, and their zeros come back. Hand it the tensors."""
    generate = entry._gen_pto_tensor

    def given(tensors):
        if all(t.device is not None and t.device.type == "cpu" for t in tensors):
            return tensors, None
        return generate(tensors)

    entry._gen_pto_tensor = given


def _collect_results(entry) -> None:
    """The interpreter leaves its results in a file for every argument that a golden was set for: read them back.

    0.2.0 also copies them into the tensors, but only after the cost model has run, so a crash there would lose them.
    """
    import pypto

    execute = entry.JitCallableWrapper._execute_kernel

    def collected(self, torch_tensors, tensor_defs):
        if not _options.get().numbers:
            return execute(self, torch_tensors, tensor_defs)
        pypto.set_verify_golden_data(goldens=[t.clone() for t in torch_tensors])
        before = set(Path(os.environ[OUTPUT_VARIABLE]).glob("output_*"))
        try:
            execute(self, torch_tensors, tensor_defs)
        finally:
            for folder in set(Path(os.environ[OUTPUT_VARIABLE]).glob("output_*")) - before:
                read_results(folder, [d.name for d in tensor_defs], torch_tensors)

    entry.JitCallableWrapper._execute_kernel = collected


def read_results(folder: Path, names: Sequence[str], tensors: Sequence["torch.Tensor"]) -> None:  # noqa: F821
    """Copies the interpreter's raw result files into the arguments that they belong to.

    A file is called `tensor_graph~<argument>~<time>.data`; the argument is its position (0.2.0) or its name (newer).
    Raises RuntimeError when a file's size is not the argument's.
    """
    import torch

    for position, (name, tensor) in enumerate(zip(names, tensors)):
        files = [f for key in (position, name) for f in folder.glob(f"verify*/tensor_graph/tensor_graph~{key}~[0-9]*.data")]
        if not files:
            continue
        raw = bytearray(max(files).read_bytes())
        expected = tensor.numel() * tensor.element_size()
        if len(raw) != expected:
            raise RuntimeError(f"{max(files).name}: {len(raw)} bytes, argument {name} has {expected}")
        if raw:
            tensor.copy_(torch.frombuffer(raw, dtype=tensor.dtype).reshape(tensor.shape))


def _apply_options(entry) -> None:
    import pypto

    wrapper = entry.JitCallableWrapper
    set_config, run = wrapper._set_config_option, wrapper._run_with_cpu

    def set_config_and_options(self):
        chosen = _options.get()
        if chosen.numbers:
            choice: dict = {} if chosen.passes is None else {"pass_verify_pass_filter": list(chosen.passes)}
            choice["pass_verify_error_tol"] = [chosen.tolerance, chosen.tolerance]
            pypto.set_verify_options(enable_pass_verify=True, **choice)
        set_config(self)
        if not chosen.cost and chosen.passes == ():
            pypto.set_host_options(compile_stage=pypto.CompStage.TENSOR_GRAPH)  # nothing later is asked for
        for kind, values in chosen.overrides.items():
            pypto.set_options(**{kind: dict(values)})

    def run_if_timed(self, inputs, outputs):
        if _options.get().cost:
            run(self, inputs, outputs)

    wrapper._set_config_option = set_config_and_options
    wrapper._run_with_cpu = run_if_timed
