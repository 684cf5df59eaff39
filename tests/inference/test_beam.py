"""Beam search against enumeration of every text, and against greedy decoding written out."""

import itertools
import math

import numpy as np
import pytest
import torch
from contract.toy import Attentive, Recurrent, ToySettings
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.inference.beam import Beam, beam_search
from chainrule.model import LanguageModel

VOCAB = 4


class Echo(LanguageModel):
    """Predicts from the last token, by tables used in turn. State: the next table; the source says which is first."""

    def __init__(self, vocab: int, sharp: float = 1.5, seed: int = 1):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(sharp * torch.randn(7, vocab, vocab, generator=generator))

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        if source is None:
            return torch.zeros(rows, dtype=torch.long)
        real = torch.arange(source.shape[1]) < lengths[:, None]
        return (source * real).sum(1)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        place = state[:, None] + torch.arange(tokens.shape[1])
        return self.table[place % 7, tokens], state + tokens.shape[1]


def every_text(model, limit, source=None, lengths=None, least=0):
    """Each text with its log p, the end included: by brute force, one at a time."""
    texts = {}
    for size in range(least, limit + 1):
        for text in itertools.product(range(1, VOCAB), repeat=size):
            tokens, targets = torch.tensor([[0, *text]]), torch.tensor([[*text, 0]])
            with torch.no_grad():
                logits, _ = model.step(tokens, model.start(1, source, lengths))
            texts[text] = float(logits.log_softmax(-1).gather(-1, targets[..., None]).sum())
    return texts


def ranked(texts, alpha):
    return sorted(texts, key=lambda text: -texts[text] / ((5 + len(text) + 1) / 6) ** alpha)


def greedy(model, limit, source, lengths):
    tokens, state, written = torch.zeros(1, 1, dtype=torch.long), model.start(1, source, lengths), []
    for _ in range(limit):
        logits, state = model.step(tokens, state)
        tokens = logits[:, -1:].argmax(-1)
        if int(tokens) == 0:
            break
        written.append(int(tokens))
    return tuple(written)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_beam_as_wide_as_the_space_is_exhaustive(alpha, seed):
    model = Echo(VOCAB, seed=seed)
    source, lengths = torch.tensor([[3, 1, 2], [5, 6, 6], [1, 1, 0]]), torch.tensor([3, 1, 2])
    found = beam_search(model, Beam(width=VOCAB * 3**3, alpha=alpha, best=10, limit=4), source=source, lengths=lengths)
    for row, answer in enumerate(found):
        texts = every_text(model, 4, source[row : row + 1], lengths[row : row + 1])
        assert [text.tokens for text in answer.texts] == ranked(texts, alpha)[:10]
        for text in answer.texts:
            assert text.log_prob == pytest.approx(texts[text.tokens], abs=1e-5)
            assert text.score == pytest.approx(text.log_prob / ((5 + len(text.tokens) + 1) / 6) ** alpha, abs=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 3.0])
def test_width_1_is_greedy(alpha):
    model = Echo(VOCAB, sharp=2)
    source = torch.arange(21).reshape(7, 3)
    lengths = torch.tensor([1, 2, 3, 3, 2, 1, 3])
    found = beam_search(model, Beam(width=1, alpha=alpha, limit=9), source=source, lengths=lengths)
    wanted = [greedy(model, 9, source[row : row + 1], lengths[row : row + 1]) for row in range(7)]
    assert [answer.texts[0].tokens for answer in found] == wanted
    assert len(set(wanted)) > 2
    assert len({len(text) for text in wanted}) > 1


@pytest.mark.parametrize("width", [1, 2, 3, 5])
@pytest.mark.parametrize(("alpha", "sharp"), [(0.0, 2.5), (0.7, 2.5), (2.0, 4.0)])
def test_stopping_early_loses_no_text(width, alpha, sharp, monkeypatch):
    model = Echo(VOCAB, sharp=sharp, seed=4)
    source, lengths = torch.arange(60).reshape(20, 3), torch.full((20,), 3)
    beam = Beam(width=width, alpha=alpha, best=2, limit=12)
    early = beam_search(model, beam, source=source, lengths=lengths, tree=True)
    monkeypatch.setattr("chainrule.inference.beam.BeamStrategy._settled", lambda *_: torch.zeros(20, dtype=torch.bool))
    whole = beam_search(model, beam, source=source, lengths=lengths, tree=True)
    assert [answer.texts for answer in early] == [answer.texts for answer in whole]
    if width > 1:                                                # a greedy one has nothing left when it has ended
        assert sum(len(answer.tree) for answer in early) < sum(len(answer.tree) for answer in whole)


