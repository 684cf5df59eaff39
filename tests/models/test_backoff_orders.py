"""The ladder of an n-gram: its counts are those of the text, and its formulas give what the model answers."""

from collections import Counter

import pytest
import torch
from models.test_ngram import VOCAB, SlowKneserNey, as_batch, random_stream, split, trained

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
def test_the_rungs_of_kneser_ney_are_counted_and_answer_as_chen_and_goodman_say(order):
    stream = random_stream(order)
    model, slow = trained(stream, order=order), SlowKneserNey(stream, order, VOCAB)
    rungs = model.rungs(torch.tensor(TEXT))
    for place in range(1, len(TEXT)):
        for rung, context in zip(rungs, contexts(place)):
            followers = {gram: n for gram, n in slow.counts[rung.order].items() if gram[:-1] == context}
            own, total = followers.get((*context, TEXT[place]), 0), sum(followers.values())
            kinds = [sum(min(n, 3) == kind for n in followers.values()) for kind in (1, 2, 3)]
            counted, here = rung.counted, place - 1
            assert (counted.gram[here], counted.total[here], counted.kinds[here].tolist()) == (own, total, kinds)
            assert counted.discounts == pytest.approx(slow.discounts[rung.order])
            assert rung.probability[here] == pytest.approx(slow.prob(TEXT[place], context), rel=2e-6)
            if total:
                held = sum(slow.discounts[rung.order][min(n, 3)] for n in followers.values()) / total
                assert rung.weight[here] == pytest.approx(held, rel=2e-6)
                assert counted.held_back[here] == pytest.approx(held)
            assert rung.found[here] == (own > 0 or rung.order == 1)


def test_plain_counts_are_those_of_the_text():
    stream = random_stream(4)
    model = trained(stream, order=3, estimator="mle")
    seen = Counter()
    for sentence in split(stream):
        padded = ["<s>", *sentence, 0]
        seen.update(tuple(padded[at : at + size]) for size in (1, 2, 3) for at in range(len(padded) - size + 1))
    rungs = model.rungs(torch.tensor(TEXT))
    for place in range(1, len(TEXT)):
        for rung, context in zip(rungs, contexts(place)):
            assert rung.counted.gram[place - 1] == seen[(*context, TEXT[place])]
            assert rung.counted.held_back[place - 1] == 0


@pytest.mark.parametrize("given", [{}, {"estimator": "mle"}, {"estimator": "add-k", "k": 0.3}, {"prune": 1e-3},
                                   {"cutoffs": (0, 0, 1)}, {"estimator": "mle", "cutoffs": (0, 1)}], ids=str)
def test_the_highest_rung_is_what_the_model_answers(given):
    model = trained(random_stream(3), order=4, **given)
    torch.testing.assert_close(model.rungs(torch.tensor(TEXT))[-1].probability, answers(model), rtol=1e-6, atol=1e-9)


def test_where_grams_were_left_out_their_counts_are_not_told():
    rungs = trained(random_stream(3), order=4, prune=1e-3).rungs(torch.tensor(TEXT))
    assert [rung.counted is None for rung in rungs] == [False, True, True, True]    # no single word is ever left out


def test_counts_stay_in_a_saved_model_and_may_be_missing_from_an_older_one():
    model = trained(random_stream(3), order=3)
    state = model.state_dict()
    again, older = (NGram(NGramSettings(order=3), VOCAB) for _ in range(2))
    again.load_state_dict(state)
    older.load_state_dict({name: table for name, table in state.items() if not name.startswith("counts")})
    text = torch.tensor(TEXT)
    for one, other, bare in zip(model.rungs(text), again.rungs(text), older.rungs(text)):
        assert torch.equal(one.counted.gram, other.counted.gram)
        assert one.counted.discounts == other.counted.discounts
        assert torch.equal(one.probability, bare.probability)
        assert bare.counted is None


def test_a_model_that_is_taught_again_has_no_counts_of_before():
    model = trained(random_stream(3), order=3)
    model.rungs(torch.tensor(TEXT))
    model.forget(torch.Generator())
    assert model.rungs(torch.tensor(TEXT))[0].counted is None
    model.update(model.collect(as_batch(random_stream(5))))
    wanted = trained(random_stream(5), order=3).rungs(torch.tensor(TEXT))
    for rung, want in zip(model.rungs(torch.tensor(TEXT)), wanted):
        assert rung.counted.discounts == want.counted.discounts
        assert torch.equal(rung.counted.total, want.counted.total)


@pytest.mark.parametrize(("times", "dtype"), [(100, torch.uint8), (300, torch.int16), (40_000, torch.int32)])
def test_counts_take_as_few_bytes_as_hold_them(times, dtype):
    model = trained([0, *[1] * times, 0], order=1, estimator="mle")
    assert model.counts_1.dtype == dtype
    assert model.rungs(torch.tensor([0, 1]))[0].counted.gram.tolist() == [times]


def test_nothing_to_foretell_has_rungs_too():
    assert [len(rung.found) for rung in trained(random_stream(3), order=3).rungs(torch.tensor([0]))] == [0, 0, 0]
