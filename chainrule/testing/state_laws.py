"""Laws about the state: opaque, of plain tensors with the rows first, picked, joined, and reserved."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from chainrule.inference.generate import sample
from chainrule.inference.score import score_stream
from chainrule.model import LanguageModel, State, join, map_state, pick, state_bytes, tensors
from chainrule.testing.comparisons import assert_same, read
from chainrule.testing.contract_error import law
from chainrule.testing.example_texts import more_tokens, some_tokens
from chainrule.testing.wrapped_models import Disguised


@law
def check_state_is_opaque(model: LanguageModel) -> None:
    """Only the model reads its state: a state inside another container gives the same scores and samples."""
    hidden, stream = Disguised(model), some_tokens(model, 1, 50)[0].cpu().numpy()
    np.testing.assert_allclose(score_stream(hidden, stream), score_stream(model, stream), atol=1e-5)
    prompts = [np.array([1, 2]), np.array([2])]
    expected, found = (torch.stack(list(sample(one, prompts, 20, ends=False))) for one in (model, hidden))
    assert_same(found, expected, "samples")


@law
def check_rows_come_first(model: LanguageModel) -> None:
    """Every tensor of a state has the rows on axis 0, and `pick` selects rows."""
    tokens = torch.cat([some_tokens(model, 3, 2), more_tokens(model, 3, 4, seed=5)], 1)
    state = model.start(3)
    _assert_rows(state, 3, "start")
    _, state = model.step(tokens, state)
    _assert_rows(state, 3, "step")
    rows, more = torch.tensor([2, 0, 0, 1], device=tokens.device), more_tokens(model, 4, 3)
    _, expected = read(model, tokens[rows])
    assert_same(model.step(more, pick(state, rows))[0], model.step(more, expected)[0], "logits after pick")


def _assert_rows(state: State, rows: int, method: str) -> None:
    for tensor in tensors(state):
        assert len(tensor) == rows, f"{method} of {rows} rows returns a tensor of shape {tuple(tensor.shape)}"


@law
def check_picked_branch_survives(model: LanguageModel) -> None:
    """A branch that was picked stays valid after its original state was used by a step."""
    tokens, more = some_tokens(model, 3, 5), more_tokens(model, 3, 4)
    _, state = read(model, tokens)
    branch = pick(state, torch.arange(3))
    model.step(more_tokens(model, 3, 7, seed=4), state)
    _, new = read(model, tokens)
    assert_same(model.step(more, branch)[0], model.step(more, new)[0], "logits of the branch")


@law
def check_rows_can_be_joined(model: LanguageModel) -> None:
    """Rows that have read different numbers of tokens, joined in one state, continue as each would alone."""
    prompts = [some_tokens(model, 1, length, seed=length) for length in (1, 7, 3)]
    more = more_tokens(model, 3, 4, seed=9)
    state = join([read(model, prompt)[1] for prompt in prompts])
    first, state = model.step(more[:, :1], state)
    rest, _ = model.step(more[:, 1:], state)
    for row, prompt in enumerate(prompts):
        alone, _ = model.step(more[row : row + 1], read(model, prompt)[1])
        assert_same(torch.cat([first, rest], 1)[row], alone[0], f"logits of row {row}")


@law
def check_state_is_plain_tensors(model: LanguageModel) -> None:
    """A state consists of plain tensors, so that it can be saved, sent and counted in bytes."""
    more = more_tokens(model, 2, 3)
    _, state = read(model, some_tokens(model, 2, 6))
    every = list(tensors(state))
    assert all(type(tensor) is Tensor for tensor in every), f"types: {[type(tensor).__name__ for tensor in every]}"
    assert state_bytes(state) == sum(tensor.nbytes for tensor in every), "state_bytes differs from the tensors' bytes"
    saved = load(save({str(place): tensor.contiguous() for place, tensor in enumerate(every)}))
    places = iter(range(len(every)))
    loaded = map_state(state, lambda tensor: saved[str(next(places))].to(tensor.device))
    assert_same(model.step(more, loaded)[0], model.step(more, pick(state, torch.arange(2)))[0], "logits after loading")


@law
def check_reserve_changes_nothing(model: LanguageModel) -> None:
    """`reserve` changes no prediction."""
    for _ in _reserved(model):
        pass


def check_reserved_shapes_stay(model: LanguageModel) -> None:
    """Reading tokens into reserved memory changes no shape. (Not a law for all: it is what CUDA graphs need.)"""
    shapes = [[tensor.shape for tensor in tensors(state)] for state in _reserved(model)]
    assert all(after == before for before, after in pairwise(shapes)), f"shapes: {shapes}"


def _reserved(model: LanguageModel) -> Iterable[State]:
    _, state = read(model, torch.cat([some_tokens(model, 3, 2), more_tokens(model, 3, 3, seed=5)], 1))
    reserved = model.reserve(pick(state, torch.arange(3)), 6)
    yield reserved
    for token in torch.split(more_tokens(model, 3, 6), 1, 1):
        expected, state = model.step(token, state)
        logits, reserved = model.step(token, reserved)
        assert_same(logits, expected, "logits after reserve")
        yield reserved
