"""Words found by their spelling are those that splitting and a dictionary find."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.text.tokenizers.words import WordLookup, count_words, find_words

words = st.text(alphabet="abé\x00~漢", min_size=1, max_size=20).map(str.encode)
texts = st.lists(words | st.sampled_from([b" ", b"\n", b"\t", b"\r\n", b"\v", b"\f"])).map(b"".join)


@given(texts)
def test_words_lie_where_split_finds_them(text):
    begins, ends = find_words(text)
    assert [text[begin:end] for begin, end in zip(begins, ends)] == text.split()


@given(st.lists(words, unique=True), texts, st.booleans())
@settings(deadline=None)
def test_a_word_is_found_exactly_when_it_is_in_the_vocabulary(vocabulary, text, crowded):
    spellings = WordLookup(vocabulary)
    if crowded:                                                  # every word wants the same slot
        spellings._slot = lambda head, tail: head.astype("int64") * 0
        spellings.slots[0] = len(vocabulary) - 1
    text = b" ".join([text, *vocabulary[::2]])
    places = {word: place for place, word in enumerate(vocabulary)}
    assert spellings.find(text, *find_words(text)).tolist() == [places.get(word, -1) for word in text.split()]


def test_words_that_share_their_first_and_last_eight_bytes_are_told_apart():
    alike = [b"12345678" + middle + b"12345678" for middle in (b"", b"x", b"y", b"xx")]
    spellings = WordLookup(alike[:3])
    text = b" ".join(alike)
    assert spellings.find(text, *find_words(text)).tolist() == [0, 1, 2, -1]


def test_words_of_any_length_are_told_from_longer_and_shorter_ones():
    """Up to fifteen bytes are compared as two integers; NUL bytes look like the padding of shorter words."""
    alike = [letter * size for letter in (b"a", b"\x00") for size in range(1, 20)]
    text = b" ".join(alike)
    assert WordLookup(alike[::2]).find(text, *find_words(text)).tolist() == [
        place // 2 if place % 2 == 0 else -1 for place in range(len(alike))
    ]


def test_long_words_are_counted_apart_from_words_that_begin_alike():
    text = b" ".join([b"1234567812345678" + end for end in (b"", b"x", b"y", b"x")])
    assert count_words([text, text]) == Counter((text + b" " + text).split())


def test_new_words_are_counted_in_every_slice():
    slices = [b"a b a c ", b"a d e f g b ", b"h a i j k l m ", b"a h m z "]
    assert count_words(slices) == Counter(b"".join(slices).split())


@given(texts)
def test_newlines_are_words_where_they_are_asked_for(text):
    spaced = text.replace(b"\n", b" \n ")
    begins, ends = find_words(spaced, newlines=True)
    wanted = [word for line in text.split(b"\n") for word in [*line.split(), b"\n"]][:-1]
    assert [spaced[begin:end] for begin, end in zip(begins, ends)] == wanted


@given(st.lists(texts))
@settings(deadline=None)
def test_counting_by_look_up_counts_what_is_there(parts):
    wanted = Counter(word for text in parts for word in text.split())
    assert count_words(parts) == wanted
