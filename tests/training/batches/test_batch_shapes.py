"""Batches padded to a few shapes: each holds its batch, few differ, and padding changes neither loss nor gradients."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from chainrule.model import IGNORE, Batch
from chainrule.models.heads import Classifier, TokenClassifier
from chainrule.models.rnn import LSTM, RecurrentSettings
from chainrule.models.seq2seq import Seq2Seq, Seq2SeqSettings
from chainrule.models.transformer import EncoderDecoder, EncoderDecoderSettings
from chainrule.preferences.objective import Objective
from chainrule.tasks.batching import Buckets, pad_rows, ragged
from chainrule.tasks.classify import Classes
from chainrule.tasks.corruption import Spans
from chainrule.tasks.translate import Sequences
from chainrule.text.batches import Windows
from chainrule.training import loader as loading
from chainrule.training.compile.batch_shapes import area, few_shapes, free_share
from chainrule.training.loader import BatchLoader, layout, view, with_few_shapes

VOCAB, CPU = 30, torch.device("cpu")


def test_shapes_are_merged_where_that_pads_least():
    shapes = np.array([[10, 8], [9, 8], [2, 64], [10, 8]])
    assert few_shapes(shapes, most=2, free=0).tolist() == [[10, 8], [10, 8], [2, 64], [10, 8]]
    assert few_shapes(shapes, most=1, free=0).tolist() == [[10, 64]] * 4
    assert few_shapes(shapes, most=9, free=0).tolist() == shapes.tolist()
    assert few_shapes(shapes, most=9, free=0.1).tolist() == [[10, 8], [10, 8], [2, 64], [10, 8]]


def test_a_short_training_has_fewer_shapes():
    assert free_share(None) < free_share(10_000) < free_share(2_500) < free_share(1) == 0.05
    shapes = np.array([[100, 16]] * 50 + [[96, 16]])
    assert len(np.unique(few_shapes(shapes, free=free_share(10**7)), axis=0)) == 2
    assert len(np.unique(few_shapes(shapes, free=free_share(10**4)), axis=0)) == 1


def test_few_shapes_hold_every_batch_and_add_little():
    random = np.random.default_rng(1)
    widths = -(-random.integers(1, 60, (400, 2)) // 8) * 8
    shapes = np.column_stack([4096 // widths.max(1), widths])
    few = few_shapes(shapes)
    assert (few >= shapes).all()
    assert len(np.unique(few, axis=0)) <= 12 < len(np.unique(shapes, axis=0))
    assert area(few).sum() < 1.25 * area(shapes).sum()


def sequences(count=60, seed=1):
    random = np.random.default_rng(seed)
    rows = [[random.integers(1, VOCAB, size) for size in random.integers(1, 40, count)] for _ in range(2)]
    return Sequences(ragged([np.append(row, 0) for row in rows[0]]), ragged(rows[1]))


def test_the_shapes_of_an_epoch_are_those_of_its_batches_in_every_epoch():
    order = Buckets(sequences(), seed=1, tokens=200)
    wanted = sorted(map(tuple, order.shapes.tolist()))
    for epoch in range(2):
        batches = [order.at(step) for step in range(epoch * order.steps, (epoch + 1) * order.steps)]
        assert sorted((*batch.tokens.shape, batch.source.shape[1]) for batch in batches) == wanted


MODELS = {
    "seq2seq": lambda: Seq2Seq(Seq2SeqSettings(hidden=8, layers=1), VOCAB),
    "transformer": lambda: EncoderDecoder(
        EncoderDecoderSettings(layers=1, width=16, heads=2, context=48, label_smoothing=0.1), VOCAB
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_padding_changes_neither_the_loss_nor_the_gradients(name):
    torch.manual_seed(1)
    model = MODELS[name]().double()
    plain, padded = (Buckets(sequences(), seed=1, tokens=200) for _ in range(2))
    padded.pad_to(few_shapes(padded.shapes, most=2))
    shapes = set()
    for step in range(4):
        batches = [order.at(step) for order in (plain, padded)]
        shapes.add((*batches[1].tokens.shape, batches[1].source.shape[1]))
        assert_same_loss(model, *batches)
    assert len(shapes) <= 2


def assert_same_loss(model, plain, padded):
    results = [model.loss(batch)[:2] for batch in (plain, padded)]
    assert int(results[0][1]) == int(results[1][1])
    assert_close(results[0][0], results[1][0], rtol=1e-6, atol=1e-6)
    parameters = [each for each in model.parameters() if each.requires_grad]
    gradients = [torch.autograd.grad(nats, parameters, allow_unused=True) for nats, _ in results]
    for one, other in zip(*gradients):
        assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pool", ["max", "mean", "last"])
def test_padding_changes_no_class(pool):
    torch.manual_seed(1)
    random = np.random.default_rng(1)
    encoded = Classes(ragged([random.integers(1, VOCAB, size) for size in random.integers(1, 30, 40)]),
                      random.integers(0, 3, 40))
    model = Classifier(LSTM(RecurrentSettings(hidden=8, layers=1, bidirectional=True), VOCAB), 3, pool).double()
    plain, padded = (Buckets(encoded, seed=1, tokens=100) for _ in range(2))
    padded.pad_to(few_shapes(padded.shapes, most=1))
    for step in range(3):
        assert_same_loss(model, plain.at(step), padded.at(step))


def test_rows_are_padded_by_copies_without_targets():
    batch = Batch(torch.tensor([[3, 4], [5, 0]]), torch.tensor([[4, 0], [0, 0]]), torch.tensor([2, 1]))
    padded = pad_rows(batch, 4)
    assert padded.tokens.tolist() == [[3, 4], [5, 0], [5, 0], [5, 0]]
    assert padded.lengths.tolist() == [2, 1, 1, 1]
    assert (padded.targets[2:] == IGNORE).all()
    assert int(padded.loss_mask.sum()) == int(batch.loss_mask.sum()) == 3


def test_bytes_of_words_are_padded_to_one_width():
    from chainrule.layers.embedding import CharCNN
    from chainrule.tasks.tag import word_bytes

    torch.manual_seed(1)
    text = torch.randint(1, VOCAB, (2, 3))
    batch = Batch(text, text % 5, torch.tensor([3, 2]), source=word_bytes([["a", "bc", "def"], ["g", "hi", ""]]))
    padded = pad_rows(batch, 5)
    assert padded.source.shape == (5, 3, 24)
    model = TokenClassifier(LSTM(RecurrentSettings(hidden=8, layers=1), VOCAB), 5, char_cnn=CharCNN(8)).double()
    assert_same_loss(model, batch, padded)


def test_batches_are_padded_for_graphs_but_not_under_an_objective(monkeypatch):
    order = Buckets(sequences(), seed=1, tokens=200)
    assert with_few_shapes(order, Objective(SimpleNamespace())) is order
    assert order.padded is None
    made = with_few_shapes(order, MODELS["seq2seq"]())
    assert made.padded is not None
    spans = Spans(Windows(np.arange(1000, dtype=np.uint16) % 20 + 1, 4, 63, 1), np.array([21, 22, 23, 24, 25]), 1)
    assert with_few_shapes(spans, MODELS["seq2seq"]()).multiple == loading.WIDTHS
    assert with_few_shapes(spans, SimpleNamespace(context=40)).multiple == 8      # 64 would be more than it holds


def test_a_loader_says_how_much_is_padded_until_nothing_is():
    def tokens():
        batches = map(loader.batch, range(loader.order.steps))
        return sum(batch.tokens.numel() + batch.source.numel() for batch in batches)

    loader = BatchLoader(with_few_shapes(Buckets(sequences(), seed=1, tokens=200), MODELS["seq2seq"](), 1200), CPU)
    padded, padding = tokens(), loader.graph_padding
    loader.unpad()
    assert padding == pytest.approx(padded / tokens())
    assert padding > 1.01
    assert loader.graph_padding == 1


def test_a_batch_lies_in_one_piece_of_memory():
    batch = sequences().batch(np.arange(5), [40, 40])
    places, size = layout(batch)
    memory = torch.zeros(size, dtype=torch.uint8)
    for tensor, place in zip(batch.tensors().values(), places):
        view(memory, tensor, place).copy_(tensor)
    at = iter(places)
    again = batch.map(lambda tensor: view(memory, tensor, next(at)))
    for name, tensor in batch.tensors().items():
        assert torch.equal(tensor, getattr(again, name))
