"""`./gym` itself: what it says before anything is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("bash", "env", "dirname", "readlink", "sha256sum", "cut", "cat", "sed", "rm", "flock", "python3")


@pytest.fixture
def launch(tmp_path):
    """Runs a copy of ./gym, in a folder of its own, with a PATH of only the named tools."""
    checkout, tools = tmp_path / "checkout", tmp_path / "bin"
    checkout.mkdir()
    tools.mkdir()
    for name in ("gym", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, checkout)

    def run(*more, **variables):
        for tool in (*TOOLS, *more):
            target = sys.executable if tool == "python3" else shutil.which(tool)
            if not (tools / tool).exists():
                (tools / tool).symlink_to(target)
        environment = {"PATH": str(tools), "HOME": str(tmp_path), **variables}
        return subprocess.run([str(checkout / "gym"), "list"], env=environment, cwd=tmp_path, capture_output=True, text=True)

    run.checkout = checkout
    return run


@pytest.mark.parametrize("missing, there", [("g++", ["cmake"]), ("cmake", ["g++"])])
def test_a_missing_compiler_is_said_before_anything_is_installed(launch, missing, there):
    outcome = launch(*there)
    assert outcome.returncode == 2
    assert outcome.stderr.startswith(f"gym: {missing} was not found; install g++ and cmake")
    assert not (launch.checkout / ".venv").exists()


def test_a_python_that_is_not_there(launch):
    outcome = launch(PYPTO_GYM_PYTHON="/no/python")
    assert (outcome.returncode, outcome.stderr) == (2, "gym: PYPTO_GYM_PYTHON: /no/python is not there\n")


def test_a_python_that_does_not_fit(launch, tmp_path):
    old = tmp_path / "python3.8"
    old.write_text('#!/bin/bash\n[ "$1" = -V ] && echo "Python 3.8.1"\nexit 1\n')
    old.chmod(0o755)
    outcome = launch(PYPTO_GYM_PYTHON=str(old))
    assert outcome.stderr == f"gym: PYPTO_GYM_PYTHON: {old} is Python 3.8.1, takes Python 3.10 to 3.12\n"


def test_a_prepared_environment_is_used_as_it_is_from_any_folder(launch):
    venv = launch.checkout / ".venv"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text('#!/bin/bash\necho "called: $*"\n')
    python.chmod(0o755)
    # The launcher up to where it knows its stamp: what a finished preparation leaves in .venv/ready.
    head = launch.checkout / "head"
    head.write_text((launch.checkout / "gym").read_text().split("prepare() {")[0] + 'echo "$stamp"\n')
    launch()  # fills the folder of tools; without a stamp it asks for a compiler
    tools = {"PATH": str(launch.checkout.parent / "bin")}
    (venv / "ready").write_text(subprocess.run(["bash", str(head)], env=tools, capture_output=True, text=True).stdout)
    outcome = launch()
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "called: -m pypto_gym.tools.harness.cli list\n", "")


def test_a_half_made_environment_is_made_anew(launch):
    """Without the stamp of a finished preparation, what stands there is not trusted."""
    (launch.checkout / ".venv" / "bin").mkdir(parents=True)
    shutil.copy("/bin/true", launch.checkout / ".venv" / "bin" / "python")
    assert "g++ was not found" in launch("cmake").stderr  # it went for a new one, and did not call what was there
