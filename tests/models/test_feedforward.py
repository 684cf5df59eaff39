"""The feed-forward model against sums written out by loops; its window; word vectors that are given."""

import math

import pytest
import torch
from torch.testing import assert_close

from chainrule.errors import UserError
from chainrule.layers.embedding import NeuralLanguageModel
from chainrule.model import Batch, cross_entropy, watch
from chainrule.models.feedforward import FeedForward, FeedForwardSettings

VOCAB = 7
ACTIVATIONS = {
    "tanh": math.tanh,
    "relu": lambda z: max(z, 0.0),
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)),
    "gelu": lambda z: z * 0.5 * (1 + math.erf(z / math.sqrt(2))),
}


def make(**given):
    torch.manual_seed(1)
    model = FeedForward(FeedForwardSettings(**{"order": 4, "hidden": 6, "embedding": 3, **given}), VOCAB)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


def some_tokens(rows=2, length=8):
    return torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(2))


def sums(matrix, vector, bias):
    return [sum(w * v for w, v in zip(row, vector)) + b for row, b in zip(matrix, bias)]


def by_loops(model, settings, window):
    """The logits after one window of tokens; without tensors."""
    table = model.embedding.weight.tolist()
    x = [number for token in window for number in table[token]]
    h = x
    for layer in model.layers:
        h = [ACTIVATIONS[settings["activation"]](z) for z in sums(layer.weight.tolist(), h, layer.bias.tolist())]
    answer = h + x if settings.get("direct") else h
    if model.embedding.project is not None:
        matrix = model.embedding.project.weight.tolist()
        answer = sums(matrix, answer, [0.0] * len(matrix))
    matrix = table if settings.get("tied") else model.embedding.output.weight.tolist()
    return sums(matrix, answer, model.embedding.bias.tolist())


@pytest.mark.parametrize(
    "settings",
    [
        {"activation": "tanh"},
        {"activation": "relu", "layers": 3},
        {"activation": "sigmoid", "direct": True},
        {"activation": "gelu", "tied": True},
        {"activation": "tanh", "tied": True, "hidden": 3},
        {"activation": "tanh", "tied": True, "direct": True},
    ],
    ids=str,
)
def test_logits_are_the_sums_of_the_formula(settings):
    model, tokens = make(**settings), some_tokens()
    logits = model(Batch(tokens, tokens))
    for row, text in enumerate(tokens.tolist()):
        for place in range(len(text)):
            window = [0, 0, 0, *text][place + 1 : place + 4]
            assert_close(logits[row, place], torch.tensor(by_loops(model, settings, window)), atol=1e-5, rtol=1e-5)


def test_tied_vectors_of_one_size_need_no_projection():
    assert make(tied=True, hidden=3).embedding.project is None
    assert make(tied=True).embedding.project is not None
    assert make(tied=True).embedding.output is None


@pytest.mark.parametrize("given", [{}, {"direct": True}, {"tied": True}], ids=str)
def test_nats_are_the_loss_of_the_logits(given):
    model, tokens = make(**given), some_tokens()
    batch = Batch(tokens[:, :-1], tokens[:, 1:], torch.tensor([7, 2]))
    assert_close(model.loss(batch)[:2], cross_entropy(model(batch), batch))


def test_the_hidden_layer_can_be_watched():
    model, tokens = make(), some_tokens()
    with watch(model, "hidden") as seen:
        logits = model(Batch(tokens, tokens))
    assert seen["hidden"][0].shape == (2, 8, 6)
    assert_close(model.embedding.logits(seen["hidden"][0]), logits)


def test_numbers_are_dropped_while_learning_only():
    model, tokens = make(dropout=0.5), some_tokens()
    torch.manual_seed(1)
    first, second = (model(Batch(tokens, tokens)) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(model.eval()(Batch(tokens, tokens)), make().eval()(Batch(tokens, tokens)))


@pytest.mark.parametrize("frozen", [True, False])
def test_given_word_vectors_are_used_and_stay_as_they_are_if_frozen(frozen):
    model, vectors, tokens = make(), torch.randn(VOCAB, 3), some_tokens()
    model.set_embeddings(vectors, frozen)
    assert torch.equal(model.embedding(tokens), vectors[tokens])
    model.loss(Batch(tokens[:, :-1], tokens[:, 1:]))[0].backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.step()
    assert torch.equal(model.embedding.weight, vectors) == frozen


def test_word_vectors_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"^the word vectors are 7 x 50, and this model's are 7 x 3; set model"):
        make().set_embeddings(torch.zeros(VOCAB, 50))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"order": 1}, "model.order=1"),
        ({"layers": 0}, "model.layers=0"),
        ({"hidden": 0}, "model.hidden=0"),
        ({"embedding": 0}, "model.embedding=0"),
        ({"dropout": 1.5}, "model.dropout=1.5"),
    ],
)
def test_settings_that_cannot_be_are_refused(given, says):
    with pytest.raises(UserError, match=f"^{says}: "):
        FeedForwardSettings(**given)


def test_it_runs_in_bfloat16():
    model, tokens = make(direct=True), some_tokens()
    batch = Batch(tokens[:, :-1], tokens[:, 1:])
    wanted, _, _ = model.loss(batch)
    with torch.autocast("cpu", torch.bfloat16):
        nats, _, _ = model.loss(batch)
        nats.backward()
    assert_close(nats, wanted, rtol=0.05, atol=0)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_network_must_define_its_hidden_states():
    with pytest.raises(NotImplementedError):
        NeuralLanguageModel().hidden_states(some_tokens(), None)
