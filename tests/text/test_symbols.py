"""A closed alphabet: the vocabulary is exactly the characters of the text, and there is no boundary."""

import numpy as np
import pytest
from tokenizers import Tokenizer as Reference

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.text.corpus import prepare
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer

SYMBOLS = Text(tokenizer="symbols")


def test_a_binary_text_has_a_vocabulary_of_two_and_nothing_else():
    made = train_tokenizer(SYMBOLS, ["1000", "1010\n"])
    assert (len(made), [made.token(id) for id in range(2)], made.boundary) == (2, ["0", "1"], "none")
    assert made.encode("0110").tolist() == made.encode("0110\n").tolist() == [0, 1, 1, 0]
    assert made.decode([0, 1, 1, 0]) == "0110"
    assert made.framed("11").tolist() == [0, 1, 1]                       # begins as if after id 0, and has no end


def test_the_file_is_one_that_tokenizers_reads_with_the_same_ids(tmp_path):
    made = train_tokenizer(SYMBOLS, ["a b\nb a\nc"])
    path = tmp_path / "tokenizer.json"
    made.save(path)
    loaded, reference = Tokenizer.load(path), Reference.from_file(str(path))
    assert (loaded.unit, loaded.boundary, len(loaded)) == ("symbols", "none", 5)
    for text in ("a", "c\nb", " ab \n\n"):
        assert loaded.encode(text).tolist() == reference.encode(text).ids
        assert loaded.decode(loaded.encode(text)) == text == reference.decode(reference.encode(text).ids)


def test_a_newline_that_only_ends_the_file_is_no_symbol_and_others_are():
    assert len(train_tokenizer(SYMBOLS, ["01\n"])) == 2
    made = train_tokenizer(SYMBOLS, ["01\n", "10\n"])
    assert len(made) == 3
    assert made.decode(made.encode("01\n")) == "01\n"


def test_a_corpus_has_as_many_targets_as_characters(tmp_path):
    (tmp_path / "a.txt").write_text("0110")
    (tmp_path / "b.txt").write_text("1001\n")
    corpus = prepare([str(tmp_path / "*.txt")], Text(tokenizer="symbols", held_out=0), cache=tmp_path / "cache")
    assert np.asarray(corpus.splits["train"].tokens).tolist() == [0, 0, 1, 1, 0, 1, 0, 0, 1]


def test_what_is_outside_the_alphabet_is_named():
    made = train_tokenizer(SYMBOLS, ["0101"])
    with pytest.raises(UserError, match="'2' is not one of the 2 symbols of the model: 0 1"):
        made.encode("012")
    with pytest.raises(UserError, match="2 to 256 characters, and this text has 1"):
        train_tokenizer(SYMBOLS, ["0000"])
    with pytest.raises(UserError, match=r"text.vocab=5 cannot be combined"):
        train_tokenizer(Text(tokenizer="symbols", vocab=5), ["01"])
    with pytest.raises(UserError, match="special tokens"):
        made.with_special(["<|mask|>"])
