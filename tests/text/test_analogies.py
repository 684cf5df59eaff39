"""Files of analogies and of similarities, in the forms in which they are handed round."""

import gzip

import pytest

from chainrule.errors import UserError
from chainrule.text.analogies import Analogies, Similarities, read_word_test


@pytest.fixture
def read(tmp_path):
    def read(text, name="test.txt"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return read_word_test(path)

    return read


def test_analogies_have_sections(read):
    test = read(": capitals\nAthens Greece Oslo Norway\n\n: family\nboy girl he she\r\nhe she man woman\n")
    assert test.sections == ("capitals", "family", "family")
    assert test.questions[1] == ("boy", "girl", "he", "she")


def test_analogies_without_sections_are_known_by_their_four_words(read):
    assert read("boy girl he she\n") == Analogies(("",), (("boy", "girl", "he", "she"),))


@pytest.mark.parametrize("text", [
    "# WordSim\n# Word 1\tWord 2\tHuman (mean)\ntiger\tcat\t7.35\nold\tnew\t1.58\n",
    "Word 1,Word 2,Human (mean)\ntiger,cat,7.35\nold,new,1.58\n",
    "word1\tword2\tPOS\tSimLex999\tconc(w1)\ntiger\tcat\tN\t7.35\t1\nold\tnew\tA\t1.58\t2\n",
    "tiger cat 7.35\nold  new 1.58",
    "tiger;cat;7.35\r\nold;new;1.58\r\n",
])
def test_pairs_come_with_tabs_commas_or_spaces_and_perhaps_a_header(read, text):
    assert read(text) == Similarities((("tiger", "cat"), ("old", "new")), (7.35, 1.58))


def test_packed_files_are_read(read):
    assert read("tiger\tcat\t7.35\n", "pairs.tsv.gz").scores == (7.35,)


@pytest.mark.parametrize(("text", "line"), [
    ("", "is empty"),
    ("# a comment\n\n", "is empty"),
    (": only\n", "has no questions"),
    (": a\nboy girl he\n", r"line 2 has 3 words; an analogy has four"),
    ("boy girl he she\nboy girl\n", r"line 2 has 2 words"),
    ("tiger\tcat\t7\nold\tnew\tvery\n", r"line 2 is not two words and a score"),
    ("It was a dark and stormy night.\n", r"line 1 is not a word test"),
])
def test_another_file_is_refused_with_its_line(read, text, line):
    with pytest.raises(UserError, match=line):
        read(text)
