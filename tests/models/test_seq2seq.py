"""Sequence to sequence: sums written out, the bottleneck, padding, rows, vocabularies, what it can learn."""

import math
import re
from pathlib import Path

import pytest
import torch
from models.source_batches import FEATURES, VOCAB, some_batch
from torch import nn
from torch.testing import assert_close

from chainrule.errors import UserError
from chainrule.model import Batch, cross_entropy, join, pick, taps, tensors, watch
from chainrule.models.seq2seq import GlobalAttention, Seq2Seq, Seq2SeqSettings
from chainrule.settings import make as make_settings

ROOT = Path(__file__).parents[2]
HIDDEN = 8
SCORES = ("dot", "bilinear", "additive")
CHOICES = [
    {"cell": "lstm", "attention": "bilinear"},
    {"cell": "lstm", "attention": "none", "bidirectional": False},
    {"cell": "gru", "attention": "additive", "layers": 1, "query_layers": 1, "source_vocab": 7, "embedding": 6},
    {"cell": "tanh", "attention": "dot", "query_layers": 2, "tied": False},
    {"cell": "relu", "attention": "bilinear", "source_features": FEATURES, "layers": 3, "start": "learned"},
    {"cell": "sigmoid", "attention": "none", "bidirectional": True},
    {"cell": "lstm", "attention": "bilinear", "encoder": "feedforward", "encoder_window": 2},
    {"cell": "gru", "attention": "none", "encoder": "feedforward", "source_features": FEATURES, "encoder_window": 0},
]
every_choice = pytest.mark.parametrize("choice", CHOICES, ids=str)


def made(**given):
    torch.manual_seed(1)
    model = Seq2Seq(Seq2SeqSettings(**{"hidden": HIDDEN, "layers": 2, **given}), VOCAB).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def by_steps(model, batch):
    state, columns = model.begin(batch), []
    for column in batch.tokens.split(1, 1):
        logits, state = model.step(column, state)
        columns.append(logits)
    return torch.cat(columns, 1)


# GlobalAttention, by sums written out


