"""The decode loop: how many steps are reserved and captured, and that replayed steps choose the same tokens.

There is no GPU here, so a graph is played (contract/played_graph.py).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from contract.moved import moved
from contract.played_graph import PlayedGraph, play_graphs
from contract.toy import Attentive, Recurrent, ToySettings
from torch import Tensor

from chainrule import kernels
from chainrule.errors import UserError
from chainrule.inference import decoding, generate
from chainrule.inference.beam import Beam, BeamStrategy, SearchResult, beam_search
from chainrule.inference.decoding import RESERVED, RESERVED_REORDERED, DecodeLoop, prefill_prompts
from chainrule.inference.mbr import MinimumBayesRisk, draw_texts
from chainrule.inference.sampling import Sampling, SamplingStrategy, require_possible
from chainrule.model import LanguageModel, State
from chainrule.models import build
from chainrule.tasks import recipe_for
from chainrule.training import pipeline

VOCAB = 12
WRITERS = {
    "seq2seq": {"hidden": 8, "layers": 1, "dropout": 0.0},
    "transformer": {"layers": 1, "width": 16, "heads": 2, "context": 40},
    "gpt": {"layers": 2, "width": 16, "heads": 2, "context": 48},
}


def loop_of(rows: int, temperature: float = 1) -> DecodeLoop:
    model = Attentive(ToySettings(width=16, context=12), 50)
    with torch.no_grad():
        prefilled = prefill_prompts(model, [np.array([1, 2, 3])] * rows)
        return DecodeLoop(model, prefilled, SamplingStrategy(Sampling(temperature), ends=False))


@pytest.mark.parametrize(("rows", "steps"), [(1, 512), (64, 512), (128, 256), (256, 128), (5000, 128)])
def test_many_rows_reserve_few_steps_where_attention_reads_all_that_is_reserved(rows: int, steps: int) -> None:
    assert loop_of(rows)._reserved() == steps


def test_where_kernels_read_only_what_is_written_free_memory_says_how_much_is_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, many = loop_of(1), loop_of(8)
    one.use_kernels = many.use_kernels = True
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 31))
    assert one._reserved() > 10_000
    assert many._reserved() == pytest.approx(one._reserved() / 8, rel=0.01)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 1 << 31))
    assert one._reserved() == RESERVED[0]


def test_a_beam_whose_state_is_copied_in_each_step_reserves_little() -> None:
    model = Attentive(ToySettings(width=16, context=200), 50)
    with torch.no_grad():
        loop = DecodeLoop(model, prefill_prompts(model, [[1]]).repeat(2), BeamStrategy(Beam(width=2), 100))
    assert loop._reserved() == RESERVED_REORDERED


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(("learns_by", "says"), [("gradient", "it diverged"), ("counting", "train it with smoothing")])
def test_where_no_token_can_be_sampled_the_message_is_that_of_the_kind(
    temperature: float, learns_by: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Attentive, "learns_by", learns_by)
    loop = loop_of(2, temperature)
    loop.next_token(torch.zeros(2), 2)
    require_possible(loop)
    loop = loop_of(2, temperature)
    loop.logits = torch.full((2, 50), torch.nan)
    loop.next_token(torch.zeros(2), 2)
    with pytest.raises(UserError, match=says):
        require_possible(loop)


def test_kernels_are_asked_about_steps_that_can_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def worthwhile(steps: int) -> bool:
        asked.append(steps)
        return False

    monkeypatch.setattr(kernels, "worthwhile", worthwhile)
    loop: Any = loop_of(2)
    assert loop._steps_of_one_shape(100) == 0         # not on a CPU
    loop.capturable, loop.logits = True, None
    assert loop._steps_of_one_shape(100) == 12 - 4    # the context, less what is held
    assert loop._steps_of_one_shape(3) == 3
    assert asked == [8, 3]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, steps are captured and replayed."""
    return lambda: play_graphs(monkeypatch)


def writer(kind: str) -> Any:
    torch.manual_seed(3)
    recipe = recipe_for(kind, {f"model.{name}": value for name, value in WRITERS[kind].items()}, "translate")
    return moved(build(kind, recipe.model, VOCAB).eval(), 0.3)


