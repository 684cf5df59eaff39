"""The back-off steps of an n-gram: counts are those of the text, and the formulas give the model's probabilities."""

from collections import Counter

import pytest
import torch
from models.ngram.test_ngram import VOCAB, SlowKneserNey, as_batch, random_stream, split, trained

from chainrule.models.ngram.ngram import NGram, NGramSettings

TEXT = [0, 1, 2, 1, 0, 5, 4, 3, 1, 1, 2, 1, 1, 4, 0, 0, 1, 2]


def answers(model, text=TEXT):
    tokens = torch.tensor([text])
    return model.score(tokens[:, :-1], tokens[:, 1:], model.start(1))[0][0].double().exp()


def contexts(place, text=TEXT):
    """Those of each order, shortest first, back to the last boundary; in SlowKneserNey's words."""
    first = max(at for at in range(place) if text[at] == 0)
    before = ["<s>", *text[first + 1 : place]]
    return [tuple(before[len(before) - size :]) for size in range(len(before) + 1)]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_the_steps_of_kneser_ney_are_those_of_chen_and_goodman(order):
    stream = random_stream(order)
    model, slow = trained(stream, order=order), SlowKneserNey(stream, order, VOCAB)
    steps = model.backoff(torch.tensor(TEXT))
    for place in range(1, len(TEXT)):
        for step, context in zip(steps, contexts(place)):
            followers = {gram: n for gram, n in slow.counts[step.order].items() if gram[:-1] == context}
            own, total = followers.get((*context, TEXT[place]), 0), sum(followers.values())
            kinds = [sum(min(n, 3) == kind for n in followers.values()) for kind in (1, 2, 3)]
            counts, here = step.counts, place - 1
            assert (counts.ngram[here], counts.total[here], counts.types[here].tolist()) == (own, total, kinds)
            assert counts.discounts == pytest.approx(slow.discounts[step.order])
            assert step.probability[here] == pytest.approx(slow.prob(TEXT[place], context), rel=2e-6)
            if total:
                held = sum(slow.discounts[step.order][min(n, 3)] for n in followers.values()) / total
                assert step.weight[here] == pytest.approx(held, rel=2e-6)
                assert counts.discounted_mass[here] == pytest.approx(held)
            assert step.found[here] == (own > 0 or step.order == 1)


def test_plain_counts_are_those_of_the_text():
    stream = random_stream(4)
    model = trained(stream, order=3, estimator="mle")
    seen = Counter()
    for sentence in split(stream):
        padded = ["<s>", *sentence, 0]
        seen.update(tuple(padded[at : at + size]) for size in (1, 2, 3) for at in range(len(padded) - size + 1))
    steps = model.backoff(torch.tensor(TEXT))
    for place in range(1, len(TEXT)):
        for step, context in zip(steps, contexts(place)):
            assert step.counts.ngram[place - 1] == seen[(*context, TEXT[place])]
            assert step.counts.discounted_mass[place - 1] == 0


@pytest.mark.parametrize("given", [{}, {"estimator": "mle"}, {"estimator": "add-k", "k": 0.3}, {"prune": 1e-3},
                                   {"cutoffs": (0, 0, 1)}, {"estimator": "mle", "cutoffs": (0, 1)}], ids=str)
def test_the_highest_step_is_the_probability_of_the_model(given):
    model = trained(random_stream(3), order=4, **given)
    torch.testing.assert_close(model.backoff(torch.tensor(TEXT))[-1].probability, answers(model), rtol=1e-6, atol=1e-9)


def test_without_all_ngrams_there_are_no_counts():
    steps = trained(random_stream(3), order=4, prune=1e-3).backoff(torch.tensor(TEXT))
    assert [step.counts is None for step in steps] == [False, True, True, True]    # no single word is ever left out


def test_counts_stay_in_a_saved_model_and_may_be_missing_from_an_older_one():
    model = trained(random_stream(3), order=3)
    state = model.state_dict()
    again, older = (NGram(NGramSettings(order=3), VOCAB) for _ in range(2))
    again.load_state_dict(state)
    older.load_state_dict({name: table for name, table in state.items() if not name.startswith("counts")})
    text = torch.tensor(TEXT)
    for one, other, bare in zip(model.backoff(text), again.backoff(text), older.backoff(text)):
        assert torch.equal(one.counts.ngram, other.counts.ngram)
        assert one.counts.discounts == other.counts.discounts
        assert torch.equal(one.probability, bare.probability)
        assert bare.counts is None


def test_a_retrained_model_has_no_old_counts():
    model = trained(random_stream(3), order=3)
    model.backoff(torch.tensor(TEXT))
    model.forget(torch.Generator())
    assert model.backoff(torch.tensor(TEXT))[0].counts is None
    model.update(model.collect(as_batch(random_stream(5))))
    wanted = trained(random_stream(5), order=3).backoff(torch.tensor(TEXT))
    for step, want in zip(model.backoff(torch.tensor(TEXT)), wanted):
        assert step.counts.discounts == want.counts.discounts
        assert torch.equal(step.counts.total, want.counts.total)


@pytest.mark.parametrize(("times", "dtype"), [(100, torch.uint8), (300, torch.int16), (40_000, torch.int32)])
def test_counts_use_the_smallest_integer_type(times, dtype):
    model = trained([0, *[1] * times, 0], order=1, estimator="mle")
    assert model.counts_1.dtype == dtype
    assert model.backoff(torch.tensor([0, 1]))[0].counts.ngram.tolist() == [times]


def test_a_text_without_targets_has_empty_steps():
    assert [len(step.found) for step in trained(random_stream(3), order=3).backoff(torch.tensor([0]))] == [0, 0, 0]
