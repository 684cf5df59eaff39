"""llama.cpp itself as the judge of GGUF files: tokens, texts and logits. Skipped where llama-cpp-python is missing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.testing import assert_close

from chainrule import run
from chainrule.cli import main
from chainrule.formats.gguf.export import write_gguf
from chainrule.formats.gguf.tokenizer import PRE
from chainrule.model import Batch
from tests.formats.gguf_files import TOKENS, write_llama
from tests.formats.test_gguf import CASES, HARD
from tests.formats.test_hugging_face_export import TEXT, made
from tests.programs import benchmark

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
ROUGH = {"f32": 1e-4, "f16": 0.03, "q8_0": 1.0}    # llama.cpp rounds the activations too
MORE = ["The year 1984, or 3.14159 or 12 345", "I'LL we'Ve 'tis", "a\r\n\r\n  b   c\t\td", "¡olé! ½ ② x² 北京2024年",
        "(a+b)^2=~3|$5"]


def ask(**request: Any) -> dict[str, Any]:
    found: dict[str, Any] = benchmark("llama_cpp_reader").answer(request)
    return found


@torch.no_grad()
def assert_same(ours: run.Run, file: Path, tolerance: float) -> None:
    write_gguf(ours, file, file.suffixes[0].removeprefix("."))
    texts = [TEXT, *HARD, *MORE]
    tokens = [ours.tokenizer.encode(text).tolist() for text in texts]
    found = ask(file=str(file), texts=texts, ids=[0, *tokens[0]][:30])
    assert found["tokens"] == tokens
    assert found["texts"] == texts
    assert (found["bos"], found["eos"]) == (0, 0)
    ids = torch.tensor([[0, *tokens[0]][:30]])
    assert_close(torch.tensor(found["logits"]), ours.model(Batch(ids, ids))[0], atol=tolerance, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_llama_cpp_computes_our_logits(case: str, tmp_path: Path) -> None:
    tolerance = 5e-3 if case == "gpt2" else 1e-4    # its GELU is a table in float16
    assert_same(made(tmp_path / "run", *CASES[case], "characters"), tmp_path / "out.f32.gguf", tolerance)


@pytest.mark.parametrize("unit", ["characters", "bpe", "bytes"])
@pytest.mark.parametrize("precision", ROUGH)
def test_llama_cpp_reads_every_precision_and_tokenizer(unit: str, precision: str, tmp_path: Path) -> None:
    assert_same(made(tmp_path / "run", *CASES["talkie"], unit), tmp_path / f"out.{precision}.gguf", ROUGH[precision])


@pytest.mark.parametrize("pre", PRE)
def test_an_imported_tokenizer_gives_the_tokens_of_llama_cpp(pre: str, tmp_path: Path) -> None:
    """Merges of a text that is not split, so that tokens show where each pre-tokenizer splits."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer, trained.decoder = pre_tokenizers.ByteLevel(False, use_regex=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator([*HARD, *MORE] * 3, trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, show_progress=False))
    trained.add_special_tokens(list(TOKENS))
    file = tmp_path / "theirs.gguf"
    write_llama(file, trained, vocab=trained.get_vocab_size(), fields={"tokenizer.ggml.pre": pre})
    assert main(["import", str(file), str(tmp_path / "run")]) == 0
    ours, begin = run.load(tmp_path / "run"), trained.token_to_id(TOKENS[0])
    texts = [TEXT, *HARD, *MORE]
    tokens = [[0 if id == begin else id for id in ours.tokenizer.encode(text).tolist()] for text in texts]
    assert ask(file=str(file), texts=texts)["tokens"] == tokens
