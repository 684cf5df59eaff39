"""Bits distributed over blocks, intervals and differences, against sums written out byte by byte."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from contract.toy import Attentive, Recurrent, ToySettings
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.errors import UserError
from chainrule.inference.evaluate import Result
from chainrule.inference.statistics import (
    AT_ONCE,
    ROUNDS,
    SEED,
    Blocks,
    ScoredSplit,
    byte_ends,
    compare_scores,
    draws,
    score_split,
    state_size,
    true_bits,
)
from chainrule.models.ngram.ngram import NGram, NGramSettings
from chainrule.recipe import Text
from chainrule.text.synthetic import LANGUAGES
from chainrule.text.tokenizers.tokenizer import train_tokenizer

TEXT = "naïve cafés, 日本語 and a 👩‍🚀: " * 40


def units(name, text=TEXT):
    return train_tokenizer(Text(tokenizer=name, vocab=300 if name == "bpe" else None), [text])


def stream(tokenizer, text):
    return np.concatenate([[0], tokenizer.encode(text), [0]]).astype(np.uint16)


def split(tokenizer, text):
    size = len(text.encode())
    return SimpleNamespace(tokens=stream(tokenizer, text), bytes=size, documents=1, sha256="ab" * 32, packed=False)


SIGNATURE = "unit:bytes|tokenizer:t|context:all|stride:none|boundary:document|text:x|chainrule:0"


def scored(bits, ends=None):
    bits = np.asarray(bits, float)
    ends = np.arange(1, len(bits) + 1) if ends is None else np.asarray(ends)
    result = Result(0.0, len(bits), int(ends[-1]), 0.0, 1.0, 1.0, 1, SIGNATURE)
    return ScoredSplit(result, bits * math.log(2), ends)


# where tokens lie


@pytest.mark.parametrize("name", ["bytes", "characters", "bpe"])
def test_tokens_end_where_the_text_that_they_spell_ends(name):
    tokenizer = units(name)
    tokens = stream(tokenizer, TEXT)[1:]
    ends = byte_ends(tokenizer, tokens)
    assert ends[-1] == ends[-2] == len(TEXT.encode())          # the boundary has no bytes
    for place in (0, 1, 5, 6, 7, 40, 100):
        whole = tokenizer.decode(tokens[: place + 1]).rstrip("�")
        assert ends[place] == len(whole.encode())


# blocks


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 20)), min_size=300, max_size=400), st.integers(600, 900))
def test_bits_on_blocks_are_those_of_their_bytes(tokens, size):
    """Each token's bits spread evenly over its bytes; of one without bytes they fall where it stands."""
    sizes, bits = np.array([token[0] for token in tokens]), np.array([token[1] for token in tokens])
    sizes[-1] += max(0, size - int(sizes.sum()))
    ends = np.cumsum(sizes)
    blocks = Blocks.of(int(ends[-1]))
    by_byte = np.zeros(ends[-1])
    for width, cost, end in zip(sizes, bits, ends):
        if width:
            by_byte[end - width : end] += cost / width
    laid = blocks.distribute(bits, ends)
    assert laid.sum() == pytest.approx(bits.sum())
    wanted = np.array([by_byte[begin:end].sum() for begin, end in zip(blocks.edges, blocks.edges[1:])])
    loose = bits[sizes == 0].sum()
    assert (laid - wanted >= -1e-6).all()
    assert (laid - wanted).sum() == pytest.approx(loose, abs=1e-6)


def test_a_boundary_at_either_end_is_not_lost():
    blocks = Blocks(np.array([0, 2, 4]))
    assert blocks.distribute(np.array([7.0, 1, 1, 1, 1, 5]), np.array([0, 1, 2, 3, 4, 4])).tolist() == [9, 7]


@pytest.mark.parametrize(("size", "count"), [(512, 2), (1000, 3), (25_600, 100), (100_000, 100), (4_096_000, 1000)])
def test_there_are_many_blocks_of_like_size(size, count):
    blocks = Blocks.of(size)
    assert len(blocks) == count
    assert blocks.sizes.sum() == size
    assert blocks.sizes.max() - blocks.sizes.min() <= 1


def test_a_text_too_short_for_an_interval_is_refused():
    with pytest.raises(UserError, match=r"has 300 bytes; an interval needs 512 or more\. Give more text"):
        Blocks.of(300)


# intervals and differences


def test_an_interval_is_the_middle_of_means_over_drawn_blocks():
    blocks, bits = Blocks(np.array([0, 10, 30, 40, 80])), np.array([20.0, 30, 40, 90])
    rng, means = np.random.default_rng(SEED), []
    for _ in range(ROUNDS):
        drawn = rng.integers(0, 4, 4)
        means.append(bits[drawn].sum() / blocks.sizes[drawn].sum())
    score = blocks.mean(bits)
    assert score.value == pytest.approx(180 / 80)
    means.sort()
    assert (score.low, score.high) == pytest.approx((means[25], means[-26]))


