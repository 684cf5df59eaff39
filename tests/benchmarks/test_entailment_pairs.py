"""Pairs out of articles: what is said to follow is a part of the text, and what is said not to is none."""

import gzip
import json
import random
import re
import subprocess
import sys
from collections import Counter
from statistics import mean

import pytest
from programs import benchmark, program

from chainrule.tasks.classify import ClassifyText, read_labelled
from chainrule.text.sources import Source

entailment_pairs = benchmark("entailment_pairs")

YES, NO = "entailment", "not_entailment"


def sentence(rng):
    """Of names, numbers and words that no other sentence has, so that no part of it stands elsewhere."""
    spelled = ["".join(rng.choices("bdfgklmnprstvz", k=8)) + rng.choice(["ing", "ed", "ly"]) for _ in range(20)]
    one, other, *words = spelled
    year = rng.randrange(10**6, 10**7)
    begin, then, last = " ".join(words[:6]), " ".join(words[6:12]), " ".join(words[12 : 12 + rng.randrange(1, 7)])
    return rng.choice([
        f"{one.capitalize()} {begin} {year}.",
        f"{one.capitalize()} {begin} {then} {last} {year}.",
        f"{one.capitalize()} {begin}, and {then} {other.capitalize()} {year} because {last}.",
        f"In {year} {begin}, {then} ({last}) {other.capitalize()}.",
        f"{one.capitalize()} {year} {begin}, {then}, {last}, {' '.join(word[::-1] for word in words)}.",
    ])


def article(seed, sentences=21):
    rng = random.Random(f"article {seed}")
    every = [sentence(rng) for _ in range(sentences)]
    return "\n".join(" ".join(every[begin : begin + 7]) for begin in range(0, sentences, 7))


ARTICLES = [article(seed) for seed in range(120)]


def pairs_of(seed):
    rng = random.Random(seed)
    return [pair for one in ARTICLES for pair in entailment_pairs.pairs(one, rng)]


@pytest.fixture(scope="module")
def found():
    return pairs_of(1)


def words_of(text):
    return re.findall(r"\w+", text.lower())


def stands_in(words, text):
    return any(words == text[begin : begin + len(words)] for begin in range(len(text) - len(words) + 1))


def is_part(claim, text):
    """A stretch of one of its sentences, maybe behind how the sentence begins."""
    words = words_of(claim)
    for one in (words_of(one) for one in text.split(". ")):
        if any(words[:cut] == one[:cut] and stands_in(words[cut:], one) for cut in range(len(words))):
            return True
    return False


def test_what_follows_is_a_part_of_the_text_and_what_does_not_is_none(found):
    for text, claim, label in found:
        assert label in (YES, NO)
        if label == YES:
            assert is_part(claim, text), (claim, text)
            assert words_of(claim) != words_of(text)
        else:
            assert not stands_in(words_of(claim), words_of(text)), (claim, text)


def without_one(words):
    """Each way to take one of the words out, which leaves a gap."""
    return {(*words[:place], "", *words[place + 1 :]) for place in range(len(words))}


def test_what_does_not_follow_is_of_this_article_or_one_word_off(found):
    every = [one for text in ARTICLES for one in text.replace("\n", " ").split(". ")]
    pieces = {tuple(words_of(part)) for one in every for part in entailment_pairs.parts(one)}
    nearly = {one for piece in pieces for one in without_one(piece)}
    kinds = Counter()
    for _, claim, label in found:
        words = tuple(words_of(claim))
        if label == NO:
            kinds["whole" if words in pieces else "one word off" if nearly & without_one(words) else claim] += 1
    assert set(kinds) == {"whole", "one word off"}
    assert min(kinds.values()) > 0.3 * kinds.total()


def test_both_labels_come_about_equally_often(found):
    counts = Counter(label for _, _, label in found)
    assert len(found) > 500
    assert abs(counts[YES] / len(found) - 0.5) < 0.07
    sizes = {label: [len(claim.split()) for _, claim, other in found if other == label] for label in (YES, NO)}
    assert abs(mean(sizes[YES]) - mean(sizes[NO])) < 1                      # their length does not give them away


def test_texts_and_what_is_told_of_them_are_neither_short_nor_long(found):
    for text, claim, _ in found:
        assert 15 <= len(text.split()) <= 90
        assert 5 <= len(claim.split()) <= 18
        assert claim[0].isupper() or claim[0].isdigit()
        assert claim.endswith(".")
    assert {text.count(". ") for text, _, _ in found} == {0, 1, 2}         # one to three sentences


