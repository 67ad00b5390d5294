"""Builds the library with which PyPTO's interpreter computes, once per (torch, pypto, compiler).

PyPTO ships it as C++ source and builds it anew in every process (half a minute). Here it is built once into the user's
cache. Concurrent first runs wait for one another; a library that does not load is built again.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY = "libtile_fwk_calculator.so"


def cache_root() -> Path:
    """Where everything that this repository caches lies: PYPTO_GYM_CACHE, or pypto-gym in the user's cache folder."""
    if "PYPTO_GYM_CACHE" in os.environ:
        return Path(os.environ["PYPTO_GYM_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pypto-gym"


def _compiler() -> str:
    for tool in (os.environ.get("CXX", "g++"), "cmake"):
        if shutil.which(tool) is None:
            raise RuntimeError(
                f"{tool} was not found: PyPTO's interpreter is compiled once on this machine; "
                "install g++ and cmake (Debian, Ubuntu: apt-get install g++ cmake; openEuler: dnf install gcc-c++ cmake)"
            )
    command = [os.environ.get("CXX", "g++"), "-dumpfullversion", "-dumpmachine"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@functools.cache
def path() -> Path:
    """Path of the built library; it need not exist yet."""
    key = "\n".join([importlib.metadata.version("torch"), importlib.metadata.version("pypto"), sys.prefix, _compiler()])
    return cache_root() / "calculator" / hashlib.sha256(key.encode()).hexdigest()[:16] / LIBRARY


def _loads(library: Path) -> bool:
    """Whether the library can be loaded, tried in a process of its own: a damaged one must not take this one down."""
    probe = "import sys, ctypes, torch, pypto; ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)"
    return subprocess.run([sys.executable, "-c", probe, str(library)], capture_output=True).returncode == 0


def _stamp(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _intact(library: Path) -> bool:
    stamp = _stamp(library)
    if not (library.is_file() and stamp.is_file()):
        return False
    return stamp.read_text() == hashlib.sha256(library.read_bytes()).hexdigest()


def ensure_built() -> Path:
    """The library's path, after building it if it is missing or damaged. Says so on stderr: it takes half a minute."""
    library = path()
    if _intact(library):
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with open(library.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _intact(library):
            print("pypto-gym: building PyPTO's interpreter library, once (about half a minute) …", file=sys.stderr, flush=True)
            _build(library)
    return library


def _build(library: Path) -> None:
    from pypto._utils import BuildOnlineManager  # the recipe is PyPTO's own; only the place of the result is ours

    manager = BuildOnlineManager()
    torch_context = manager._TorchContext()
    with tempfile.TemporaryDirectory(prefix="pypto-gym-calculator-") as scratch:
        context = manager._CMakeContext.CompileContext(src_dir=manager.pkg_lib_dir / "calculator", tmp_dir=Path(scratch))
        context.cfg_cmd_ext = (
            f"-DPY3_MOD_TORCH_VERSION={torch_context.torch_version}"
            f" -DPY3_MOD_TORCH_ROOT_PATH={torch_context.torch_root_dir}"
            f" -DPY3_MOD_TORCH_C_GLIBCXX_USE_CXX11_ABI={torch_context.torch_c_use_cxx11_abi}"
        )
        try:
            built = manager._CMakeContext().compile(context) / "lib" / LIBRARY
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"PyPTO's interpreter library could not be built:\n{error.stderr[-3000:]}") from error
        part = library.with_suffix(".part")
        shutil.copyfile(built, part)
        os.replace(part, library)
    if not _loads(library):
        library.unlink()
        raise RuntimeError("PyPTO's interpreter library was built but cannot be loaded; torch and PyPTO do not fit together")
    _stamp(library).write_text(hashlib.sha256(library.read_bytes()).hexdigest())


def load() -> None:
    """Loads the library into this process, before the first kernel."""
    from pypto._utils import BuildOnlineManager

    ctypes.CDLL(str(ensure_built()), mode=ctypes.RTLD_GLOBAL)
    BuildOnlineManager().calculator_loaded = True
