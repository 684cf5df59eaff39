import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from chainrule.model import (
    Batch,
    LanguageModel,
    Model,
    Tap,
    cross_entropy,
    join,
    pick,
    state_bytes,
    taps,
    tensors,
    watch,
)

STATE = {"one": torch.arange(6).view(3, 2), "pair": (torch.tensor([7, 8, 9]), torch.zeros(3, 0))}


def test_picking_keeps_the_order_asked_for_and_may_take_a_row_twice() -> None:
    picked = pick(STATE, torch.tensor([2, 0, 2]))
    assert picked["one"].tolist() == [[4, 5], [0, 1], [4, 5]]
    assert picked["pair"][0].tolist() == [9, 7, 9]
    assert picked["pair"][1].shape == (3, 0)


def test_a_picked_state_shares_nothing_with_the_old_one() -> None:
    picked = pick(STATE, torch.arange(3))
    picked["one"] += 100
    assert STATE["one"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_joining_undoes_picking() -> None:
    parts = [pick(STATE, torch.tensor([row])) for row in range(3)]
    joined = join(parts)
    assert_close(joined["one"], STATE["one"])
    assert_close(joined["pair"], STATE["pair"])


def test_joined_states_of_different_length_are_padded_on_the_right_with_zeros() -> None:
    short, long = torch.ones(1, 2, 3), torch.ones(2, 4, 3)
    joined = join([short, long])
    assert joined.shape == (3, 4, 3)
    assert joined[0].sum() == 6
    assert joined[0, :2].sum() == 6
    assert joined[1:].sum() == 24
    assert join([torch.ones(1, 0), torch.ones(1, 2)]).tolist() == [[0, 0], [1, 1]]


def test_a_state_is_counted_in_bytes() -> None:
    assert state_bytes(STATE) == 6 * 8 + 3 * 8
    assert len(list(tensors(STATE))) == 3


def test_what_counts_is_neither_padding_nor_mere_context() -> None:
    tokens = torch.zeros(3, 4, dtype=torch.long)
    assert Batch(tokens, tokens).loss_mask.all()
    batch = Batch(tokens, tokens, lengths=torch.tensor([4, 2, 3]), context_only=torch.tensor([0, 1, 3]))
    assert batch.loss_mask.int().tolist() == [[1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert Batch(tokens, tokens[:, 0], lengths=torch.tensor([4, 2, 3])).loss_mask.tolist() == [True] * 3


def test_a_batch_moves_as_a_whole() -> None:
    tokens = torch.zeros(2, 3, dtype=torch.long)
    moved = Batch(tokens, tokens, lengths=torch.tensor([1, 2])).to("meta")
    assert moved.tokens.device.type == "meta"
    assert moved.lengths is not None
    assert moved.lengths.device.type == "meta"
    assert moved.source is None


def test_a_loss_is_a_sum_over_what_counts_and_how_much_that_is() -> None:
    logits = torch.zeros(2, 3, 4)
    targets = torch.tensor([[0, 1, 2], [3, 3, 3]])
    total, count = cross_entropy(logits, Batch(targets, targets, lengths=torch.tensor([3, 1])))
    assert float(total) == pytest.approx(4 * math.log(4))
    assert int(count) == 4


def test_a_loss_is_taken_in_single_precision_at_least() -> None:
    logits = torch.tensor([[[10.0, 0.001]]], dtype=torch.bfloat16)
    targets = torch.tensor([[0]])
    assert cross_entropy(logits, Batch(targets, targets))[0].dtype == torch.float32


def test_a_model_that_cannot_go_on_still_has_nats() -> None:
    class Classifier(Model):
        def forward(self, batch: Batch) -> torch.Tensor:
            return torch.zeros(len(batch.tokens), 8)

    total, count, state = Classifier().loss(Batch(torch.zeros(3, 4), torch.tensor([1, 2, 7])))
    assert float(total) == pytest.approx(3 * math.log(8))
    assert int(count) == 3
    assert state is None


class Watched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleDict({"gate": Tap()})
        self.belief = Tap()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.belief(self.layer["gate"](value) + 1)


def test_a_tap_gives_back_what_it_was_given_and_keeps_nothing_unwatched() -> None:
    model, value = Watched(), torch.ones(2, requires_grad=True)
    assert model.belief(value) is value
    assert not model.belief.watched
    assert not model.belief.watched


def test_watching_shows_what_passes_in_order() -> None:
    model = Watched()
    assert list(taps(model)) == ["layer.gate", "belief"]
    with watch(model) as seen:
        assert model.belief.watched
        model(torch.tensor(1.0, requires_grad=True))
        model(torch.tensor(5.0))
    assert [float(value) for value in seen["layer.gate"]] == [1, 5]
    assert [float(value) for value in seen["belief"]] == [2, 6]
    assert not seen["belief"][0].requires_grad
    assert not model.belief.watched


def test_only_the_named_taps_are_watched_and_no_longer_after_an_error() -> None:
    model = Watched()
    with watch(model, "belief") as seen:
        model(torch.ones(1))
        assert list(seen) == ["belief"]
        assert not model.layer["gate"].watched
    with pytest.raises(TypeError), watch(model, "belief"):
        model("no tensor")
    assert not model.belief.watched


def test_a_tap_that_is_not_there_cannot_be_watched() -> None:
    with pytest.raises(KeyError), watch(Watched(), "attention"):
        pass


def test_what_a_kind_leaves_out_is_said_to_be_missing() -> None:
    tokens = torch.zeros(1, 1, dtype=torch.long)
    for missing in (
        lambda: Model()(Batch(tokens, tokens)),
        lambda: LanguageModel().start(1),
        lambda: LanguageModel().step(tokens, None),
    ):
        with pytest.raises(NotImplementedError):
            missing()
