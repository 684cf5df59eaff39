"""One-hot inputs: x is e_i, so U has a column for each token, and there is no embedding to learn."""

import pytest
import torch

from chainrule.errors import UserError
from chainrule.layers.embedding import MOST_ONE_HOT, OneHotEmbedding
from chainrule.models.feedforward import FeedForward, FeedForwardSettings
from chainrule.models.rnn import GRU, LSTM, Elman, ElmanSettings, RecurrentSettings

TOKENS = torch.tensor([[0, 3, 1, 1, 4, 2]])


def test_an_elman_network_reads_the_columns_of_u():
    model = Elman(ElmanSettings(layers=1, hidden=3, embedding="onehot", tied=False), vocab=5)
    weights = dict(model.named_parameters())
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == {
        "embedding.output.weight": (5, 3), "embedding.bias": (5,), "stack.layers.0.rnn.weight_ih_l0": (3, 5),
        "stack.layers.0.rnn.weight_hh_l0": (3, 3), "stack.layers.0.rnn.bias_ih_l0": (3,),
        "stack.layers.0.rnn.bias_hh_l0": (3,),
    }
    U, W, b_U, b_W = model.stack.layers[0].weights()[0]
    h, wanted = torch.zeros(3), []
    for token in TOKENS[0].tolist():
        h = torch.tanh(W @ h + U[:, token] + b_U + b_W)                  # h' = σ(Wh + Ux + b), where Ux is a column
        wanted.append(model.embedding.output.weight @ h + model.embedding.bias)
    found, _ = model.step(TOKENS, model.start(1))
    torch.testing.assert_close(found[0], torch.stack(wanted))


def test_a_window_of_one_hot_vectors_is_a_sum_of_columns():
    model = FeedForward(FeedForwardSettings(order=3, hidden=4, embedding="onehot", activation="tanh"), vocab=5)
    layer = model.layers[0]
    assert layer.weight.shape == (4, 2 * 5)
    h = torch.tanh(layer.weight[:, 3] + layer.weight[:, 5 + 1] + layer.bias)           # after the tokens 3, 1
    found, _ = model.step(TOKENS[:, :3], model.start(1))
    torch.testing.assert_close(found[0, -1], model.embedding.output.weight @ h + model.embedding.bias)


@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_the_vectors_are_the_identity_and_are_not_saved(kind):
    model = kind(RecurrentSettings(layers=1, hidden=4, embedding="onehot", tied=False), vocab=5)
    assert torch.equal(model.embeddings, torch.eye(5))
    assert "embedding.weight" not in model.state_dict()
    model.step(TOKENS, model.start(1))[0].sum().backward()


def test_what_does_not_go_with_one_hot_inputs_is_refused():
    with pytest.raises(UserError, match=r"Add model.tied=false"):
        ElmanSettings(embedding="onehot")
    with pytest.raises(UserError, match=r"model.vectors=v.txt initialises an embedding"):
        ElmanSettings(embedding="onehot", tied=False, vectors="v.txt")
    with pytest.raises(UserError, match="at most 16,384 numbers"):
        OneHotEmbedding(MOST_ONE_HOT + 1, None)
