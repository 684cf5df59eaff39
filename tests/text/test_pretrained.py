"""Tokenizers made by others: their boundary moves to id 0, and no other id changes."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as HuggingFace
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.text.tokenizers import pretrained
from chainrule.text.tokenizers import tokenizer as module
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer

PROSE = "Hello there, how are you today? I'm fine: 12 + 30 = 42.\nThe end of it all, “naïve”.\n" * 5


def byte_level(special):
    given = HuggingFace(models.BPE())
    given.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    given.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    given.train_from_iterator([PROSE], trainer)
    given.add_special_tokens(special)
    return given


def unigram():
    given = HuggingFace(models.Unigram())
    given.pre_tokenizer = pre_tokenizers.Metaspace()
    given.decoder = decoders.Metaspace()
    names = ["<unk>", "<pad>", "</s>"]
    trainer = trainers.UnigramTrainer(vocab_size=80, special_tokens=names, unk_token="<unk>", show_progress=False)
    given.train_from_iterator([PROSE], trainer)
    return given


def word_piece():
    given = HuggingFace(models.WordPiece(unk_token="[UNK]"))
    given.normalizer = normalizers.Lowercase()
    given.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=names, show_progress=False)
    given.train_from_iterator([PROSE], trainer)
    given.post_processor = processors.TemplateProcessing("[CLS] $0 [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return given


def sentence_piece():
    """As Llama 2: no pre-tokenizer, and a space put before every text."""
    given = byte_level(["</s>"])
    given.normalizer = normalizers.Prepend("_")
    return given


MAKERS = {
    "at the end": lambda: byte_level(["<pad>", "<|endoftext|>"]),
    "nowhere": lambda: byte_level([]),
    "a beginning": lambda: byte_level(["<s>"]),
    "unigram": unigram,
    "word piece": word_piece,
    "sentence piece": sentence_piece,
}


@pytest.fixture(params=MAKERS)
def pair(request, tmp_path):
    given = MAKERS[request.param]()
    given.save(str(tmp_path / "given.json"))
    return given, Tokenizer.load(tmp_path / "given.json")


def moved(given):
    return Tokenizer.from_spec(pretrained.with_boundary_first(json.loads(given.to_str())))


def test_only_the_boundary_moves(pair):
    given, ours = pair
    assert ours.unit == "pretrained"
    text = PROSE + "日"                                   # which some of them do not know
    theirs = [given.id_to_token(id) for id in given.encode(text, add_special_tokens=False).ids]
    saved = HuggingFace.from_str(ours._file)
    assert [saved.id_to_token(id) for id in ours.encode(text).tolist()] == theirs
    assert ours.encode_many([PROSE])[0].tolist() == ours.encode(PROSE).tolist()


def test_the_saved_file_has_the_boundary_at_zero(pair, tmp_path):
    _, ours = pair
    ours.save(tmp_path / "tokenizer.json")
    saved = HuggingFace.from_file(str(tmp_path / "tokenizer.json"))
    assert saved.id_to_token(0) in pretrained.ENDS + pretrained.BEGINNINGS
    assert sorted(saved.get_vocab().values()) == list(range(len(ours)))
    assert saved.encode(PROSE).ids == ours.encode(PROSE).tolist()
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.sha256 == ours.sha256
    assert again.unit == "pretrained"


def test_no_text_spells_the_boundary_of_a_pretrained_tokenizer(pair):
    _, ours = pair
    name = ours.token(0)
    for text in (name, f"a {name} b", name * 3, f"{name}\n{name}"):
        assert 0 not in ours.encode(text)
        if ours.lossless:
            assert ours.decode(ours.encode(text)) == text


def test_no_text_spells_another_special_token():
    ours = moved(byte_level(["<pad>", "<|endoftext|>"]))
    assert ours.id("<pad>") not in ours.encode("a <pad> b")


def test_what_is_lossless_is_found_by_trying():
    found = {name: moved(make()) for name, make in MAKERS.items()}
    assert [name for name, ours in found.items() if ours.lossless] == ["at the end", "nowhere", "a beginning"]
    assert not found["sentence piece"]._unit.can_be_cut
    assert found["at the end"]._unit.can_be_cut


@pytest.mark.parametrize("text", [PROSE * 4, "one. Two\n\n  three   four\n five" * 40])
def test_chunks_change_no_token_of_a_pretrained_tokenizer(pair, text, monkeypatch):
    _, ours = pair
    whole = HuggingFace.from_str(ours._file).encode(text).ids
    monkeypatch.setattr(module, "CHUNK", 10)
    monkeypatch.setattr(pretrained, "SLICE", 20)
    parts = list(ours.encode_chunks([text[:77], text[77:]]))
    assert np.concatenate(parts).tolist() == whole
    assert len(parts) > 10 or not ours._unit.can_be_cut


def test_streaming_and_showing(pair):
    _, ours = pair
    ids = ours.encode("Hello “naïve” there").tolist()
    pieces = ours.stream_decoder()
    streamed = "".join(map(pieces.feed, [0, *ids, 0])) + pieces.finish()
    assert streamed == ours.decode([0, *ids, 0])
    assert all(ours.show(id) for id in range(len(ours)))


def test_an_unfinished_character_is_given_at_the_end():
    ours = moved(byte_level([]))
    pieces = ours.stream_decoder()
    assert [pieces.feed(id) for id in ours.encode("日").tolist()[:1]] == [""]
    assert "\ufffd" in pieces.finish()


def test_a_pretrained_tokenizer_is_asked_for_by_its_path(tmp_path):
    byte_level([]).save(str(tmp_path / "t.json"))
    assert train_tokenizer(Text(tokenizer=str(tmp_path / "t.json")), []).unit == "pretrained"
    with pytest.raises(UserError, match="has its own vocabulary"):
        train_tokenizer(Text(tokenizer=str(tmp_path / "t.json"), vocab=5), [])


def test_gaps_in_a_unigram_vocabulary_are_refused():
    spec = json.loads(unigram().to_str())
    spec["added_tokens"].append({**spec["added_tokens"][0], "id": 999, "content": "far"})
    with pytest.raises(UserError, match="gaps"):
        pretrained.with_boundary_first(spec)


@pytest.mark.data
def test_gpt2_gives_the_published_counts(tmp_path):
    folder = Path(os.environ.get("CHAINRULE_DATA") or "absent")
    if not (folder / "gpt2-bpe").is_dir():
        pytest.skip("no gpt2-bpe in $CHAINRULE_DATA")
    merges = (folder / "gpt2-bpe/vocab.bpe").read_text().splitlines()[1:]
    vocab = json.loads((folder / "gpt2-bpe/encoder.json").read_text())
    given = HuggingFace(models.BPE(vocab, [tuple(line.split()) for line in merges]))
    given.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    given.decoder = decoders.ByteLevel()
    given.add_special_tokens(["<|endoftext|>"])
    given.save(str(tmp_path / "gpt2.json"))
    ours = Tokenizer.load(tmp_path / "gpt2.json")
    text = (folder / "tinyshakespeare/input.txt").read_text()
    assert len(ours) == 50257
    assert ours.lossless
    assert (len(ours.encode(text[:1_003_854])), len(ours.encode(text[1_003_854:]))) == (301_966, 36_059)


def test_a_boundary_that_was_missing_gets_an_id_of_its_own():
    given = HuggingFace(models.WordLevel({"a": 0, "[UNK]": 1, "b": 2, "c": 3, "e": 6, "d": 7}, "[UNK]"))
    given.pre_tokenizer = pre_tokenizers.Whitespace()
    made = Tokenizer.from_spec(pretrained.with_boundary_first(json.loads(given.to_str())))
    ids = [int(made.encode(word)[0]) for word in "abcde"]
    assert 0 not in ids
    assert len(set(ids)) == 5
