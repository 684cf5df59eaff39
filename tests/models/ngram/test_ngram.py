"""n-grams against a slow Kneser–Ney written from the definitions, the lecture's counts, and the laws of probability."""

import itertools
import math
import os
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.errors import UserError
from chainrule.model import Batch, watch
from chainrule.models.ngram.counts import OnDisk, count_ngrams, merge_counts, sort_pairs
from chainrule.models.ngram.lookup import Lookup
from chainrule.models.ngram.ngram import NGram, NGramSettings
from chainrule.models.ngram.pruning import _divergence, prune_by_entropy
from chainrule.models.ngram.smoothing import discounts, estimate

VOCAB = 6


def as_batch(stream) -> Batch:
    stream = torch.tensor([stream])
    return Batch(stream[:, :-1], stream[:, 1:])


def random_stream(seed: int, texts: int = 60) -> list[int]:
    generator = np.random.default_rng(seed)
    stream = [0]
    for _ in range(texts):
        stream += [1 + int(w) for w in generator.zipf(1.6, generator.integers(0, 9)) % (VOCAB - 2)] + [0]
    return stream


def trained(stream, vocab: int = VOCAB, **given) -> NGram:
    model = NGram(NGramSettings(**given), vocab)
    model.update(model.collect(as_batch(stream)))
    return model


def next_probs(model: NGram, history) -> np.ndarray:
    logits, _ = model.step(torch.tensor([history]), model.start(1))
    return logits[0, -1].double().exp().numpy()


class SlowKneserNey:
    """Chen & Goodman's formulas, one gram at a time, from a list of texts."""

    def __init__(self, stream, order: int, vocab: int):
        self.order, self.vocab = order, vocab
        sentences = [[int(w) for w in part] for part in split(stream)]
        raw = [Counter() for _ in range(order + 1)]
        for sentence in sentences:
            padded = ["<s>", *sentence, 0]
            for k in range(1, order + 1):
                raw[k].update(tuple(padded[i : i + k]) for i in range(len(padded) - k + 1))
        self.counts = [Counter() for _ in range(order + 1)]
        self.counts[order] = raw[order]
        for k in range(1, order):
            left = defaultdict(set)
            for gram in raw[k + 1]:
                left[gram[1:]].add(gram[0])
            self.counts[k] = Counter({gram: len(kinds) for gram, kinds in left.items()})
            self.counts[k].update({gram: n for gram, n in raw[k].items() if gram[0] == "<s>" and k > 1})
        self.counts[1].pop(("<s>",), None)
        self.discounts = [None] + [self.discount(self.counts[k]) for k in range(1, order + 1)]

    @staticmethod
    def discount(counts):
        n = [sum(c == j for c in counts.values()) for j in range(5)]
        if not all(n[1:]):
            return [0, 0.5, 1, 1.5]
        y = n[1] / (n[1] + 2 * n[2])
        d = [0] + [j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)]
        return d if all(0 <= d[j] <= j for j in range(4)) else [0, 0.5, 1, 1.5]

    def prob(self, word: int, history: tuple) -> float:
        history = history[max(len(history) - self.order + 1, 0) :]
        k = len(history) + 1
        lower = self.prob(word, history[1:]) if history else 1 / self.vocab
        followers = {gram: n for gram, n in self.counts[k].items() if gram[:-1] == history}
        total = sum(followers.values())
        if not total:
            return lower
        d = self.discounts[k]
        gamma = sum(d[min(n, 3)] for n in followers.values()) / total
        own = followers.get((*history, word), 0)
        return max(own - d[min(own, 3)], 0) / total + gamma * lower


def split(stream):
    sentence = []
    for word in stream[1:]:
        if word == 0:
            yield sentence
            sentence = []
        else:
            sentence.append(word)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_kneser_ney_is_what_chen_and_goodman_wrote(order):
    stream = random_stream(order)
    model, slow = trained(stream, order=order), SlowKneserNey(stream, order, VOCAB)
    for history in [(), (1,), (2, 1), (1, 2, 1), (5, 5), (3, 1, 1, 2, 1)]:
        probs = next_probs(model, [0, *history])
        wanted = [slow.prob(word, ("<s>", *history)) for word in range(VOCAB)]
        np.testing.assert_allclose(probs, wanted, rtol=2e-6)


