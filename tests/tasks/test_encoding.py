"""Examples as tokens: what each position reads and should say, and what is cut."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.tasks.batching import Buckets, Ragged, concatenate_rows, constant_rows, encode_texts, ragged
from chainrule.tasks.caption import Captioned, encode_captioned
from chainrule.tasks.classify import DELIMITER, EXTRACT, Labelled, encode_labelled
from chainrule.tasks.conllu import Tagged
from chainrule.tasks.examples import label_ids, sort_names
from chainrule.tasks.tag import TagsWithBytes, encode_tagged, word_bytes
from chainrule.tasks.translate import Translated, encode_translated
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import train_tokenizer

PROSE = "the cat sat on the mat and the dog ran away unbelievably fast\n" * 3
HERE = Place("data.tsv", 7)


def made(kind):
    vocab = 300 if kind == "bpe" else None
    return train_tokenizer(Text(tokenizer=kind, min_count=1, vocab=vocab), [PROSE]).with_special([DELIMITER, EXTRACT])


def whole(examples):
    return examples.batch(np.arange(len(examples)), [int(sizes.max()) for sizes in examples.sizes])


ROWS = st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=8)


@given(rows=ROWS, data=st.data())
def test_ragged_rows_are_lists_of_lists(rows, data):
    made = ragged([np.array(row, np.int64) for row in rows])
    assert [made[place].tolist() for place in range(len(made))] == rows
    some = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)), np.int64)
    taken = made.take(some)
    assert [taken[place].tolist() for place in range(len(some))] == [rows[place] for place in some]
    assert made.padded(some, 7, 5).tolist() == [rows[place] + [5] * (7 - len(rows[place])) for place in some]
    both = concatenate_rows([made, constant_rows(7, len(rows)), made])
    assert [both[place].tolist() for place in range(len(rows))] == [[*row, 7, *row] for row in rows]


@given(rows=ROWS, data=st.data())
def test_what_is_kept_is_the_beginning_or_both_ends(rows, data):
    made = ragged([np.array(row, np.int64) for row in rows])
    sizes = np.array([data.draw(st.integers(0, len(row))) for row in rows])
    heads, ends = made.truncated(sizes, ends=False), made.truncated(sizes, ends=True)
    for place, (row, size) in enumerate(zip(rows, sizes.tolist())):
        assert heads[place].tolist() == row[:size]
        tail = size // 2
        assert ends[place].tolist() == row[: size - tail] + row[len(row) - tail :]


def test_no_rows_are_ragged_too():
    empty = ragged([])
    assert (len(empty), len(empty.flat), len(concatenate_rows([empty, empty]))) == (0, 0, 0)
    assert len(encode_texts(made("words"), [])) == 0


def test_encoding_some_at_a_time_changes_nothing(monkeypatch):
    tokenizer, texts = made("bpe"), [*PROSE.split(), "", "naïve\nline"] * 3
    before = encode_texts(tokenizer, texts)
    monkeypatch.setattr("chainrule.tasks.batching.AT_ONCE", 4)
    after = encode_texts(tokenizer, texts)
    assert before.flat.tolist() == after.flat.tolist()
    assert before.ends.tolist() == after.ends.tolist()
    assert [after[place].tolist() for place in range(len(texts))] == [tokenizer.encode(text).tolist() for text in texts]


def test_a_text_of_several_lines_is_one_text_of_words():
    tokenizer = made("words")
    assert encode_texts(tokenizer, ["the cat\nsat\n"])[0].tolist() == tokenizer.encode("the cat sat").tolist()


@pytest.mark.parametrize("kind", ["bytes", "words", "bpe"])
def test_a_classified_text_is_between_the_boundary_and_extract(kind):
    tokenizer = made(kind)
    given = {"the cat": "no", "the dog ran away": "yes", "a": None}
    examples = [Labelled((text,), label, HERE) for text, label in given.items()]
    batch = whole(encode_labelled(examples, tokenizer, ("no", "yes"), None))
    assert batch.targets.tolist() == [0, 1, -1]
    for row, text in enumerate(given):
        real = [0, *tokenizer.encode(text).tolist(), tokenizer.id(EXTRACT)]
        assert batch.tokens[row].tolist() == real + [0] * (batch.tokens.shape[1] - len(real))
        assert batch.lengths[row] == len(real)
    assert batch.tokens.dtype == batch.targets.dtype == batch.lengths.dtype == torch.int64
    assert batch.loss_mask.tolist() == [True, True, False]


def test_pairs_have_a_delimiter_between_them():
    tokenizer = made("words")
    pair = encode_labelled([Labelled(("the cat sat", "the dog"), "a", HERE)], tokenizer, ("a",), None)
    ids = [tokenizer.encode(text).tolist() for text in ("the cat sat", "the dog")]
    wanted = [0, *ids[0], tokenizer.id(DELIMITER), *ids[1], tokenizer.id(EXTRACT)]
    assert whole(pair).tokens.tolist() == [wanted]


def labelled(*texts):
    return [Labelled(texts, "a", HERE)]


@pytest.mark.parametrize(("texts", "limit", "truncate", "kept"), [
    (("a b c d e f",), 6, "true", "a b c d"),
    (("a b c d e f",), 6, "ends", "a b e f"),
    (("a b c d e f",), 7, "ends", "a b c e f"),
    (("a b c d",), 6, "ends", "a b c d"),
    (("a b c d e f", "g h"), 9, "true", "a b c d | g h"),
    (("a b", "c d e f g h"), 9, "ends", "a b | c d g h"),
    (("a b c d e f", "g h i j k l"), 9, "true", "a b c | g h i"),
    (("a b c d e f", "g h i j k l"), 10, "true", "a b c d | g h i"),
])
def test_long_texts_are_cut_the_longer_one_first(texts, limit, truncate, kept):
    words = "a b c d e f g h i j k l"
    tokenizer = train_tokenizer(Text(tokenizer="words", min_count=1), [words]).with_special([DELIMITER, EXTRACT])
    found = encode_labelled(labelled(*texts), tokenizer, ("a",), limit, truncate)
    names = [tokenizer.token(id) for id in whole(found).tokens[0].tolist()[1:-1]]
    assert " ".join(names).replace(DELIMITER, "|") == kept
    assert whole(found).tokens.shape[1] <= limit
    assert len(found.notes) == (" ".join(texts) != kept)


def test_how_much_is_cut_is_said():
    tokenizer = made("words")
    texts = [Labelled(("the " * size,), "a", HERE) for size in (2, 8, 10)]
    found = encode_labelled(texts, tokenizer, ("a",), 7, "true")
    assert found.notes == ("2 of 3 texts are longer than 7 tokens: the beginning is kept, 40.0% is lost",)


def test_a_long_text_is_refused_unless_it_may_be_cut():
    texts = [Labelled(("the cat",), "a", HERE), Labelled(("the " * 9,), "a", Place("data.tsv", 8))]
    with pytest.raises(UserError, match=r"data.tsv line 8 has 11 tokens, and the model holds 10. Take text.trunc"):
        encode_labelled(texts, made("words"), ("a",), 10)
    assert encode_labelled(texts, made("words"), ("a",), 11).notes == ()


def test_a_label_that_training_never_saw_is_named():
    some = [Labelled(("a",), "good", HERE), Labelled(("b",), "awful", Place("data.tsv", 9))]
    with pytest.raises(UserError, match=r"data.tsv line 9 has the label 'awful', which training .* It saw bad, good"):
        encode_labelled(some, made("words"), ("bad", "good"), None)
    with pytest.raises(UserError, match="It saw 0, 1, 2, 3, 4, 5, 6, 7, …"):
        label_ids(["x"], tuple(map(str, range(20))), [HERE], "label")


def test_names_are_in_order():
    assert sort_names(["10", "9", "-1", None, "9"]) == ("-1", "9", "10")
    assert sort_names(["b", "10", "a"]) == ("10", "a", "b")
    assert sort_names(["1", "01", "0", "00"]) == ("0", "00", "01", "1")     # in every process
    assert sort_names(["①", "²"]) == ("²", "①")
    assert sort_names(["--1", "2"]) == ("--1", "2")
    assert sort_names(["9" * 5000, "10"]) == ("10", "9" * 5000)             # Python reads no number of so many digits


def test_texts_of_unlike_number_are_refused():
    with pytest.raises(UserError, match=r"data.tsv line 7 has 2 texts"):
        encode_labelled([*labelled("a"), *labelled("a", "b")], made("words"), ("a",), None)
    with pytest.raises(UserError, match="has 3 texts"):
        encode_labelled(labelled("a", "b", "c"), made("words"), ("a",), None)


def test_a_tokenizer_without_the_special_tokens_is_a_bug():
    plain = train_tokenizer(Text(tokenizer="bytes"), [])
    with pytest.raises(ValueError, match=r"has no special token <\|extract\|>"):
        encode_labelled(labelled("a"), plain, ("a",), None)


@pytest.mark.parametrize("kind", ["bytes", "words", "bpe", "characters"])
def test_the_last_token_of_a_word_has_its_tag(kind):
    tokenizer = made(kind)
    sentences = [Tagged(("the", "unbelievably", "fast"), ("D", "R", "N"), HERE), Tagged(("cat",), ("N",), HERE)]
    batch = whole(encode_tagged(sentences, tokenizer, ("D", "N", "R"), None))
    for row, (sentence, numbers) in enumerate(zip(sentences, ([0, 2, 1], [1]))):
        text = " ".join(sentence.words)
        real = [0, *tokenizer.encode(text).tolist()]
        assert batch.tokens[row].tolist() == real + [0] * (batch.tokens.shape[1] - len(real))
        assert batch.lengths[row] == len(real)
        marks = (batch.targets[row] >= 0).nonzero()[:, 0].tolist()
        assert batch.targets[row, marks].tolist() == numbers
        read = [tokenizer.decode(real[1 : mark + 1]) for mark in marks]
        assert read == [" ".join(sentence.words[: place + 1]) for place in range(len(sentence.words))]
    assert int(batch.loss_mask.sum()) == 4


def test_words_without_tags_have_places():
    found = encode_tagged([Tagged(("the", "cat"), (), HERE)], made("bpe"), ("N",), None)
    assert whole(found).loss_mask.sum() == 0
    assert found.places.lengths.tolist() == [2]


@pytest.mark.parametrize(("truncate", "kept"), [("true", "abc"), ("ends", "abf")])
def test_a_cut_sentence_keeps_the_tags_of_what_is_left(truncate, kept):
    words = "abcdef"
    tokenizer = train_tokenizer(Text(tokenizer="words", min_count=1), [" ".join(words)])
    sentences = [Tagged(tuple(words), tuple(words), HERE), Tagged(("b",), ("b",), HERE)]
    found = encode_tagged(sentences, tokenizer, tuple(words), 4, truncate)
    batch = whole(found)
    assert [row.tolist() for row in found.words] == [list(kept), ["b"]]
    assert [tokenizer.token(id) for id in batch.tokens[0].tolist()[1:]] == list(kept)
    assert [words[tag] for tag in batch.targets[0].tolist()[1:]] == list(kept)
    assert batch.targets[:, 0].tolist() == [-1, -1]
    assert batch.targets[1].tolist() == [-1, 1, -1, -1]
    assert found.notes[0].startswith("1 of 2 texts")


@pytest.mark.parametrize(("truncate", "kept"), [("true", "ab cd ef"), ("ends", "ab cd kl")])
def test_the_letters_of_a_cut_sentence_are_those_of_what_is_left(truncate, kept):
    words = ("ab", "cd", "ef", "gh", "ij", "kl")
    tokenizer = train_tokenizer(Text(tokenizer="words", min_count=1), [" ".join(words)])
    batch = whole(TagsWithBytes(encode_tagged([Tagged(words, (), HERE)], tokenizer, ("N",), 4, truncate)))
    assert [tokenizer.token(id) for id in batch.tokens[0].tolist()[1:]] == kept.split()
    assert torch.equal(batch.source, word_bytes([["", *kept.split()]]))


def test_a_word_without_a_token_is_named(monkeypatch):
    tokenizer = made("words")
    sentences = [Tagged(("the",), ("D",), Place("a", 1)), Tagged(("cat", " ", "sat"), ("N", "X", "V"), Place("a", 3))]
    with pytest.raises(UserError, match="a line 3: the tokenizer has no token for the word ' '"):
        encode_tagged(sentences, tokenizer, ("D", "N", "V", "X"), None)


def test_a_target_is_foretold_from_its_source():
    tokenizer = made("words")
    pairs = [Translated("the cat", ("the dog ran", "never read"), HERE), Translated("the cat sat on", ("away",), HERE)]
    batch = whole(encode_translated(pairs, tokenizer, None))
    cat, sat, dog = (tokenizer.encode(text).tolist() for text in ("the cat", "the cat sat on", "the dog ran"))
    away = tokenizer.encode("away").tolist()
    assert batch.source.tolist() == [[*cat, 0, 0, 0], [*sat, 0]]
    assert batch.source_lengths.tolist() == [3, 5]
    assert batch.tokens.tolist() == [[0, *dog], [0, *away, 0, 0]]
    assert batch.targets.tolist() == [[*dog, 0], [*away, 0, 0, 0]]
    assert batch.lengths.tolist() == [4, 2]
    assert int(batch.loss_mask.sum()) == 6


def test_source_and_target_have_limits_and_tokenizers_of_their_own():
    words, letters = made("words"), made("bytes")
    pair = [Translated("abcdef", ("the cat sat on the mat",), HERE)]
    found = encode_translated(pair, words, 4, "true", source_tokenizer=letters, source_limit=5)
    batch = whole(found)
    assert letters.decode(batch.source[0].tolist()) == "abcd"
    assert words.decode(batch.targets[0].tolist()) == "the cat sat\n"
    assert len(found.notes) == 2
    for limits in ({"limit": 4}, {"limit": None, "source_limit": 2}):
        with pytest.raises(UserError, match="the model holds"):
            encode_translated(pair, words, source_tokenizer=letters, **limits)


def test_unknown_targets_are_empty():
    batch = whole(encode_translated([Translated("the cat", (), HERE)], made("words"), None))
    assert batch.targets.tolist() == [[0]]


def test_vectors_are_padded_with_zeros():
    tokenizer = made("words")
    vectors = [np.ones((2, 3), np.float32), np.full((1, 3), 2, np.float32)]
    some = [Captioned(vector, ("the cat",), HERE) for vector in vectors]
    batch = whole(encode_captioned(some, tokenizer, None))
    assert batch.source.dtype == torch.float32
    assert batch.source.tolist() == [[[1, 1, 1], [1, 1, 1]], [[2, 2, 2], [0, 0, 0]]]
    assert batch.source_lengths.tolist() == [2, 1]
    with pytest.raises(UserError, match="vectors of 4 numbers; the first has 3"):
        encode_captioned([*some, Captioned(np.ones((1, 4), np.float32), ("a",), HERE)], tokenizer, None)


def test_batches_of_examples_come_from_buckets():
    tokenizer = made("words")
    pairs = [Translated("the " * (1 + size % 9), ("cat " * (1 + size % 5),), HERE) for size in range(40)]
    order = Buckets(encode_translated(pairs, tokenizer, None), seed=1, rows=8)
    batch = order.at(3)
    assert len(batch.tokens) == 8
    ids = order.ids(3)
    assert batch.source_lengths.tolist() == [2 + row % 9 for row in ids]
    assert batch.lengths.tolist() == [2 + row % 5 for row in ids]


def test_ragged_begins_where_the_row_before_ends():
    made = Ragged(np.arange(5), np.array([2, 2, 5]))
    assert made.begins.tolist() == [0, 2, 2]
    assert made.lengths.tolist() == [2, 0, 3]