def test_each_sentence_is_in_one_text():
    sentences = [f"{number} {'word ' * 15}" for number in range(50)]
    texts = list(entailment_pairs.texts(sentences, random.Random(1)))
    assert [one for some in texts for one in some] == sentences
    assert {len(some) for some in texts} == {1, 2, 3}
    assert list(entailment_pairs.texts(["short " * 14, "long " * 91], random.Random(2))) == []


def test_the_same_seed_gives_the_same_pairs(found):
    assert pairs_of(1) == found != pairs_of(2)


def test_an_article_of_few_sentences_has_no_pairs():
    assert list(entailment_pairs.pairs(article(1, 5), random.Random(1))) == []
    assert list(entailment_pairs.pairs(article(1), random.Random(1)))
    assert list(entailment_pairs.pairs(article(1).replace(". ", ".\n"), random.Random(1))) == []


@pytest.mark.parametrize(("whole", "wanted"), [
    ("One two three four five, six seven.", ["One two three four five.", "One two three four five six seven."]),
    ("It was cold there (as it often is in May) and nobody came.", [
        "As it often is in May.", "It was cold there as it often is in May.", "It was cold there nobody came."]),
    ("Too short, all of it.", ["Too short all of it."]),
    ("He left.", []),
])
def test_parts_stand_between_commas_and_behind_the_beginning(whole, wanted):
    assert entailment_pairs.parts(whole) == wanted


def test_another_word_is_one_of_the_same_sort_that_is_not_there():
    claim = "Anna moved to Paris in 1912 with paintings."
    words = ["1912", "1914", "Anna", "Berlin", "drawings", "small"]
    wrong = {entailment_pairs.with_another(claim, words, random.Random(seed)) for seed in range(40)}
    assert wrong == {claim.replace("Paris", "Berlin"), claim.replace("1912", "1914"),
                     claim.replace("paintings", "drawings")}
    assert entailment_pairs.with_another(claim, ["Anna", "small"], random.Random(1)) is None


def test_a_shorter_text_keeps_its_ends_and_the_order_of_its_words():
    claim = " ".join(map(str, range(2000)))
    words = entailment_pairs.shorter(claim, random.Random(1)).split()
    assert (words[0], words[-1]) == ("0", "1999")
    assert sorted(map(int, words)) == list(map(int, words))
    assert 0.12 < 1 - len(words) / 2000 < 0.18
    assert entailment_pairs.shorter("alone.", random.Random(1)) == "alone."


def run(*words):
    command = [sys.executable, program("entailment_pairs"), *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_program_writes_a_table_to_classify(tmp_path):
    articles = (f"Title\n\n{one}\n".replace(", ", ",\t ") for one in ARTICLES[:4])
    lines = "".join(json.dumps({"text": one}) + "\n" for one in articles)
    (tmp_path / "wiki.jsonl").write_text(lines)
    (tmp_path / "wiki.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    answer = run(tmp_path / "wiki.jsonl", "--out", tmp_path / "pairs.tsv")
    assert answer.returncode == 0, answer.stderr
    found = list(read_labelled(Source(tmp_path / "pairs.tsv"), ClassifyText()))
    assert answer.stdout == f"{len(found)} pairs\n"
    assert len(found) > 20
    assert {one.label for one in found} == {YES, NO}
    for text, part in (one.texts for one in found if one.label == YES):
        rest = iter(words_of(text))
        assert all(word in rest for word in words_of(part))                 # in order, some left out
    tables = {}
    for name, source, seed in (("same", "wiki.jsonl.gz", "1"), ("other", "wiki.jsonl", "2")):
        run(tmp_path / source, "--out", tmp_path / name, "--seed", seed)
        tables[name] = (tmp_path / name).read_text()
    assert tables["same"] == (tmp_path / "pairs.tsv").read_text() != tables["other"]


def test_articles_that_are_not_there_are_one_line(tmp_path):
    answer = run(tmp_path / "absent.jsonl", "--out", tmp_path / "pairs.tsv")
    assert answer.returncode == 2
    assert "absent.jsonl; benchmarks/corpora/wiki_text.py writes such articles." in answer.stderr.splitlines()[-1]
    assert not (tmp_path / "pairs.tsv").exists()