def plain_beam(model, beam, source, lengths):
    """The search as the docstring describes it, in lists, for one row."""
    live, finished = [((), 0.0)], []
    for step in range(beam.limit + 1):
        grown = []
        for text, total in live:
            with torch.no_grad():
                logits, _ = model.step(torch.tensor([[0, *text]]), model.start(1, source, lengths))
            log_probs = logits[0, -1].log_softmax(-1).tolist()
            allowed = [0] if step == beam.limit else range(1 if step < beam.least else 0, VOCAB)
            grown += [((*text, token), total + log_probs[token]) for token in allowed]
        stay = sorted(grown, key=lambda one: -one[1])[: beam.width]
        finished += [(text[:-1], total) for text, total in stay if text[-1] == 0]
        live = [one for one in stay if one[0][-1] != 0]
    finished.sort(key=lambda one: -one[1] / beam.length_penalty(len(one[0]) + 1))
    return finished[: beam.best]


@pytest.mark.parametrize("beam", [
    Beam(width=2, alpha=0, best=1, limit=6), Beam(width=3, alpha=1, best=3, limit=6),
    Beam(width=4, alpha=0.6, best=2, limit=5, least=3), Beam(width=2, alpha=0.6, best=4, limit=1),
], ids=str)
def test_every_width_is_the_search_written_out(beam):
    model = Echo(VOCAB, seed=6)
    source, lengths = torch.arange(30).reshape(10, 3), torch.tensor([1, 2, 3, 1, 2, 3, 1, 2, 3, 1])
    found = beam_search(model, beam, source=source, lengths=lengths)
    for row, answer in enumerate(found):
        wanted = plain_beam(model, beam, source[row : row + 1], lengths[row : row + 1])
        assert [text.tokens for text in answer.texts] == [text for text, _ in wanted]
        assert [text.log_prob for text in answer.texts] == pytest.approx([total for _, total in wanted], abs=1e-5)
        assert all(beam.least <= len(text.tokens) <= beam.limit for text in answer.texts)


@pytest.mark.parametrize("kind", [Recurrent, Attentive])
def test_a_state_follows_its_hypothesis(kind):
    """With a state that remembers all, the log p of what is found is that of reading it from the start."""
    torch.manual_seed(5)
    model = kind(ToySettings(context=16), VOCAB)
    with torch.no_grad():
        model.out.weight *= 6
    prompts = [np.array([1, 2, 3]), np.array([], np.int64), np.array([2])]
    found = beam_search(model, Beam(width=3, alpha=0.5, best=3, limit=8), prompts=prompts)
    for prompt, answer in zip(prompts, found):
        assert len({text.tokens for text in answer.texts}) == 3
        for text in answer.texts:
            tokens = torch.tensor([[0, *prompt.tolist(), *text.tokens]])
            targets = torch.tensor([[*text.tokens, 0]])
            with torch.no_grad():
                logits, _ = model.step(tokens, model.start(1))
            log_probs = logits[:, len(prompt) :].log_softmax(-1).gather(-1, targets[..., None])
            assert text.log_prob == pytest.approx(float(log_probs.sum()), abs=1e-4)


def test_rows_never_meet():
    model = Echo(VOCAB, seed=2)
    source, lengths = torch.arange(24).reshape(8, 3), torch.tensor([1, 2, 3, 1, 2, 3, 1, 2])
    beam = Beam(width=3, best=2, limit=7)
    together = beam_search(model, beam, source=source, lengths=lengths)
    rows = [slice(row, row + 1) for row in range(8)]
    alone = [beam_search(model, beam, source=source[row], lengths=lengths[row])[0] for row in rows]
    for one, other in zip(together, alone):
        assert [text.tokens for text in one.texts] == [text.tokens for text in other.texts]


