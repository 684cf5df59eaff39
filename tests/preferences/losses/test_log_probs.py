"""Log-probabilities of answers: as the whole softmax gives them, in chunks, for every kind, whatever the padding."""

import pytest
import torch

from chainrule import run
from chainrule.layers import cross_entropy
from chainrule.model import IGNORE, Batch
from chainrule.preferences.log_probs import answer_log_probs, answer_sums

KINDS = ("gpt", "lstm", "feedforward")


def batch(vocab, rows=3, length=9, padding=0):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, vocab, (rows, length + 1), generator=generator)
    targets, lengths = tokens[:, 1:].clone(), torch.tensor([length, length - 2, length - 5])
    targets[:, :3] = IGNORE
    pad = torch.zeros(rows, padding, dtype=torch.long)
    return Batch(torch.cat([tokens[:, :-1], pad], 1), torch.cat([targets, pad + 2], 1), lengths)


def written_out(model, some):
    """(B, T) by the logits of the whole batch."""
    everything = model(some).float().log_softmax(-1)
    found = torch.zeros(some.targets.shape)
    for row, column in some.loss_mask.nonzero().tolist():
        found[row, column] = everything[row, column, some.targets[row, column]]
    return found


@pytest.mark.parametrize("chunk", [1 << 22, 1 << 8])
@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_and_gradients_are_those_of_the_whole_softmax(bases, monkeypatch, kind, chunk):
    monkeypatch.setitem(cross_entropy.CHUNK_LOGITS, "cpu", chunk)
    made = run.load(bases / kind)
    model, some = made.model, batch(len(made.tokenizer))
    weights = torch.linspace(-1, 1, 3)
    gradients = []
    for compute in (answer_log_probs, written_out):
        found = compute(model, some)
        (found.sum(1) * weights).sum().backward()
        gradients.append((found.detach(), [p.grad for p in model.parameters() if p.grad is not None]))
        model.zero_grad()
    assert torch.allclose(gradients[0][0], gradients[1][0], atol=1e-5)
    assert len(gradients[0][1]) == len(gradients[1][1]) > 0
    for ours, whole in zip(gradients[0][1], gradients[1][1]):
        assert torch.allclose(ours, whole, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_log_probability(bases, kind):
    made = run.load(bases / kind)
    vocab = len(made.tokenizer)
    with torch.no_grad():
        plain, padded = (answer_sums(made.model, batch(vocab, padding=padding)) for padding in (0, 5))
    assert torch.allclose(plain[0], padded[0], atol=1e-5)
    assert plain[1].tolist() == padded[1].tolist() == [6, 4, 1]


def test_a_temperature_divides_the_logits(bases):
    made = run.load(bases / "gpt")
    some = batch(len(made.tokenizer))
    with torch.no_grad():
        expected = (made.model(some) / 0.7).log_softmax(-1).gather(-1, some.targets.clamp(min=0)[..., None])[..., 0]
        assert torch.allclose(answer_log_probs(made.model, some, 0.7), expected * some.loss_mask, atol=1e-5)
