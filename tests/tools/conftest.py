from pathlib import Path

import pytest

import pypto_gym.ops


@pytest.fixture
def sample(monkeypatch):
    """The operator sample/scale_add of this folder, found as any other is."""
    monkeypatch.setattr(pypto_gym.ops, "__path__", [*pypto_gym.ops.__path__, str(Path(__file__).parent)])
    from pypto_gym.tools.harness import registry

    return registry.load("scale_add")


@pytest.fixture
def fresh_cache(monkeypatch, tmp_path):
    """An empty cache of this test's own, so that it neither reads nor writes the user's."""
    monkeypatch.setenv("PYPTO_GYM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
