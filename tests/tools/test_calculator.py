"""The interpreter's library: built once, healed when damaged, and missing tools said before anything is compiled."""

import multiprocessing
import time
from pathlib import Path

import pytest

from pypto_gym.tools.runtime import calculator


def fake_build(library: Path) -> None:
    with open(library.parent / "builds", "a") as builds:
        builds.write("x")
    time.sleep(0.3)
    library.write_bytes(b"library")
    calculator._stamp(library).write_text(calculator.hashlib.sha256(b"library").hexdigest())


@pytest.fixture
def library(fresh_cache, monkeypatch):
    monkeypatch.setattr(calculator, "_build", fake_build)
    calculator.path.cache_clear()
    yield calculator.path()
    calculator.path.cache_clear()


def builds(library):
    return len((library.parent / "builds").read_text())


def test_it_is_built_once(library):
    assert calculator.ensure_built() == library == calculator.ensure_built()
    assert builds(library) == 1


@pytest.mark.parametrize("damage", [lambda p: p.write_bytes(b"libr"), lambda p: p.unlink(), lambda p: calculator._stamp(p).unlink()])
def test_a_damaged_library_is_built_again(library, damage):
    calculator.ensure_built()
    damage(library)
    assert calculator.ensure_built().read_bytes() == b"library"
    assert builds(library) == 2


def test_concurrent_first_runs_build_once(library):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=calculator.ensure_built) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert builds(library) == 1


@pytest.mark.parametrize("missing", ["g++", "cmake"])
def test_a_missing_tool_is_named_before_any_compilation(fresh_cache, monkeypatch, missing):
    calculator.path.cache_clear()
    monkeypatch.delenv("CXX", raising=False)
    which = calculator.shutil.which
    monkeypatch.setattr(calculator.shutil, "which", lambda tool: None if tool == missing else which(tool))
    with pytest.raises(RuntimeError) as error:
        calculator.ensure_built()
    calculator.path.cache_clear()
    assert str(error.value).startswith(f"{missing} was not found: ") and "install g++ and cmake" in str(error.value)
