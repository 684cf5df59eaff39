"""Captured steps: a block is ordered before the last one is read, and the graph of a call is used again by the next.

There is no GPU here, so a graph is played (contract/played_graph.py).
"""

import copy
import gc
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from contract.moved import moved
from contract.played_graph import PlayedGraph, play_graphs
from torch import Tensor, nn

from chainrule.device import Switch
from chainrule.errors import UserError
from chainrule.inference import decoding, generate, sampling
from chainrule.inference.captured import kept_steps
from chainrule.inference.captured.captured_step import Block, CapturedStep
from chainrule.inference.captured.kept_steps import fingerprint
from chainrule.inference.generate import AHEAD, DrawnBlock, sample
from chainrule.inference.sampling import Sampling, SamplingStrategy, distribution, draw
from chainrule.model import LanguageModel, watch
from chainrule.models import build
from chainrule.training.pipeline import recipe_for

pytestmark = pytest.mark.usefixtures("no_kept_steps")
VOCAB = 12
BLOCK = 5    # steps of a block in played graphs
PROMPTS = [np.array([1, 2, 3]), np.array([4, 5])]
PLAIN = Sampling()


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """From here on steps are captured: the graphs."""
    made: list[Any] = []

    class Noted(PlayedGraph):
        def __init__(self, *given: Any, **named: Any):
            super().__init__(*given, **named)
            made.append(self)

    play_graphs(monkeypatch)
    monkeypatch.setattr(decoding, "CudaGraph", Noted)
    return made


def model_of(kind: str = "gpt", context: int = 80) -> Any:
    torch.manual_seed(1)
    small = {
        "gpt": {"model.layers": 2, "model.width": 16, "model.heads": 2, "model.context": context},
        "lstm": {"model.hidden": 16},
        "feedforward": {"model.embedding": 8, "model.hidden": 16},
    }
    return moved(build(kind, recipe_for(kind, small[kind]).model, VOCAB), 0.3).eval()


def drawn(model: LanguageModel, limit: int = 40, given: Sampling = PLAIN, ends: bool = False) -> list[list[int]]:
    return torch.stack(list(sample(model, PROMPTS, limit, given, ends=ends))).tolist()


