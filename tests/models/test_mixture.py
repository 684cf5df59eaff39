"""A mixture of models against probabilities by hand, and as whatever writes texts uses it."""

import math

import pytest
import torch
from contract.moved import moved

from chainrule.inference.beam import Beam, beam_search
from chainrule.inference.mbr import MinimumBayesRisk, draw_texts
from chainrule.models import build
from chainrule.models.mixture import Mixture
from chainrule.tasks import recipe_for

VOCAB = 8
WRITERS = {
    "seq2seq": {"hidden": 8, "layers": 1, "dropout": 0.0},
    "transformer": {"layers": 1, "width": 16, "heads": 2, "context": 12},
    "gpt": {"layers": 2, "width": 16, "heads": 2, "context": 32},
}


def writer(kind, seed=3):
    torch.manual_seed(seed)
    recipe = recipe_for(kind, {f"model.{name}": value for name, value in WRITERS[kind].items()}, "translate")
    return moved(build(kind, recipe.model, VOCAB).eval(), 0.5)


def sources():
    return torch.tensor([[3, 1, 4, 0], [2, 5, 0, 0], [6, 0, 0, 0]]), torch.tensor([4, 3, 2])


@torch.no_grad()
def test_a_model_of_twice_the_weight_counts_as_two():
    one, other, (source, lengths) = writer("seq2seq"), writer("gpt"), sources()
    tokens = torch.tensor([[0, 2, 3], [0, 4, 4], [0, 7, 1]])
    weighed, repeated = Mixture([one, other], [1.0, 2.0]), Mixture([one, other, other])
    logits = [model.step(tokens, model.start(3, source, lengths))[0].log_softmax(-1) for model in (weighed, repeated)]
    torch.testing.assert_close(*logits)
    assert not torch.allclose(logits[0], Mixture([one, other]).step(tokens, weighed.start(3, source, lengths))[0])


@torch.no_grad()
def test_each_probability_is_the_mean_of_those_of_the_models():
    models, (source, lengths) = [writer(kind) for kind in WRITERS], sources()
    tokens = torch.tensor([[0, 2, 3], [0, 4, 4], [0, 7, 1]])
    mixture = Mixture(models)
    logits, state = mixture.step(tokens, mixture.start(3, source, lengths))
    again, _ = mixture.next_logits(tokens[:, :1], state)
    each = [model.step(tokens, model.start(3, source, lengths)) for model in models]
    wanted = sum(own.softmax(-1) for own, _ in each) / 3
    then = sum(model.step(tokens[:, :1], own)[0][:, -1].softmax(-1) for model, (_, own) in zip(models, each)) / 3
    torch.testing.assert_close(logits.exp(), wanted)
    torch.testing.assert_close(again.exp(), then)
    assert (wanted - each[0][0].softmax(-1)).abs().max() > 0.05                # the models do not agree


def test_certainty_of_one_model_against_another_is_shared():
    """Probabilities are averaged, not logits: where one model is certain and another is not, the mean is 3/4."""
    class Fixed(torch.nn.Module):
        context = receptive_field = None
        resets_at_boundary = False

        def __init__(self, *probabilities):
            super().__init__()
            self.logits = torch.tensor(probabilities).log()

        def step(self, tokens, state):
            return self.logits.expand(*tokens.shape, -1), state

    mixture = Mixture([Fixed(1.0, 0.0), Fixed(0.5, 0.5)])
    logits, _ = mixture.step(torch.zeros(1, 1, dtype=torch.long), ((), ()))
    assert logits[0, 0].tolist() == pytest.approx([math.log(0.75), math.log(0.25)])


def test_the_shortest_memory_is_that_of_the_mixture():
    models, (source, _) = {kind: writer(kind) for kind in WRITERS}, sources()
    assert Mixture([models["seq2seq"], models["gpt"]]).max_tokens(source) == 32 - 4
    assert Mixture([models["gpt"], models["transformer"]]).max_tokens(source) == 12
    assert Mixture([models["gpt"], models["transformer"]]).context == 12
    assert Mixture([models["seq2seq"]]).max_tokens(source) is None


@pytest.mark.parametrize("kind", WRITERS)
def test_equal_models_write_what_one_writes(kind):
    model, (source, lengths) = writer(kind), sources()
    mixture = Mixture([model, writer(kind), writer(kind)])
    how = MinimumBayesRisk(6, limit=6)
    assert draw_texts(mixture, how, source, lengths, range(3)) == draw_texts(model, how, source, lengths, range(3))
    found, wanted = (beam_search(each, Beam(3, limit=6), source=source, lengths=lengths) for each in (mixture, model))
    assert [row.texts[0].tokens for row in found] == [row.texts[0].tokens for row in wanted]


def test_the_most_likely_text_of_a_mixture_is_found_among_all():
    """By a beam as wide as there are texts, against the sum over models of the probability of each next token."""
    models, (source, lengths) = [writer("gpt", seed) for seed in (1, 2)], sources()
    (best,) = beam_search(Mixture(models), Beam(VOCAB**2, alpha=0.0, limit=2), source=source[:1], lengths=lengths[:1])
    texts = [[], *([first] for first in range(1, VOCAB)),
             *([first, second] for first in range(1, VOCAB) for second in range(1, VOCAB))]

    @torch.no_grad()
    def log_prob(text):
        total = 0.0
        for place, token in enumerate([*text, 0]):
            read = torch.tensor([[0, *text[:place]]])
            rows = [model.step(read, model.start(1, source[:1], lengths[:1]))[0][0, -1].softmax(-1) for model in models]
            total += math.log(float(sum(row[token] for row in rows) / 2))
        return total

    wanted = max(texts, key=log_prob)
    assert list(best.texts[0].tokens) == wanted
    assert best.texts[0].log_prob == pytest.approx(log_prob(wanted), abs=1e-4)