def test_cows_eat_what_the_lecture_says():
    endings = ["corn"] * 4 + ["grass"] * 3 + ["hay"] * 2 + ["if", "which"]
    words = {"</s>": 0, "cows": 1, "eat": 2, "corn": 3, "grass": 4, "hay": 5, "if": 6, "which": 7}
    stream = [0] + [id for end in endings for id in (1, 2, words[end], 0)]
    model = trained(stream, vocab=8, order=3, estimator="mle")
    found = next_probs(model, [0, 1, 2])
    np.testing.assert_allclose(found, [0, 0, 0, 4 / 11, 3 / 11, 2 / 11, 1 / 11, 1 / 11], rtol=1e-6)
    logits, _ = model.step(torch.tensor([[0, 1, 2]]), model.start(1))
    assert logits[0, -1, 0] == -math.inf


def test_add_k_adds_k_to_every_count():
    stream = [0, 1, 2, 0, 1, 2, 0, 1, 3, 0]
    model = trained(stream, vocab=4, order=2, estimator="add-k", k=0.5)
    np.testing.assert_allclose(next_probs(model, [0, 1]), np.array([0, 0, 2, 1]) / 5 + 0.5 / 5, rtol=1e-6)
    np.testing.assert_allclose(next_probs(model, [0]), (np.array([0, 3, 0, 0]) + 0.5) / 5, rtol=1e-6)


WAYS = [
    {"estimator": "kneser-ney"}, {"estimator": "mle"}, {"estimator": "add-k", "k": 0.3},
    {"cutoffs": (0, 0, 1)}, {"cutoffs": (0, 1)}, {"estimator": "mle", "cutoffs": (0, 1, 2)},
    {"estimator": "add-k", "cutoffs": (0, 0, 1)}, {"prune": 1e-3}, {"prune": 1e-2}, {"prune": 1.0},
]


@pytest.mark.parametrize("given", WAYS, ids=str)
def test_every_next_word_distribution_sums_to_one(given):
    model = trained(random_stream(3), order=4, **given)
    for length in range(4):
        for history in itertools.product(range(VOCAB - 1), repeat=length):
            assert next_probs(model, [0, *history]).sum() == pytest.approx(1, abs=2e-6), history


@pytest.mark.parametrize("given", [{}, {"estimator": "mle"}, {"estimator": "add-k"}, {"prune": 1e-3}], ids=str)
def test_score_and_step_agree(given):
    stream = random_stream(4)
    model = trained(stream, order=4, **given)
    tokens = torch.randint(VOCAB, (5, 400), generator=torch.Generator().manual_seed(1))
    tokens[:, 0] = 0
    scores, state = model.score(tokens[:, :-1], tokens[:, 1:], model.start(5))
    logits, other = model.step(tokens[:, :-1], model.start(5))
    torch.testing.assert_close(scores, logits.gather(-1, tokens[:, 1:, None])[..., 0], rtol=1e-5, atol=1e-5)
    assert torch.equal(state, other)


def test_targets_that_do_not_follow_the_tokens_are_scored_too():
    model = trained(random_stream(4), order=3)
    tokens = torch.tensor([[0, 1, 2]])
    targets = torch.tensor([[3, 3, 3]])
    scores, _ = model.score(tokens, targets, model.start(1))
    logits, _ = model.step(tokens, model.start(1))
    torch.testing.assert_close(scores, logits[:, :, 3])


def test_the_tap_names_the_order_that_answered():
    model = trained([0, 1, 2, 3, 0, 1, 2, 4, 0], vocab=VOCAB, order=3)
    tokens, targets = torch.tensor([[0, 1, 2]]), torch.tensor([[1, 2, 5]])
    with watch(model, "answered") as seen:
        model.score(tokens, targets, model.start(1))
    assert seen["answered"][0].tolist() == [[2, 3, 1]]
    with watch(model, "answered") as seen:
        model.step(tokens, model.start(1))
    assert seen["answered"][0].tolist() == [[2, 3, 3]]


def same_orders(one, other):
    for a, b in zip(one, other, strict=True):
        for field in ("words", "starts", "counts", "suffixes"):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


def pieces(stream, size: int, overlap: int):
    stream = torch.tensor([stream])
    for at in range(0, stream.shape[1] - 1, size):
        begin = max(at - overlap, 0)
        part = stream[:, begin : at + size + 1]
        yield Batch(part[:, :-1], part[:, 1:], context_only=torch.tensor([at - begin]))