def plainly(model: LanguageModel, *given: Any, **named: Any) -> list[list[int]]:
    """The same without graphs, by a copy of the model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "can_capture", lambda tensor: False)
        patch.setattr(generate, "sync_every", lambda device: 1)
        return drawn(copy.deepcopy(model), *given, **named)


@pytest.mark.parametrize("kind", ["gpt", "lstm", "feedforward"])
@pytest.mark.parametrize("given", [Sampling(), Sampling(0.8, top_k=5, repetition_penalty=1.3)], ids=str)
def test_a_second_call_goes_on_with_the_graph_of_the_first(kind: str, given: Sampling, captures: list[Any]) -> None:
    model = model_of(kind)
    for seed in (1, 1, 2, 3):
        this = replace(given, seed=seed)
        assert drawn(model, 40, this) == plainly(model, 40, this)
    assert len(captures) == 1


def test_the_kept_cache_holds_nothing_of_the_text_before(captures: list[Any]) -> None:
    """Prompts of other lengths, in the same memory; and a text in which all that was computed is no number."""
    model = model_of()
    drawn(model)
    (kept,) = captures
    with torch.inference_mode():
        for tensor in kept.state:
            tensor.fill_(torch.nan if tensor.is_floating_point() else True)
    for prompts in ([np.array([7])] * 2, [np.array([1] * 9), np.array([2])]):
        columns = torch.stack(list(sample(model, prompts, 33, ends=False)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoding, "can_capture", lambda tensor: False)
            assert torch.equal(columns, torch.stack(list(sample(model, prompts, 33, ends=False))))
    assert len(captures) == 1


def test_weights_that_were_changed_in_place_are_those_that_sample(captures: list[Any]) -> None:
    model = model_of()
    before = drawn(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    assert drawn(model) == plainly(model) != before
    assert len(captures) == 2


class Louder(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * x


def replace_module(model: Any) -> None:
    model.stack.norm = Louder()


def move_weights(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.flip(0)


def change_attribute(model: Any) -> None:
    model.settings = replace(model.settings, logit_softcap=0.5)


def hook(model: Any) -> None:
    model.stack.norm.register_forward_hook(lambda module, given, found: 3 * found)


def change_state_dict(model: Any) -> None:
    model.load_state_dict({name: tensor.flip(0) for name, tensor in model.state_dict().items()})


CHANGES = [replace_module, move_weights, change_attribute, hook, change_state_dict]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_model_that_was_changed_is_captured_again(change: Any, captures: list[Any]) -> None:
    model = model_of()
    before = drawn(model)
    change(model)
    assert drawn(model) == plainly(model) != before
    assert len(captures) == 2


def test_a_model_that_is_watched_is_captured_again(captures: list[Any]) -> None:
    model = model_of("lstm")
    drawn(model)
    with watch(model) as seen:
        drawn(model)
    assert all(seen.values())
    assert len(captures) == 2
    drawn(model)
    assert len(captures) == 2                      # the first one was kept


def test_other_settings_rows_or_lengths_are_captured_again(captures: list[Any]) -> None:
    model = model_of()
    calls: list[tuple[int, int, Sampling, bool]] = [
        (2, 40, Sampling(), False), (2, 40, Sampling(0.5), False), (2, 40, Sampling(0.5), True),
        (1, 40, Sampling(), True), (1, 70, Sampling(), True), (1, 70, Sampling(repetition_penalty=1.5), True),
    ]  # fmt: skip
    for number, (rows, limit, given, ends) in enumerate(calls):
        list(sample(model, PROMPTS[:rows], limit, given, ends=ends))
        assert len(captures) == number + 1
    list(sample(model, PROMPTS[:1], 70, Sampling(repetition_penalty=1.5, seed=9), ends=True))
    assert len(captures) == len(calls)


def test_two_texts_that_are_drawn_in_turns_do_not_share_a_graph(captures: list[Any]) -> None:
    model = model_of()
    drawn(model)
    wanted = [plainly(model, 40, Sampling(seed=seed)) for seed in (1, 2)]
    turns = [sample(model, PROMPTS, 40, Sampling(seed=seed), ends=False) for seed in (1, 2)]
    found: list[list[list[int]]] = [[], []]
    for columns in zip(*turns):
        for one, column in zip(found, columns):
            one.append(column.tolist())
    assert found == wanted
    assert len(captures) == 2


@pytest.mark.parametrize("given", [Sampling(seed=seed) for seed in (1, 2, 3)], ids=lambda one: f"seed {one.seed}")
def test_a_text_that_ends_early_is_the_same_and_the_next_one_too(given: Sampling, captures: list[Any]) -> None:
    model = model_of()
    with torch.no_grad():
        model.output_matrix[0] += 0.3
    wanted = plainly(model, 70, given, ends=True)
    assert 2 * BLOCK < len(wanted) < 60
    for _ in range(2):
        replays = PlayedGraph.replays
        assert drawn(model, 70, given, ends=True) == wanted
        assert PlayedGraph.replays - replays < len(wanted) + AHEAD * BLOCK


def test_a_text_that_is_not_read_to_its_end_leaves_a_graph_for_the_next(captures: list[Any]) -> None:
    model = model_of()
    columns = sample(model, PROMPTS, 40, ends=False)
    for _ in range(12):
        next(columns)
    columns.close()  # type: ignore[attr-defined]
    assert drawn(model) == plainly(model)
    assert len(captures) == 1


def test_a_block_is_ordered_before_the_one_before_it_is_read(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Noted(DrawnBlock):
        def __init__(self, *given: Any):
            super().__init__(*given)
            events.append("ordered")

        def wait(self) -> Tensor:
            events.append("read")
            return super().wait()

    monkeypatch.setattr(generate, "DrawnBlock", Noted)
    drawn(model_of(), 4 * BLOCK)
    assert events == ["ordered", "ordered", "read", "ordered", "read", "ordered", "read", "read"]
    assert captures


def test_without_a_graph_no_steps_are_drawn_in_vain(captures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "capture_step", lambda *given: None)
    model, steps = model_of("feedforward"), []
    step = model.step
    model.step = lambda *given: [steps.append(1), step(*given)][1]
    wanted = drawn(model, 70, ends=True)
    assert len(wanted) < 60
    assert len(steps) < len(wanted) + BLOCK + 5
    assert not captures


def test_what_cannot_be_sampled_is_refused_after_the_tokens_before_it(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, step = model_of("lstm"), type(model_of("lstm")).step
    count = torch.zeros(1)

    def fails_later(self: Any, tokens: Tensor, state: Any) -> Any:
        logits, state = step(self, tokens, state)
        return logits.masked_fill(count.add_(1) > 23, torch.nan), state

    monkeypatch.setattr(type(model), "step", fails_later)
    columns: list[Tensor] = []
    with pytest.raises(UserError, match="not finite"):
        columns.extend(sample(model, PROMPTS, 60, ends=False))
    assert 2 * BLOCK <= len(columns) <= 25


def test_where_the_graph_cannot_be_used_again_a_new_one_is_captured(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*given: Any) -> None:
        raise RuntimeError("out of\nmemory")

    model = model_of()
    wanted = drawn(model)
    monkeypatch.setattr(CapturedStep, "load", fails)
    assert drawn(model) == wanted
    assert len(captures) == 2
    assert capsys.readouterr().err == "the captured step of the last call is not used again: out of memory\n"
    monkeypatch.undo()


def test_large_states_and_many_rows_are_not_kept(captures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    for name, most in (("KEPT_BYTES", 100), ("KEPT_ROWS", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(kept_steps, name, most)
            captures.clear()
            drawn(model)
            drawn(model)
            assert len(captures) == 2


def draw_in_place_by_torch(
    logits: Tensor, numbers: Tensor, place: Tensor, columns: Tensor, token: Tensor, possible: Tensor,
    ended: Tensor | None, end_of_turn: int | None, temperature: float,
) -> None:  # fmt: skip
    """As kernels/draw.py: draw_in_place."""
    place += 1
    drawn, can = draw(distribution(logits, Sampling(temperature)), numbers[place[0]])
    if ended is not None:
        drawn[ended] = 0
        ended |= (drawn == 0) | (drawn == (-1 if end_of_turn is None else end_of_turn))
    possible &= can
    token.copy_(drawn)
    columns[place[0]] = drawn


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands in for the kernel that draws in place."""
    module = SimpleNamespace(draw_in_place=draw_in_place_by_torch)
    monkeypatch.setitem(sys.modules, "chainrule.kernels.draw", module)
    monkeypatch.setattr(sampling, "_in_place", Switch())
    sampling._in_place.on = True
    draws_by_kernel = lambda logits, given: not given.cuts and given.temperature > 0  # noqa: E731
    monkeypatch.setattr(SamplingStrategy, "choose", by_torch(SamplingStrategy.choose, monkeypatch, draws_by_kernel))
    return module


