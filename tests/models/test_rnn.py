"""Recurrent language models: a net made by hand, what can be watched, what is dropped, tied and carried."""

import math
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from chainrule.device import shapes_only
from chainrule.errors import UserError
from chainrule.model import Batch, cross_entropy, taps, watch
from chainrule.models.feedforward import FeedForward, FeedForwardSettings
from chainrule.models.rnn import GRU, LSTM, Elman, ElmanSettings, RecurrentSettings
from chainrule.settings import flatten, meanings
from chainrule.settings import make as make_settings
from chainrule.tasks import build_for, recipe_for

ROOT = Path(__file__).parents[2]
VOCAB = 11
KINDS = {"rnn": Elman, "gru": GRU, "lstm": LSTM}
GATES = {"rnn": 0, "gru": 2, "lstm": 4}
AWD = {"input_dropout": 0.4, "between_dropout": 0.25, "output_dropout": 0.4, "locked_dropout": True} | {
    "embedding_dropout": 0.1, "weight_dropout": 0.5
}

every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, vocab=VOCAB, **given):
    torch.manual_seed(1)
    cls = KINDS[kind]
    return cls(cls.Settings(**{"hidden": 8, "layers": 2, **given}), vocab)


def some_batch(rows=3, length=12, seed=2, lengths=None):
    tokens = torch.randint(VOCAB, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    return Batch(tokens[:, :-1], tokens[:, 1:], lengths)


def test_a_net_of_three_units_made_by_hand_keeps_a_binary_rhythm():
    """1 0 0 1 0 0 …: a unit each for "1 was read just now", "one ago" and "two ago"; after the last comes a 1."""
    model = Elman(ElmanSettings(layers=1, hidden=3, embedding=1, tied=False, nonlinearity="relu"), vocab=2)
    model.set_embeddings(torch.tensor([[0.0], [1.0]]))
    U, W, b_U, b_W = model.stack.layers[0].rnn.all_weights[0]
    with torch.no_grad():
        U.copy_(torch.tensor([[1.0], [0.0], [0.0]]))
        W.copy_(torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]))
        b_U.zero_(), b_W.zero_()
        model.embedding.output.weight.copy_(torch.tensor([[0.0, 0, 0], [0, 0, 10]]))
        model.embedding.bias.copy_(torch.tensor([0.0, -5]))
    rhythm = torch.tensor([[1, 0, 0, 1, 0, 0, 1, 0, 0, 1]])
    with watch(model, "hidden") as seen:
        logits = model(Batch(rhythm[:, :-1], rhythm[:, 1:]))
    assert seen["hidden"][0][0, :4, 0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert_close(logits[0, :3, 1], torch.tensor([-5.0, -5.0, 5.0]))
    nats, count, _ = model.loss(Batch(rhythm[:, :-1], rhythm[:, 1:]))
    assert float(nats.detach() / count) == pytest.approx(math.log(1 + math.exp(-5)), rel=1e-5)


def test_an_elman_network_that_reads_one_token_is_a_feed_forward_net():
    recurrent = Elman(ElmanSettings(layers=1, hidden=8, embedding=6, tied=False), VOCAB)
    plain = FeedForward(FeedForwardSettings(order=2, hidden=8, embedding=6, activation="tanh"), VOCAB)
    U, _, b_U, b_W = recurrent.stack.layers[0].rnn.all_weights[0]
    plain.embedding.load_state_dict(recurrent.embedding.state_dict())
    plain.layers[0].load_state_dict({"weight": U, "bias": b_U + b_W})
    token = torch.arange(VOCAB)[:, None]
    wanted, _ = plain.step(token, plain.start(VOCAB))
    assert_close(recurrent.step(token, recurrent.start(VOCAB))[0], wanted)


@every_kind
def test_what_is_watched_has_a_shape_and_changes_no_answer(kind):
    model, batch = make(kind).eval(), some_batch()
    plain = model(batch)
    with watch(model) as seen:
        assert_close(model(batch), plain, atol=1e-5, rtol=1e-5)
    shapes = {name: tuple(found[0].shape) for name, found in seen.items()}
    wanted = {"hidden": (3, 12, 2, 8)} | ({"gates": (3, 12, 2, GATES[kind], 8)} if GATES[kind] else {})
    wanted |= {f"stack.layers.{layer}.moment": (3, 1, 8) for layer in range(2)}
    if kind == "lstm":
        wanted |= {"cell": (3, 12, 2, 8)} | {f"stack.layers.{layer}.cell_moment": (3, 8) for layer in range(2)}
    assert shapes == wanted
    assert taps(model).keys() == shapes.keys()


@every_kind
def test_watching_changes_no_loss_while_learning_with_everything_dropped(kind):
    model, batch = make(kind, **AWD), some_batch()
    torch.manual_seed(3)
    plain, _, _ = model.loss(batch)
    torch.manual_seed(3)
    with watch(model, "hidden"):
        assert_close(model.loss(batch)[0], plain)


@every_kind
@pytest.mark.parametrize("given", [{"tied": True}, {"tied": False}, {"tied": True, "embedding": 5}], ids=str)
def test_nats_are_the_loss_of_the_logits_and_so_are_their_gradients(kind, given):
    model, batch = make(kind, **given), some_batch(lengths=torch.tensor([12, 3, 7]))
    results = []
    for nats, count in (cross_entropy(model(batch), batch), model.loss(batch)[:2]):
        model.zero_grad()
        nats.backward()
        results.append((nats, count, [parameter.grad.clone() for parameter in model.parameters()]))
    assert_close(results[0], results[1], atol=1e-4, rtol=1e-4)


@every_kind
def test_carrying_the_state_gives_the_loss_of_the_whole_text(kind):
    model, batch = make(kind), some_batch()
    whole, count, _ = model.loss(batch)
    first, one, state = model.loss(Batch(batch.tokens[:, :5], batch.targets[:, :5]))
    second, other, _ = model.loss(Batch(batch.tokens[:, 5:], batch.targets[:, 5:]), state)
    assert_close(first + second, whole)
    assert one + other == count


@every_kind
def test_a_learned_start_learns_and_is_where_it_starts(kind):
    model = make(kind, start="learned")
    model.loss(some_batch())[0].backward()
    assert model.stack.initial.grad.abs().min() > 0
    with torch.no_grad():
        model.stack.initial.fill_(0.5)
    assert all(part.eq(0.5).all() for part in model.start(2).values())


@pytest.mark.parametrize("name", [name for name in AWD if name != "locked_dropout"])
def test_each_dropout_acts_while_learning_and_never_after(name):
    model, plain, batch = make("lstm", **{name: 0.5}), make("lstm"), some_batch()
    torch.manual_seed(4)
    assert not torch.equal(model(batch), plain(batch))
    assert torch.equal(model.eval()(batch), plain.eval()(batch))


def test_dropout_is_the_default_of_input_between_and_output_dropout():
    model = make("lstm", dropout=0.5, between_dropout=0.1)
    assert (model.drop_input.p, model.stack.between.p, model.drop_output.p) == (0.5, 0.1, 0.5)


def test_a_dropped_word_is_dropped_wherever_it_stands():
    model = make("lstm", embedding_dropout=0.5)
    tokens = torch.arange(VOCAB).repeat(4, 3)
    read = model.embedding(tokens).reshape(12, VOCAB, -1)
    assert torch.equal(read, read[:1].expand_as(read))
    gone = read[0].eq(0).all(1)
    assert 0 < gone.sum() < VOCAB
    assert_close(read[0][~gone], 2 * model.embedding.weight[~gone])


def test_the_published_lstm_has_its_size():
    """2 layers of 650, tied: an embedding and a bias for 10,000 words; four gates a layer, each with W, U and b."""
    settings = make_settings(
        RecurrentSettings, {"layers": "2", "hidden": "650", "tied": "true", "dropout": "0.5"}, "model"
    )
    with shapes_only():
        model = LSTM(settings, 10_000)
    layer = 4 * (650 * 650 + 650 * 650 + 650 + 650)
    assert sum(parameter.numel() for parameter in model.parameters()) == 10_000 * 650 + 10_000 + 2 * layer


@every_kind
def test_it_learns_a_text_by_heart(kind):
    """After 1 come 2 and 3 in turn: a model of the last token alone pays at least half of log 2, which is 0.35."""
    model, text = make(kind, hidden=16, layers=1), torch.tensor([[1, 2, 1, 3] * 8])
    batch, optimizer = Batch(text[:, :-1], text[:, 1:]), torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(200):
        optimizer.zero_grad()
        nats, count, _ = model.loss(batch)
        (nats / count).backward()
        optimizer.step()
    assert float(nats.detach() / count) < 0.2


@every_kind
def test_it_runs_in_bfloat16(kind):
    model, batch = make(kind, **AWD), some_batch()
    wanted, _, _ = model.eval().loss(batch)
    with torch.autocast("cpu", torch.bfloat16):
        nats, _, state = model.train().loss(batch)
        nats.backward()
        again, _, _ = model.eval().loss(batch)
    assert_close(again, wanted, rtol=0.02, atol=0)
    model.step(batch.tokens, {name: part.detach() for name, part in state.items()})
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"layers": 0}, "model.layers=0"),
        ({"hidden": -1}, "model.hidden=-1"),
        ({"embedding": 0}, "model.embedding=0"),
        ({"dropout": 1.0}, "model.dropout=1"),
        ({"weight_dropout": -0.1}, "model.weight_dropout=-0.1"),
    ],
)
def test_sizes_and_shares_that_cannot_be_are_refused(given, says):
    with pytest.raises(UserError, match=f"^{says}: "):
        RecurrentSettings(**given)


@pytest.mark.parametrize("settings", [RecurrentSettings, ElmanSettings, FeedForwardSettings])
def test_every_setting_has_a_meaning(settings):
    says = meanings(settings)
    assert says.keys() == {field.name for field in fields(settings)}
    assert all(says.values())


def test_the_code_on_the_page_runs():
    page = (ROOT / "docs/models/recurrent.md").read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(compile(code, "docs/models/recurrent.md", "exec"), {})


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_can_be_followed(path):
    given = flatten(tomllib.loads(path.read_text(encoding="utf-8")))
    made = recipe_for(given.pop("kind"), given, given.pop("task", "lm"))
    with shapes_only():
        build_for(made, 100, ("one", "other"))
