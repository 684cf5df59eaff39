"""What a test on a GPU leaves behind is put back: functions that are marked for the compiler are as written again."""

import pytest

from chainrule.models import tracing


@pytest.fixture(autouse=True)
def _marks_are_put_back():
    yield
    tracing.as_before()
