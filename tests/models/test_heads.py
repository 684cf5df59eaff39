"""Classifiers and taggers: pools by hand, padding, every body, gradients, the auxiliary loss, words by letters."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from chainrule.errors import UserError
from chainrule.layers.embedding import WIDTHS, CharCNN
from chainrule.model import IGNORE, Batch, cross_entropy, watch
from chainrule.models.encoder import EncoderSettings, TransformerEncoder
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.models.heads import Classifier, TokenClassifier, pool_vectors
from chainrule.models.rnn import GRU, LSTM, Elman, ElmanSettings, RecurrentSettings
from chainrule.tasks.tag import word_bytes

VOCAB, LABELS, MARK = 13, 4, 7
TRANSFORMER = {"layers": 2, "width": 16, "heads": 4, "context": 16, "zero_init": False}
RECURRENT = {"hidden": 16, "embedding": 10}
BODIES = {
    "gpt": lambda: GPT(GPTSettings(**TRANSFORMER, tied=True), VOCAB),
    "encoder": lambda: TransformerEncoder(EncoderSettings(**TRANSFORMER, tied=True), VOCAB),
    "rnn": lambda: Elman(ElmanSettings(**RECURRENT), VOCAB),
    "gru both ways": lambda: GRU(RecurrentSettings(**RECURRENT, bidirectional=True), VOCAB),
    "lstm": lambda: LSTM(RecurrentSettings(**RECURRENT), VOCAB),
    "lstm both ways": lambda: LSTM(RecurrentSettings(**RECURRENT, bidirectional=True, start="learned"), VOCAB),
}
POOLS = ("last", "first", "marked", "mean", "max")
PREDICTING = ("gpt", "rnn", "lstm")
OUTPUT_END = ("embedding.bias", "embedding.project")    # output projection of a body, unused under a head

every_body = pytest.mark.parametrize("name", BODIES)
every_pool = pytest.mark.parametrize("pool", POOLS)


def body(name):
    torch.manual_seed(1)
    made = BODIES[name]()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.4)
    return made.eval()


def classifier(name, pool="last", **given):
    made = Classifier(body(name), LABELS, pool, mark=MARK if pool == "marked" else None, **given)
    nn.init.normal_(made.output.weight)
    return made.eval()


def some_batch(tags=False):
    tokens = torch.randint(VOCAB, (4, 9), generator=torch.Generator().manual_seed(2))
    tokens[tokens == MARK] = 0
    tokens[torch.arange(4), torch.tensor([5, 1, 0, 3])] = MARK
    tokens[0, 2] = MARK                                           # the last of two is meant
    lengths = torch.tensor([9, 3, 1, 6])
    targets = torch.tensor([0, 3, 1, 2])
    return Batch(tokens, tokens % LABELS if tags else targets, lengths)


def without_padding(batch, row):
    size = int(batch.lengths[row])
    targets = batch.targets[row : row + 1]
    return Batch(batch.tokens[row : row + 1, :size], targets[:, :size] if targets.dim() > 1 else targets)


# Pools


def test_pools_by_hand():
    vectors = torch.tensor([[[1.0, 8.0], [5.0, 2.0], [9.0, 9.0]], [[-4.0, -2.0], [7.0, 7.0], [9.0, 9.0]]])
    batch = Batch(torch.tensor([[MARK, 1, MARK], [MARK, 2, 3]]), torch.zeros(2), torch.tensor([2, 1]))
    wanted = {
        "last": [[5, 2], [-4, -2]], "first": [[1, 8], [-4, -2]], "marked": [[1, 8], [-4, -2]],
        "mean": [[3, 5], [-4, -2]], "max": [[5, 8], [-4, -2]],
    }  # fmt: skip
    for pool, expected in wanted.items():
        assert pool_vectors(vectors, batch, pool, MARK).tolist() == expected, pool
    assert pool_vectors(vectors, batch, "last", backward=1).tolist() == [[5, 8], [-4, -2]]
    everything = Batch(batch.tokens, batch.targets)
    assert pool_vectors(vectors, everything, "last").tolist() == [[9, 9], [9, 9]]


@pytest.mark.parametrize("cell", ["gru both ways", "lstm both ways"])
def test_the_last_vector_of_a_net_of_two_directions_is_where_each_has_ended(cell):
    net, batch = body(cell), some_batch()
    vectors = net.encode(batch.tokens, batch.lengths)
    _, ends = net.stack(net.embedding(batch.tokens), net.stack.start(4), batch.lengths)
    assert_close(pool_vectors(vectors, batch, "last", backward=net.backward), ends["hidden"][:, -1])


# Bodies


@every_body
@every_pool
def test_a_class_is_A_times_a_vector_plus_b(name, pool):
    model, batch = classifier(name, pool), some_batch()
    with watch(model, "vector") as seen:
        logits = model(batch)
    assert_close(logits, seen["vector"][0] @ model.output.weight.T + model.output.bias)
    assert logits.shape == (4, LABELS)
    assert_close(model.loss(batch)[:2], cross_entropy(logits, batch))


@every_body
@every_pool
def test_padding_changes_nothing_and_rows_never_meet(name, pool):
    model, batch = classifier(name, pool), some_batch()
    logits = model(batch)
    for row in range(4):
        assert_close(model(without_padding(batch, row))[0], logits[row], atol=1e-5, rtol=1e-5)


@every_body
def test_padding_changes_no_tag_and_rows_never_meet(name):
    model, batch = TokenClassifier(body(name), LABELS).eval(), some_batch(tags=True)
    logits = model(batch)
    assert logits.shape == (4, 9, LABELS)
    for row in range(4):
        size = int(batch.lengths[row])
        assert_close(model(without_padding(batch, row))[0], logits[row, :size], atol=1e-5, rtol=1e-5)
    _, count, _ = model.loss(batch)
    assert int(count) == 9 + 3 + 1 + 6
    targets = batch.targets.clone()
    targets[0, 4] = IGNORE
    assert int(model.loss(Batch(batch.tokens, targets, batch.lengths))[1]) == int(count) - 1


@every_body
@every_pool
def test_gradients_go_through_the_whole_net(name, pool):
    if pool == "first" and name not in ("gpt", "encoder"):
        pool = "max"                                              # where one token was read, W is not used
    model, batch = classifier(name, pool), some_batch()
    model.loss(batch)[0].backward()
    for where, parameter in model.named_parameters():
        if not any(end in where for end in OUTPUT_END):
            assert parameter.grad is not None, where
            assert parameter.grad.abs().max() > 0, where


@every_body
def test_gradients_of_tags_go_through_the_whole_net(name):
    model, batch = TokenClassifier(body(name), LABELS, char_cnn=CharCNN(body(name).inputs)), some_batch(tags=True)
    words = [["a", "bee", "sees"] * 3] * 4
    model.loss(Batch(batch.tokens, batch.targets, batch.lengths, source=word_bytes(words)))[0].backward()
    for where, parameter in model.named_parameters():
        if not any(end in where for end in OUTPUT_END):
            assert parameter.grad is not None, where
            assert parameter.grad.abs().max() > 0, where


def test_only_a_bidirectional_body_reads_later_tokens():
    """A tag of a net of two directions depends on later tokens, one of a GPT does not."""
    tokens = some_batch().tokens
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % VOCAB
    for name, sees in {"gpt": False, "lstm": False, "encoder": True, "gru both ways": True}.items():
        net = body(name)
        assert (not torch.isclose(net.encode(tokens)[:, 0], net.encode(other)[:, 0]).all()) == sees, name


@pytest.mark.parametrize("name", ["gru both ways", "lstm both ways"])
def test_a_bidirectional_network_cannot_predict_the_next_token(name):
    with pytest.raises(UserError, match=r"model\.bidirectional=true reads the next token"):
        body(name).start(2)
    assert body(name).embedding.bias is None
    with pytest.raises(UserError, match=r"model\.hidden=7 is odd"):
        RecurrentSettings(hidden=7, bidirectional=True)


@every_body
def test_what_is_added_to_words_is_added_to_all_that_reads_them(name):
    net, tokens = body(name), some_batch().tokens
    other = (tokens + 1) % VOCAB
    vectors = net.embeddings
    assert_close(net.encode(tokens, more=vectors[other] - vectors[tokens]), net.encode(other), atol=1e-4, rtol=1e-4)


def test_a_watched_body_says_the_same():
    for name in BODIES:
        model, batch = classifier(name), some_batch()
        plain = model(batch)
        with watch(model) as seen:
            assert_close(model(batch), plain, atol=1e-5, rtol=1e-5)
        assert any(where.startswith("body.") and found for where, found in seen.items())


# The auxiliary loss


@pytest.mark.parametrize("name", PREDICTING)
def test_the_auxiliary_loss_is_the_mean_of_each_rows_own_nats(name):
    model, batch, weight = classifier(name, auxiliary=0.5).train(), some_batch(), 0.5
    plain, count = cross_entropy(model(batch), batch)
    wanted = plain.clone()
    for row in (0, 1, 3):                                          # row 2 has one token, and so no target
        text = batch.tokens[row : row + 1, : int(batch.lengths[row])]
        nats, targets, _ = model.body.loss(Batch(text[:, :-1], text[:, 1:]), None)
        wanted = wanted + weight * nats / targets
    nats, same, _ = model.loss(batch)
    assert_close((nats, same), (wanted, count))
    assert_close(model.eval().loss(batch)[0], plain)               # it is for learning alone


@pytest.mark.parametrize("name", PREDICTING)
def test_micro_batches_change_no_gradient_of_the_auxiliary_loss(name):
    whole, parts, batch = classifier(name, auxiliary=0.5).train(), classifier(name, auxiliary=0.5).train(), some_batch()
    whole.loss(batch)[0].backward()
    for here in (slice(0, 1), slice(1, 4)):
        parts.loss(batch.rows(here))[0].backward()
    for (where, one), other in zip(whole.named_parameters(), parts.parameters()):
        assert one.grad is not None, where                         # the output's end of the body learns too
        assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4)


def test_a_row_without_a_label_has_no_gradient():
    model, batch = classifier("gpt", auxiliary=0.5).train(), some_batch()
    targets = batch.targets.clone()
    targets[1] = IGNORE
    partly = model.loss(Batch(batch.tokens, targets, batch.lengths))
    rest = model.loss(batch.map(lambda part: part[[0, 2, 3]]))
    assert_close(partly[:2], rest[:2])


# Learning


@pytest.mark.parametrize("name", ["lstm both ways", "encoder"])
def test_it_learns_a_class_and_tags_that_need_the_whole_text(name):
    """Does the first token come again at the end? And each tag says whether its token does."""
    tokens = torch.randint(1, 5, (128, 6), generator=torch.Generator().manual_seed(5))
    same = (tokens[:, 0] == tokens[:, -1]).long()
    torch.manual_seed(1)
    for model, targets in (
        (Classifier(BODIES[name](), 2, "mean"), same),
        (TokenClassifier(BODIES[name](), 2), (tokens == tokens[:, -1:]).long()),
    ):
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(180):
            optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / 180)
            optimizer.zero_grad()
            nats, count, _ = model.loss(Batch(tokens, targets))
            (nats / count).backward()
            optimizer.step()
        assert float(nats.detach() / count) < 0.15


def test_dropout_acts_while_learning_and_never_after():
    model, batch = classifier("gpt", dropout=0.5), some_batch()
    assert torch.equal(model(batch), model(batch))
    assert not torch.equal(model.train()(batch), model(batch))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pool": "middle"}, "pool=middle is not one of last, first"),
        ({"pool": "marked"}, "needs the token"),
        ({"pool": "mean", "mark": 3}, "no other does"),
        ({"auxiliary": -1.0}, "auxiliary=-1: it is 0 or more"),
        ({"auxiliary": 0.5, "name": "encoder"}, "needs a body that predicts its text"),
        ({"auxiliary": 0.5, "name": "lstm both ways"}, "needs a body that predicts its text"),
    ],
)
def test_a_head_that_cannot_be_says_what_is_wrong(given, says):
    with pytest.raises(UserError, match=says):
        Classifier(body(given.pop("name", "gpt")), LABELS, **given)


# Letters


def test_words_are_spelled_in_bytes():
    letters = word_bytes([["ab", "ü"], ["", "x", "abcdefgh"]], longest=6)
    assert letters.shape == (2, 3, 6)
    assert letters.tolist() == [
        [[97, 98, 0, 0, 0, 0], [195, 188, 0, 0, 0, 0], [0] * 6],
        [[0] * 6, [120, 0, 0, 0, 0, 0], [97, 98, 99, 102, 103, 104]],    # both ends of a long word
    ]
    assert word_bytes([[""]]).shape == (1, 1, 1)


def test_a_word_is_the_strongest_answer_of_each_filter():
    torch.manual_seed(1)
    reader = CharCNN(7, embedding=3, filters=2)
    word = b"seen"
    found = []
    for filters, width in zip(reader.filters, WIDTHS):
        beyond = [torch.zeros(3)] * (width - 1)
        bytes_ = [*beyond, *reader.embedding.weight[list(word)], *beyond]
        answers = []
        for place in range(len(bytes_) - width + 1):
            window = torch.stack(bytes_[place : place + width], 1)                       # (E, width)
            answers.append((filters.weight * window).sum((1, 2)) + filters.bias)
        found.append(torch.stack(answers).amax(0).relu())
    assert_close(reader(word_bytes([[word.decode()]]))[0, 0], reader.project.weight @ torch.cat(found))


def test_how_long_other_words_are_changes_no_word():
    torch.manual_seed(1)
    reader = CharCNN(7)
    alone = reader(word_bytes([["a", "be"]]))
    beside = reader(word_bytes([["a", "be", "considerably"], ["longer", "", "words"]]))
    assert_close(beside[0, :2], alone[0])
    assert beside.isfinite().all()                                # also where there are no letters


def test_on_a_cpu_each_word_is_convolved_once_and_short_words_without_the_width_of_long_ones(monkeypatch):
    torch.manual_seed(1)
    reader, convolved = CharCNN(7), []
    words = word_bytes([["a", "it", "a", "considerably"], ["it", "", "longer", "considerably"]])
    plain = reader.project(reader._features(words.flatten(0, 1).long())).view(2, 4, 7)
    features = reader._features
    monkeypatch.setattr(reader, "_features", lambda some: convolved.append(tuple(some.shape)) or features(some))
    assert_close(reader(words), plain)
    assert convolved == [(3, 2), (1, 6), (1, 12)]


def test_a_tagger_separates_unknown_words_by_their_characters():
    torch.manual_seed(1)
    model = TokenClassifier(body("lstm both ways"), LABELS, char_cnn=CharCNN(10)).eval()
    tokens, targets = torch.ones(1, 2, dtype=torch.long), torch.zeros(1, 2, dtype=torch.long)
    one, other = (Batch(tokens, targets, source=word_bytes([[word, "it"]])) for word in ("running", "quickly"))
    assert not torch.isclose(model(one), model(other)).all()
    with pytest.raises(UserError, match="this tagger reads characters"):
        model(Batch(tokens, targets))


def test_an_mlp_head_is_A_relu_of_W_h_plus_c_plus_b():
    torch.manual_seed(1)
    body = LSTM(RecurrentSettings(hidden=6, layers=1), 9).eval()
    tokens = torch.tensor([[1, 2, 3]])
    for head in (TokenClassifier(body, 3, hidden=5), Classifier(body, 3, hidden=5)):
        first, output = head.hidden[0], head.output
        h = body.encode(tokens)[0]
        expected = torch.stack([output.weight @ (first.weight @ x + first.bias).clamp(min=0) + output.bias for x in h])
        found = head.eval()(Batch(tokens, tokens))
        torch.testing.assert_close(found[0], expected if found.dim() == 3 else expected[-1])
