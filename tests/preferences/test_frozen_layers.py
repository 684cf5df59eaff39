"""Layers that are frozen are computed once for each row, and change no log-probability."""

import gc

import pytest
import torch

from chainrule.model import IGNORE, Batch
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.preferences import frozen_layers as module
from chainrule.preferences.frozen_layers import FrozenLayers, frozen_blocks, frozen_layers, keep_frozen_layers
from chainrule.preferences.log_probs import answer_sums

LENGTHS = [9, 4, 7, 9, 2]


def make(freeze: int = 2, **settings: object) -> GPT:
    torch.manual_seed(1)
    model = GPT(GPTSettings(layers=3, width=16, heads=2, context=12, zero_init=False, **settings), 11)
    for part in [model.embedding, *model.stack.blocks[:freeze]]:
        part.requires_grad_(False)
    return model


def batch() -> Batch:
    torch.manual_seed(2)
    tokens, targets = torch.randint(1, 11, (5, 9)), torch.randint(1, 11, (5, 9))
    for row, length in enumerate(LENGTHS):
        targets[row, length:] = IGNORE
    return Batch(tokens, targets, torch.tensor(LENGTHS))


def count_calls(block: torch.nn.Module) -> list[int]:
    calls: list[int] = []
    block.register_forward_pre_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.parametrize("positions", ["rotary", "learned", "alibi"])
def test_log_probs_and_gradients_are_those_of_the_whole_model(positions: str) -> None:
    plain, kept = make(positions=positions, norm_first=positions != "learned"), \
        make(positions=positions, norm_first=positions != "learned")
    keep_frozen_layers(kept)
    for _ in range(2):                                     # the first call fills the cache, the second reads it
        expected, got = (answer_sums(model, batch())[0] for model in (plain, kept))
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)
    expected.sum().backward()
    got.sum().backward()
    for (name, one), other in zip(plain.named_parameters(), kept.parameters()):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            torch.testing.assert_close(other.grad, one.grad, atol=1e-4, rtol=1e-4)


def test_frozen_blocks_run_once_for_a_row() -> None:
    model = make()
    keep_frozen_layers(model)
    frozen, trained = (count_calls(model.stack.blocks[number]) for number in (1, 2))
    answer_sums(model, batch())
    first = len(frozen)
    model.train()
    answer_sums(model, batch())
    assert first == len(frozen) > 0
    assert len(trained) == 2 * first


def test_rows_without_room_are_computed_each_time() -> None:
    model = make()
    small = FrozenLayers(2, limit=9 * 16 * 4)              # one row of nine tokens
    module.KEPT[model] = small
    expected = answer_sums(make(), batch())[0]
    for _ in range(2):
        torch.testing.assert_close(answer_sums(model, batch())[0], expected, atol=2e-5, rtol=1e-5)
    assert not small.rows


def test_what_is_trained_or_random_is_not_kept() -> None:
    model = make()
    keep_frozen_layers(model)
    assert frozen_layers(model) is not None
    model.stack.blocks[1].requires_grad_(True)
    assert frozen_layers(model) is None
    assert frozen_blocks(make(freeze=0)) == 0
    dropped = make(dropout=0.1)
    assert frozen_blocks(dropped.train()) == 0
    assert frozen_blocks(dropped.eval()) == 2


def test_it_goes_with_its_model() -> None:
    model = make()
    keep_frozen_layers(model)
    before = len(module.KEPT)
    del model
    gc.collect()
    assert len(module.KEPT) == before - 1
