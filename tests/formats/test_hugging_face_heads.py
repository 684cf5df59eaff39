"""Encoders, classifiers and taggers as Hugging Face folders: transformers computes the same logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoTokenizer

from chainrule import run
from chainrule.errors import UserError
from chainrule.formats.hugging_face_folder import write_folder
from chainrule.formats.hugging_face_heads import HEADS
from chainrule.model import Batch
from chainrule.recipe import Text
from chainrule.tasks import build_for, find_task, recipe_for
from chainrule.text.tokenizers.tokenizer import train_tokenizer

SMALL = {"model.layers": 2, "model.width": 24, "model.heads": 3, "model.context": 16}
TEXT = "the cow jumps over the moon.\nthe moon is out."
LABELS = ("bad", "good", "so so")
OPENERS = {"mask": "AutoModelForMaskedLM", "classify": "AutoModelForSequenceClassification",
           "tag": "AutoModelForTokenClassification"}  # fmt: skip
BERT = {"model.positions": "learned", "model.norm": "layer", "model.norm_first": False, "model.norm_scale": True,
        "model.qk_norm": False, "model.biases": True, "model.zero_init": False, "model.activation": "gelu"}  # fmt: skip
SEGMENTS = {"model.segments": 2, "model.transform": True}
YARN = {"model.rope_scaling": "yarn", "model.rope_factor": 4.0, "model.rope_theta": 100.0}
NO_NORM = {"model.qk_norm": False}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "NeoMMEForMaskedLM": ("encoder", "mask", {}),
    "NeoMMEForMaskedLM untied, grouped keys": ("encoder", "mask", {"model.tied": False, "model.kv_heads": 1}),
    "EuroBertForMaskedLM": ("encoder", "mask", {**NO_NORM, "model.tied": True}),
    "EuroBertForMaskedLM gelu": ("encoder", "mask", {**NO_NORM, "model.activation": "gelu", "model.biases": True}),
    "BertForMaskedLM": ("encoder", "mask", {**BERT, **SEGMENTS, "model.activation": "gelu-tanh"}),
    "BertForMaskedLM untied": ("encoder", "mask", {**BERT, "model.transform": True, "model.tied": False}),
    "EuroBertForSequenceClassification": ("encoder", "classify", NO_NORM),
    "EuroBertForSequenceClassification first, swiglu": (
        "encoder", "classify", {**NO_NORM, "head.pool": "first", "model.activation": "swiglu", "model.kv_heads": 1,
                                "model.norm_scale": True, "model.norm_embedding": False, "model.rope_theta": 500.0}),
    "EuroBertForSequenceClassification relu": (
        "encoder", "classify", {**NO_NORM, "model.activation": "relu", "model.head_size": 6}),
    "BertForSequenceClassification": ("encoder", "classify", {**BERT, "head.pool": "first"}),
    "Qwen3ForTokenClassification encoder": ("encoder", "tag", {}),
    "EuroBertForTokenClassification": ("encoder", "tag", NO_NORM),
    "EuroBertForTokenClassification yarn": ("encoder", "tag", {**NO_NORM, **YARN}),
    "Qwen3ForTokenClassification yarn": ("encoder", "tag", YARN),
    "BertForTokenClassification": ("encoder", "tag", {**BERT, **SEGMENTS, "model.activation": "relu2"}),
    "Qwen3ForTokenClassification": ("gpt", "tag", {"model.logit_softcap": 15.0}),
    "LlamaForTokenClassification": ("gpt", "tag", {**NO_NORM, "model.biases": True}),
    "GPT2ForTokenClassification": ("gpt2", "tag", {}),
    "Qwen3ForSequenceClassification": ("gpt", "classify", {"head.bias": False}),
    "LlamaForSequenceClassification": (
        "gpt", "classify", {"head.bias": False, **NO_NORM, "model.activation": "gelu-tanh"}),
    "GPT2ForSequenceClassification": ("gpt2", "classify", {}),
}  # fmt: skip


@torch.no_grad()
def made(path: Path, name: str, task: str, settings: dict[str, Any], unit: str = "bytes") -> run.Run:
    recipe = recipe_for(name, {**SMALL, **settings, "text.tokenizer": unit}, task)
    found = find_task(task)
    special = found.special_tokens(16) if task == "mask" else getattr(found, "special_tokens", ())
    units = train_tokenizer(Text(tokenizer=unit, min_count=1), [TEXT]).with_special(list(special))
    torch.manual_seed(1)
    labels = () if task == "mask" else LABELS
    model = build_for(recipe, len(units), labels)
    for parameter in model.parameters():    # scales and biases too, so that none can be left out unnoticed
        nn.init.normal_(parameter, std=0.3)
    run.save(path, model, units, recipe, labels=labels)
    return run.load(path)


def test_every_architecture_is_tested() -> None:
    names = {one.name for one in HEADS}
    assert names == {case.partition(" ")[0] for case in CASES} | {"BertModel"}


@torch.no_grad()
def difference(case: str, folder: Path) -> float:
    """Of the log-probabilities, the largest; after asserting that all of the folder was read, and nothing else."""
    name, task, settings = CASES[case]
    ours = made(folder / "run", name, task, settings)
    assert write_folder(ours, folder / "out").startswith(f"{case.partition(' ')[0]}, ")
    opener = getattr(transformers, OPENERS[task])
    theirs, loading = opener.from_pretrained(folder / "out", output_loading_info=True)
    assert type(theirs).__name__ == case.partition(" ")[0]
    assert not any(loading[part] for part in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert task == "mask" or theirs.config.id2label == dict(enumerate(LABELS))
    tokenizer, texts = AutoTokenizer.from_pretrained(folder / "out"), ["moon", "the cow is"]
    logits = theirs.eval()(**tokenizer(texts, padding=True, return_tensors="pt")).logits.log_softmax(-1)
    wanted = [one.log_softmax(-1) for one in our_logits(ours, texts)]
    return max(float((logits[row, : len(one)] - one).abs().max()) for row, one in enumerate(wanted))


@pytest.mark.parametrize("case", CASES)
def test_transformers_computes_the_same_logits(case: str, tmp_path: Path) -> None:
    assert difference(case, tmp_path) <= 1e-5


def our_logits(ours: run.Run, texts: list[str]) -> list[torch.Tensor]:
    """Of each text alone, as the task reads it."""
    tokenizer, task = ours.tokenizer, ours.recipe.task
    after = {"mask": [0], "classify": [tokenizer.id("<|extract|>")], "tag": []}[task]
    rows = [torch.tensor([[0, *tokenizer.encode(text).tolist(), *after]]) for text in texts]
    return [ours.model(Batch(row, row, torch.tensor([row.shape[1]])))[0] for row in rows]


@pytest.mark.parametrize("unit", ["bytes", "characters", "words", "bpe"])
def test_the_tokenizer_frames_texts_as_the_task_does(unit: str, tmp_path: Path) -> None:
    ours = made(tmp_path / "run", "encoder", "classify", NO_NORM, unit).tokenizer
    write_folder(run.load(tmp_path / "run"), tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    one, two = ours.encode("the cow").tolist(), ours.encode("the moon").tolist()
    extract, delimiter = ours.id("<|extract|>"), ours.id("<|delimiter|>")
    assert theirs("the cow")["input_ids"] == [0, *one, extract]
    assert theirs("the cow", "the moon")["input_ids"] == [0, *one, delimiter, *two, extract]
    assert theirs.pad_token_id == 0


@torch.no_grad()
def test_a_mask_is_filled_by_the_pipeline(tmp_path: Path) -> None:
    ours = made(tmp_path / "run", "encoder", "mask", {}, "words")
    write_folder(ours, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.mask_token_id == ours.tokenizer.id("<|mask|>")
    fill = transformers.pipeline("fill-mask", str(tmp_path / "out"))
    text = f"the {tokenizer.mask_token} jumps"
    best = fill(text, top_k=len(ours.tokenizer))[0]
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    wanted = ours.model(Batch(ids, ids))[0, 2].softmax(-1)
    assert ids[0].tolist() == [0, ours.tokenizer.id("the"), tokenizer.mask_token_id, ours.tokenizer.id("jumps"), 0]
    assert best["token"] == int(wanted.argmax())
    assert best["score"] == pytest.approx(float(wanted.max()), abs=1e-6)


@pytest.mark.parametrize(("name", "task", "settings", "line"), [
    ("encoder", "classify", {},
     "EuroBertForSequenceClassification would fit a model trained with model.qk_norm=false."),
    ("encoder", "classify", {**NO_NORM, "head.pool": "max"},
     "EuroBertForSequenceClassification would fit a model trained with head.pool=mean."),
    ("gpt", "classify", {}, "Qwen3ForSequenceClassification would fit a model trained with head.bias=false."),
    ("gpt", "tag", {"head.char_cnn": True},
     "Qwen3ForTokenClassification would fit a model trained with head.char_cnn=false."),
    ("encoder", "mask", {"model.positions": "alibi"},
     "NeoMMEForMaskedLM would fit a model trained with model.positions=rotary."),
    ("encoder", "tag", {"head.hidden": 8},
     "Qwen3ForTokenClassification would fit a model trained with head.hidden=none."),
    ("encoder", "tag", {"model.experts": 4}, "Qwen3ForTokenClassification would fit a model trained with "
                                             "model.experts=0."),
])  # fmt: skip
def test_settings_that_no_architecture_has_are_named(
    name: str, task: str, settings: dict[str, Any], line: str, tmp_path: Path
) -> None:
    ours = made(tmp_path / "run", name, task, settings)
    with pytest.raises(UserError) as error:
        write_folder(ours, tmp_path / "out")
    assert str(error.value) == f"transformers has no architecture with these settings; {line}"
    assert not (tmp_path / "out").exists()


def test_other_kinds_and_tasks_are_refused(tmp_path: Path) -> None:
    recipe = recipe_for("lstm", {"text.tokenizer": "bytes", "model.hidden": 8})
    units = train_tokenizer(Text(tokenizer="bytes"), [TEXT])
    run.save(tmp_path / "run", build_for(recipe, len(units)), units, recipe)
    with pytest.raises(UserError, match="a lstm for lm; a Hugging Face folder can be made of a gpt that"):
        write_folder(run.load(tmp_path / "run"), tmp_path / "out")


def test_too_many_classes_for_the_hidden_layer(tmp_path: Path) -> None:
    ours = made(tmp_path / "run", "encoder", "classify", {**NO_NORM, "model.width": 4, "model.heads": 1})
    with pytest.raises(UserError, match=r"has room for 2 classes at model\.width=4, and there are 3"):
        write_folder(ours, tmp_path / "out")