def dot(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


def times(matrix, vector):
    return [dot(row, vector) for row in matrix]


def score_by_hand(attention, s, h):
    """The lecture's e, of one pair, in plain numbers."""
    weights = {name: weight.tolist() for name, weight in attention.named_parameters()}
    if not weights:
        return dot(s, h)
    if len(weights) == 1:
        return dot(s, times(weights["keys.weight"], h))
    Ws, Uh, b = times(weights["queries.weight"], s), times(weights["keys.weight"], h), weights["keys.bias"]
    return dot(weights["sum.weight"][0], [math.tanh(p + q + r) for p, q, r in zip(Ws, Uh, b)])


@pytest.mark.parametrize("score", SCORES)
def test_what_is_found_is_a_sum_written_out(score):
    torch.manual_seed(1)
    attention, lengths = GlobalAttention(score, HIDDEN), torch.tensor([4, 2])
    queries, vectors = torch.randn(2, 3, HIDDEN), torch.randn(2, 4, HIDDEN)
    with watch(attention) as seen, torch.no_grad():
        found = attention(queries, attention.keys_and_values(vectors, lengths))
    for row, size in enumerate((4, 2)):
        for t in range(3):
            s, memory = queries[row, t].tolist(), vectors[row, :size].tolist()
            weights = [math.exp(score_by_hand(attention, s, h)) for h in memory]
            shares = [weight / sum(weights) for weight in weights]
            wanted = [dot(shares, column) for column in zip(*memory)]
            assert_close(found[row, t], torch.tensor(wanted), atol=1e-5, rtol=1e-5)
            assert_close(seen["alignment"][0][row, t], torch.tensor(shares + [0.0] * (4 - size)), atol=1e-6, rtol=1e-5)


def test_the_whole_net_is_its_formulas_token_by_token():
    """Encoder by torch.nn.LSTM with the same weights; the decoder by its cells; attention between its two layers."""
    model = made(attention="bilinear")
    batch = some_batch(model, rows=1)
    judge = nn.LSTM(HIDDEN, HIDDEN // 2, 2, bidirectional=True, batch_first=True)
    cells = [nn.LSTMCell(HIDDEN, HIDDEN), nn.LSTMCell(2 * HIDDEN, HIDDEN)]
    with torch.no_grad():
        for number, layer in enumerate(model.encoder.layers):
            for mine, theirs in zip(layer.rnn.all_weights, judge.all_weights[2 * number :]):
                [other.copy_(one) for one, other in zip(mine, theirs)]
        for cell, stack in zip(cells, (model.below, model.above)):
            for one, other in zip(stack.layers[0].rnn.all_weights[0], cell.parameters()):
                other.copy_(one)
        h, (ends, memories) = judge(model.embedding.weight[batch.source])
        state = [tuple(part[2 * n : 2 * n + 2].transpose(0, 1).flatten(1) for part in (ends, memories)) for n in (0, 1)]
        W, rows = model.attention.keys.weight, []
        for token in batch.tokens[0]:
            state[0] = cells[0](model.embedding.weight[token][None], state[0])
            s = state[0][0][0]
            c = torch.softmax(torch.stack([s @ W @ one for one in h[0]]), 0) @ h[0]
            state[1] = cells[1](torch.cat([s, c])[None], state[1])
            o = torch.tanh(model.combine.weight @ torch.cat([state[1][0][0], c]) + model.combine.bias)
            rows.append(model.embedding.weight @ o + model.embedding.bias)
        assert_close(model(batch)[0], torch.stack(rows), atol=1e-4, rtol=1e-4)


def test_without_attention_all_that_passes_is_the_last_state():
    model = made(attention="none", bidirectional=False)
    batch = some_batch(model, rows=1)
    _, end = model.encoder(model.embedding(batch.source), model.encoder.start(1))
    state = model.begin(batch)
    assert_close(state["below"], end)
    assert sum(part.numel() for part in tensors(state)) == 2 * 2 * HIDDEN    # hidden and cell of two layers
    assert "attention.alignment" not in taps(model)


# Rows, padding, steps


@every_choice
def test_step_by_step_is_the_whole_watched_or_not(choice):
    model = made(**choice)
    batch = some_batch(model)
    with torch.no_grad():
        whole = model(batch)
        assert_close(by_steps(model, batch), whole, atol=1e-5, rtol=1e-5)
        with watch(model) as seen:
            assert_close(model(batch), whole, atol=1e-5, rtol=1e-5)
    assert seen["hidden"][0].shape == (3, 6, HIDDEN)
    if choice["attention"] != "none":
        (alignment,) = seen["attention.alignment"]
        assert alignment.shape == (3, 6, 5)
        assert_close(alignment.sum(-1), torch.ones(3, 6))
        assert bool((alignment[1, :, 2:] == 0).all())


@every_choice
def test_the_padding_of_a_source_changes_nothing(choice):
    model = made(**choice)
    batch = some_batch(model)
    with torch.no_grad():
        together = model(batch)
        for row, size in ((1, 2), (2, 4)):
            here = slice(row, row + 1)
            alone = Batch(batch.tokens[here], batch.targets[here], source=batch.source[here, :size])
            assert_close(together[row], model(alone)[0], atol=1e-5, rtol=1e-5)


@every_choice
def test_texts_with_sources_of_different_lengths_go_on_together(choice):
    model = made(**choice)
    batch, order = some_batch(model), torch.tensor([2, 0, 1])
    with torch.no_grad():
        wanted, states = model(batch)[:, -1], []
        for row, size in enumerate((5, 2, 4)):
            state = model.start(1, batch.source[row : row + 1, :size])
            states.append(model.step(batch.tokens[row : row + 1, :-1], state)[1])
        logits, _ = model.step(batch.tokens[order, -1:], pick(join(states), order))
    assert_close(logits[:, 0], wanted[order], atol=1e-5, rtol=1e-5)


@every_choice
def test_what_training_goes_down_has_the_gradients_of_the_loss_and_reaches_every_weight(choice):
    plain, chunked = made(**choice), made(**choice)
    batch = some_batch(plain)
    cross_entropy(plain(batch), batch)[0].backward()
    chunked.loss(batch)[0].backward()
    for (name, one), other in zip(plain.named_parameters(), chunked.parameters()):
        assert one.grad is not None, name
        assert one.grad.abs().max() > 0, name
        assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4)


@every_choice
def test_it_runs_in_bfloat16(choice):
    model = made(**choice)
    batch = some_batch(model)
    wanted, _, _ = model.loss(batch)
    with torch.autocast("cpu", torch.bfloat16):
        nats, _, _ = model.loss(batch)
        nats.backward()
    assert_close(nats, wanted, rtol=0.05, atol=0)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_each_dropout_acts_while_learning_and_never_after():
    plain = made()
    batch = some_batch(plain)
    for place in ("", "input_", "between_", "output_", "embedding_", "weight_"):
        model = made(**{(name := f"{place}dropout"): 0.5})
        assert torch.equal(model(batch), plain(batch))
        assert not torch.equal(model.train()(batch), plain(batch)), name


# What it can learn


def turned_round(rows, length, seed):
    source = torch.randint(1, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))
    text = torch.cat([torch.zeros(rows, 1, dtype=torch.long), source.flip(1)], 1)
    return Batch(text[:, :-1], text[:, 1:], source=source)


