"""BLEU and chrF are sacreBLEU's own to the last digit, its interval too; ROUGE-L against every subsequence there is."""

import itertools
import json
import random

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import UserError
from chainrule.inference.metrics import longest_common_subsequence, measure_overlap, rouge_l

WORDS = ["The", "the", "cat", "sat", "on", "a", "mat", ",", "and", "dog", "ran", "away", ".", "Two", "men", "bushes"]
ROUGE = [    # by Google's rouge-score 0.1.2, without its stemmer
    ("the cat sat on the mat", "the cat was on the mat", 0.833333333333),
    ("Police killed the gunman.", "police kill the gunman", 0.75),
    ("the gunman kill police", "police killed the gunman", 0.5),
    ("", "a b", 0.0),
    ("Re: meeting_notes 2001-10-30!", "Meeting notes, 30/10/2001", 0.545454545455),
    ("a b c d e f g", "g f e d c b a", 0.142857142857),
    ("A a a b", "a A b b", 0.75),
]


def some_texts(count, references=1, seed=1):
    generator = random.Random(seed)
    sizes = [[generator.randint(4, 12) for _ in range(references)] for _ in range(count)]
    wanted = [[" ".join(generator.choices(WORDS, k=size)) for size in some] for some in sizes]
    written = []
    for some in wanted:
        words = some[0].split()
        written.append(" ".join(word if generator.random() < 0.8 else generator.choice(WORDS) for word in words))
    return written, wanted


@pytest.mark.parametrize("references", [1, 3])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_and_chrf_are_sacrebleus(references, lowercase):
    written, wanted = some_texts(40, references)
    streams = [list(stream) for stream in zip(*wanted)]
    found = measure_overlap(written, wanted, lowercase=lowercase)
    bleu, chrf = sacrebleu.BLEU(lowercase=lowercase), sacrebleu.CHRF(lowercase=lowercase)
    assert found.bleu.value == pytest.approx(bleu.corpus_score(written, streams).score, abs=1e-12)
    assert found.chrf.value == pytest.approx(chrf.corpus_score(written, streams).score, abs=1e-12)
    assert f"bleu {bleu.get_signature()};" in found.signature
    assert f"chrf {chrf.get_signature()};" in found.signature
    assert f"nrefs:{references}" in found.signature


def test_the_interval_is_sacrebleus_too():
    written, wanted = some_texts(60)
    found = measure_overlap(written, wanted)
    for score, metric in ((found.bleu, sacrebleu.BLEU()), (found.chrf, sacrebleu.CHRF())):
        judged = metric.corpus_score(written, [[some[0] for some in wanted]], n_bootstrap=1000)
        assert (score.high - score.low) / 2 == pytest.approx(judged._ci, abs=1e-4)
        assert score.low < score.value < score.high


def test_references_may_be_few_for_some_and_many_for_others():
    written, wanted = some_texts(20, 2)
    wanted[3] = wanted[3][:1]
    found = measure_overlap(written, wanted)
    streams = [[some[0] for some in wanted], [some[1] if len(some) > 1 else None for some in wanted]]
    assert found.bleu.value == pytest.approx(sacrebleu.BLEU().corpus_score(written, streams).score)
    assert "nrefs:var" in found.signature


@pytest.mark.parametrize(("written", "wanted", "score"), ROUGE)
def test_rouge_l_is_that_of_rouge_score(written, wanted, score):
    assert rouge_l(written, wanted) == pytest.approx(score, abs=1e-12)


@given(first=st.lists(st.sampled_from("abc"), max_size=8), second=st.lists(st.sampled_from("abcd"), max_size=8))
def test_no_common_subsequence_is_longer(first, second):
    every = [{part for size in range(len(words) + 1) for part in itertools.combinations(words, size)}
             for words in (first, second)]
    assert longest_common_subsequence(first, second) == max(map(len, every[0] & every[1]))


def test_words_of_any_script_are_words():
    assert rouge_l("Grüße aus Köln", "grüße aus köln") == 1
    assert rouge_l("два кота", "два пса") == 0.5


def test_the_nearest_reference_counts_and_the_mean_is_taken():
    found = measure_overlap(["a b", "a b"], [["x", "a b"], ["a x"]])
    assert found.rouge_l.value == pytest.approx(100 * (1 + 0.5) / 2)


def test_results_are_plain_values():
    written, wanted = some_texts(9)
    values = json.loads(json.dumps(measure_overlap(written, wanted).as_dict(), allow_nan=False))
    intervals = {"bleu_interval", "chrf_interval", "rouge_l_interval"}
    assert set(values) == {"bleu", "chrf", "rouge_l", "texts", "signature"} | intervals


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="1 texts and references for 2"):
        measure_overlap(["a"], [["a"], ["b"]])
    for written, wanted in (([], []), (["a"], [[]])):
        with pytest.raises(UserError, match="to measure"):
            measure_overlap(written, wanted)
