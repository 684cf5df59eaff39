"""The kernels in C++, compiled once for all tests, with threads that share even a few numbers."""

import os
import shutil

import pytest

from chainrule.kernels.cpu import layers
from chainrule.kernels.cpu.compiled import Library


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    if shutil.which((os.environ.get("CXX") or "c++").split()[0]) is None:
        pytest.skip("no C++ compiler here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHAINRULE_CACHE", str(tmp_path_factory.mktemp("compiled")))
        made = Library(layers.LIBRARY.source, layers.LIBRARY.flags)
        assert made.functions is not None
        yield made


@pytest.fixture
def _compiled_layers(library, monkeypatch):
    monkeypatch.setattr(layers, "LIBRARY", library)
    monkeypatch.setattr(layers, "PER_THREAD", 20)
