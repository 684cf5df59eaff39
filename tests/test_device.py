"""Recording a graph: nothing is collected meanwhile, and what fails leaves chance where it was. CUDA is acted here."""

import gc

import pytest
import torch

from chainrule.device import undisturbed


class Actor:
    """A card whose generator of chance is spoilt by a recording that fails."""

    def __init__(self, monkeypatch):
        self.state, self.place, self.waited = "spoilt", 7, False
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: self.place)
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda chance, device: setattr(self, "place", chance))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: setattr(self, "waited", True))
        monkeypatch.setattr(torch.cuda, "default_generators", [self])
        monkeypatch.setattr(torch, "Generator", lambda device: self)

    def graphsafe_get_state(self):
        return "fresh"

    def graphsafe_set_state(self, state):
        self.state, self.place = state, 0


@pytest.fixture
def card(monkeypatch):
    return Actor(monkeypatch)


@pytest.fixture
def collecting():
    yield
    gc.enable()


def record(error=None):
    with undisturbed():
        assert not gc.isenabled()
        if error is not None:
            raise error


@pytest.mark.usefixtures("collecting")
@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("error", [None, RuntimeError("capturing"), KeyboardInterrupt()], ids=repr)
def test_garbage_is_collected_behind_it_as_before(card, collects, error):
    gc.enable() if collects else gc.disable()
    if error is None:
        record()
    else:
        with pytest.raises(type(error)):
            record(error)
    assert gc.isenabled() == collects


def test_chance_goes_on_where_it_was_if_it_fails(card):
    with pytest.raises(RuntimeError, match="capturing"):
        record(RuntimeError("capturing"))
    assert (card.state, card.place, card.waited) == ("fresh", 7, True)


def test_a_recording_that_is_made_leaves_chance_alone(card):
    record()
    assert (card.state, card.place, card.waited) == ("spoilt", 7, False)