def by_torch(choose: Any, monkeypatch: pytest.MonkeyPatch, draws_by_kernel: Any) -> Any:
    """`choose` without kernels, which are not asked for."""
    monkeypatch.setattr(sampling, "_draws_by_kernel", draws_by_kernel)

    def chosen(*given: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(sampling, "_draws_by_kernel", lambda logits, given: False)
            return choose(*given)

    return chosen


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("given", [PLAIN, Sampling(0.6), Sampling(top_k=4), Sampling(repetition_penalty=2)], ids=str)
def test_a_step_that_is_drawn_in_place_draws_the_same(
    given: Sampling, ends: bool, captures: list[Any], kernel: Any
) -> None:
    calls: list[int] = []
    in_place = kernel.draw_in_place
    kernel.draw_in_place = lambda *given: [calls.append(1), in_place(*given)]
    model = model_of()
    wanted = plainly(model, 70, given, ends)
    assert not calls
    assert drawn(model, 70, given, ends) == wanted == drawn(model, 70, given, ends)
    assert bool(calls) == (not given.cuts and given.repetition_penalty == 1)
    assert len(captures) == 1


def test_where_the_kernel_does_not_compile_a_sample_is_the_same(
    captures: list[Any], kernel: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(logits: Tensor, numbers: Tensor, place: Tensor, *given: Any) -> None:
        place += 1                                           # the first kernel was launched, the second failed
        raise ValueError("no such type")

    kernel.draw_in_place = fails
    model = model_of()
    assert drawn(model) == plainly(model) == drawn(model)
    assert capsys.readouterr().err.count("no such type") == 1
    assert len(captures) == 1


def test_a_graph_goes_with_its_model() -> None:
    model, here = model_of(), torch.zeros(1)
    graph: Any = None
    step = CapturedStep(graph, {"tokens": here}, Block(here, here, here))
    kept_steps.keep(model, (), step)
    gone = weakref.ref(step)
    del step, model
    gc.collect()
    assert gone() is None


def test_a_copy_of_a_model_has_no_graph_and_its_storages_are_others(captures: list[Any]) -> None:
    model = model_of()
    drawn(model)
    other = copy.deepcopy(model)
    assert fingerprint(other) != fingerprint(model) == fingerprint(model)
    assert drawn(other) == plainly(model)
    assert len(captures) == 2
