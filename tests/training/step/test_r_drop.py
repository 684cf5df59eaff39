"""R-Drop: the objective against a sum that is written out, and what it refuses."""

import math

import pytest
import torch
from torch import nn
from training.small import net

from chainrule.cli import main
from chainrule.model import Batch, Model
from chainrule.models.transformer import EncoderDecoder, EncoderDecoderSettings
from chainrule.recipe import Gradient
from chainrule.training.step import r_drop_loss

WEIGHT, VOCAB = 3.0, 5


class Given(Model):
    """Predicts what it was made with: the logits of the first and of the second pass over two rows of three tokens."""

    def __init__(self, label_smoothing=0.0):
        super().__init__()
        self.logits = nn.Parameter(torch.randn(4, 3, VOCAB, generator=torch.Generator().manual_seed(1)))
        self.label_smoothing = label_smoothing

    def forward(self, batch):
        assert batch.tokens.tolist() == [[1, 2, 3], [4, 3, 2]] * 2
        return self.logits


def padded():
    """Two rows, of which the second has two targets."""
    tokens = torch.tensor([[1, 2, 3], [4, 3, 2]])
    return Batch(tokens, torch.tensor([[2, 3, 4], [3, 2, 0]]), torch.tensor([3, 2]))


def written_out(model, batch, weight):
    """The nats of the targets, and the objective, target by target (Liang et al. 2021, equation 4, divided by 2)."""
    nats = objective = 0.0
    p, q = model.logits.log_softmax(-1).split(2)
    for row, length in enumerate(batch.lengths.tolist()):
        for place in range(length):
            first, second, target = p[row, place], q[row, place], batch.targets[row, place]
            smoothed = torch.full((VOCAB,), model.label_smoothing / VOCAB)
            smoothed[target] += 1 - model.label_smoothing
            there = sum(first[v].exp() * (first[v] - second[v]) for v in range(VOCAB))
            back = sum(second[v].exp() * (second[v] - first[v]) for v in range(VOCAB))
            nats -= (first[target] + second[target]) / 2
            objective += (-(smoothed @ first) - (smoothed @ second) + weight * (there + back) / 2) / 2
    return nats, objective


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_gradient_is_that_of_the_papers_objective_and_the_value_is_the_cross_entropy(smoothing):
    model, batch = Given(smoothing), padded()
    nats, count, state = r_drop_loss(model, WEIGHT, batch)
    nats.backward()
    wanted, objective = written_out(model, batch, WEIGHT)
    (gradient,) = torch.autograd.grad(objective, model.logits)
    assert (int(count), state) == (5, None)
    assert nats.item() == pytest.approx(wanted.item(), rel=1e-6)
    torch.testing.assert_close(model.logits.grad, gradient)


def test_without_dropout_it_is_the_loss_of_the_model():
    """Both passes are then the same, so that their divergence is 0."""
    torch.manual_seed(1)
    settings = EncoderDecoderSettings(layers=1, width=8, heads=2, context=8, label_smoothing=0.1)
    model = EncoderDecoder(settings, 9).train()
    tokens = torch.randint(1, 9, (2, 4))
    batch = Batch(tokens, tokens.roll(-1, 1), torch.tensor([4, 2]), source=tokens, source_lengths=torch.tensor([4, 3]))
    results = []
    for loss in (model.loss, lambda batch: r_drop_loss(model, WEIGHT, batch)):
        model.zero_grad()
        nats, count, _ = loss(batch)
        nats.backward()
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        results.append((nats.item(), int(count), torch.cat([grad.flatten() for grad in grads])))
    (plain, count, gradient), (dropped, again, also) = results
    assert plain == pytest.approx(dropped, rel=1e-5)
    assert count == again == 6
    torch.testing.assert_close(gradient, also, rtol=1e-4, atol=1e-6)


def test_the_two_passes_have_different_dropout():
    model, tokens = net(dropout=0.5).train(), torch.randint(7, (4, 9))
    batch, grads = Batch(tokens[:, :-1], tokens[:, 1:]), []
    for weight in (0.0, WEIGHT):
        torch.manual_seed(1)
        nats, _, _ = r_drop_loss(model, weight, batch)
        grads.append(torch.cat([grad.flatten() for grad in torch.autograd.grad(nats, list(model.parameters()))]))
    assert (grads[1] - grads[0]).norm() > 0.01 * grads[0].norm()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    file = tmp_path_factory.mktemp("rows") / "rows.tsv"
    file.write_text("text\tlabel\n" + "".join(f"{word} day\t{word == 'good'}\n" for word in ["good", "bad"] * 8))
    return file


def train(rows, out, *more):
    return main(["train", str(rows), "--task", "classify", "--kind", "gpt", "--out", str(out),
                 "model.layers=1", "model.width=8", "model.heads=1", "model.context=16", "text.tokenizer=words",
                 "train.steps=6", "train.tokens=8", "train.evaluate=0", *more])


def weights(out):
    from chainrule.run import load

    return torch.cat([tensor.flatten() for tensor in load(out).model.state_dict().values()])


def test_training_by_it_ends_elsewhere_and_weight_0_changes_nothing(rows, tmp_path):
    for name, more in {"plain": [], "zero": ["train.r_drop=0"], "dropped": ["train.r_drop=5"]}.items():
        assert train(rows, tmp_path / name, "model.dropout=0.2", *more) == 0
    plain, zero, dropped = (weights(tmp_path / name) for name in ("plain", "zero", "dropped"))
    assert torch.equal(plain, zero)
    assert not torch.allclose(plain, dropped)
    assert math.isfinite(dropped.norm())


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["head.dropout=0"], "this model has none. Add model.dropout=0.1."),
        (["model.dropout=0.1", "head.auxiliary=0.5"], "train.r_drop and head.auxiliary are two losses"),
        (["model.dropout=0.1", "model.experts=2"], "train.r_drop is not for a mixture of experts"),
        (["model.dropout=0.1", "train.batching=streams"], "leave out train.batching=streams"),
    ],
)
def test_what_it_cannot_serve_is_refused_in_a_line(rows, tmp_path, capsys, more, line):
    assert train(rows, tmp_path / "out", "train.r_drop=1", *more) == 2
    error = capsys.readouterr().err
    assert line in error
    assert "Traceback" not in error


def test_the_weight_is_0_by_default():
    assert Gradient().r_drop == 0
