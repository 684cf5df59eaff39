"""Fixtures of GPU tests: float32 is compared to its last digits, so TF32 is off; compiled functions are restored."""

import pytest
import torch

from chainrule.kernels import ops


@pytest.fixture(autouse=True)
def _compiled_functions_are_restored():
    yield
    ops.reset_marks()


@pytest.fixture(autouse=True)
def _full_precision():
    """By hand: monkeypatch restores an attribute by deleting it where no `__dict__` holds it, which torch refuses."""
    settings = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [setting.allow_tf32 for setting in settings]
    for setting in settings:
        setting.allow_tf32 = False
    yield
    for setting, allowed in zip(settings, before):
        setting.allow_tf32 = allowed
