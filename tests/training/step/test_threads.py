"""The number of threads is found by trial, is never more than was given, and is put back."""

import pytest
import torch

from chainrule import device
from chainrule.device import choose_threads, fastest_threads


@pytest.fixture
def clock(monkeypatch):
    """Steps that take so many seconds by their threads."""
    def set_times(times):
        monkeypatch.setattr(device, "_seconds", lambda count: times[count])
    return set_times


@pytest.mark.parametrize(("times", "given", "wanted"), [
    ({1: 1.0, 2: 4.0}, 2, 1),                       # another program has the second core
    ({1: 1.0, 2: 0.55}, 2, 2),
    ({1: 1.0, 2: 0.95}, 2, 1),                      # hardly faster
    ({1: 1.0, 2: 0.6, 4: 0.4, 6: 0.9}, 6, 4),
    ({1: 1.0}, 1, 1),
])
def test_the_fastest_number_of_threads_is_taken(clock, times, given, wanted):
    clock(times)
    assert choose_threads(given) == wanted


def test_afterwards_there_are_as_many_as_before(monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        monkeypatch.setattr(device, "choose_threads", lambda given: 1)
        with fastest_threads() as chosen:
            assert chosen == torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_trial_takes_some_time_and_leaves_the_machine_as_it_was():
    before = torch.get_num_threads()
    with fastest_threads() as chosen:
        assert 1 <= chosen <= before
    assert torch.get_num_threads() == before
    assert device._seconds(1) > 0
    torch.set_num_threads(before)
