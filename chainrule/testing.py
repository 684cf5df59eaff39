"""Contract checks for language models: `check_language_model(model)` tests the laws of the protocol on any model.

Each law is a function `check_…(model)` that returns None or raises a ContractError, which states the law and what
differed. They need no training text: tokens are random, and laws about learning train copies of the model. Use a small
model, with a vocabulary of 3 to 64 tokens and a context of at least 16.

Shapes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import wraps
from itertools import pairwise, product
from typing import Any, Concatenate, ParamSpec, cast

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.testing import assert_close

from chainrule.inference.forward import device_of, eval_mode, vocabulary_size
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.inference.score import score_stream, score_texts
from chainrule.model import (
    BOUNDARY,
    Batch,
    CountingModel,
    LanguageModel,
    State,
    cross_entropy,
    join,
    map_state,
    pick,
    state_bytes,
    tensors,
)

CONTEXT = 16            # tokens that a model must hold for the checks
TEXTS = 4096            # texts of which probabilities are summed
RATES = (0.3, 0.03, 0.003)    # learning rates of plain gradient descent in the checks
CUTS = ((1,) * 12, (5, 7), (1, 11), (11, 1), (3, 1, 4, 4))
PLACES = (0, 4, 8)
PREFIXES = ((BOUNDARY,), (BOUNDARY, 1, 2), (BOUNDARY, 4, 4, BOUNDARY))

P = ParamSpec("P")
Check = Callable[Concatenate[LanguageModel, P], None]
LAWS: list[Callable[[LanguageModel], None]] = []
"""All laws, in the order in which they are checked."""


class ContractError(AssertionError):
    """A law of the protocol that a model breaks."""


def check_language_model(
    model: LanguageModel,
    source: Tensor | None = None,
    source_lengths: Tensor | None = None,
    laws: Sequence[Callable[[LanguageModel], None]] = LAWS,
) -> None:
    """Checks every law on the model, and leaves it as it was; a ContractError lists all laws that it breaks.

    `source` (1, S) or (1, S, F): for a model that needs one, the source of every text; `laws`: some of them only.
    """
    name = type(model).__name__
    if source is not None:
        model = WithSource(model, source, source_lengths)
    if model.context is not None and model.context < CONTEXT:
        raise ValueError(f"the checks read {CONTEXT} tokens, and this model's context is {model.context}.")
    broken = [line for law in laws if (line := _broken(law, model))]
    if broken:
        title = f"{name} breaks {len(broken)} of {len(laws)} laws:"
        raise ContractError("\n\n".join([title, *broken]))


def _broken(law: Callable[[LanguageModel], None], model: LanguageModel) -> str:
    try:
        law(model)
    except ContractError as error:
        return str(error)
    return ""


def law(check: Check[P]) -> Check[P]:
    """The check, in eval mode and without gradients; its failure states the law, the docstring's first line."""
    statement = (check.__doc__ or "").partition("\n")[0]

    @wraps(check)
    def checked(model: LanguageModel, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with torch.no_grad(), eval_mode(model):
                check(model, *args, **kwargs)
        except ContractError:
            raise
        except AssertionError as error:
            raise ContractError(f"{check.__name__}: {statement}\n{error}") from error
        except Exception as error:
            raise ContractError(f"{check.__name__}: {statement}\nraised {type(error).__name__}: {error}") from error

    LAWS.append(cast(Callable[[LanguageModel], None], checked))
    return cast(Check[P], checked)


# The state

@law
def check_state_is_opaque(model: LanguageModel) -> None:
    """Only the model reads its state: a state inside another container gives the same scores and samples."""
    hidden, stream = Disguised(model), some_tokens(model, 1, 50)[0].cpu().numpy()
    np.testing.assert_allclose(score_stream(hidden, stream), score_stream(model, stream), atol=1e-5)
    prompts = [np.array([1, 2]), np.array([2])]
    expected, found = (torch.stack(list(sample(one, prompts, 20, ends=False))) for one in (model, hidden))
    _same(found, expected, "samples")


@law
def check_rows_come_first(model: LanguageModel) -> None:
    """Every tensor of a state has the rows on axis 0, and `pick` selects rows."""
    tokens = torch.cat([some_tokens(model, 3, 2), more_tokens(model, 3, 4, seed=5)], 1)
    state = model.start(3)
    _assert_rows(state, 3, "start")
    _, state = model.step(tokens, state)
    _assert_rows(state, 3, "step")
    rows, more = torch.tensor([2, 0, 0, 1], device=tokens.device), more_tokens(model, 4, 3)
    _, expected = _read(model, tokens[rows])
    _same(model.step(more, pick(state, rows))[0], model.step(more, expected)[0], "logits after pick")


def _assert_rows(state: State, rows: int, method: str) -> None:
    for tensor in tensors(state):
        assert len(tensor) == rows, f"{method} of {rows} rows returns a tensor of shape {tuple(tensor.shape)}"


@law
def check_picked_branch_survives(model: LanguageModel) -> None:
    """A branch that was picked stays valid after its original state was used by a step."""
    tokens, more = some_tokens(model, 3, 5), more_tokens(model, 3, 4)
    _, state = _read(model, tokens)
    branch = pick(state, torch.arange(3))
    model.step(more_tokens(model, 3, 7, seed=4), state)
    _, new = _read(model, tokens)
    _same(model.step(more, branch)[0], model.step(more, new)[0], "logits of the branch")


@law
def check_rows_can_be_joined(model: LanguageModel) -> None:
    """Rows that have read different numbers of tokens, joined in one state, continue as each would alone."""
    prompts = [some_tokens(model, 1, length, seed=length) for length in (1, 7, 3)]
    more = more_tokens(model, 3, 4, seed=9)
    state = join([_read(model, prompt)[1] for prompt in prompts])
    first, state = model.step(more[:, :1], state)
    rest, _ = model.step(more[:, 1:], state)
    for row, prompt in enumerate(prompts):
        alone, _ = model.step(more[row : row + 1], _read(model, prompt)[1])
        _same(torch.cat([first, rest], 1)[row], alone[0], f"logits of row {row}")


@law
def check_state_is_plain_tensors(model: LanguageModel) -> None:
    """A state consists of plain tensors, so that it can be saved, sent and counted in bytes."""
    more = more_tokens(model, 2, 3)
    _, state = _read(model, some_tokens(model, 2, 6))
    every = list(tensors(state))
    assert all(type(tensor) is Tensor for tensor in every), f"types: {[type(tensor).__name__ for tensor in every]}"
    assert state_bytes(state) == sum(tensor.nbytes for tensor in every), "state_bytes differs from the tensors' bytes"
    saved = load(save({str(place): tensor.contiguous() for place, tensor in enumerate(every)}))
    places = iter(range(len(every)))
    loaded = map_state(state, lambda tensor: saved[str(next(places))].to(tensor.device))
    _same(model.step(more, loaded)[0], model.step(more, pick(state, torch.arange(2)))[0], "logits after loading")


@law
def check_reserve_changes_nothing(model: LanguageModel) -> None:
    """`reserve` changes no prediction."""
    for _ in _reserved(model):
        pass


def check_reserved_shapes_stay(model: LanguageModel) -> None:
    """Reading tokens into reserved memory changes no shape. (Not a law for all: it is what CUDA graphs need.)"""
    shapes = [[tensor.shape for tensor in tensors(state)] for state in _reserved(model)]
    assert all(after == before for before, after in pairwise(shapes)), f"shapes: {shapes}"


def _reserved(model: LanguageModel) -> Iterable[State]:
    _, state = _read(model, torch.cat([some_tokens(model, 3, 2), more_tokens(model, 3, 3, seed=5)], 1))
    reserved = model.reserve(pick(state, torch.arange(3)), 6)
    yield reserved
    for token in torch.split(more_tokens(model, 3, 6), 1, 1):
        expected, state = model.step(token, state)
        logits, reserved = model.step(token, reserved)
        _same(logits, expected, "logits after reserve")
        yield reserved


# The distribution

@law
def check_chunks_do_not_matter(model: LanguageModel, cuts: Sequence[int] | None = None) -> None:
    """Reading a text whole, token by token, or in chunks gives the same logits and the same state."""
    if cuts is None:
        for each in CUTS:
            check_chunks_do_not_matter(model, each)
        return
    tokens, more = some_tokens(model, 3, 12), more_tokens(model, 3, 2)
    whole, after_whole = _read(model, tokens)
    state, pieces = model.start(3), []
    for piece in torch.split(tokens, list(cuts), 1):
        logits, state = model.step(piece, state)
        pieces.append(logits)
    _same(torch.cat(pieces, 1), whole, f"logits in chunks of {tuple(cuts)}")
    _same(model.step(more, state)[0], model.step(more, after_whole)[0], f"logits after chunks of {tuple(cuts)}")


@law
def check_chunks_do_not_matter_to_scores(model: LanguageModel) -> None:
    """Scoring a text whole or in chunks gives the same log-probabilities."""
    tokens = some_tokens(model, 3, 13)
    whole, _ = model.score(tokens[:, :-1], tokens[:, 1:], model.start(3))
    first, state = model.score(tokens[:, :5], tokens[:, 1:6], model.start(3))
    last, _ = model.score(tokens[:, 5:-1], tokens[:, 6:], state)
    _same(torch.cat([first, last], 1), whole, "scores")


@law
def check_scores_agree_with_steps(model: LanguageModel) -> None:
    """`score` returns the log-softmax of the logits of `step`, `next_logits` the last of them, and the same state."""
    tokens, more = some_tokens(model, 4, 13), more_tokens(model, 4, 2)
    scores, state = model.score(tokens[:, :-1], tokens[:, 1:], model.start(4))
    logits, stepped = _read(model, tokens[:, :-1])
    expected = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    _same(scores.double(), expected.double(), "scores", atol=1e-5, rtol=1e-5)
    after = model.step(more, stepped)[0]
    _same(model.step(more, state)[0], after, "logits after score")
    last, state = model.next_logits(tokens[:, :-1], model.start(4))
    _same(last, logits[:, -1], "logits of next_logits")
    _same(model.step(more, state)[0], after, "logits after next_logits")


@law
def check_rows_are_independent(model: LanguageModel) -> None:
    """The predictions of a row do not depend on the other rows of the batch."""
    tokens = some_tokens(model, 4, 9)
    other = tokens.clone()
    other[[0, 2, 3]] = some_tokens(model, 3, 9, seed=5)
    expected = _read(model, tokens)[0][1]
    _same(_read(model, other)[0][1], expected, "logits of row 1 in another batch")
    _same(_read(model, tokens[1:2])[0][0], expected, "logits of row 1 alone")


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
    expected, found = (_read(model, each)[0][:, : now + 1] for each in (tokens, other))
    _same(found, expected, f"logits up to token {now} before another continuation")


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
    _same(_read(model, other)[0][:, -1], _read(model, tokens)[0][:, -1], f"logits with other first {far} tokens")


# Batches and samples

@law
def check_padding_changes_no_loss(model: LanguageModel) -> None:
    """The loss does not depend on the tokens in the padding, nor on how much padding there is."""
    text = _text(model)
    other = _other_padding(model, text)
    assert not torch.equal(other.tokens, text.tokens)
    _same(cross_entropy(model(other), other)[0], cross_entropy(model(text), text)[0], "loss with other padding")
    assert text.lengths is not None
    for row in (1, 2):
        padded = text.rows(slice(row, row + 1))
        size = int(text.lengths[row])
        alone = Batch(padded.tokens[:, :size], padded.targets[:, :size])
        _same(cross_entropy(model(padded), padded)[0], cross_entropy(model(alone), alone)[0], "loss without padding")


@law
def check_padding_changes_no_score(model: LanguageModel) -> None:
    """Texts of different lengths scored together get the scores that each gets alone."""
    top = vocabulary_size(model) - 1
    every = [np.minimum(np.array(text, int), top) for text in ([1, 2, 3, 4, 1, 2], [], [4], [3, 3, 1], [2, 1])]
    for text, scores in zip(every, score_texts(model, every)):
        assert len(scores) == len(text) + 1, f"{len(scores)} scores of {len(text)} tokens and the end"
        np.testing.assert_allclose(scores, score_texts(model, [text])[0], atol=1e-5)


@law
def check_seed_repeats_sample(model: LanguageModel) -> None:
    """A seed repeats a sample, and a row's sample does not depend on the number of rows."""
    top = vocabulary_size(model) - 1
    prompts = [np.array([1, 2]), np.array([], int), np.minimum([3, 3, 3], top)]
    first, again, other = (
        torch.stack(list(sample(model, prompts, 24, Sampling(seed=seed), ends=False))) for seed in (5, 5, 6)
    )
    assert torch.equal(first, again), "the same seed gives another sample"
    assert not torch.equal(first, other), "another seed gives the same sample"
    alone = torch.stack(list(sample(model, prompts[:1], 24, Sampling(seed=5), ends=False)))
    assert torch.equal(alone[:, 0], first[:, 0]), "a row alone gives another sample"


@law
def check_loss_is_cross_entropy(model: LanguageModel) -> None:
    """`loss` is the cross-entropy of the logits of `forward`, and continues from a state."""
    text, row = _text(model), some_tokens(model, 1, 13)
    total, count, _ = model.loss(text)
    expected = cross_entropy(model(text), text)
    _same(total, expected[0], "summed loss")
    assert int(count) == int(expected[1]), f"{int(count)} targets instead of {int(expected[1])}"
    whole, _, _ = model.loss(Batch(row[:, :12], row[:, 1:13]))
    first, _, state = model.loss(Batch(row[:, :6], row[:, 1:7]), model.start(1))
    second, _, _ = model.loss(Batch(row[:, 6:12], row[:, 7:13]), state)
    _same(first + second, whole, "loss in two chunks")


# Learning, on copies of the model

@law
def check_padding_is_not_learned(model: LanguageModel) -> None:
    """Training does not depend on the tokens in the padding."""
    text = _text(model)
    clean, padded = deepcopy(model), deepcopy(model)
    learn(clean, text)
    learn(padded, _other_padding(model, text))
    _same_weights(padded, clean)


@law
def check_micro_batches_change_nothing(model: LanguageModel) -> None:
    """Cutting a step into micro-batches changes neither gradients nor counts."""
    text = _text(model)
    few, many = text.rows(slice(0, 5)), text.rows(slice(5, None))
    whole, parts = deepcopy(model), deepcopy(model)
    if model.learns_by == "counting":
        one, other = cast(CountingModel, whole), cast(CountingModel, parts)
        for _ in range(2):
            one.update(one.collect(text))
            other.update(other.collect(few) + other.collect(many))
        _same_weights(parts, whole)
    else:
        _accumulate(whole, [text])
        _accumulate(parts, [few, many])
        for (name, one_part), other_part in zip(whole.named_parameters(), parts.parameters()):
            if one_part.grad is not None:
                _same(other_part.grad, one_part.grad, f"gradient of {name}", atol=1e-6, rtol=1e-4)


@law
def check_learning_lowers_the_loss(model: LanguageModel, gain: float = 0.0) -> None:
    """Each step of training lowers the loss on its batch, at a small enough learning rate; counting never raises it."""
    curves = []
    for rate in RATES:
        student, text = deepcopy(model), _text(model)
        losses = [_mean_loss(student, text)]
        for _ in range(6):
            learn(student, text, rate)
            losses.append(_mean_loss(student, text))
        curves.append(losses)
        fixed = model.learns_by == "counting" and all(map(torch.equal, *map(_weights, (model, student))))
        falls = all(after <= before + 1e-6 for before, after in pairwise(losses))
        if falls and (fixed or losses[0] - losses[-1] > gain):
            return
    raise AssertionError(f"losses in 6 steps, at learning rates {RATES}: {curves}")


@law
def check_reset_at_boundary(model: LanguageModel) -> None:
    """If `resets_at_boundary`, texts in one stream are read and learned as texts in separate rows."""
    if not model.resets_at_boundary:
        return
    new, _ = _read(model, some_tokens(model, 4, 6))
    later, _ = _read(model, torch.cat([some_tokens(model, 4, 5, seed=3), some_tokens(model, 4, 6)], 1))
    _same(later[:, 5:], new, "logits after a boundary")
    text = _text(model)
    assert text.lengths is not None
    pieces = [row[:length] for row, length in zip(text.targets, text.lengths)]
    stream = torch.cat([text.tokens[:1, 0], *pieces])[None]
    by_rows, streamed = deepcopy(model), deepcopy(model)
    learn(by_rows, text)
    learn(streamed, Batch(stream[:, :-1], stream[:, 1:]))
    _same_weights(streamed, by_rows)


# What the checks read

def some_tokens(model: LanguageModel, rows: int, length: int, seed: int = 2) -> Tensor:
    """(B, T) random tokens; a row starts with the boundary and may come to it again."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary_size(model), (rows, length), generator=generator)
    tokens[:, 0] = BOUNDARY
    return tokens.to(device_of(model))


def more_tokens(model: LanguageModel, rows: int, length: int, seed: int = 3) -> Tensor:
    """(B, T) a continuation without a boundary, at which some kinds reset their state."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocabulary_size(model), (rows, length), generator=generator).to(device_of(model))


def example_batch(vocab: int, rows: int = 24, longest: int = 10, seed: int = 1) -> Batch:
    """Texts of 1 to `longest` tokens in which one token often predicts the next; the padding is tokens like others."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(rows, longest + 2, dtype=torch.long)
    for column in range(1, longest + 2):
        usual = tokens[:, column - 1] % (vocab - 1) + 1
        random = torch.randint(1, vocab, (rows,), generator=generator)
        tokens[:, column] = torch.where(torch.rand(rows, generator=generator) < 0.6, usual, random)
    lengths = torch.randint(1, longest + 1, (rows,), generator=generator) + 1
    lengths[0] = longest + 1
    tokens[torch.arange(rows), lengths] = BOUNDARY
    return Batch(tokens[:, :-1], tokens[:, 1:], lengths)


def _text(model: LanguageModel) -> Batch:
    return example_batch(vocabulary_size(model)).to(device_of(model))


def _other_padding(model: LanguageModel, batch: Batch) -> Batch:
    whole, lengths = torch.cat([batch.tokens, batch.targets[:, -1:]], 1), batch.lengths
    assert lengths is not None
    other = torch.randint(vocabulary_size(model), whole.shape, generator=torch.Generator().manual_seed(7)).to(whole)
    real = torch.arange(whole.shape[1], device=whole.device) <= lengths[:, None]
    whole = torch.where(real, whole, other)
    return Batch(whole[:, :-1], whole[:, 1:], lengths)


@torch.enable_grad()
def learn(model: LanguageModel, batch: Batch, rate: float = RATES[0]) -> None:
    """One round of counting, or one step of gradient descent."""
    if model.learns_by == "counting":
        counting = cast(CountingModel, model)
        counting.update(counting.collect(batch))
        return
    model.zero_grad()
    _accumulate(model, [batch])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(rate * parameter.grad)


@torch.enable_grad()
def _accumulate(model: LanguageModel, batches: Sequence[Batch]) -> None:
    """Gradients of the mean loss over all batches: sums, divided once."""
    results = [cross_entropy(model(batch), batch) for batch in batches]
    count = sum(count for _, count in results)
    for total, _ in results:
        (total / count).backward()  # type: ignore[no-untyped-call]


class WithSource(LanguageModel):
    """A model that is given the same source for every text, so that the checks need not know of sources."""

    def __init__(self, model: LanguageModel, source: Tensor, lengths: Tensor | None = None):
        super().__init__()
        self.model, self.source = model, source                  # (1, S) or (1, S, F)
        self.lengths = torch.tensor([source.shape[1]], device=source.device) if lengths is None else lengths
        self.context, self.receptive_field = model.context, model.receptive_field

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        return self.model.start(rows, self.source.repeat_interleave(rows, 0), self.lengths.repeat(rows))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self.model.step(tokens, state)

    def score(self, tokens: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        return self.model.score(tokens, targets, state)

    def forward(self, batch: Batch) -> Tensor:
        return self.model.forward(self._with_source(batch))

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        return self.model.loss(self._with_source(batch), state)

    def reserve(self, state: State, tokens: int) -> State:
        return self.model.reserve(state, tokens)

    def _with_source(self, batch: Batch) -> Batch:
        rows = len(batch.tokens)
        source = self.source.repeat_interleave(rows, 0)
        return replace(batch, source=source, source_lengths=self.lengths.repeat(rows))


class Disguised(LanguageModel):
    """The same model, with its state inside another container."""

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.model, self.context, self.receptive_field = model, model.context, model.receptive_field

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        return {"hidden": (self.model.start(rows, source, lengths), torch.zeros(rows, 1))}

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        logits, inner = self.model.step(tokens, state["hidden"][0])
        return logits, {"hidden": (inner, state["hidden"][1])}


# Comparisons

def _read(model: LanguageModel, tokens: Tensor) -> tuple[Tensor, State]:
    return model.step(tokens, model.start(len(tokens)))


def _mean_loss(model: LanguageModel, batch: Batch) -> float:
    total, count = cross_entropy(model(batch), batch)
    return float(total / count)


def _weights(model: nn.Module) -> list[Tensor]:
    return list(model.state_dict().values())


def _same_weights(found: nn.Module, expected: nn.Module) -> None:
    first, second = found.state_dict(), expected.state_dict()
    assert first.keys() == second.keys(), f"only one has {sorted(first.keys() ^ second.keys())}"
    for name, tensor in first.items():
        _same(tensor, second[name], name)


def _same(
    found: Any, expected: Any, what: str, atol: float | None = None, rtol: float | None = None
) -> None:
    assert_close(found, expected, atol=atol, rtol=rtol, msg=lambda text: f"{what}: {text}")
