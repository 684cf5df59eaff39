"""Minimum Bayes risk: what is drawn against every text there is and against a plain loop, what is chosen by hand."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from contract.moved import moved
from test_beam import VOCAB, Echo, greedy

from chainrule.errors import UserError
from chainrule.inference.beam import Beam, beam_search
from chainrule.inference.mbr import MinimumBayesRisk, draw_texts, rank_by_similarity
from chainrule.inference.metrics import rouge_l
from chainrule.inference.sampling import Sampling, uniforms
from chainrule.models import build
from chainrule.tasks import recipe_for, translate
from chainrule.tasks.batching import Ragged
from chainrule.tasks.translate import Sequences, write_texts

WORDS = 12                                                  # tokens that the networks below know
WRITERS = {
    "seq2seq": {"hidden": 8, "layers": 1, "dropout": 0.0},
    "transformer": {"layers": 1, "width": 16, "heads": 2, "context": 24},
    "gpt": {"layers": 2, "width": 16, "heads": 2, "context": 32},
}


class Words:
    def decode(self, tokens):
        return " ".join(chr(96 + token) for token in tokens)


def writer(kind):
    """A random network that translates; its weights are moved so that sources matter and texts differ in length."""
    torch.manual_seed(3)
    recipe = recipe_for(kind, {f"model.{name}": value for name, value in WRITERS[kind].items()}, "translate")
    model = build(kind, recipe.model, WORDS).eval()
    return moved(model, 0.3)


def sources(rows, seed=1):
    """(B, S) of different lengths, each ended by a boundary, and (B,) how long each is."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (rows,), generator=generator)
    tokens = torch.randint(1, WORDS, (rows, 9), generator=generator)
    tokens[torch.arange(rows), lengths - 1] = 0
    return tokens[:, : int(lengths.max())], lengths


def examples(rows):
    tokens, lengths = sources(rows)
    flat = np.concatenate([row[:length].numpy() for row, length in zip(tokens, lengths)])
    one_each = Ragged(np.ones(rows, np.int64), np.arange(1, rows + 1))
    return Sequences(Ragged(flat, np.cumsum(lengths.numpy())), one_each)


# Samples


def by_a_plain_loop(model, how, source, lengths, ids):
    """Every row is read on to the limit, ended or not; each token is looked up in the running sum of its row."""
    rows = len(source) * how.samples
    each = torch.arange(rows) // how.samples
    state, tokens, columns = model.start(rows, source[each], lengths[each]), torch.zeros(rows, 1, dtype=torch.long), []
    for step in range(how.limit):
        with torch.no_grad():
            logits, state = model.step(tokens, state)
        shares = (logits[:, -1].double() / how.sampling.temperature).softmax(-1).cumsum(-1)
        numbers = uniforms(how.sampling.seed, step, 1000)
        mine = torch.stack([numbers[number * how.samples + text] for number in ids for text in range(how.samples)])
        tokens = (shares <= mine[:, None] * shares[:, -1:]).sum(-1, keepdim=True)
        columns.append(tokens[:, 0].tolist())
    texts = [list(itertools.takewhile(bool, text)) for text in zip(*columns)]
    return [texts[begin : begin + how.samples] for begin in range(0, rows, how.samples)]


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_drawn_is_what_a_plain_loop_draws(kind, temperature):
    model, ids = writer(kind), [4, 0, 7, 2, 1]
    how = MinimumBayesRisk(6, Sampling(temperature, seed=5), limit=8)
    drawn = draw_texts(model, how, *sources(5), ids)
    assert drawn == by_a_plain_loop(model, how, *sources(5), ids)
    assert len({len(text) for texts in drawn for text in texts}) > 3                 # they end soon and late
    assert all(len({tuple(text) for text in texts}) > 1 for texts in drawn)


