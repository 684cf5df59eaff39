"""A run as an ONNX file: onnxruntime computes the same logits in any chunks, and the same greedy text."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from chainrule import run
from chainrule.cli import main
from chainrule.errors import UserError
from chainrule.files import sha256
from chainrule.formats.onnx import graph
from chainrule.formats.onnx.export import FILE, write_onnx
from chainrule.model import Batch
from chainrule.models import build, kind, model_class
from chainrule.recipe import Text, make_recipe
from chainrule.tasks import find_task
from chainrule.text.tokenizers.tokenizer import train_tokenizer

TEXT = "the cow jumps over the moon.\nthe moon is out."
SMALL = {"layers": 2, "hidden": 12, "embedding": 10}
GPT = {"layers": 2, "width": 24, "heads": 3, "context": 40}
SWIGLU = {"activation": "swiglu", "norm_scale": True, "norm_embedding": False, "hidden": 40}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "rnn": ("rnn", {**SMALL, "nonlinearity": "tanh"}),
    **{f"rnn {name}": ("rnn", {**SMALL, "nonlinearity": name}) for name in ("relu", "sigmoid", "identity")},
    "gru": ("gru", SMALL),
    "gru onehot": ("gru", {"layers": 1, "hidden": 8, "embedding": "onehot", "tied": False, "start": "learned"}),
    "lstm": ("lstm", {**SMALL, "start": "learned"}),
    "lstm tied": ("lstm", {"layers": 3, "hidden": 12}),
    "feedforward": ("feedforward", {"order": 4, "hidden": 12, "embedding": 8}),
    "feedforward direct": ("feedforward", {"order": 2, "layers": 2, "hidden": 12, "direct": True, "tied": True,
                                           "activation": "tanh"}),
    "hmm": ("hmm", {"states": 5}),
    "gpt": ("gpt", {**GPT, "logit_softcap": 9.0, "kv_heads": 1, "head_size": 6}),
    "gpt2": ("gpt2", GPT),
    "gpt llama": ("gpt", {**GPT, **SWIGLU, "qk_norm": False, "heads": 4, "kv_heads": 2, "tied": False, "biases": True}),
    **{f"gpt {name}": ("gpt", {**GPT, "head_size": 8, "rope_scaling": name, "rope_factor": 4.0})
       for name in ("linear", "ntk", "yarn", "llama3")},
    "gpt sliding": ("gpt", {**GPT, "attention": ("sliding", "full"), "window": 5, "positions": "relative"}),
    "gpt local": ("gpt", {**GPT, "attention": ("local", "full"), "block": 4, "positions": "alibi",
                          "activation": "geglu"}),
    "gpt 2017": ("gpt", {**GPT, "positions": "sinusoidal", "norm": "layer", "norm_first": False, "qk_norm": False,
                         "activation": "relu"}),
    "gpt x itself": ("gpt", {**GPT, "qkv": False, "scaled": False, "positions": "none", "activation": "gelu"}),
    "gpt experts": ("gpt", {**GPT, **SWIGLU, "experts": 4, "shared_expert": True}),
    "gpt experts not renormalised": ("gpt", {**GPT, "experts": 4, "active": 3, "renormalise": False}),
}  # fmt: skip


def made(path: Path, name: str, settings: dict[str, Any]) -> run.Run:
    given = {f"model.{key}": value for key, value in settings.items()}
    recipe = make_recipe(name, model_class(name), {**given, "text.tokenizer": "characters"}, kind(name).preset,
                         task=find_task(model_class(name).tasks[0]))
    units = train_tokenizer(Text(tokenizer="characters", min_count=1), [TEXT])
    torch.manual_seed(1)
    model = build(name, recipe.model, len(units))
    for parameter in model.parameters():    # scales and biases too, so that none can be left out unnoticed
        nn.init.normal_(parameter, std=0.3)
    if name == "hmm":
        model.forget(torch.Generator().manual_seed(1))
        model.emission[:, 7] = 0    # a token that no state can emit
    run.save(path, model, units, recipe)
    return run.load(path)


class Session:
    """A model in onnxruntime, by what its file says of its inputs."""

    def __init__(self, folder: Path):
        self.session = onnxruntime.InferenceSession(folder / FILE)
        self.inputs = {each.name: each for each in self.session.get_inputs()}
        self.past = [name for name in self.inputs if name.startswith("past")]
        self.present = [name.replace("past_key_values", "present").replace("past", "present") for name in self.past]

    def start(self, rows: int) -> dict[str, Any]:
        sizes, types = {"batch_size": rows, "past_sequence_length": 0}, {"float": "f4", "double": "f8", "int64": "i8"}
        return {name: np.zeros([sizes.get(size, size) for size in self.inputs[name].shape],
                               types[re.findall(r"\w+", self.inputs[name].type)[1]]) for name in self.past}

    def step(self, tokens: Any, state: dict[str, Any], mask: Any = None) -> tuple[Any, dict[str, Any]]:
        feeds = {"input_ids": tokens, **state}
        if "attention_mask" in self.inputs:
            length = tokens.shape[1] + state["past_key_values.0.key"].shape[2]
            mask = np.ones((len(tokens), length), np.int64) if mask is None else mask
            feeds |= {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1)[:, -tokens.shape[1] :]}
        logits, *present = self.session.run(["logits", *self.present], feeds)
        return logits, dict(zip(self.past, present, strict=True))


def tokens_of(ours: run.Run, rows: int = 3, count: int = 12) -> torch.Tensor:
    tokens = torch.randint(len(ours.tokenizer), (rows, count), generator=torch.Generator().manual_seed(2))
    tokens[:, 0], tokens[0, 5] = 0, 0
    return tokens


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_onnxruntime_computes_the_same_logits_however_the_text_is_cut(case: str, tmp_path: Path) -> None:
    ours = made(tmp_path / "run", *CASES[case])
    write_onnx(ours, tmp_path / "out")
    onnx.checker.check_model(tmp_path / "out" / FILE, full_check=True)
    theirs, tokens = Session(tmp_path / "out"), tokens_of(ours)
    expected = ours.model(Batch(tokens, tokens)).numpy()
    for sizes in ([12], [1] * 12, [5, 1, 6]):
        state, parts = theirs.start(len(tokens)), []
        for part in np.split(tokens.numpy(), np.cumsum(sizes)[:-1], axis=1):
            logits, state = theirs.step(part, state)
            parts.append(logits)
        np.testing.assert_allclose(np.concatenate(parts, 1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", ["gru", "lstm", "feedforward", "hmm", "gpt", "gpt2", "gpt sliding"])
def test_greedy_texts_are_equal_token_by_token(case: str, tmp_path: Path) -> None:
    ours = made(tmp_path / "run", *CASES[case])
    write_onnx(ours, tmp_path / "out")
    theirs, tokens = Session(tmp_path / "out"), [0, *ours.tokenizer.encode("the ").tolist()]
    state, begun = theirs.start(1), len(tokens)
    for place in range(begun + 29):
        logits, state = theirs.step(np.array([tokens[place : place + 1]]), state)
        if place + 1 >= begun:
            tokens.append(int(logits[0, -1].argmax()))
    text = ours.tokenizer.decode(tokens[begun : tokens.index(0, begun) if 0 in tokens[begun:] else None])
    assert ours.generate("the ", 30, temperature=0) == text


@pytest.mark.parametrize("case", ["gpt", "gpt2", "gpt sliding", "gpt local", "gpt 2017"])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_rows_of_different_lengths_are_masked(case: str, side: str, tmp_path: Path) -> None:
    ours = made(tmp_path / "run", *CASES[case])
    write_onnx(ours, tmp_path / "out")
    theirs, tokens = Session(tmp_path / "out"), tokens_of(ours, 2, 9)
    alone = ours.model(Batch(tokens[1:, :6], tokens)).numpy()    # five tokens, and one more
    padded, mask = np.zeros((2, 8), np.int64), np.ones((2, 8), np.int64)
    padded[0], here = tokens[0, :8], slice(3, 8) if side == "left" else slice(0, 5)
    padded[1, here], mask[1] = tokens[1, :5], 0
    mask[1, here] = 1
    logits, state = theirs.step(padded, theirs.start(2), mask)
    np.testing.assert_allclose(logits[1, here], alone[0, :5], atol=1e-5)
    mask = np.concatenate([mask, np.ones((2, 1), np.int64)], 1)
    logits, _ = theirs.step(np.array([[3], [int(tokens[1, 5])]]), state, mask)
    np.testing.assert_allclose(logits[1, -1], alone[0, 5], atol=1e-5)


def test_the_command_writes_a_folder_that_says_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, out = made(tmp_path / "run", *CASES["gpt"]), tmp_path / "out"
    assert main(["export", str(ours.path), str(out), "--to", "onnx", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    weights = sum(4 * parameter.numel() for parameter in ours.model.parameters())
    assert weights < printed["bytes"] == (out / FILE).stat().st_size < weights + 20_000    # a tied matrix once
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {FILE, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    facts = {each.key: each.value for each in onnx.load(out / FILE).metadata_props}
    assert facts == {"kind": "gpt", "vocab": str(len(ours.tokenizer)), "boundary": "0", "context": "40",
                     "tokenizer_sha256": sha256(ours.path / "tokenizer.json")}
    assert main(["export", str(ours.path), str(out), "--to", "onnx"]) == 2
    assert "exists already. Choose another name, or replace it with --overwrite." in capsys.readouterr().err
    assert main(["export", str(ours.path), str(out), "--to", "onnx", "--overwrite"]) == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert main(["export", str(ours.path), str(tmp_path / "mine"), "--to", "onnx", "--overwrite"]) == 2
    assert "is a folder with other files" in capsys.readouterr().err
    assert main(["export", str(ours.path), str(tmp_path / "mine" / "thesis.txt"), "--to", "onnx"]) == 2
    assert "is a file, and --to onnx writes a folder" in capsys.readouterr().err


def test_the_example_of_the_manual_continues_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tools" / "exchange.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n(import numpy.*?)```", page, re.DOTALL)
    ours = made(tmp_path / "run", *CASES["lstm"])
    with torch.no_grad():
        ours.model.embedding.bias[:257] = -100.0    # characters, and no single bytes of them
    write_onnx(ours, tmp_path / "my-lstm")
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs/tools/exchange.md", "exec"), {})
    assert capsys.readouterr().out == "the " + ours.generate("the ", 30, temperature=0) + "\n"


def test_weights_of_more_than_2_gb_are_in_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = made(tmp_path / "run", *CASES["lstm"])
    write_onnx(ours, tmp_path / "one")
    monkeypatch.setattr(graph, "LARGEST", 1000)
    write_onnx(ours, tmp_path / "two")
    assert (tmp_path / "two" / f"{FILE}_data").is_file()
    one, two = Session(tmp_path / "one"), Session(tmp_path / "two")
    tokens = tokens_of(ours).numpy()
    assert np.array_equal(one.step(tokens, one.start(3))[0], two.step(tokens, two.start(3))[0])


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = made(tmp_path / "run", *CASES["rnn"])
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"ONNX files need the package onnx\. Install it: pip install 'chainrule"):
        write_onnx(ours, tmp_path / "out")


@pytest.mark.parametrize(("name", "settings", "line"), [
    ("ngram", {"order": 2}, "is an ngram, which looks its predictions up in a table; ONNX has no operator for that. "
                            "Export it with --to arpa."),
    ("seq2seq", {"hidden": 8}, "is a seq2seq for translate; an ONNX file can be made of rnn, gru, lstm, feedforward, "
                               "hmm and gpt that are language models."),
    ("gpt", {**GPT, "attention": ("compressed",)}, "model.attention=compressed has no keys of single tokens, which the "
                                                   "ONNX graph of a gpt keeps; full, local and sliding can be "
                                                   "exported."),
])  # fmt: skip
def test_what_has_no_graph_is_refused_by_name(
    name: str, settings: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = made(tmp_path / "run", name, settings)
    assert main(["export", str(ours.path), str(tmp_path / "out"), "--to", "onnx"]) == 2
    error = capsys.readouterr().err.strip()
    assert error.endswith(line)
    assert "\n" not in error
    assert not (tmp_path / "out").exists()
