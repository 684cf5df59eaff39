from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.backends.cuda import cudnn_sdp_enabled
from training.small import split

from chainrule.device import cudnn_attention
from chainrule.errors import UserError
from chainrule.model import BOUNDARY, IGNORE
from chainrule.recipe import Gradient
from chainrule.tasks import find_task, recipe_for
from chainrule.tasks.batching import Ragged
from chainrule.tasks.classify import Classes
from chainrule.tasks.lm import order_text
from chainrule.tasks.tag import Tags
from chainrule.tasks.translate import Sequences
from chainrule.text.batches import Streams, Windows
from chainrule.training.loader import TokenLoader, make_loader
from chainrule.training.pipeline import make_run
from chainrule.training.trainer import Trainer

one_step = Trainer.one_step
CPU = torch.device("cpu")
TOKENS = (np.arange(1000) % 60_000).astype(np.uint16)


ORDERS = {
    "windows": Windows(TOKENS, 5, 8, seed=3), "streams": Streams(TOKENS, 5, 8), "reset": Streams(TOKENS, 5, 8, 0.4),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_rows_gathered_where_the_tokens_lie_are_those_of_the_batches(order):
    resident, other = TokenLoader(order, CPU, resident=True), TokenLoader(order, CPU)
    assert other.tokens is None
    for step in (0, 1, 24, 25, 26, 60):
        wanted = order.at(step)
        for loader in (resident, other):
            batch = loader.batch(step)
            assert batch.tokens.dtype == torch.int64
            assert torch.equal(batch.tokens, wanted.tokens)
            assert torch.equal(batch.targets, wanted.targets)
            assert (batch.reset is None) == (wanted.reset is None) == (order is not ORDERS["reset"])
            assert batch.reset is None or torch.equal(batch.reset, wanted.reset)


def test_large_ids_survive_the_journey():
    order = Windows(np.full(20, 65_535, np.uint16), 1, 4, seed=1)
    assert TokenLoader(order, CPU, resident=True).batch(0).tokens.unique().tolist() == [65_535]


def test_only_streams_go_on_and_each_epoch_starts_with_a_reset():
    windows = order_text(split(TOKENS), Gradient(tokens=40, length=8), None)
    streams = order_text(split(TOKENS), Gradient(tokens=40, length=8, batching="streams"), None)
    assert not any(windows.goes_on(step) for step in range(60))
    epoch = int(streams.epoch)
    assert [step for step in range(3 * epoch) if not streams.goes_on(step)] == [0, epoch, 2 * epoch]


def test_one_in_a_hundred_rows_of_a_stream_is_reset():
    """Melis et al. 2018: otherwise a model that carries its state on hardly ever sees the beginning of a text."""
    order = order_text(split(TOKENS), Gradient(tokens=40, length=4, batching="streams"), None)
    loader = TokenLoader(order, CPU)
    batches = [loader.batch(step) for step in range(1000)]
    assert sum(int(batch.reset.sum()) for batch in batches) / 10_000 == pytest.approx(0.01, abs=0.003)
    assert all((batch.tokens[batch.reset, 0] == BOUNDARY).all() for batch in batches)


@pytest.mark.parametrize(
    ("given", "context", "rows", "length"),
    [
        ({"tokens": 64, "length": 8}, None, 8, 8),
        ({"tokens": 70, "length": 8}, None, 8, 8),
        ({"length": 4}, None, 3, 4),            # 999 targets: at least 64 steps in an epoch
        ({}, 3, 5, 3),
        ({}, None, 1, 64),
        ({"tokens": 256}, 32, 8, 32),
    ],
)
def test_what_is_left_out_is_chosen_by_text_and_model(given, context, rows, length):
    order = order_text(split(TOKENS), Gradient(**given), context)
    assert (order.rows, order.length) == (rows, length)


def test_a_text_shorter_than_the_default_row_is_one_row():
    assert order_text(split(TOKENS[:50]), Gradient(), None).length == 49


@pytest.mark.parametrize("batching", ["windows", "streams"])
def test_a_step_larger_than_the_text_is_made_smaller_and_said(batching, capsys):
    order = order_text(split(TOKENS), Gradient(tokens=4096, length=4, batching=batching), None)
    assert order.rows == 3
    line = "the text is shorter than one step of train.tokens=4096, so a step has 12, the default; "
    assert line + "train.tokens=996 would be the whole text." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "context", "line"),
    [
        ({"tokens": 7, "length": 8}, None, "train.tokens=7 is less than one row of 8"),
        ({"length": 40}, 32, "train.length=40 is more than the 32 tokens"),
        ({"batching": "streams"}, 32, "train.batching=windows"),
        ({"length": 5000}, None, "the text is shorter than the context"),
        ({}, 5000, "the text is shorter than the context"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_one_line(given, context, line):
    with pytest.raises(UserError, match=line):
        order_text(split(TOKENS), Gradient(**given), context)


def rows_of(*texts):
    return Ragged(np.array([number for text in texts for number in text]), np.cumsum([len(text) for text in texts]))


TOKENS_OF_THREE = rows_of([0, 4, 5, 6], [0, 4], [0, 4, 5])
EXAMPLES = {
    "classes": Classes(TOKENS_OF_THREE, np.array([1, IGNORE, 0])),
    "tags": Tags(TOKENS_OF_THREE, rows_of([3], [1], [1, 2]), rows_of([1], [0], [1, IGNORE]),
                 rows_of(["a"], ["b"], ["a", "b"])),
    "sequences": Sequences(TOKENS_OF_THREE, rows_of([4, 5], [4, 5, 6, 7], [4])),
}


@pytest.mark.parametrize("encoded", EXAMPLES.values(), ids=EXAMPLES)
def test_a_step_of_examples_has_as_many_targets_as_are_learned_from(encoded):
    corpus = SimpleNamespace(splits={"train": SimpleNamespace(encoded=encoded)})
    loader = make_loader(find_task("tag"), None, corpus, Gradient(tokens=100), CPU)
    assert loader.order.epoch == 1
    assert loader.targets == int(loader.batch(0).loss_mask.sum())


@pytest.mark.parametrize(("task", "on"), [("lm", True), ("classify", False)])
def test_cudnn_computes_attention_where_all_batches_have_one_shape(monkeypatch, tmp_path, task, on):
    """Else it would plan attention anew for each shape, which takes longer than many steps."""
    seen = set()
    monkeypatch.setattr(Trainer, "one_step", lambda self: seen.add(cudnn_sdp_enabled()) or one_step(self))
    texts = {"lm": "a b c\n" * 40, "classify": "text\tlabel\n" + "good\t1\nbad one\t0\n" * 20}
    (path := tmp_path / "text.tsv").write_text(texts[task])
    length = {"train.length": 8} if task == "lm" else {}
    recipe = recipe_for("lstm", {"train.steps": 2, "train.tokens": 32, "model.hidden": 8, **length}, task)
    with cudnn_attention(not on):
        make_run([str(path)], recipe, tmp_path / "run")
        assert cudnn_sdp_enabled() != on
    assert seen == {on}