def test_the_tree_holds_every_text_that_was_found():
    model = Echo(VOCAB, seed=3)
    source, lengths = torch.arange(9).reshape(3, 3), torch.full((3,), 3)
    for answer in beam_search(model, Beam(width=3, best=3, limit=6), source=source, lengths=lengths, tree=True):
        texts = {}
        for depth, step in enumerate(answer.tree):
            assert len(step) <= 3
            for place, branch in enumerate(step):
                before = texts[depth - 1, branch.parent] if depth else ()
                texts[depth, place] = (*before, branch.token)
                if depth:
                    assert branch.score <= answer.tree[depth - 1][branch.parent].score
                    assert answer.tree[depth - 1][branch.parent].token != 0
        finished = {text[:-1]: place for place, text in texts.items() if text[-1] == 0}
        for text in answer.texts:
            depth, place = finished[text.tokens]
            assert answer.tree[depth][place].score == text.log_prob
    assert beam_search(model, source=source, lengths=lengths)[0].tree is None


def test_the_device_is_asked_once_a_step(monkeypatch):
    asked = []
    for name in ("__bool__", "item", "__int__", "__float__", "tolist"):
        real = getattr(Tensor, name)
        monkeypatch.setattr(Tensor, name, lambda self, real=real, name=name: (asked.append(name), real(self))[1])
    model = Echo(VOCAB, seed=3)
    answer = beam_search(model, Beam(width=3, limit=9, least=9), source=torch.arange(9).reshape(3, 3),
                    lengths=torch.full((3,), 3))
    assert len(answer[0].texts[0].tokens) == 9
    assert asked == ["__bool__"] * 9


def test_the_limit_is_what_the_model_holds():
    torch.manual_seed(1)
    model = Attentive(ToySettings(context=6), VOCAB)
    with torch.no_grad():
        model.out.bias[0] = -50                                  # it never wants to end
    found = beam_search(model, Beam(width=2, limit=100), prompts=[[], [1, 2]])
    assert [len(answer.texts[0].tokens) for answer in found] == [3, 3]
    with pytest.raises(UserError, match="holds 6 tokens, of which 6 are read"):
        beam_search(model, Beam(), prompts=[[1, 2, 3, 1, 2]])
    with pytest.raises(UserError, match="5 more do not fit"):
        beam_search(model, Beam(least=5), prompts=[[1]])


class Impossible(Echo):
    """Gives every token but 2 and the boundary probability 0, and after a 2 only the boundary."""

    def step(self, tokens, state):
        logits = torch.full((*tokens.shape, VOCAB), -math.inf)
        logits[..., 0] = 0
        logits[..., 2] = torch.where(tokens == 2, -math.inf, 0.0)
        return logits, state


def test_what_has_probability_0_is_never_found():
    found = beam_search(Impossible(VOCAB), Beam(width=5, alpha=0, best=9, limit=4), prompts=[[]], tree=True)[0]
    assert {text.tokens for text in found.texts} == {(), (2,)}
    assert [sorted(branch.token for branch in step) for step in found.tree] == [[0, 2], [0]]


def test_dropout_is_off_and_the_mode_is_restored():
    model = Echo(VOCAB)
    model.train()
    assert beam_search(model, prompts=[[]])[0].texts
    assert model.training


@pytest.mark.parametrize(("given", "match"), [
    ({"width": 0}, "width=0 is not valid: it must be from 1"),
    ({"width": 10**25}, "width=10{25} is not valid: it must be from 1 .greedy. to 65,536"),
    ({"alpha": -1}, "alpha=-1 is not valid"),
    ({"alpha": 400}, "alpha=400 is not valid: it must be from 0"),
    ({"best": 0}, "best=0 is not valid"),
    ({"best": 10**25}, "best=10{25} is not valid: it must be from 1 to 65,536"),
    ({"limit": 0}, "limit=0 is not valid: it must be from 1 to 1,048,576"),
    ({"limit": 10**25}, "limit=10{25} is not valid"),
    ({"least": 9, "limit": 8}, "least=9 is not valid: it must be from 0 to limit=8"),
])
def test_a_beam_that_cannot_be_is_refused(given, match):
    with pytest.raises(UserError, match=match):
        Beam(**given)


def test_a_source_and_prompts_together_are_refused():
    with pytest.raises(ValueError, match="not both"):
        beam_search(Echo(VOCAB), source=torch.zeros(1, 1, dtype=torch.long), prompts=[[]])
    assert beam_search(Echo(VOCAB), prompts=[]) == []
