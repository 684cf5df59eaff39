"""A run that was tuned on preferences goes to other programs as a language model: the same logits in transformers."""

import json
from pathlib import Path

import pytest
import torch
from formats.test_hugging_face_export import LLAMA, made

import chainrule
from chainrule.formats.hugging_face_folder import write_folder
from chainrule.model import Batch


@torch.no_grad()
def test_a_tuned_run_is_exported_as_a_language_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    base = made(tmp_path / "base", "gpt", {**LLAMA, "qk_norm": False})
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"prompt": "a cow", "chosen": " is", "rejected": " jumps"}) + "\n")
    with torch.enable_grad():
        tuned = chainrule.train(pairs, task="preference", base=base.path, valid=pairs, out=tmp_path / "tuned",
                                settings={"train.steps": 2, "train.lr": 0.01}, device="cpu")
    assert write_folder(tuned, tmp_path / "folder").startswith("LlamaForCausalLM")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder").eval()
    tokens = torch.randint(len(tuned.tokenizer), (2, 9), generator=torch.Generator().manual_seed(1))
    ours = tuned.model(Batch(tokens, tokens))
    assert float((theirs(tokens).logits - ours).abs().max()) <= 1e-4
    assert float((base.model(Batch(tokens, tokens)) - ours).abs().max()) > 1e-3
    assert "text-generation" in (tmp_path / "folder" / "README.md").read_text()
