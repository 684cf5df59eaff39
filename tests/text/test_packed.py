"""Documents packed in a row (text.packed) do not see each other: the loss is that of each document alone."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from chainrule.inference.evaluate import evaluate
from chainrule.inference.score import score_documents, score_texts
from chainrule.model import Batch, Model
from chainrule.models import build, model_class
from chainrule.recipe import Gradient, Text, make_recipe
from chainrule.tasks.lm import LM, Unpacked
from chainrule.text.batches import Windows, document_numbers
from chainrule.text.corpus import Corpus, Split
from chainrule.text.tokenizers.tokenizer import train_tokenizer
from chainrule.training.loader import make_loader

VOCAB, LENGTH = 6, 12
GPT = {"layers": 2, "width": 16, "heads": 2, "context": LENGTH, "zero_init": False}
LSTM = {"layers": 2, "hidden": 8, "dropout": 0.0}


def stream(count: int = 60) -> Any:
    """Documents of 0 to 6 tokens."""
    random = np.random.default_rng(1)
    texts = [random.integers(1, VOCAB, random.integers(0, 7)) for _ in range(count)]
    return np.concatenate([[0], *(np.append(text, 0) for text in texts)]).astype(np.uint16)


def made(kind: str, settings: dict[str, Any]) -> Model:
    torch.manual_seed(1)
    recipe = make_recipe(kind, model_class(kind), {f"model.{name}": value for name, value in settings.items()})
    model: Model = build(kind, recipe.model, VOCAB)
    return model.eval()


def alone(model: Any, tokens: Any, starts: Any) -> tuple[float, int]:
    """Nats and targets of the windows, each document, or part of one, read by itself."""
    total, count = 0.0, 0
    for start in starts.tolist():
        window = tokens[start : start + LENGTH + 1].astype(np.int64)
        cuts = [0, *(at for at in range(1, LENGTH) if window[at] == 0), LENGTH]
        for begin, end in pairwise(cuts):
            row = torch.from_numpy(window[begin : end + 1])[None]
            nats, targets, _ = model.loss(Batch(row[:, :-1], row[:, 1:]))
            total, count = total + float(nats), count + int(targets)
    return total, count


CASES = {
    "rotary": ("gpt", GPT),
    "learned": ("gpt", {**GPT, "positions": "learned"}),
    "alibi": ("gpt", {**GPT, "positions": "alibi"}),
    "relative": ("gpt", {**GPT, "positions": "relative", "kv_heads": 1}),
    "window": ("gpt", {**GPT, "window": 3, "positions": "sinusoidal"}),
    "local": ("gpt", {**GPT, "attention": ("local", "compressed"), "block": 4}),
    "lstm": ("lstm", LSTM),
    "feedforward": ("feedforward", {"order": 4, "embedding": 8, "dropout": 0.0}),
}


@torch.inference_mode()
@pytest.mark.parametrize("case", CASES)
def test_packing_changes_no_loss(case: str) -> None:
    model, tokens = made(*CASES[case]), stream()
    corpus = Corpus({"train": Split(tokens, 1, 1, "", packed=True)}, train_tokenizer(Text(tokenizer="bytes"), []), ())
    settings = Gradient(length=LENGTH, tokens=3 * LENGTH)
    loader, order = make_loader(LM, model, corpus, settings, torch.device("cpu")), LM.order(model, corpus, settings)
    windows = order.order if isinstance(order, Unpacked) else order
    for step in range(3):
        batch = loader.batch(step)
        nats, count, _ = model.loss(batch)
        wanted, targets = alone(model, tokens, windows.starts(step))
        assert int(count) == targets == 3 * LENGTH
        assert float(nats) == pytest.approx(wanted, rel=1e-5)
        again = order.at(step)                             # the loader gathers rows itself, and gives the same
        assert all(torch.equal(tensor, batch.tensors()[name]) for name, tensor in again.tensors().items())


def test_a_boundary_begins_the_next_document() -> None:
    numbers = document_numbers(torch.tensor([[3, 2, 0, 1, 0, 0, 5], [0, 1, 1, 1, 1, 1, 1]]))
    assert numbers.tolist() == [[0, 0, 1, 1, 2, 3, 3], [1, 1, 1, 1, 1, 1, 1]]


def test_unpacked_rows_hold_each_target_once() -> None:
    tokens = stream()
    order = Unpacked(Windows(tokens, 4, LENGTH, 1, packed=True))
    for step in range(4):
        batch = order.at(step)
        assert not (batch.tokens[:, 1:] == 0)[batch.loss_mask[:, 1:]].any()    # a boundary only begins a row
        pairs = torch.stack([batch.tokens, batch.targets], -1)[batch.loss_mask]
        packed = order.order.at(step)
        wanted = torch.stack([packed.tokens, packed.targets], -1).flatten(0, 1)
        assert sorted(pairs.tolist()) == sorted(wanted.tolist())


@torch.inference_mode()
def test_held_out_documents_are_scored_separately() -> None:
    model: Any = made("gpt", {**GPT, "context": 8})
    tokenizer = train_tokenizer(Text(tokenizer="characters"), ["abcde"])
    tokens = stream(20)
    texts = np.split(tokens[1:-1], np.flatnonzero(tokens[1:-1] == 0))
    wanted = np.concatenate(score_texts(model, [text[text > 0] for text in texts]))
    np.testing.assert_allclose(score_documents(model, tokens), wanted, rtol=1e-5)
    packed = evaluate(model, tokenizer, Split(tokens, 100, 20, "", packed=True))
    plain = evaluate(model, tokenizer, Split(tokens, 100, 20, ""))
    assert packed.nats == pytest.approx(math.fsum(wanted) / len(wanted))
    assert packed.nats != pytest.approx(plain.nats)
    assert "context:8 of a document|" in packed.signature