def language_model(kind: str = "gpt", context: int = 30) -> Any:
    torch.manual_seed(1)
    small = {
        "gpt": {"model.layers": 2, "model.width": 16, "model.heads": 2, "model.context": context},
        "lstm": {"model.hidden": 16},
        "feedforward": {"model.embedding": 8, "model.hidden": 16},
    }
    return moved(build(kind, pipeline.recipe_for(kind, small[kind]).model, VOCAB), 0.3)


class Endless(LanguageModel):
    """Another model, which it keeps from ever ending a text."""

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.model, self.context = model, model.context

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        return self.model.start(rows)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        logits, state = self.model.step(tokens, state)
        return logits.index_fill(-1, torch.tensor([0]), -50.0), state

    def reserve(self, state: State, tokens: int) -> State:
        return self.model.reserve(state, tokens)


def sources(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 9, (rows,), generator=generator)
    tokens = torch.randint(1, VOCAB, (rows, 9), generator=generator)
    tokens[torch.arange(rows), lengths - 1] = 0
    return tokens[:, : int(lengths.max())], lengths


def shape(result: SearchResult) -> list[list[tuple[int, int]]]:
    assert result.tree is not None
    return [[(branch.token, branch.parent) for branch in step] for step in result.tree]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("beam", [Beam(3, 0.6, 2, 30), Beam(4, 1.0, 1, 25, least=12), Beam(1, 0.0, 1, 30)], ids=str)
def test_a_beam_search_by_graphs_finds_the_same_texts(kind: str, beam: Beam, graphs: Callable[[], None]) -> None:
    model, (source, lengths) = writer(kind), sources(7)
    wanted = beam_search(model, beam, source=source, lengths=lengths, tree=True)
    graphs()
    found = beam_search(model, beam, source=source, lengths=lengths, tree=True)
    assert PlayedGraph.replays > 2
    for one, other in zip(wanted, found):
        assert [text.tokens for text in one.texts] == [text.tokens for text in other.texts]
        assert [text.score for text in one.texts] == pytest.approx([text.score for text in other.texts], abs=1e-5)
        assert shape(one) == shape(other)


def test_a_beam_search_by_graphs_ends_at_what_the_model_holds(graphs: Callable[[], None]) -> None:
    model = Endless(language_model(context=26))
    prompts = [np.array([1, 2]), np.array([3])]
    wanted = beam_search(model, Beam(3, limit=100), prompts=prompts)
    graphs()
    assert beam_search(model, Beam(3, limit=100), prompts=prompts) == wanted
    assert [len(result.texts[0].tokens) for result in wanted] == [23, 23]
    assert PlayedGraph.replays > 10


@pytest.mark.parametrize("kind", WRITERS)
def test_samples_for_sources_by_graphs_are_the_same(kind: str, graphs: Callable[[], None]) -> None:
    model, (source, lengths) = writer(kind), sources(6)
    mbr, ids = MinimumBayesRisk(5, Sampling(1.3), limit=30), [4, 0, 9, 2, 3, 1]
    wanted = draw_texts(model, mbr, source, lengths, ids)
    graphs()
    assert draw_texts(model, mbr, source, lengths, ids) == wanted
    assert PlayedGraph.replays > 5
    assert len({len(text) for texts in wanted for text in texts}) > 4    # rows are dropped at different steps


@pytest.mark.parametrize("kind", ["gpt", "lstm", "attentive"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=9, repetition_penalty=1.3)], ids=str)
def test_a_sample_by_graphs_is_the_same_past_the_context_too(
    kind: str, sampling: Sampling, graphs: Callable[[], None]
) -> None:
    torch.manual_seed(1)
    model = Attentive(ToySettings(width=16, context=30), VOCAB) if kind == "attentive" else language_model(kind)
    prompts = [np.arange(size) % VOCAB for size in (0, 3, 11, 29, 40)]
    wanted = torch.stack(list(generate.sample(model, prompts, 120, sampling, ends=False)))
    graphs()
    assert torch.equal(torch.stack(list(generate.sample(model, prompts, 120, sampling, ends=False))), wanted)
    assert PlayedGraph.replays > 10


def test_a_model_that_waits_for_its_device_is_not_captured(
    graphs: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    torch.manual_seed(1)
    model = Recurrent(ToySettings(width=16), 50)
    wanted = torch.stack(list(generate.sample(model, [np.array([1])] * 3, 40, ends=False)))
    graphs()
    monkeypatch.setattr(decoding, "CudaGraph", refuse)
    assert torch.equal(torch.stack(list(generate.sample(model, [np.array([1])] * 3, 40, ends=False))), wanted)
