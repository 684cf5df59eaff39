"""GGUF files: what gguf and transformers read in them is what we read and write; what cannot be read is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers import Tokenizer
from torch.testing import assert_close

from chainrule import run
from chainrule.cli import main
from chainrule.errors import UserError
from chainrule.formats.boundary import ends_of
from chainrule.formats.gguf.export import write_gguf
from chainrule.formats.gguf.read import read_gguf
from chainrule.formats.gguf.table import TABLE
from chainrule.formats.gguf.tokenizer import PRE, read_tokenizer, tokenizer_fields
from chainrule.model import Batch
from tests.formats.gguf_files import TOKENS, read_with_transformers, write_llama
from tests.formats.test_hugging_face_export import LLAMA, TEXT, made
from tests.formats.test_hugging_face_import import swapped, write_tokenizer

SMALL = {"width": 64, "heads": 4, "hidden": 96, "context": 32}
PLAIN = {**LLAMA, **SMALL, "qk_norm": False}
STRETCHED = {**PLAIN, "rope_factor": 4.0, "trained_context": 8, "rope_theta": 100.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "talkie": ("gpt", {**SMALL, "activation": "swiglu", "kv_heads": 2, "tied": False}),
    "talkie tied": ("gpt", {**SMALL, "activation": "swiglu", "tied": True, "head_size": 8}),
    "llama": ("gpt", {**PLAIN, "kv_heads": 2, "tied": False}),
    "llama tied": ("gpt", {**PLAIN, "tied": True}),
    "llama with biases": ("gpt", {**PLAIN, "biases": True}),
    "llama with experts": ("gpt", {**PLAIN, "experts": 4, "active": 2}),
    **{f"llama {kind}": ("gpt", {**STRETCHED, "rope_scaling": kind}) for kind in ("linear", "yarn", "llama3")},
    "gpt2": ("gpt2", {**SMALL, "hidden": 256}),
}  # fmt: skip
HARD = ["¿Qué? 日本 it's", "Don't  stop\n\n\tat 1234567 or 12,5!", " naïve ﬁ…", "<|stop|> <s>", "x" * 20]


def test_every_architecture_is_tested() -> None:
    assert {name.split()[0] for name in CASES} == {one.name for one in TABLE}


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_what_was_exported_comes_back_bit_by_bit(case: str, tmp_path: Path) -> None:
    ours = made(tmp_path / "run", *CASES[case], "characters")
    assert main(["export", str(ours.path), str(tmp_path / "out.gguf"), "--to", "gguf"]) == 0
    assert main(["import", str(tmp_path / "out.gguf"), str(tmp_path / "back")]) == 0
    back = run.load(tmp_path / "back")
    assert_close(dict(back.model.state_dict()), dict(ours.model.state_dict()), atol=0, rtol=0)
    assert back.tokenizer.sha256 == ours.tokenizer.sha256
    assert back.recipe.model.rope == ours.recipe.model.rope
    tokens = torch.randint(len(ours.tokenizer), (2, 12), generator=torch.Generator().manual_seed(2))
    assert_close(back.model(Batch(tokens, tokens)), ours.model(Batch(tokens, tokens)), atol=0, rtol=0)


@pytest.mark.parametrize("case", ["llama", "llama tied", "gpt2"])
@torch.no_grad()
def test_transformers_reads_our_file_and_computes_the_same_logits(case: str, tmp_path: Path) -> None:
    ours = made(tmp_path / "run", *CASES[case], "bpe")
    write_gguf(ours, tmp_path / "out.gguf")
    theirs = read_with_transformers(tmp_path / "out.gguf")
    tokens = torch.randint(len(ours.tokenizer), (2, 12), generator=torch.Generator().manual_seed(2))
    assert_close(theirs(tokens).logits, ours.model(Batch(tokens, tokens)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("unit", ["bytes", "bpe"])
def test_our_tokenizers_come_back(unit: str, tmp_path: Path) -> None:
    ours = made(tmp_path / "run", *CASES["llama"], unit)
    more = ours.tokenizer.with_special(["<|user|>", "<|mask|>"])
    fields = tokenizer_fields(more, ends_of(ours), ours.path)
    assert len(set(fields["tokenizer.ggml.tokens"])) == len(more)
    assert fields["tokenizer.ggml.token_type"][0] == 3
    back, ends = read_tokenizer(fields, ours.path)
    assert (back.sha256, ends) == (more.sha256, ends_of(ours))


@pytest.mark.parametrize("precision", ["f16", "q8_0"])
def test_matrices_are_rounded_and_other_tensors_are_not(precision: str, tmp_path: Path) -> None:
    ours = made(tmp_path / "run", "gpt", {**CASES["llama"][1], "hidden": 40}, "characters")
    out = tmp_path / "out.gguf"
    assert main(["export", str(ours.path), str(out), "--to", "gguf", "--precision", precision]) == 0
    kinds = {tensor.name: tensor.tensor_type for tensor in gguf.GGUFReader(out).tensors}
    kind = Kind[precision.upper()]
    assert kinds["blk.0.attn_norm.weight"] == Kind.F32
    assert kinds["blk.1.attn_q.weight"] == kind
    assert kinds["blk.0.ffn_down.weight"] == Kind.F16              # its rows of 40 numbers are no blocks of 32
    back, weight = read_gguf(out).model.state_dict(), ours.model.state_dict()["stack.blocks.1.attention.out.weight"]
    rounded = gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind)
    assert_close(back["stack.blocks.1.attention.out.weight"], torch.from_numpy(rounded), atol=0, rtol=0)
    norm = "stack.blocks.1.attention_norm.weight"
    assert_close(back[norm], ours.model.state_dict()[norm], atol=0, rtol=0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_tokenizer(tmp_path_factory.mktemp("units") / "tokenizer.json", list(TOKENS))


@pytest.mark.parametrize(("kind", "tied"), [("Q4_1", True), ("Q8_0", False), ("BF16", True)])
@torch.no_grad()
def test_another_programs_file_gives_the_logits_that_transformers_computes(
    kind: str, tied: bool, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    file = tmp_path / "theirs.gguf"
    write_llama(file, tokenizer, kind=Kind[kind], tied=tied)
    theirs = read_with_transformers(file)
    assert main(["import", str(file), str(tmp_path / "run")]) == 0
    ours = run.load(tmp_path / "run")
    begin, end = map(tokenizer.token_to_id, TOKENS)
    tokens = torch.randint(1, 250, (2, 20), generator=torch.Generator().manual_seed(2))
    tokens[:, 0] = begin
    there = tokens.masked_fill(tokens == begin, 0)
    wanted = swapped(swapped(theirs(tokens).logits, 0, begin), 0, end)
    assert_close(ours.model(Batch(there, there)), wanted, atol=1e-5, rtol=1e-4)
    for text in [TEXT, *HARD]:
        assert ours.tokenizer.decode(ours.tokenizer.encode(text)) == text
    assert ours.tokenizer.encode(TEXT).tolist() == tokenizer.encode(TEXT, add_special_tokens=False).ids


def test_an_imported_file_goes_out_with_its_own_bos_eos_rows_and_template(tokenizer: Tokenizer, tmp_path: Path) -> None:
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    write_llama(first, tokenizer)
    assert main(["import", str(first), str(tmp_path / "run")]) == 0
    ours = run.load(tmp_path / "run")
    source = ours.about["source"]
    assert (source["licence"], source["architecture"], source["quantisation"]) == ("apache-2.0", "llama", "F32")
    assert len(source["sha256"]["first.gguf"]) == 64
    assert ours.chat_template is not None
    assert "message.content" in ours.chat_template
    assert main(["export", str(ours.path), str(second), "--to", "gguf"]) == 0
    before, after = gguf.GGUFReader(first), gguf.GGUFReader(second)
    for name in ("bos_token_id", "eos_token_id", "pre", "merges", "add_bos_token"):
        key = f"tokenizer.ggml.{name}"
        assert before.fields[key].contents() == after.fields[key].contents()
    for key in ("tokenizer.chat_template", "general.license", "general.name"):
        assert before.fields[key].contents() == after.fields[key].contents()
    tokens = [reader.fields["tokenizer.ggml.tokens"].contents() for reader in (before, after)]
    assert tokens[1][: len(tokens[0])] == tokens[0]
    tensors = [{tensor.name: tensor.data for tensor in reader.tensors} for reader in (before, after)]
    assert tensors[0].keys() == tensors[1].keys()          # tied again
    for name, data in tensors[0].items():
        np.testing.assert_array_equal(data, tensors[1][name])


# Tokenizers

SPLITS = {    # by hand, of "Don't 1234 x!\n\n y"
    "gpt-2": ["Don", "'t", " 1234", " x", "!", "\n\n", " y"],
    "smollm": ["Don", "'t", " ", "1", "2", "3", "4", " x", "!", "\n\n", " y"],
    "llama-bpe": ["Don", "'t", " ", "123", "4", " x", "!\n\n", " y"],
    "qwen2": ["Don", "'t", " ", "1", "2", "3", "4", " x", "!\n\n", " y"],
    "default": ["Don", "'", "t", " ", "123", "4", " x", "!", "\n\n", " y"],
}


@pytest.mark.parametrize("pre", SPLITS)
def test_pre_tokenizers_split_a_text_as_by_hand(pre: str, tokenizer: Tokenizer) -> None:
    spec = json.loads(tokenizer.to_str()) | {"pre_tokenizer": PRE[pre], "normalizer": None}
    made = Tokenizer.from_str(json.dumps(spec))
    split = [text[start:end] for text in ["Don't 1234 x!\n\n y"]
             for _, (start, end) in made.pre_tokenizer.pre_tokenize_str(text)]
    assert split == SPLITS[pre]


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "c", "ab", "▁ab", "bc"]
SCORES = [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_piece_merges_the_highest_score_first(prefix: bool) -> None:
    fields: dict[str, Any] = {
        "model": "llama", "tokens": PIECES, "scores": SCORES, "token_type": [2, 3, 3, *[6] * 256, *[1] * 7],
        "bos_token_id": 1, "eos_token_id": 2, "add_space_prefix": prefix,
    }  # fmt: skip
    fields = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    made, ends = read_tokenizer(fields, Path("file.gguf"))
    assert (ends.begin, ends.end, made.token(0)) == (1, 2, "<s>")
    names = [made.token(id) for id in made.encode("abc abé")]
    assert names == [*(["▁ab"] if prefix else ["ab"]), "c", "▁ab", "<0xC3>", "<0xA9>"]
    assert made.decode(made.encode("abc abé")) == "abc abé"
    again = tokenizer_fields(made, ends, Path("run"))
    back, _ = read_tokenizer(again, Path("file.gguf"))
    assert [again[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type")] == [PIECES, [2, 3, 3, *[6] * 256,
                                                                                            *[1] * 7]]
    assert back.encode("abc bcab").tolist() == made.encode("abc bcab").tolist()


def test_what_llama_cpp_would_read_otherwise_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from chainrule.recipe import Text
    from chainrule.text.tokenizers.tokenizer import train_tokenizer

    ours = made(tmp_path / "run", *CASES["llama"], "words")
    with pytest.raises(UserError, match=r"has text.tokenizer=words, and llama.cpp has no tokenizer that does the same"):
        write_gguf(ours, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
    boxes = train_tokenizer(Text(tokenizer="characters"), ["a ▁"])
    fields = tokenizer_fields(boxes, ends_of(ours), ours.path)
    assert set(fields["tokenizer.ggml.tokens"][-3:]) == {"a", "▁", "<U+2581>"}
    assert read_tokenizer(fields, ours.path)[0].sha256 == boxes.sha256
    marks = train_tokenizer(Text(tokenizer="bpe", vocab=300), ["cafe\u0301 " * 50])
    tokenizer_fields(marks, ends_of(ours), ours.path)
    said = capsys.readouterr().err
    assert "will read ▁ as a space" in said
    assert "will split words at combining marks" in said


# Settings and files that are refused


@pytest.mark.parametrize(("settings", "line"), [
    ({}, "talkie would fit a model trained with model.activation=swiglu."),
    ({**PLAIN, "window": 4}, "llama would fit a model trained with model.attention=full model.window=none."),
    ({**PLAIN, "qk_norm": True}, "llama would fit a model trained with model.qk_norm=false."),
    ({"activation": "swiglu", "logit_softcap": 9.0}, "talkie would fit a model trained with model.logit_softcap=none."),
])  # fmt: skip
def test_settings_that_no_architecture_has_are_named(settings: dict[str, Any], line: str, tmp_path: Path) -> None:
    ours = made(tmp_path / "run", "gpt", settings)
    with pytest.raises(UserError) as error:
        write_gguf(ours, tmp_path / "out.gguf")
    assert str(error.value) == f"llama.cpp has no architecture with these settings; {line}"


def test_only_language_models_and_a_precision_only_of_gguf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = made(tmp_path / "run", *CASES["llama"])
    words = ["export", str(ours.path), str(tmp_path / "out"), "--to"]
    assert main([*words, "huggingface", "--precision", "f16"]) == 2
    assert "--precision f16 is for --to gguf; --to huggingface has none." in capsys.readouterr().err
    (tmp_path / "out").write_text("mine")
    assert main([*words, "gguf"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "mine"


def cut(size: int) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(file.read_bytes()[:size])


def patch(old: bytes, new: bytes) -> Callable[[Path], None]:
    def edit(file: Path) -> None:
        data = file.read_bytes()
        assert data.count(old) >= 1
        assert len(old) == len(new)
        file.write_bytes(data.replace(old, new, 1))
    return edit


def long_array(file: Path) -> None:
    """The number of items of the list of types, which no file could hold."""
    data, key = file.read_bytes(), b"tokenizer.ggml.token_type"
    place = data.index(key) + len(key) + 8
    file.write_bytes(data[:place] + (1 << 60).to_bytes(8, "little") + data[place + 8 :])


def other_type(file: Path) -> None:
    """The quantisation of the last tensor."""
    data, name = file.read_bytes(), b"blk.1.ffn_down.weight"
    place = data.index(name) + len(name) + 4 + 2 * 8
    file.write_bytes(data[:place] + (199).to_bytes(4, "little") + data[place + 4 :])


ZEROS = np.zeros((64, 64), np.float32)
BAD: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[Path], None] | None, str]] = {
    "no GGUF": ({}, {}, lambda file: file.write_bytes(b"PK" * 50), "is not a GGUF file: it does not begin with"),
    "empty": ({}, {}, lambda file: file.write_bytes(b""), "is not a GGUF file: it does not begin with"),
    "cut in the header": ({}, {}, cut(300), "is cut short: it has 300 bytes, and its header says more"),
    "cut in the tensors": ({}, {}, cut(50_000), "is cut short: it has 50,000 bytes"),
    "long array": ({}, {}, long_array, "an array of more than 4,194,304 items"),
    "unknown quantisation": ({}, {}, other_type, "tensors of the quantisation 199, which is not known"),
    "unknown architecture": ({}, {}, patch(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba"),
                             "has the architecture mamba, which cannot be imported; these can: talkie, llama, gpt2"),
    "missing key": ({"llama.block_count": None}, {}, None, "the file has no llama.block_count"),
    "negative": ({"llama.block_count": -1}, {}, None, "llama.block_count=-1; a whole number from 1 to"),
    "too many layers": ({"llama.block_count": 10**6}, {}, None, "llama.block_count=1000000, and only 20 tensors"),
    "no head": ({"llama.attention.head_count": 0}, {}, None, "llama.attention.head_count=0; a whole number"),
    "heads that do not divide": ({"llama.attention.head_count_kv": 3}, {}, None, "does not divide model.heads=4"),
    "key without a setting": ({"llama.attention.scale": 2.0}, {}, None, "llama.attention.scale=2.0, which cannot be"),
    "part of a head": ({"llama.rope.dimension_count": 8}, {}, None, "only a part of each head of 16 numbers"),
    "unknown RoPE": ({"llama.rope.scaling.type": "longrope"}, {}, None, '"longrope", which cannot be imported; none'),
    "other RoPE factors": ({}, {"rope_freqs.weight": np.arange(1, 9, dtype=np.float32)}, None,
                           "stretches RoPE in another way than Llama 3"),
    "missing tensor": ({}, {"blk.1.ffn_up.weight": None}, None, "the tensor blk.1.ffn_up.weight is missing"),
    "another tensor": ({}, {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}, None,
                       "blk.0.attn_q_norm.weight is no part of the architecture llama"),
    "wrong shape": ({}, {"blk.0.attn_k.weight": ZEROS}, None, "blk.0.attn_k.weight is 64 × 64, and by the keys .* 32"),
    "no embedding": ({}, {"token_embd.weight": None}, None, "token_embd.weight is missing, or no matrix"),
    "small embedding": ({}, {"token_embd.weight": ZEROS}, None, r"has 27\d tokens, and the embedding only 64 rows"),
    "unknown tokenizer": ({"tokenizer.ggml.model": "rwkv"}, {}, None, "the tokenizer rwkv, which cannot be imported"),
    "unknown pre-tokenizer": ({"tokenizer.ggml.pre": "tekken"}, {}, None, "the pre-tokenizer tekken, which cannot"),
    "no tokens": ({"tokenizer.ggml.tokens": None}, {}, None, "has no tokenizer.ggml.tokens"),
    "tokens twice": ({"tokenizer.ggml.tokens": ["a", "b", "a"], "tokenizer.ggml.token_type": [1, 1, 1]}, {}, None,
                     "has the token 'a' twice"),
    "few types": ({"tokenizer.ggml.token_type": [1]}, {}, None, r"27\d tokens and 1 types of tokens"),
    "no merges": ({"tokenizer.ggml.merges": None}, {}, None, "has no tokenizer.ggml.merges"),
    "merges of no tokens": ({"tokenizer.ggml.merges": ["qq zz"]}, {}, None, "is not a tokenizer.json that can be read"),
    "BOS that is no token": ({"tokenizer.ggml.bos_token_id": 5000}, {}, None, "the token 5000 begins or ends a text"),
    "scores": ({"tokenizer.ggml.model": "llama"}, {}, None, r"has no tokenizer.ggml.scores for its 27\d tokens"),
    "chat template": ({"tokenizer.chat_template": "{% if %}"}, {}, None, "the chat template does not parse: line 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_named_in_one_line(case: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    fields, tensors, spoil, line = BAD[case]
    file = tmp_path / "bad.gguf"
    write_llama(file, tokenizer, fields=fields, tensors=tensors)
    if spoil is not None:
        spoil(file)
    with pytest.raises(UserError, match=line) as error:
        read_gguf(file)
    assert "\n" not in str(error.value)


def test_a_talkie_with_gains_is_refused(tmp_path: Path) -> None:
    ours, out = made(tmp_path / "run", *CASES["talkie"]), tmp_path / "out.gguf"
    write_gguf(ours, out)
    place = next(t for t in gguf.GGUFReader(out).tensors if t.name == "blk.1.attn_q_norm.weight").data_offset
    data = out.read_bytes()
    out.write_bytes(data[:place] + np.float32(2).tobytes() + data[place + 4 :])
    with pytest.raises(UserError, match=r"blk.1.attn_q_norm.weight is not 1 everywhere"):
        read_gguf(out)
