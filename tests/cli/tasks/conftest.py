"""Small tables of examples, and `chainrule predict` of lines that come by stdin."""

import io
import sys

import pytest
from cli.tasks.small import NUMBERS

REVIEWS = [
    (f"{much} {word} {thing}", label)
    for much in ("a", "this", "the")
    for word, label in (("fine", "good"), ("lovely", "good"), ("dull", "bad"), ("dreadful", "bad"))
    for thing in ("film", "play", "book")
]


@pytest.fixture
def asked(chainrule, monkeypatch):
    """`chainrule predict` of lines that come by stdin."""

    def call(lines, *words):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        return chainrule("predict", *words)

    return call


@pytest.fixture
def reviews(tmp_path):
    lines = "".join(f"{text}\t{label}\n" for text, label in REVIEWS)
    (tmp_path / "reviews.tsv").write_text(f"sentence\tlabel\n{lines}")
    return "reviews.tsv"


@pytest.fixture
def tagged(tmp_path):
    words = {"the": "DET", "a": "DET", "cat": "NOUN", "dog": "NOUN", "sees": "VERB", "runs": "VERB"}
    sentences = [["the", "cat", "runs"], ["a", "dog", "sees", "the", "cat"], ["the", "dog", "runs"]] * 8
    rows = ("\n".join(f"{word}\t{words[word]}" for word in sentence) for sentence in sentences)
    (tmp_path / "tagged.txt").write_text("\n\n".join(rows) + "\n")
    return "tagged.txt"


@pytest.fixture
def numbers(tmp_path):
    rows = [(a, b, c) for a in NUMBERS for b in NUMBERS for c in ("one", "two")]
    (tmp_path / "n.en").write_text("".join(" ".join(row) + "\n" for row in rows))
    (tmp_path / "n.de").write_text("".join(" ".join(NUMBERS[word] for word in row) + "\n" for row in rows))
    return "n.en", "n.de"
