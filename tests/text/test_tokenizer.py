"""Every text comes back, every fast path gives the ids of Hugging Face's own, and no text can spell the boundary."""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFace

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.text.tokenizers import bpe
from chainrule.text.tokenizers import tokenizer as module
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer

PROSE = (
    "The cat sat on the mat, and the cat's hat was 12345 years old.\n\nDON'T say “naïve café”!  Say:\r\n"
    "\tfor x in range(10): print(x)   # 日本語 and ελληνικά\n<|endoftext|> </s> <s> <unk>\nthe end the end the\n"
) * 3
LOSSLESS = ("bytes", "characters", "bpe")
KINDS = (*LOSSLESS, "words")

# what splits, joins, looks like white space to one library and not to another, or is written in several bytes
TRICKY = st.sampled_from([
    "a", "the", "B", "é", "日", "。", "€", "\u3000", "\xa0", " ", " ", "  ", "\t", "\n", "\n", "\r\n", "\r",
    "'s", "'LL", "1", "234", "٣", "²", "\x01", "\x1c", "\x85", "\u2028", "!", ".", "...", "_", "\u0301", "'", "ſ", "👍",
    "\x7f", "\v", "\f", "<0x41>", "<|endoftext|>", "</s>", "<s>", "<unk>", "\0", "\ufeff",
])
TEXTS = st.lists(TRICKY, max_size=14).map("".join) | st.text(max_size=40)


@cache
def made(kind: str) -> Tokenizer:
    return train_tokenizer(Text(tokenizer=kind, vocab=400 if kind == "bpe" else None), [PROSE])


@cache
def judge(kind: str) -> HuggingFace:
    return HuggingFace.from_str(made(kind)._file)


@pytest.mark.parametrize("kind", LOSSLESS)
@given(text=TEXTS)
def test_every_text_comes_back(kind, text):
    assert made(kind).lossless
    assert made(kind).decode(made(kind).encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300)
@given(text=TEXTS)
def test_the_ids_are_hugging_faces_own(kind, text):
    ids = made(kind).encode(text)
    assert ids.dtype == np.uint32
    assert ids.tolist() == judge(kind).encode(text).ids
    assert [part.tolist() for part in made(kind).encode_many([text, text])] == [ids.tolist()] * 2


@pytest.mark.parametrize("kind", LOSSLESS)
@given(text=TEXTS)
def test_no_text_spells_the_boundary(kind, text):
    assert 0 not in made(kind).encode(text + "<|endoftext|></s><s>" + text)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, data=st.data())
