"""What a test on a GPU leaves behind is put back: functions that are marked for the compiler are as written again."""

import pytest

from chainrule.models import tracing


@pytest.fixture(autouse=True)
def _marks_are_put_back():
    before = [(mark, mark.now, mark.changed) for mark in tracing._marked]
    yield
    for mark, now, changed in before:
        mark.now, mark.changed = now, changed