@pytest.mark.parametrize("kind", WRITERS)
def test_what_has_ended_is_read_no_further(kind, monkeypatch):
    model, read = writer(kind), []
    step = model.step
    monkeypatch.setattr(model, "step", lambda tokens, state: (read.append(len(tokens)), step(tokens, state))[1])
    drawn = draw_texts(model, MinimumBayesRisk(6, limit=8), *sources(5), range(5))
    sizes = [len(text) for texts in drawn for text in texts]
    assert read == [5, *(sum(size > step for size in sizes) for step in range(7))]
    assert read[1] > read[-1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_texts_come_as_often_as_they_are_likely(temperature):
    """All texts of at most two tokens, each with its probability: ended by the model, or cut off at the limit."""
    model, many = Echo(VOCAB, seed=2), 20_000
    source, lengths = torch.tensor([[1, 2, 3], [2, 0, 0]]), torch.tensor([3, 1])
    drawn = draw_texts(model, MinimumBayesRisk(many, Sampling(temperature), limit=2), source, lengths, [0, 1])
    for row, texts in enumerate(drawn):
        turn = int(source[row, : lengths[row]].sum())
        log_probs = (model.table / temperature).log_softmax(-1).tolist()
        likely = {(): math.exp(log_probs[turn % 7][0][0])}
        for first in range(1, VOCAB):
            begun = math.exp(log_probs[turn % 7][0][first])
            then = [begun * math.exp(log_prob) for log_prob in log_probs[(turn + 1) % 7][first]]
            likely |= {(first,): then[0]} | {(first, second): then[second] for second in range(1, VOCAB)}
        assert sum(likely.values()) == pytest.approx(1)
        counts = Counter(map(tuple, texts))
        for text, share in likely.items():
            assert abs(counts[text] / many - share) < 4 * math.sqrt(share * (1 - share) / many), text


def test_at_temperature_0_each_text_is_the_greedy_one():
    model = Echo(VOCAB, sharp=2)
    source, lengths = torch.arange(21).reshape(7, 3), torch.tensor([1, 2, 3, 3, 2, 1, 3])
    drawn = draw_texts(model, MinimumBayesRisk(3, Sampling(0), limit=9), source, lengths, range(7))
    found = beam_search(model, Beam(width=1, limit=9), source=source, lengths=lengths)
    for row, texts in enumerate(drawn):
        wanted = greedy(model, 9, source[row : row + 1], lengths[row : row + 1])
        assert texts == [list(wanted)] * 3 == [list(found[row].texts[0].tokens)] * 3


# Random numbers


@pytest.mark.parametrize("kind", WRITERS)
def test_a_source_has_the_same_random_numbers_in_any_batch(kind):
    model, how = writer(kind), MinimumBayesRisk(5, limit=7)
    source, lengths = sources(8)
    together = draw_texts(model, how, source, lengths, range(8))
    order = [6, 1, 3]
    assert draw_texts(model, how, source[order], lengths[order], order) == [together[row] for row in order]
    for row in range(8):
        here = slice(row, row + 1)
        assert draw_texts(model, how, source[here, : lengths[row]], lengths[here], [row]) == [together[row]]


def test_equal_sources_have_random_numbers_of_their_own_and_each_seed_others():
    model = writer("seq2seq")
    source, lengths = (part[:1].repeat_interleave(2, 0) for part in sources(1))
    first, second = draw_texts(model, MinimumBayesRisk(8, limit=6), source, lengths, [0, 1])
    assert first != second
    assert draw_texts(model, MinimumBayesRisk(8, limit=6), source, lengths, [0, 1]) == [first, second]
    assert draw_texts(model, MinimumBayesRisk(8, Sampling(seed=2), limit=6), source, lengths, [0, 1])[0] != first


def scarce(most):
    """Drawing where there is memory for so many sources only; and how many were asked for each time."""
    asked = []

    def limited(model, how, source, lengths, ids):
        asked.append(len(source))
        if len(source) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return draw_texts(model, how, source, lengths, ids)

    return limited, asked


@pytest.mark.parametrize(("changed", "most", "begin"), [
    ({}, 99, [23]),
    ({"ROWS": 4}, 99, [4, 4]),
    ({"OUTPUTS": 30}, 99, [5, 5]),
    ({"OUTPUTS": 3}, 99, [1, 1]),                             # a source has all its samples, even if these are more
    ({"ROWS": 8}, 3, [8, 4, 2, 2]),
], ids=str)
def test_fewer_at_a_time_are_answered_the_same(monkeypatch, capsys, changed, most, begin):
    made, how = (writer("seq2seq"), examples(23), Words()), MinimumBayesRisk(6, limit=6)
    wanted = write_texts(*made, how)
    limited, asked = scarce(most)
    monkeypatch.setattr("chainrule.inference.mbr.draw_texts", limited)
    for name, value in changed.items():
        monkeypatch.setattr(translate, name, value)
    assert write_texts(*made, how) == wanted
    assert asked[: len(begin)] == begin
    assert max(asked[len(begin) :], default=0) <= begin[-1]
    assert len({texts[0][0] for texts in wanted}) > 3                       # not one answer for all
    assert capsys.readouterr().err.count("texts at a time") == len(set(begin)) - 1


def test_what_is_written_is_what_was_drawn_ranked():
    model, how = writer("seq2seq"), MinimumBayesRisk(6, limit=6)
    source, lengths = sources(9)
    drawn = draw_texts(model, how, source, lengths, range(9))
    wanted = [rank_by_similarity([Words().decode(text) for text in texts]) for texts in drawn]
    assert write_texts(model, examples(9), Words(), how) == wanted
    assert any(texts[0][1] != texts[-1][1] for texts in wanted)


# Limits


@pytest.mark.parametrize("limit", [1, 3])
def test_no_text_is_longer_than_the_limit(limit):
    drawn = draw_texts(writer("transformer"), MinimumBayesRisk(9, limit=limit), *sources(6), range(6))
    assert max(len(text) for texts in drawn for text in texts) == limit


class Endless(Echo):
    """Never ends, and holds eight tokens, those of the source among them."""

    def max_tokens(self, source):
        return 8 - source.shape[1]

    def step(self, tokens, state):
        logits, state = super().step(tokens, state)
        return logits.index_fill(-1, torch.tensor([0]), -math.inf), state


def test_the_limit_is_what_the_model_holds():
    source, lengths = torch.ones(2, 3, dtype=torch.long), torch.tensor([3, 2])
    drawn = draw_texts(Endless(VOCAB), MinimumBayesRisk(4), source, lengths, [0, 1])
    assert {len(text) for texts in drawn for text in texts} == {4}          # beside a source of 3 and a boundary
    with pytest.raises(UserError, match="holds 1 tokens, of which 1 are read before it writes") as caught:
        draw_texts(Endless(VOCAB), MinimumBayesRisk(4), torch.ones(1, 7, dtype=torch.long), None, [0])
    assert "\n" not in str(caught.value)


class Silent(Echo):
    def step(self, tokens, state):
        return torch.full((*tokens.shape, VOCAB), -math.inf), state


def test_a_model_that_allows_no_token_is_refused_in_one_line():
    with pytest.raises(UserError, match="it diverged; train again") as caught:
        draw_texts(Silent(VOCAB), MinimumBayesRisk(2), torch.ones(1, 1, dtype=torch.long), torch.tensor([1]), [0])
    assert "\n" not in str(caught.value)


def test_dropout_is_off_and_the_mode_is_restored():
    model, how = writer("transformer"), MinimumBayesRisk(3, limit=4)
    wanted = draw_texts(model, how, *sources(3), range(3))
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.9
    assert draw_texts(model, how, *sources(3), range(3)) == wanted
    assert model.training


@pytest.mark.parametrize(("given", "match"), [
    ({"samples": 0}, "samples=0 is not valid: it must be from 1 to 65,536"),
    ({"samples": 10**25}, "samples=10{25} is not valid"),
    ({"samples": -3}, "samples=-3 is not valid"),
    ({"limit": 0}, "limit=0 is not valid: it must be from 1 to 1,048,576"),
    ({"limit": 10**25}, "limit=10{25} is not valid"),
])
def test_invalid_settings_are_refused(given, match):
    with pytest.raises(UserError, match=match) as caught:
        MinimumBayesRisk(**given)
    assert "\n" not in str(caught.value)


# Ranking


def test_the_most_similar_text_comes_first_and_how_often_it_was_drawn_counts():
    texts = ["dogs bark", "the cat sat", "the cat ran", "the cat sat"]
    assert rank_by_similarity(texts) == [
        ("the cat sat", pytest.approx((2 * 1 + 2 / 3) / 4)),                # 2 of 3 words are those of the third text
        ("the cat ran", pytest.approx((2 * 2 / 3 + 1) / 4)),
        ("dogs bark", pytest.approx(1 / 4)),
    ]
    assert rank_by_similarity(["a b", "a c", "d", "d", "d"])[0] == ("d", pytest.approx(3 / 5))    # not "a b"
    assert [text for text, _ in rank_by_similarity(["a b", "a c", "d"])] == ["a b", "a c", "d"]


def test_a_similarity_is_the_mean_over_all_samples_itself_among_them():
    texts = ["re: the plan", "The plan", "plan for monday", "the plan", "lunch", "re: the plan"]
    for text, similarity in rank_by_similarity(texts):
        assert similarity == pytest.approx(np.mean([rouge_l(text, other) for other in texts]))
    scores = [similarity for _, similarity in rank_by_similarity(texts)]
    assert scores == sorted(scores, reverse=True)
    assert {text for text, _ in rank_by_similarity(texts)} == set(texts)
    assert len(rank_by_similarity(texts)) == 5


def test_a_short_text_that_is_drawn_most_gives_way_to_what_the_others_share():
    texts = ["hello", "hello", "meeting on monday at ten", "the meeting on monday", "meeting on monday"]
    assert Counter(texts).most_common(1)[0][0] == "hello"
    assert rank_by_similarity(texts)[0][0] == "meeting on monday"


def test_texts_without_a_word_are_similar_to_none():
    assert rank_by_similarity(["", "a", ""]) == [("a", pytest.approx(1 / 3)), ("", 0)]
    assert rank_by_similarity(["", ""]) == [("", 0)]
    assert rank_by_similarity(["?", "!"]) == [("?", 0), ("!", 0)]
    assert rank_by_similarity([]) == []


def test_one_sample_is_similar_to_itself():
    assert rank_by_similarity(["as it came"]) == [("as it came", 1)]
