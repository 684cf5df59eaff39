"""The special tokens of a task: after all others, in the tokenizer.json, and no text can spell them."""

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFace
from tokenizers import models, pre_tokenizers

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer

NAMES = ("<|mask|>", "<|delimiter|>", "<|span12|>")
PROSE = "the cat <|mask|> <|> sat on <|mask|> a mat <|delimiter|> naïve <|> <||> \n[MASK] 日本 the cat <|>\n" * 4
KINDS = ("bytes", "characters", "words", "bpe", "pretrained")
TEXTS = st.lists(st.sampled_from([*NAMES, "<|", "|>", "mask", "the", " ", "\n", "é"]), max_size=9).map("".join)


@cache
def plain(kind: str) -> Tokenizer:
    if kind == "pretrained":
        words = HuggingFace(models.WordLevel({"the": 0, "cat": 1, "[UNK]": 2, "</s>": 3}, unk_token="[UNK]"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return loaded(words.to_str())
    return train_tokenizer(Text(tokenizer=kind, min_count=1, vocab=400 if kind == "bpe" else None), [PROSE])


@cache
def special(kind: str) -> Tokenizer:
    return plain(kind).with_special(NAMES)


def loaded(file: str) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(file)
        return Tokenizer.load(path)


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_come_behind_all_others(kind):
    before, after = plain(kind), special(kind)
    assert [after.id(name) for name in NAMES] == [len(before), len(before) + 1, len(before) + 2]
    assert [after.token(id) for id in range(len(before))] == [before.token(id) for id in range(len(before))]
    assert [after.show(after.id(name)) for name in NAMES] == list(NAMES)
    assert len(after) == len(before) + 3
    assert after.sha256 != before.sha256


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_no_text_spells_a_special_token(kind, text):
    before, after = plain(kind), special(kind)
    assert after.encode(text).tolist() == before.encode(text).tolist()
    assert max(after.encode(text), default=0) < len(before)


@pytest.mark.parametrize("kind", KINDS[:4])
@given(text=TEXTS)
def test_hugging_face_reads_the_same_file_the_same_way(kind, text):
    judge = HuggingFace.from_str(special(kind)._file)
    assert judge.encode(text).ids == special(kind).encode(text).tolist()
    assert judge.get_vocab_size() == len(special(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_kept_in_the_file(kind, tmp_path):
    special(kind).save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (again.unit, again.sha256, len(again)) == (kind, special(kind).sha256, len(special(kind)))
    assert [again.id(name) for name in NAMES] == [special(kind).id(name) for name in NAMES]


@pytest.mark.parametrize("kind", KINDS)
def test_adding_twice_adds_once(kind):
    assert special(kind).with_special(NAMES[:2]) is special(kind)
    more = special(kind).with_special(["<|mask|>", "<|extract|>", "<|extract|>"])
    assert more.id("<|extract|>") == len(special(kind)) == len(more) - 1


@pytest.mark.parametrize("kind", KINDS[:4])
def test_special_tokens_are_no_part_of_a_text(kind):
    made = special(kind)
    ids = made.encode("the cat").tolist()
    between = [made.id("<|mask|>"), *ids, made.id("<|span12|>")]
    assert made.decode(between) == made.decode(ids) == "the cat"
    pieces = made.stream_decoder()
    assert "".join(map(pieces.feed, between)) + pieces.finish() == "the cat"
    assert made.lossless == plain(kind).lossless


@pytest.mark.parametrize("name", ["mask", "<|>", "<||>", "<|a b|>", "[MASK]"])
def test_a_name_that_a_text_could_spell_is_refused(name):
    with pytest.raises(ValueError, match="not a name of a special token"):
        plain("bpe").with_special([name])


def test_a_pretrained_vocabulary_with_gaps_takes_none():
    spec = json.loads(plain("pretrained")._file)
    spec["model"]["vocab"]["far"] = 40
    with pytest.raises(UserError, match="gaps between its ids"):
        Tokenizer.from_spec(spec).with_special(NAMES)
