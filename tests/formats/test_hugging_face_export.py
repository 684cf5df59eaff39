"""A run as a Hugging Face folder: transformers reads it and computes the same logits, for each architecture."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from chainrule import run
from chainrule.errors import UserError
from chainrule.formats.hugging_face_export import ARCHITECTURES, find_architecture
from chainrule.formats.hugging_face_folder import write_folder
from chainrule.model import Batch
from chainrule.models import build, kind, model_class
from chainrule.models.gpt import GPTSettings
from chainrule.recipe import Text, make_recipe
from chainrule.text.tokenizers.tokenizer import train_tokenizer

SMALL = {"layers": 2, "width": 24, "heads": 3, "context": 16}
LLAMA = {"activation": "swiglu", "norm_scale": True, "norm_embedding": False, "hidden": 40, "rope_theta": 500.0}
EXPERTS = {**LLAMA, "experts": 4, "active": 2}
CASES = {
    "NanoChatForCausalLM": ("gpt", {"logit_softcap": 9.0, "kv_heads": 1, "head_size": 6}),
    "LlamaForCausalLM": ("gpt", {**LLAMA, "qk_norm": False, "kv_heads": 1, "tied": False}),
    "MistralForCausalLM": ("gpt", {**LLAMA, "qk_norm": False, "window": 5}),
    "Qwen3ForCausalLM": ("gpt", {**LLAMA, "tied": True}),
    "GPT2LMHeadModel": ("gpt2", {}),
    "MixtralForCausalLM": ("gpt", {**EXPERTS, "qk_norm": False, "kv_heads": 1}),
    "OlmoeForCausalLM": ("gpt", {**EXPERTS, "heads": 1, "renormalise": False}),
    "Qwen3MoeForCausalLM": ("gpt", {**EXPERTS, "active": 3}),
}
ROPE = {"qk_norm": False, "head_size": 8, "rope_factor": 4.0, "trained_context": 8}
PLAIN_LLAMA = {**LLAMA, "qk_norm": False}
VARIANTS = {
    "NanoChatForCausalLM default": ("gpt", {}),
    "NanoChatForCausalLM tied": ("gpt", {"tied": True}),
    "NanoChatForCausalLM untied": ("gpt", {"tied": False}),
    "NanoChatForCausalLM grouped keys": ("gpt", {"kv_heads": 1}),
    "NanoChatForCausalLM soft-cap": ("gpt", {"logit_softcap": 15.0}),
    "NanoChatForCausalLM head size": ("gpt", {"head_size": 10}),
    "NanoChatForCausalLM hidden size": ("gpt", {"hidden": 50}),
    "NanoChatForCausalLM RoPE theta": ("gpt", {"rope_theta": 500_000.0}),
    "NanoChatForCausalLM epsilon": ("gpt", {"epsilon": 0.01}),
    "NanoChatForCausalLM gelu": ("gpt", {"activation": "gelu"}),
    "NanoChatForCausalLM gelu-tanh": ("gpt", {"activation": "gelu-tanh"}),
    "NanoChatForCausalLM relu": ("gpt", {"activation": "relu"}),
    "NanoChatForCausalLM linear": ("gpt", {"rope_scaling": "linear", "rope_factor": 2.0}),
    "NanoChatForCausalLM llama3": ("gpt", {"rope_scaling": "llama3", "rope_factor": 2.0, "rope_theta": 100.0}),
    "LlamaForCausalLM tied": ("gpt", {**PLAIN_LLAMA, "tied": True}),
    "LlamaForCausalLM head size": ("gpt", {**PLAIN_LLAMA, "head_size": 10}),
    "MistralForCausalLM window of one token": ("gpt", {**PLAIN_LLAMA, "window": 1}),
    "MistralForCausalLM window of the context": ("gpt", {**PLAIN_LLAMA, "window": 16, "kv_heads": 1}),
    "Qwen3ForCausalLM head size": ("gpt", {**LLAMA, "head_size": 10, "kv_heads": 1, "tied": False}),
    "Qwen3ForCausalLM llama3": ("gpt", {**LLAMA, "rope_scaling": "llama3", "rope_factor": 4.0, "rope_theta": 100.0}),
    "Qwen3ForCausalLM yarn": ("gpt", {**LLAMA, "rope_scaling": "yarn", "rope_factor": 4.0, "rope_theta": 100.0}),
    "GPT2LMHeadModel untied": ("gpt2", {"tied": False}),
    "GPT2LMHeadModel relu": ("gpt2", {"activation": "relu", "hidden": 30}),
    "GPT2LMHeadModel relu2": ("gpt2", {"activation": "relu2"}),
    "MixtralForCausalLM one active": ("gpt", {**EXPERTS, "qk_norm": False, "active": 1, "tied": True}),
    "Qwen3MoeForCausalLM not renormalised": ("gpt", {**EXPERTS, "renormalise": False, "kv_heads": 1}),
    "LlamaForCausalLM with biases": ("gpt", {**LLAMA, "qk_norm": False, "biases": True}),
    **{f"LlamaForCausalLM {kind}": ("gpt", {**LLAMA, **ROPE, "rope_scaling": kind, "rope_theta": 100.0})
       for kind in ("linear", "yarn", "llama3")},
}  # fmt: skip
TEXT = "the cow jumps over the moon.\nthe moon is out."


def made(path: Path, name: str, settings: dict[str, Any], tokenizer: str = "bytes") -> run.Run:
    given = {f"model.{key}": value for key, value in {**SMALL, **settings}.items()}
    recipe = make_recipe(name, model_class(name), {**given, "text.tokenizer": tokenizer}, kind(name).preset)
    units = train_tokenizer(Text(tokenizer=tokenizer, min_count=1), [TEXT])
    torch.manual_seed(1)
    model = build(name, recipe.model, len(units))
    for parameter in model.parameters():    # scales and biases too, so that none can be left out unnoticed
        nn.init.normal_(parameter, std=0.3)
    run.save(path, model, units, recipe)
    return run.load(path)


def test_every_architecture_is_tested() -> None:
    assert list(CASES) == [one.name for one in ARCHITECTURES]


@torch.no_grad()
def difference(case: str, folder: Path) -> float:
    """Of the log-probabilities, the largest; after asserting that all of the folder was read, and nothing else."""
    ours, name = made(folder / "run", *{**CASES, **VARIANTS}[case]), case.partition(" ")[0]
    assert write_folder(ours, folder / "out").startswith(f"{name}, ")
    theirs, loading = AutoModelForCausalLM.from_pretrained(folder / "out", output_loading_info=True)
    assert type(theirs).__name__ == name
    assert not any(loading[part] for part in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens = torch.randint(len(ours.tokenizer), (3, 16), generator=torch.Generator().manual_seed(2))
    logits = theirs.eval()(tokens).logits, ours.model(Batch(tokens, tokens))
    there, here = (some.log_softmax(-1) for some in logits)
    return float((there - here).abs().max())


@pytest.mark.parametrize("case", [*CASES, *VARIANTS])
def test_transformers_computes_the_same_logits(case: str, tmp_path: Path) -> None:
    assert difference(case, tmp_path) <= 1e-5
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 0)


@pytest.mark.parametrize("unit", ["bytes", "characters", "words", "bpe"])
def test_their_tokenizer_gives_our_ids_after_the_boundary(unit: str, tmp_path: Path) -> None:
    ours = made(tmp_path / "run", "gpt", {}, unit)
    write_folder(ours, tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs(TEXT)["input_ids"] == [0, *ours.tokenizer.encode(TEXT).tolist()]
    assert theirs.bos_token_id == theirs.eos_token_id == 0
    if unit != "words":
        assert theirs.decode(theirs(TEXT)["input_ids"], skip_special_tokens=True) == TEXT


@pytest.mark.parametrize(("settings", "line"), [
    ({"experts": 4}, "Qwen3MoeForCausalLM would fit a model trained with model.norm_embedding=false "
                     "model.norm_scale=true model.activation=swiglu."),
    ({**EXPERTS, "shared_expert": True}, "Qwen3MoeForCausalLM would fit a model trained with "
                                         "model.shared_expert=false."),
    ({**LLAMA, "window": 4}, "MistralForCausalLM would fit a model trained with model.qk_norm=false."),
    ({"rope_scaling": "yarn", "rope_factor": 2.0}, "NanoChatForCausalLM would fit a model trained with "
                                                   "model.rope_scaling=none."),
    ({"positions": "relative"}, "NanoChatForCausalLM would fit a model trained with model.positions=rotary."),
])  # fmt: skip
def test_settings_that_no_architecture_has_are_named(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as error:
        find_architecture(GPTSettings(**settings))
    assert str(error.value) == f"transformers has no architecture with these settings; {line}"


def test_a_folder_is_replaced_only_where_that_is_asked_for_and_safe(tmp_path: Path) -> None:
    ours, out = made(tmp_path / "run", "gpt", {}), tmp_path / "out"
    write_folder(ours, out)
    with pytest.raises(UserError, match=r"exists already\. Choose another name, or replace it with --overwrite\."):
        write_folder(ours, out)
    (out / "note").write_text("old")
    write_folder(ours, out, overwrite=True)
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="is a folder with other files"):
        write_folder(ours, tmp_path / "mine", overwrite=True)
    with pytest.raises(UserError, match="is a file"):
        write_folder(ours, tmp_path / "mine" / "thesis.txt", overwrite=True)
