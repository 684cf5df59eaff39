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


@given(st.lists(texts))
@settings(deadline=None)
def test_counting_by_look_up_counts_what_is_there(parts):
    wanted = Counter(word for text in parts for word in text.split())
    assert count_words(parts) == wanted