@pytest.mark.parametrize("count", [1, 4, 997, AT_ONCE // 2 - 1, AT_ONCE + 1])
def test_rounds_that_are_drawn_at_once_are_those_of_one_after_another(count):
    rng, rounds = np.random.default_rng(5), 5 if count > 1000 else 150
    alone = [np.bincount(rng.integers(0, count, count), minlength=count) for _ in range(rounds)]
    np.testing.assert_array_equal(list(draws(count, rounds, 5)), alone)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng, covered = np.random.default_rng(5), 0
    for _ in range(60):
        bits = np.repeat(rng.exponential(1.0, 1000), 10)    # ten bytes at a time cost the same
        blocks = Blocks.of(len(bits))
        score = blocks.mean(blocks.distribute(bits, np.arange(1, len(bits) + 1)))
        covered += score.low <= 1 <= score.high
    assert 51 <= covered <= 60


def test_a_small_gap_on_every_block_is_real_though_intervals_overlap():
    rng = np.random.default_rng(1)
    hard = np.repeat(rng.uniform(1, 5, 100), 300)
    made = compare_scores({"worse": scored(hard + 0.02), "better": scored(hard)})
    rows = {name: made.row(name) for name in ("worse", "better")}
    assert rows["better"]["bits_per_byte_interval"][1] > rows["worse"]["bits_per_byte_interval"][0]
    (difference,) = made.differences()
    assert (difference.better, difference.worse, difference.real) == ("better", "worse", True)
    assert difference.gap.value == pytest.approx(0.02)


def test_a_random_gap_is_not_significant():
    rng = np.random.default_rng(2)
    one, other = rng.normal(2, 1, (2, 30_000))
    (difference,) = compare_scores({"one": scored(one), "other": scored(other)}).differences()
    assert not difference.real
    assert difference.as_dict().keys() == {"better", "worse", "bits_per_byte", "bits_per_byte_interval", "real"}


def test_every_pair_is_compared_from_the_best_down():
    flat = np.ones(600)
    made = compare_scores({"c": scored(3 * flat), "a": scored(flat), "b": scored(2 * flat)})
    pairs = [(one.better, one.worse, one.gap.value) for one in made.differences()]
    assert pairs == [("a", "b", 1), ("a", "c", 2), ("b", "c", 1)]


def test_unlike_units_share_blocks():
    """Two tokens of three bytes each cost what six tokens of one byte do."""
    fine = np.tile([1.0, 2, 3, 4, 5, 6], 200)
    coarse = fine.reshape(-1, 3).sum(1)
    made = compare_scores({"fine": scored(fine), "coarse": scored(coarse, np.arange(3, 1201, 3))})
    assert made.row("fine")["bits_per_byte"] == pytest.approx(made.row("coarse")["bits_per_byte"])


def test_results_that_were_not_measured_alike_are_refused():
    one = scored(np.ones(600))
    other = replace(one, result=replace(one.result, signature=one.result.signature.replace("text:x", "text:y")))
    with pytest.raises(UserError, match="cannot share a table of bits_per_byte when their text differs: x, y"):
        compare_scores({"one": one, "other": other})


def test_what_is_infinitely_surprised_has_no_number():
    made = compare_scores({"sure": scored(np.append(np.ones(599), math.inf)), "unsure": scored(np.ones(600))})
    assert made.row("sure") == {"bits_per_byte": None, "bits_per_byte_interval": None}
    assert made.row("unsure")["bits_per_byte"] == 1
    assert made.differences() == []


# a model on a text, and the truth about it


def bigram(text, tokenizer):
    from chainrule.text.batches import texts

    model = NGram(NGramSettings(order=2), len(tokenizer))
    (batch,) = texts(stream(tokenizer, text), None, 1 << 20)
    model.update(model.collect(batch))
    return model


def test_a_scored_text_adds_up_to_its_evaluation():
    tokenizer = units("characters")
    made = score_split(bigram(TEXT, tokenizer), tokenizer, split(tokenizer, TEXT))
    assert made.bits.sum() / len(TEXT.encode()) == pytest.approx(made.result.bits_per_byte)
    row = compare_scores({"bigram": made}).row("bigram")
    assert row["bits_per_byte"] == pytest.approx(made.result.bits_per_byte)
    assert row["bits_per_byte_interval"][0] <= row["bits_per_byte"] <= row["bits_per_byte_interval"][1]


def test_a_bigram_comes_near_the_truth_about_a_chain_and_not_about_brackets():
    gaps = {}
    for name in ("markov", "brackets"):
        language = LANGUAGES[name]
        tokenizer = units("characters", learned := language.text(40_000))
        text = language.text(20_000, seed=9)
        made = score_split(bigram(learned, tokenizer), tokenizer, split(tokenizer, text))
        row = compare_scores({"bigram": made}, true_bits(language, text)).row("bigram")
        gaps[name] = row["gap"] / language.bits_per_character
        assert row["gap"] == pytest.approx(row["bits_per_byte"] - language.bits(text) / len(text))
        assert row["gap_interval"][0] <= row["gap"] <= row["gap_interval"][1]
    assert 0 <= gaps["markov"] < 0.01
    assert gaps["brackets"] > 0.1


def test_a_language_cannot_have_said_what_it_cannot_say():
    assert [*LANGUAGES["rhythm"].character_bits("10001x1")][-2:] == [0, math.inf]
    assert LANGUAGES["rhythm"].bits("11") == math.inf


def test_a_state_weighs_what_it_holds():
    tokens = np.arange(200) % 5
    assert state_size(Recurrent(ToySettings(width=8), 6), tokens) == (8 * 4, 0)
    size, growth = state_size(Attentive(ToySettings(width=8, context=16), 6), tokens)
    assert growth == pytest.approx(2 * 8 * 4)                     # a key and a value
    assert size == pytest.approx(16 * growth, abs=8)              # and a length
    assert state_size(NGram(NGramSettings(order=4), 6), tokens) == (3 * 8, 0)


def test_weighing_leaves_a_model_as_it_was():
    model = Recurrent(ToySettings(), 6).train()
    state_size(model, np.zeros(3, np.int64))
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()
