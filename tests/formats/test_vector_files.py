"""Files of word vectors: what we write gensim reads, what gensim writes we read, and damage is named."""

import gzip

import numpy as np
import pytest

from chainrule.errors import UserError
from chainrule.formats.vector_files import FORMS, looks_like_vectors, read_vectors, write_vectors
from chainrule.inference.vectors import Vectors

WORDS = ["the", "naïve", "</s>", "3", "1.5", "東京"]
MATRIX = np.random.default_rng(1).normal(size=(len(WORDS), 7)).astype(np.float32)
HERE = Vectors(WORDS, MATRIX)

every_form = pytest.mark.parametrize("form", FORMS)


@pytest.fixture
def gensim():
    return pytest.importorskip("gensim.models").KeyedVectors


@pytest.fixture
def file(tmp_path):
    def write(content, name="vectors"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def keyed(gensim):
    made = gensim(MATRIX.shape[1])
    made.add_vectors(WORDS, MATRIX)
    return made


@every_form
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_what_was_written_is_read_back_to_the_bit(tmp_path, form, suffix):
    path = tmp_path / f"vectors{suffix}"
    write_vectors(HERE, path, form)
    assert looks_like_vectors(path)
    back = read_vectors(path)
    assert back.words == WORDS
    assert np.array_equal(back.matrix, MATRIX)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == (suffix == ".gz")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")    # gensim leaves a file open
@every_form
def test_gensim_reads_what_we_write(tmp_path, gensim, form):
    path = tmp_path / "vectors"
    write_vectors(HERE, path, form)
    there = gensim.load_word2vec_format(str(path), binary=form == "word2vec-binary", no_header=form == "glove")
    assert there.index_to_key == WORDS
    np.testing.assert_array_equal(there.vectors, MATRIX)


@pytest.mark.parametrize(("binary", "header"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_we_read_what_gensim_writes(tmp_path, gensim, binary, header, suffix):
    path = tmp_path / f"vectors{suffix}"
    keyed(gensim).save_word2vec_format(str(path), binary=binary, write_header=header)
    back = read_vectors(path)
    assert list(back.words) == WORDS
    np.testing.assert_array_equal(back.matrix, MATRIX)


def test_binary_files_of_the_first_word2vec_end_each_vector_with_a_newline(file):
    body = b"".join(word.encode() + b" " + row.tobytes() + b"\n" for word, row in zip(WORDS, MATRIX))
    back = read_vectors(file(b"6 7\n" + body))
    assert list(back.words) == WORDS
    assert np.array_equal(back.matrix, MATRIX)


def test_a_word_may_have_spaces_in_it_when_it_is_read(file):
    back = read_vectors(file(b". . . 1 2 3\nat name@domain.com 4 5 6\n"))
    assert (back.words, back.matrix.tolist()) == ([". . .", "at name@domain.com"], [[1, 2, 3], [4, 5, 6]])


def test_of_a_word_that_comes_twice_the_first_counts(file):
    back = read_vectors(file(b"3 2\na 1 2\nb 3 4\na 5 6\n"))
    assert (list(back.words), back.matrix.tolist()) == (["a", "b"], [[1, 2], [3, 4]])


def test_the_last_line_needs_no_end_and_blank_ones_are_passed_over(file):
    assert read_vectors(file(b"a 1 2\n\nb 3 4")).matrix.tolist() == [[1, 2], [3, 4]]
    assert read_vectors(file(b"a 1 2 \r\nb 3 4\r\n")).matrix.tolist() == [[1, 2], [3, 4]]


BROKEN = {
    "empty": (b"", "is empty"),
    "a number is missing": (b"3 2\na 1 2\nb 3\nc 4 5\n", "line 3 is not a word and 2 numbers"),
    "a number is none": (b"a 1 2\nb 3 x\n", "line 2 is not a word and 2 numbers"),
    "too short": (b"3 2\na 1 2\nb 3 4\n", "has 2 vectors, and its first line says 3"),
    "too long": (b"1 2\na 1 2\nb 3 4\n", "has 2 vectors, and its first line says 1"),
    "not UTF-8": (b"a 1 2\n\xff\xfe 3 4\n", r"line 2: b'\\xff\\xfe' is not UTF-8"),
    "binary cut short": (b"2 3\n" + b"a " + bytes(12) + b"b " + bytes(5), "has 1 vectors, and its first line says 2"),
    "binary without a word": (b"2 3\n" + bytes(9000), "has 0 vectors"),
    "a very long row": (b"a" + b" 0.5" * 70_000, "line 1 says that a vector has 70,000 numbers; it has at most 65,536"),
    "a line without end": (b"a " + b"x" * (1 << 23), "line 1 is too long"),
    "a vector of no size": (b"3 99999999999999\na 1\n", "line 1 says that a vector has 99,999,999,999,999 numbers"),
    "more digits than a number has": (b"3 " + b"9" * 5000 + b"\na 1\n", "line 1 is not a word and numbers"),
    "binary not UTF-8": (b"1 3\n\xff " + bytes(12), r"word 1: b'\\xff' is not UTF-8"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_damage_is_one_line_that_names_the_place(file, case):
    content, line = BROKEN[case]
    with pytest.raises(UserError, match=line):
        read_vectors(file(content))


def test_a_packed_file_that_is_damaged_is_named(file):
    with pytest.raises(UserError, match="is damaged and cannot be unpacked"):
        read_vectors(file(gzip.compress(b"".join(b"w%d 1 2\n" % n for n in range(999)))[:900], "vectors.gz"))


@pytest.mark.parametrize("content", [b"", b"\\data\\\nngram 1=3\n", b"hello\n", b"It was a dark night.\n", b"\x00\x01"])
def test_other_files_do_not_look_like_vectors(file, content):
    assert not looks_like_vectors(file(content))
    assert not looks_like_vectors(file(b"x").with_name("nowhere"))


def test_a_word_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UserError, match="'a b' cannot be written"):
        write_vectors(Vectors(["a b"], MATRIX[:1]), tmp_path / "vectors", "glove")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", ["nan", "inf", "1e39"])
def test_vectors_that_are_not_finite_are_refused(number, tmp_path):
    (tmp_path / "n.vec").write_text(f"king 1 2\nqueen 1 {number}\n")
    with pytest.raises(UserError, match=r"n\.vec"):
        read_vectors(tmp_path / "n.vec")
    (tmp_path / "n.bin").write_bytes(b"1 2\nking " + np.array([1, np.inf], "<f4").tobytes() + b"\n")
    with pytest.raises(UserError, match="the vector of word 1, 'king', is not finite"):
        read_vectors(tmp_path / "n.bin")
