"""Room for turns: as much as pays."""

from typing import Any

import numpy as np
import pytest
import torch
from contract.toy import Attentive, ToySettings

from chainrule import kernels
from chainrule.errors import UserError
from chainrule.inference.decoding import ROOM, Writing
from chainrule.inference.sampling import Sampling


def writing(rows: int, temperature: float = 1) -> Writing:
    model = Attentive(ToySettings(width=16, context=12), 50)
    with torch.no_grad():
        return Writing(model, [np.array([1, 2, 3])] * rows, Sampling(temperature), ends=False)


@pytest.mark.parametrize(("rows", "room"), [(1, 512), (64, 512), (128, 256), (256, 128), (5000, 128)])
def test_many_rows_have_little_room_where_all_of_it_is_read(rows: int, room: int) -> None:
    assert writing(rows)._room() == room


def test_where_only_what_is_there_is_read_memory_says_how_much_room(monkeypatch: pytest.MonkeyPatch) -> None:
    one, many = writing(1), writing(8)
    one.quick = many.quick = True
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 31))
    assert one._room() > 10_000
    assert many._room() == pytest.approx(one._room() / 8, rel=0.01)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 1 << 31))
    assert one._room() == ROOM[0]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(("learns_by", "says"), [("gradient", "it diverged"), ("counting", "train it with smoothing")])
def test_where_no_token_can_be_drawn_the_cure_is_that_of_the_kind(
    temperature: float, learns_by: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Attentive, "learns_by", learns_by)
    here = writing(2, temperature)
    here.turn(torch.zeros(2), 2)
    here.refuse_nothing()
    here = writing(2, temperature)
    here.first = torch.full((2, 50), torch.nan)
    here.turn(torch.zeros(2), 2)
    with pytest.raises(UserError, match=says):
        here.refuse_nothing()


def test_kernels_are_asked_about_turns_that_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def repay(turns: int) -> bool:
        asked.append(turns)
        return False

    monkeypatch.setattr(kernels, "worthwhile", repay)
    here: Any = writing(2)
    assert here._turns_without_another_shape(100) == 0         # not on a CPU
    here.recordable, here.first = True, None
    assert here._turns_without_another_shape(100) == 12 - 4    # the context, less what is held
    assert here._turns_without_another_shape(3) == 3
    assert asked == [8, 3]
