"""Laws about the distribution: chunks and other rows do not matter, the future is not seen, probabilities sum to 1.

Shapes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Sequence
from itertools import product

import torch

from chainrule.inference.forward import device_of, vocabulary_size
from chainrule.model import BOUNDARY, LanguageModel
from chainrule.testing.comparisons import assert_same, read
from chainrule.testing.contract_error import law
from chainrule.testing.example_texts import more_tokens, some_tokens

TEXTS = 4096            # texts of which probabilities are summed
CUTS = ((1,) * 12, (5, 7), (1, 11), (11, 1), (3, 1, 4, 4))
PLACES = (0, 4, 8)
PREFIXES = ((BOUNDARY,), (BOUNDARY, 1, 2), (BOUNDARY, 4, 4, BOUNDARY))


@law
def check_chunks_do_not_matter(model: LanguageModel, cuts: Sequence[int] | None = None) -> None:
    """Reading a text whole, token by token, or in chunks gives the same logits and the same state."""
    if cuts is None:
        for each in CUTS:
            check_chunks_do_not_matter(model, each)
        return
    tokens, more = some_tokens(model, 3, 12), more_tokens(model, 3, 2)
    whole, after_whole = read(model, tokens)
    state, pieces = model.start(3), []
    for piece in torch.split(tokens, list(cuts), 1):
        logits, state = model.step(piece, state)
        pieces.append(logits)
    assert_same(torch.cat(pieces, 1), whole, f"logits in chunks of {tuple(cuts)}")
    assert_same(model.step(more, state)[0], model.step(more, after_whole)[0], f"logits after chunks of {tuple(cuts)}")


@law
def check_chunks_do_not_matter_to_scores(model: LanguageModel) -> None:
    """Scoring a text whole or in chunks gives the same log-probabilities."""
    tokens = some_tokens(model, 3, 13)
    whole, _ = model.score(tokens[:, :-1], tokens[:, 1:], model.start(3))
    first, state = model.score(tokens[:, :5], tokens[:, 1:6], model.start(3))
    last, _ = model.score(tokens[:, 5:-1], tokens[:, 6:], state)
    assert_same(torch.cat([first, last], 1), whole, "scores")


@law
def check_scores_agree_with_steps(model: LanguageModel) -> None:
    """`score` returns the log-softmax of the logits of `step`, `next_logits` the last of them, and the same state."""
    tokens, more = some_tokens(model, 4, 13), more_tokens(model, 4, 2)
    scores, state = model.score(tokens[:, :-1], tokens[:, 1:], model.start(4))
    logits, stepped = read(model, tokens[:, :-1])
    expected = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    assert_same(scores.double(), expected.double(), "scores", atol=1e-5, rtol=1e-5)
    after = model.step(more, stepped)[0]
    assert_same(model.step(more, state)[0], after, "logits after score")
    last, state = model.next_logits(tokens[:, :-1], model.start(4))
    assert_same(last, logits[:, -1], "logits of next_logits")
    assert_same(model.step(more, state)[0], after, "logits after next_logits")


@law
def check_rows_are_independent(model: LanguageModel) -> None:
    """The predictions of a row do not depend on the other rows of the batch."""
    tokens = some_tokens(model, 4, 9)
    other = tokens.clone()
    other[[0, 2, 3]] = some_tokens(model, 3, 9, seed=5)
    expected = read(model, tokens)[0][1]
    assert_same(read(model, other)[0][1], expected, "logits of row 1 in another batch")
    assert_same(read(model, tokens[1:2])[0][0], expected, "logits of row 1 alone")


@law
def check_future_is_not_seen(model: LanguageModel, now: int | None = None) -> None:
    """A prediction does not depend on later tokens: the model is causal."""
    if now is None:
        for each in PLACES:
            check_future_is_not_seen(model, each)
        return
    tokens = some_tokens(model, 3, 10)
    other = tokens.clone()
    other[:, now + 1 :] = some_tokens(model, 3, 10, seed=6)[:, now + 1 :]
    assert not torch.equal(tokens, other)
    expected, found = (read(model, each)[0][:, : now + 1] for each in (tokens, other))
    assert_same(found, expected, f"logits up to token {now} before another continuation")


@law
def check_probabilities_sum_to_one(model: LanguageModel, prefix: Sequence[int] | None = None) -> None:
    """The probabilities of all continuations of one length, summed by brute force, are 1."""
    if prefix is None:
        for each in PREFIXES:
            check_probabilities_sum_to_one(model, each)
        return
    vocab, device = vocabulary_size(model), device_of(model)
    length = next(length for length in (3, 2, 1) if vocab**length <= TEXTS or length == 1)
    every = torch.tensor(list(product(range(vocab), repeat=length)), device=device)
    begin = torch.tensor(prefix, device=device).clamp(max=vocab - 1)
    tokens = torch.cat([begin.expand(len(every), -1), every], 1)
    scores, _ = model.score(tokens[:, :-1], tokens[:, 1:], model.start(len(tokens)))
    total = float(scores[:, len(prefix) - 1 :].double().sum(1).exp().sum())
    assert abs(total - 1) <= 1e-5, f"the continuations of {tuple(begin.tolist())} have probability {total:.6f}, not 1"


@law
def check_receptive_field(model: LanguageModel) -> None:
    """A prediction does not depend on tokens further back than `receptive_field`."""
    if model.receptive_field is None or model.receptive_field >= 12:
        return
    tokens, far = some_tokens(model, 4, 12), 12 - model.receptive_field
    other = tokens.clone()
    other[:, :far] = some_tokens(model, 4, 12, seed=8)[:, :far]
    assert_same(read(model, other)[0][:, -1], read(model, tokens)[0][:, -1], f"logits with other first {far} tokens")