def trained(steps=120, **given):
    torch.manual_seed(1)
    model = Seq2Seq(Seq2SeqSettings(**{"hidden": 32, "layers": 1, "cell": "gru", **given}), VOCAB)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(steps):
        optimizer.zero_grad()
        nats, count, _ = model.loss(turned_round(64, 8, seed=step))
        (nats / count).backward()
        optimizer.step()
    return model.eval()


def test_attention_turns_a_text_round_where_the_bottleneck_is_too_narrow():
    """Eight of ten tokens: the alignment is the other diagonal, and it comes for free."""
    batch, nats = turned_round(64, 8, seed=1000), {}
    models = {attention: trained(attention=attention) for attention in ("none", "additive")}
    with torch.no_grad():
        for attention, model in models.items():
            total, count, _ = model.loss(batch)
            nats[attention] = float(total / count)
        with watch(models["additive"], "attention.alignment") as seen:
            models["additive"](batch)
    assert nats["additive"] < 0.2 < 1.0 < nats["none"], nats
    found = seen["attention.alignment"][0].mean(0).argmax(-1)                  # at t, of S - 1 - t
    assert (found - torch.arange(7, -1, -1)).abs().max() <= 1, found


# Vocabularies and settings


def test_source_and_text_share_their_words_unless_the_source_has_its_own():
    assert made().source_embedding is None
    assert made(source_vocab=7).source_embedding.weight.shape == (7, HIDDEN)
    assert made(source_vocab=7).source_embedding.bias is None
    assert made(source_features=5).source_embedding.weight.shape == (HIDDEN, 5)


def test_a_source_that_cannot_be_is_refused():
    with pytest.raises(UserError, match="needs a source, and it was given none"):
        made().start(2)
    with pytest.raises(UserError, match="the source is 2 x 0 for 2 texts"):
        made().start(2, torch.ones(2, 0, dtype=torch.long))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"query_layers": "3"}, r"model\.query_layers=3: it must be at most model\.layers=2"),
        ({"hidden": "7"}, r"model\.hidden=7 is odd"),
        ({"source_features": "0"}, r"model\.source_features=0"),
        ({"attention": "mult"}, r"model\.attention=mult is not one of none, dot, bilinear, additive"),
        ({"dropout": "1"}, r"model\.dropout=1"),
    ],
)
def test_a_wrong_setting_says_what_is_wrong(given, says):
    with pytest.raises(UserError, match=says):
        make_settings(Seq2SeqSettings, given, "model")


def test_the_code_on_the_page_runs():
    page = (ROOT / "docs/tasks/sequences.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 3
    names = {}
    for code in blocks:
        exec(compile(code, "docs/tasks/sequences.md", "exec"), names)


def test_a_feed_forward_encoder_is_tanh_of_a_window_written_out():
    model, source = made(encoder="feedforward", encoder_window=1, attention="dot"), torch.tensor([[3, 5, 2, 7]])
    x = torch.cat([torch.zeros(1, HIDDEN), model.embedding.weight[source[0]], torch.zeros(1, HIDDEN)])
    weight, bias = model.encoder.window.weight, model.encoder.window.bias
    blocks = weight.view(HIDDEN, HIDDEN, 3)                                # units, numbers of a word, words of a window
    expected = torch.stack([
        torch.tanh(sum(blocks[:, :, word] @ x[place + word] for word in range(3)) + bias) for place in range(4)
    ])
    state = model.start(1, source)
    assert_close(state["source"]["values"][0], expected)
    first = torch.tanh(model.encoder.state.weight @ expected.mean(0) + model.encoder.state.bias)
    assert_close(torch.cat([state["below"]["hidden"], state["above"]["hidden"]], 1)[0].flatten(), first[: 2 * HIDDEN])


def test_a_feed_forward_encoder_sees_its_window_alone():
    model, source = made(encoder="feedforward", encoder_window=1, attention="dot"), torch.tensor([[3, 5, 2, 7, 1, 4]])
    before = model.start(1, source)["source"]["values"][0]
    source[0, 2] = 9
    same = (model.start(1, source)["source"]["values"][0] == before).all(-1).tolist()
    assert same == [True, False, False, False, True, True]
