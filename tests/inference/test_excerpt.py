"""Excerpts: where they begin, and the bits of their tokens."""

import numpy as np
import pytest
from test_statistics import TEXT, bigram, split, stream, units

from chainrule.inference.statistics import score_split
from chainrule.inference.text_score import LENGTH, Excerpt, excerpt_bits, pieces_with_bits


def test_an_excerpt_begins_with_a_line_and_its_prompt_ends_with_a_word():
    whole = "x" * 120 + "\nthe quick brown fox jumps over the lazy dog\n" + "y" * 200
    excerpt = Excerpt.of("é" * 3 + whole)
    assert excerpt.text.startswith("the quick")
    assert ("é" * 3 + whole).encode()[excerpt.begin : excerpt.end].decode() == excerpt.text
    assert excerpt.prompt == "the quick brown fox jumps over "


def test_an_excerpt_of_text_without_lines_or_words():
    excerpt = Excerpt.of("ab" * 9000)
    assert (excerpt.begin, len(excerpt.text), len(excerpt.prompt)) == (6000, LENGTH, 32)


@pytest.mark.parametrize("name", ["bytes", "characters", "bpe"])
def test_the_tokens_of_an_excerpt_have_their_bits(name):
    tokenizer, text = units(name), TEXT * 3
    made = score_split(bigram(TEXT, tokenizer), tokenizer, split(tokenizer, text))
    excerpt = Excerpt.of(text)
    shown = excerpt_bits(excerpt, made, tokenizer, stream(tokenizer, text)[1:])
    spelled = "".join(piece for piece, _ in shown.pieces)
    assert spelled in excerpt.text
    assert len(spelled) > len(excerpt.text) - 20
    assert text.encode()[shown.begin :].decode().startswith(spelled)
    places = (made.ends > shown.begin) & (made.ends <= shown.begin + len(spelled.encode()))
    assert sum(bits for _, bits in shown.pieces) == pytest.approx(made.bits[places].sum(), abs=12)


def test_tokens_without_text_of_their_own_count_to_the_next():
    tokenizer = units("bytes")
    shown = pieces_with_bits(tokenizer, tokenizer.encode("aé").tolist(), np.array([1.0, 2, 4]))
    assert shown == [("a", 1.0), ("é", 6.0)]
