"""Tests on a GPU compare float32 to its last digits. What they leave behind is put back: functions that are marked for
the compiler are as written again."""

import pytest
import torch

from chainrule.kernels import compiling


@pytest.fixture(autouse=True)
def _marks_are_put_back():
    yield
    compiling.as_before()


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
