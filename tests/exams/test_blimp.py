"""BLiMP: against sums by hand, ties, files, and what is published."""

import json
import math
import os
import tarfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from exams.conftest import PAIRS, TEXT

from chainrule.errors import UserError
from chainrule.exams import take_exam
from chainrule.exams.blimp import PUBLISHED, SYSTEMS, is_lower, read_pairs
from chainrule.inference.score import score_sentences


def by_hand(sentence):
    """-log p by counts: p(w | v) = (c(v w) + 1) / (c(v) + V), the boundary included at both ends."""
    def words(line):
        return ["</s>", *line.split(), "</s>"]

    pairs = Counter(pair for line in TEXT.splitlines() for pair in pairwise(words(line)))
    before = Counter()
    for (first, _), count in pairs.items():
        before[first] += count
    vocabulary = {word for line in TEXT.splitlines() for word in words(line)} | {"<unk>"}
    known = [word if word in vocabulary else "<unk>" for word in words(sentence)]
    return sum(-math.log((pairs[pair] + 1) / (before[pair[0]] + len(vocabulary))) for pair in pairwise(known))


def test_the_probability_of_a_sentence_is_the_product_by_hand_with_both_boundaries(bigram):
    sentences = ["the cat sleeps .", "the cat sleep .", "the bird sings .", "cat"]
    nats = score_sentences(bigram.language_model, bigram.tokenizer, sentences)
    assert nats == pytest.approx([by_hand(sentence) for sentence in sentences], rel=1e-6)
    exact = (5 / 13) * (3 / 13) * (3 / 11) * (4 / 12) * (5 / 13)    # the, cat, sleeps, full stop, end: V is 9
    assert math.exp(-nats[0]) == pytest.approx(exact, rel=1e-6)


def test_a_pair_is_right_where_the_good_sentence_is_more_probable_and_a_tie_is_a_mistake(exam_data, bigram):
    result = take_exam(bigram, "blimp")
    wanted = {}
    for paradigm, (_, pairs) in PAIRS.items():
        texts = [[by_hand(text.lower().replace(".", " .")) for text in pair] for pair in pairs]
        wanted[paradigm] = [good < bad - 1e-9 for good, bad in texts]
    assert wanted == {"agreement": [True, True, False, False], "animate_subject_trans": [True]}
    assert result["paradigms"] == {"agreement": 0.5, "animate_subject_trans": 1.0}
    assert result["accuracy"] == pytest.approx(0.6)
    assert (result["pairs"], result["ties"]) == (5, 1)
    assert result["unknown"] == pytest.approx(4 / 51)    # bird, sings, bird, sing of 10 sentences of 4 tokens and ends
    low, high = result["accuracy_interval"]
    assert 0 <= low < 0.6 < high <= 1


def test_phenomena_are_those_of_the_paper(exam_data, bigram):
    result = take_exam(bigram, "blimp")
    assert set(result["phenomena"]) == {"subject_verb_agreement", "argument_structure"}
    assert result["phenomena"]["argument_structure"]["pairs"] == 1
    assert result["phenomena"]["subject_verb_agreement"]["accuracy"] == 0.5
    assert result["phenomena"]["subject_verb_agreement"]["published"]["GPT-2"] == 86.4


def test_the_signature_says_how_it_was_measured(exam_data, bigram):
    one, two = take_exam(bigram, "blimp"), take_exam(bigram, "blimp", limit=1)
    assert one["signature"].startswith("exam:blimp|examples:5|unit:words|tokenizer:")
    assert "|context:all|boundary:line|wording:penn|text:" in one["signature"]
    assert two["pairs"] == 2
    assert one["signature"] != two["signature"]
    json.dumps(one, allow_nan=False)


def test_differences_by_rounding_and_two_infinities_are_ties():
    good = np.array([1.0, 1.0, np.inf, 1.0, np.inf])
    bad = np.array([1.0 + 1e-7, 1.1, np.inf, np.inf, 1.0])
    assert is_lower(good, bad).tolist() == [False, True, False, True, False]
    assert is_lower(bad, good).tolist() == [False, False, False, False, True]


def test_an_archive_is_read_like_loose_files(exam_data, tmp_path):
    loose = read_pairs()
    with tarfile.open(exam_data / "blimp/blimp.tar.xz", "w:xz") as archive:
        for paradigm in sorted(PAIRS):
            path = exam_data / f"blimp/{paradigm}.jsonl"
            archive.add(path, path.name)
            path.unlink()
    assert read_pairs() == loose
    packed = (exam_data / "blimp/blimp.tar.xz").read_bytes()
    (exam_data / "blimp/blimp.tar.xz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UserError, match="is damaged and cannot be unpacked"):
        read_pairs()


@pytest.mark.parametrize("line", ["{", "[]", '{"sentence_good": "a"}', '{"sentence_good": 1, "sentence_bad": "b", '
                                  '"linguistics_term": "c", "UID": "d"}'])
def test_a_damaged_line_is_named(exam_data, line):
    (exam_data / "blimp/agreement.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=r"agreement\.jsonl line 1 of BLiMP is damaged: a line is") as told:
        read_pairs()
    assert "\n" not in str(told.value)


def test_where_it_is_absent_one_line_says_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path))
    monkeypatch.delenv("CHAINRULE_DATA", raising=False)
    with pytest.raises(UserError, match=r"BLiMP is not on this machine\. Set CHAINRULE_DATA to a folder"):
        read_pairs()


@pytest.mark.data
def test_the_published_table_is_that_of_the_authors_file():
    folder = Path(os.environ.get("CHAINRULE_DATA", "")) / "blimp"
    if not (folder / "models_summary.jsonl").is_file():
        pytest.skip("no blimp/models_summary.jsonl in $CHAINRULE_DATA")
    rows = [json.loads(line) for line in (folder / "models_summary.jsonl").read_text().splitlines()]
    totals = {row["linguistics_term"]: [100 * row[name] for name in ("ngram", "lstm", "txl", "gpt2")]
              for row in rows if row["UID"] == "overall"}
    assert set(totals) == set(PUBLISHED)
    for name, values in totals.items():
        assert PUBLISHED[name][:4] == pytest.approx(values, abs=0.0501)
    assert len(SYSTEMS) == 5


@pytest.mark.data
def test_the_real_files_have_67_paradigms_in_12_phenomena():
    if not (Path(os.environ.get("CHAINRULE_DATA", "")) / "blimp/blimp.tar.xz").is_file():
        pytest.skip("no blimp/blimp.tar.xz in $CHAINRULE_DATA")
    pairs = read_pairs(limit=2)
    assert len(pairs) == 134
    assert len({pair.paradigm for pair in pairs}) == 67
    assert {pair.phenomenon for pair in pairs} | {"overall"} == set(PUBLISHED)