@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["in memory", "on disk"])
@pytest.mark.parametrize("block", [1 << 24, 5])
def test_counts_of_the_parts_add_up_to_those_of_the_whole(memory, block):
    stream = random_stream(5)
    whole = merge_counts(count_ngrams(as_batch(stream), 4, VOCAB))
    parts = [count_ngrams(batch, 4, VOCAB, memory) for batch in pieces(stream, 23, 3)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    assert isinstance(total.runs[0][0], OnDisk) == (memory == 0)
    same_orders(merge_counts(total, block), whole)


def test_a_key_too_wide_to_carry_its_position_is_sorted_the_long_way():
    for keys_below in (8, 1 << 62):
        keys, places = sort_pairs(np.array([5, 2, 5, 0]), np.array([9, 4, 3, 6]), keys_below, 10)
        assert (keys.tolist(), places.tolist()) == ([0, 2, 5, 5], [6, 4, 3, 9])


def test_padding_is_not_counted():
    stream = random_stream(6)[:40]
    padded = torch.tensor([stream + [5] * 7, stream[:20] + [3] * 27])
    batch = Batch(padded[:, :-1], padded[:, 1:], lengths=torch.tensor([39, 19]))
    apart = count_ngrams(as_batch(stream), 3, VOCAB) + count_ngrams(as_batch(stream[:20]), 3, VOCAB)
    together, apart = merge_counts(count_ngrams(batch, 3, VOCAB)), merge_counts(apart)
    same_orders(together, apart)


@given(st.lists(st.integers(0, 10**12), unique=True), st.lists(st.integers(0, 10**12)), st.booleans())
@settings(deadline=None)
def test_look_up_finds_what_is_there_and_nothing_else(keys, others, many):
    keys = sorted(keys)
    asked = (keys + others) * (1 if not many else 1 + 300 // max(len(keys + others), 1))
    found = Lookup(torch.tensor(keys, dtype=torch.int64)).find(torch.tensor(asked, dtype=torch.int64))
    places = {key: place for place, key in enumerate(keys)}
    assert found.tolist() == [places.get(key, -1) for key in asked]


@pytest.mark.parametrize("bits", [3, 8, 10])
def test_keys_that_find_every_slot_taken_are_found_by_binary_search(bits):
    lookup = Lookup(torch.arange(0, 1500, 3))
    lookup.bits = bits                                           # fewer slots than keys
    found = lookup.find(torch.arange(1500)).tolist()
    assert found == [number // 3 if number % 3 == 0 else -1 for number in range(1500)]


def test_the_context_of_each_n_gram_is_the_one_whose_child_it_is():
    parts = [count_ngrams(batch, 4, VOCAB) for batch in pieces(random_stream(9), 40, 3)]
    for counts in parts[0], parts[0] + parts[1]:                 # one run is not merged
        for order in merge_counts(counts)[1:]:
            children = [slice(*pair) for pair in zip(order.starts[:-1].tolist(), order.starts[1:].tolist())]
            assert order.contexts.tolist() == [c for c, own in enumerate(children) for _ in order.words[own]]
            wanted = [order.counts[own].sum() for own in children]
            assert order.sum_children(order.counts).tolist() == wanted


def test_discounts_fall_back_when_the_counts_of_counts_cannot_tell():
    usual = [0, 0.5, 1, 1.5]
    assert discounts(np.array([1, 1, 2])).tolist() == usual
    assert discounts(np.repeat([1, 2, 3, 4], [10, 1, 9, 1])).tolist() == usual     # D(2) would be below 0
    n1, n2, n3, n4 = 8, 4, 2, 1
    y = n1 / (n1 + 2 * n2)
    counted = np.repeat([1, 2, 3, 4, 9], [n1, n2, n3, n4, 5])
    np.testing.assert_allclose(discounts(counted), [0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])


def tables_of(stream, order: int):
    return list(estimate(merge_counts(count_ngrams(as_batch(stream), order, VOCAB)), "kneser-ney", 1))


def test_the_divergence_of_a_bigram_is_the_sum_over_all_words():
    """Stolcke's closed form against Σ p(h) Σ p(w|h) log p/p', with the gram really taken out."""
    unigrams, bigrams = tables_of(random_stream(8), 2)
    lower = unigrams.prob[bigrams.suffixes]
    found = _divergence(bigrams, lower, np.log(unigrams.prob))
    context = np.repeat(np.arange(VOCAB), np.diff(bigrams.starts))
    for gram in range(len(bigrams.words)):
        history = context[gram]
        others = [g for g in range(len(bigrams.words)) if context[g] == history]
        full = distribution(unigrams.prob, bigrams, others)
        without = distribution(unigrams.prob, bigrams, [g for g in others if g != gram])
        wanted = unigrams.prob[history] * (full * np.log(full / without)).sum()
        assert found[gram] == pytest.approx(wanted, rel=1e-6, abs=1e-12)


def distribution(unigrams, bigrams, kept):
    words = bigrams.words[kept]
    probs = unigrams.copy()
    probs[words] = 0
    probs *= (1 - bigrams.prob[kept].sum()) / probs.sum()
    probs[words] = bigrams.prob[kept]
    return probs


def test_pruning_keeps_what_others_need_and_more_pruning_keeps_less():
    sizes = []
    for threshold in (0.0, 1e-4, 1e-3, 1e-2, 1.0):
        tables = prune_by_entropy(tables_of(random_stream(9), 4), threshold)
        sizes.append(sum(len(table.words) for table in tables))
        for shorter, table in itertools.pairwise(tables):
            assert len(table.starts) == len(shorter.words) + 1
            assert table.starts[-1] == len(table.words)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[2] > sizes[-1] == VOCAB


def test_cut_offs_leave_out_what_was_seen_too_seldom():
    stream = random_stream(10)
    levels = merge_counts(count_ngrams(as_batch(stream), 3, VOCAB))
    model = trained(stream, order=3, cutoffs=(0, 1, 2))
    assert len(model.words_2) == (levels[1].counts > 1).sum()
    assert len(model.words_3) == (levels[2].counts > 2).sum()


def test_tables_survive_being_saved_and_loaded():
    model = trained(random_stream(11), order=3)
    other = NGram(NGramSettings(order=3), VOCAB)
    next_probs(other, [0, 1])                                    # its look-ups must not outlive its old tables
    other.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(next_probs(other, [0, 1, 2]), next_probs(model, [0, 1, 2]))


def test_before_counting_all_words_are_alike_and_forgetting_goes_back_there():
    model = NGram(NGramSettings(order=3), VOCAB)
    np.testing.assert_allclose(next_probs(model, [0, 3]), 1 / VOCAB, rtol=1e-6)
    scores, _ = model.score(torch.tensor([[0, 1] * 200]), torch.tensor([[1, 0] * 200]), model.start(1))
    torch.testing.assert_close(scores, torch.full_like(scores, -math.log(VOCAB)))
    model.update(model.collect(as_batch(random_stream(1))))
    assert next_probs(model, [0]).std() > 0.01
    model.forget(torch.Generator())
    np.testing.assert_allclose(next_probs(model, [0, 3]), 1 / VOCAB, rtol=1e-6)


@pytest.mark.parametrize(("given", "says"), [
    ({"order": 0}, "it must be from 1 to 1000"), ({"k": 0.0}, "more than 0"), ({"k": 2.0}, "add-k"),
    ({"cutoffs": (1, 1)}, "begin with 0"), ({"cutoffs": (0, 2, 1)}, "do not decrease"), ({"prune": -1.0}, "0 or more"),
])
def test_settings_that_make_no_sense_are_refused(given, says):
    with pytest.raises(UserError, match=says):
        NGramSettings(**given)


def test_an_order_above_the_length_of_every_text_is_still_a_model():
    model = trained([0, 1, 2, 0], order=6)
    assert next_probs(model, [0, 1]).sum() == pytest.approx(1, abs=1e-6)
    assert next_probs(model, [0, 1])[2] > 0.4


def test_orders_without_any_ngram_are_estimated_as_the_others_are():
    stream = [0, 1, 2, 0, 2, 1, 0, 1, 1, 0]                      # no 5-gram, and four 4-grams
    model, slow = trained(stream, order=6), SlowKneserNey(stream, 6, VOCAB)
    for history in [(), (1,), (2, 1), (1, 2, 1)]:
        wanted = [slow.prob(word, ("<s>", *history)) for word in range(VOCAB)]
        np.testing.assert_allclose(next_probs(model, [0, *history]), wanted, rtol=2e-6)


DATA = Path(os.environ.get("CHAINRULE_DATA") or "nowhere")
ANCHORS = [  # lmplz -o N --discount_fallback, with <unk> in the text as an ordinary word
    ("ptb/ptb.train.txt", "ptb/ptb.test.txt", 3, 148.2815),
    ("ptb/ptb.train.txt", "ptb/ptb.test.txt", 5, 141.1862),
    ("wikitext-2/train.txt", "wikitext-2/test.txt", 3, 226.0510),
    ("wikitext-2/train.txt", "wikitext-2/test.txt", 5, 220.1385),
]


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "ptb").is_dir(), reason="CHAINRULE_DATA does not hold ptb and wikitext-2")
@pytest.mark.parametrize(("train", "test", "order", "perplexity"), ANCHORS)
def test_perplexity_equals_that_of_lmplz(train, test, order, perplexity):
    words = {"\n": 0, "<unk>": 1}
    streams = []
    for name in (train, test):
        text = [word for word in (DATA / name).read_text().replace("\n", " \n ").split(" ") if word]
        for word in text:
            words.setdefault(word, len(words))
        streams.append([0, *map(words.__getitem__, text)])
    model = trained(streams[0], vocab=len(words), order=order)
    batch = as_batch(streams[1])
    scores, _ = model.score(batch.tokens, batch.targets, model.start(1))
    assert float((-scores.double().mean()).exp()) == pytest.approx(perplexity, rel=2e-5)