def test_chunks_change_no_token(kind, text, data):
    """Cut anywhere, and looked through after every few characters."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    chunks = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", 3)
        patch.setattr(bpe, "SLICE", 4)
        patch.setattr(bpe, "LONGEST_MATCH", 4)
        parts = list(made(kind).encode_chunks(chunks))
    assert np.concatenate(parts).tolist() == judge(kind).encode(text).ids


def test_spaces_before_a_cut_are_split_as_without_it(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 3)
    monkeypatch.setattr(bpe, "SLICE", 4)
    monkeypatch.setattr(bpe, "LONGEST_MATCH", 4)
    text = "aaa \u2028<0x41>"
    assert np.concatenate(list(made("bpe").encode_chunks([text]))).tolist() == judge("bpe").encode(text).ids


def split(text):
    """What the split of byte-level BPE gives, before any piece is looked up."""
    return [piece for piece, _ in judge("bpe").pre_tokenizer.pre_tokenize_str(text)]


@settings(max_examples=300)
@given(text=TEXTS)
def test_a_match_ends_wherever_it_is_easy_to_cut(text):
    for found in bpe.EASY_CUT.finditer(text):
        assert split(text[: found.start()]) + split(text[found.start() :]) == split(text)


@settings(max_examples=300)
@given(text=TEXTS)
def test_our_own_split_is_theirs(text):
    matches = bpe.ASCII_SPLIT.findall(text)
    assert [piece for match in matches for piece in split(match)] == split(text)
    assert all(len(split(match)) == 1 for match in matches if match.isascii())


def test_a_long_run_without_an_easy_cut_is_cut_all_the_same(monkeypatch):
    text = "xyz" * 3000 + "日本" * 2000 + " " * 3000 + "!" * 3000
    whole = judge("bpe").encode(text).ids
    monkeypatch.setattr(module, "CHUNK", 1000)
    parts = list(made("bpe").encode_chunks([text]))
    assert np.concatenate(parts).tolist() == whole
    assert max(map(len, parts)) < len(whole) / 4


def test_mostly_foreign_text_takes_the_other_road():
    text = "日本語 中文 ελληνικά " * 50
    assert made("bpe").encode(text).tolist() == judge("bpe").encode(text).ids


def test_the_cache_of_matches_is_bounded(monkeypatch):
    monkeypatch.setattr(bpe, "CACHED", 4)
    tokenizer = train_tokenizer(Text(tokenizer="bpe", vocab=300), [PROSE])
    assert tokenizer.encode(PROSE).tolist() == HuggingFace.from_str(tokenizer._file).encode(PROSE).ids
    assert len(tokenizer._unit.matches) <= 4


def test_bytes_are_bytes_plus_one():
    assert made("bytes").encode("aé\0").tolist() == [98, 0xC3 + 1, 0xA9 + 1, 1]
    assert len(made("bytes")) == 257


def test_characters_stand_in_the_order_of_their_counts():
    tokenizer = train_tokenizer(Text(tokenizer="characters"), ["abbccc", "dc"])
    assert [tokenizer.token(id) for id in range(257, 261)] == ["c", "b", "a", "d"]
    assert tokenizer.encode("cé").tolist() == [257, 0xC3 + 1, 0xA9 + 1]
    assert len(train_tokenizer(Text(tokenizer="characters", vocab=259), ["abbccc"])) == 259


def test_words_by_count_then_alphabet():
    chunks = ["b a b a c\n", "d d d </s> </s> <s> <s> <unk> <unk>"]
    tokenizer = train_tokenizer(Text(tokenizer="words", min_count=2), chunks)
    assert [tokenizer.token(id) for id in range(len(tokenizer))] == ["</s>", "<unk>", "d", "a", "b"]
    assert tokenizer.encode("a c </s> <s> <unk> d").tolist() == [3, 1, 1, 1, 1, 2]
    assert len(train_tokenizer(Text(tokenizer="words", vocab=3), ["b a b a d d d"])) == 3
    assert not tokenizer.lossless
    assert tokenizer.lines


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a b\n", [2, 3]), ("a b", [2, 3]), ("a\n\nb", [2, 0, 0, 3]), ("a\r\nb\r\n", [2, 0, 3]), ("", []), ("\n", []),
        ("\n\n", [0]), ("  a \t b  ", [2, 3]), ("\na", [0, 2]), ("a\xa0b", [1]),
    ],
)
def test_lines_are_texts(text, ids, monkeypatch):
    tokenizer = train_tokenizer(Text(tokenizer="words", min_count=1), ["a a b"])
    assert tokenizer.encode(text).tolist() == ids
    assert tokenizer.encode_many([text])[0].tolist() == ids
    for chunk in (1, 2, 3):
        monkeypatch.setattr(module, "CHUNK", chunk)
        assert tokenizer.encode(text).tolist() == ids


def test_words_come_back_as_lines():
    tokenizer = train_tokenizer(Text(tokenizer="words", min_count=1), ["a a b"])
    assert tokenizer.decode([2, 3, 0, 0, 1, 2]) == "a b\n\n<unk> a"


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_the_same(kind, tmp_path):
    made(kind).save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.unit == kind
    assert loaded.sha256 == made(kind).sha256
    assert len(loaded) == len(made(kind)) == HuggingFace.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size()
    assert loaded.encode(PROSE).tolist() == made(kind).encode(PROSE).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_single_words_and_lead_back(kind):
    tokenizer = made(kind)
    for id in range(len(tokenizer)):
        assert tokenizer.token(id).split() == [tokenizer.token(id)]
        assert tokenizer.id(tokenizer.token(id)) == id
        assert tokenizer.show(id)
    assert tokenizer.id("no such token") is None


def test_people_see_the_white_space():
    assert made("bytes").show(ord(" ") + 1) == "·"
    assert made("bytes").show(ord("\n") + 1) == "↵"
    assert made("bytes").show(0xE6 + 1) == "\\xe6"
    assert made("bytes").show(0) == "<|endoftext|>"
    assert made("bytes").show(2) == "\\u{1}"
    assert made("characters").token(made("characters").encode("\n")[0]) == "<U+000A>"


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_streaming_gives_the_same_text(kind, text):
    ids = made(kind).encode(text).tolist()
    pieces = made(kind).stream_decoder()
    assert "".join(map(pieces.feed, ids)) + pieces.finish() == made(kind).decode(ids)


def test_a_character_is_streamed_when_it_is_whole():
    pieces = made("bytes").stream_decoder()
    assert [pieces.feed(byte + 1) for byte in "é!".encode()] == ["", "é", "!"]
    pieces.feed(0xE6 + 1)
    assert pieces.finish() == "\ufffd"


def test_learning_twice_learns_the_same():
    again = train_tokenizer(Text(tokenizer="bpe", vocab=400), [PROSE])
    assert again.sha256 == made("bpe").sha256


def test_the_vocabulary_fits_the_text():
    sizes = {0: 512, 10_000: 512, 10**6: 1024, 10**8: 8192, 10**9: 32768, 10**12: 32768}
    assert {size: bpe.fitting_vocab(size) for size in sizes} == sizes
    assert len(train_tokenizer(Text(tokenizer="bpe", vocab=257), [PROSE])) == 257


def test_more_ids_than_a_text_can_have_take_no_memory(monkeypatch):
    wanted = []
    trainer = bpe.trainers.BpeTrainer
    monkeypatch.setattr(bpe.trainers, "BpeTrainer",
                        lambda **given: wanted.append(given["vocab_size"]) or trainer(**given))
    whole = train_tokenizer(Text(tokenizer="bpe", vocab=1 << 24), ["ab ab ab"])
    assert len(whole) == len(train_tokenizer(Text(tokenizer="bpe", vocab=300), ["ab ab ab"]))
    assert max(wanted) < 300


def test_a_large_text_is_sampled_evenly():
    sample, characters = bpe.even_sample((str(number) * 10 for number in range(10)), 50)
    assert characters == 100
    assert [piece[0] for piece in sample] == ["0", "2", "4", "6", "8"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Text(tokenizer="byte"), "Did you mean bytes?"),
        (Text(tokenizer="qqq"), "one of bytes, characters, words, bpe"),
        (Text(tokenizer="none/tokenizer.json"), "no tokenizer at none/tokenizer.json"),
        (Text(tokenizer="bytes", vocab=9), "Remove text.vocab"),
        (Text(tokenizer="bpe", vocab=9), "too small for bpe"),
        (Text(tokenizer="characters", vocab=9), "too small for characters"),
        (Text(tokenizer="words", vocab=2), "too small"),
        (Text(tokenizer="words", min_count=99), "text.min_count=1"),
    ],
)
def test_settings_that_cannot_be_combined_are_refused(wanted, said):
    with pytest.raises(UserError, match=said) as caught:
        train_tokenizer(wanted, ["a few words"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["not json", "[]", '{"model": 1}', json.dumps({"model": {"vocab": {}}}), "\x00"])
def test_a_file_that_is_no_tokenizer_is_refused(content, tmp_path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match="not a tokenizer") as caught:
        Tokenizer.load(tmp_path / "x.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_surrogate_pair_is_refused(kind):
    with pytest.raises(UserError, match="surrogate"):
        made(kind).encode("a\ud800")
    with pytest.raises(UserError, match="surrogate"):
        made(kind).encode_many(["a\ud800"])


def test_many_texts_of_which_one_is_long(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 5)
    texts = ["short", "a longer text\nof two lines\n", ""]
    for kind in KINDS:
        wanted = [judge(kind).encode(text).ids for text in texts]
        assert [ids.tolist() for ids in made(kind).encode_many(texts)] == wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], [""], ["a", "", "the cat"], ["a\nthe", ""], ["a\n"], ["", ""]])
def test_a_stream_of_texts_has_a_boundary_around_each(kind, texts):
    stream, ends = made(kind).encode_stream(texts)
    parts = [made(kind).encode(text).tolist() for text in texts]
    assert stream.tolist() == [0, *(id for part in parts for id in [*part, 0])]
    assert ends.tolist() == [sum(len(part) + 1 for part in parts[: place + 1]) for place in range(len(parts))]


def test_the_page_tells_the_truth():
    page = (Path(__file__).parents[2] / "docs/training/text.md").read_text()
    (session,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(session, {})


@pytest.mark.parametrize("ids", ["a gap", "twice"])
def test_ids_taken_out_of_a_file_are_missed(tmp_path, ids):
    spec = made("characters").spec()
    vocab = spec["model"]["vocab"]
    names = list(vocab)
    if ids == "a gap":
        del vocab[names[3]]
    else:
        vocab[names[4]] = 3
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(UserError, match="has no token with the id"):
        Tokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("far", [0, 100, 511, 512, 513, 700, 2000])
def test_a_long_word_is_split_as_by_the_library_wherever_it_leaves_ascii(far):
    text = "a b" + "xyz" * 400 + " " * 3 + "q" * far + "é" + "z" * 300 + " end.\n" + " " * far + "ü9"
    assert made("bpe").encode(text).tolist() == judge("bpe").encode(text).ids


def test_a_word_is_looked_through_only_as_far_as_a_match_is_long():
    """Else a text of one word takes quadratic time."""
    assert bpe.ASCII_SPLIT.findall("x" * 2000 + "é")[:2] == ["x" * 128] * 2


@pytest.mark.parametrize(("text", "kept"), [("a a b\n", False), ("a a b <unk>\n", True)])
def test_a_text_that_holds_unk_keeps_its_rare_words(text, kept):
    tokenizer = train_tokenizer(Text(tokenizer="words"), [text])
    assert (tokenizer.id("b") is not None or "b" in tokenizer.decode(tokenizer.encode("b"))) == kept
    again = train_tokenizer(Text(tokenizer="words", min_count=2), [text])
    assert "b" not in again.decode(again.encode("b"))


def test_a_text_in_which_no_word_comes_twice_is_answered_with_what_reads_it():
    with pytest.raises(UserError, match=r"for a language without spaces, text\.tokenizer=characters"):
        train_tokenizer(Text(tokenizer="words", min_count=2), ["今天天气很好。"])
