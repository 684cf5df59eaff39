"""The trellis of a hidden Markov model: states by time, forward-backward probabilities, and the Viterbi path.

    forward     α_s(t) = b_{s,x_t} Σ_{s'} α_{s'}(t-1) a_{s',s} / c_t          c_t makes a column sum to one
    posterior   γ_s(t) = α_s(t) β_s(t)      β_s(t) = Σ_{s'} a_{s,s'} b_{s',x_{t+1}} β_{s'}(t+1) / c_{t+1}
    Viterbi     δ_s(t) = b_{s,x_t} max_{s'} a_{s',s} δ_{s'}(t-1)              Δ_s(t) is the s' that won

A text begins with π. Of many states the most probable are shown; the others enter each sum as one number.

Shapes: T tokens, S states, K of them shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chainrule.model import BOUNDARY
from chainrule.models.hmm.hmm import HMM
from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject
from chainrule.viewer.task_views.class_models import choose_class
from chainrule.viewer.task_views.tag_trellis import tag_trellis
from chainrule.viewer.views import Options, View

LIMIT = 201      # tokens that are read, including the boundary before the first
STATES = 64      # states that are shown
SYMBOLS = 12     # of each state, the most probable emissions
LABELS = 5       # and those that it emits most in proportion to their frequency: what is typical of it,
FREQUENT = 40    # among so many of its most probable
ROUNDS = 100     # of the power method


@dataclass(frozen=True)
class Messages:
    """For all tokens; zeros for an impossible text."""

    alpha: Tensor      # (T, S)
    beta: Tensor       # (T, S)
    scale: Tensor      # (T,) c_t
    delta: Tensor      # (T, S) divided by the largest at its time
    height: Tensor     # (T,) log of that largest
    winner: Tensor     # (T, S) Δ; -1 where a text begins
    path: Tensor       # (T,) the states of the best path; -1 where there is none
    log_p: Tensor      # (T,) log p of the tokens of a text so far


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    if subjects[0].tags_words:
        return tag_trellis(subjects[0], text)
    subject, more = choose_class(subjects[0], text, options)
    read = subject.read(text, LIMIT)
    texts = list(_texts(read.tokens[0]))
    facts = {"name": subject.name, "left_out": read.left_out, "states": len(subject.model.initial)}
    messages = _join([_messages(subject.model, text) for text in texts]) if texts else None
    shown = _strongest(subject.model, messages)
    return facts | more | _model(subject, shown) | (
        {} if messages is None else _read(subject, texts, messages, shown))


def _fits(subject: Subject) -> bool:
    one = subject.of_classes[0]
    return subject.tags_words or (one.continues_text and hasattr(one.model, "trellis"))


def _texts(tokens: Tensor) -> Iterator[Tensor]:
    """A boundary ends a text, and the next begins with π; empty ones are skipped."""
    begin = 1
    for end in (*(tokens[1:] == BOUNDARY).nonzero()[:, 0].add(2).tolist(), len(tokens)):
        if end - begin > 1 or (end > begin and tokens[begin] != BOUNDARY):
            yield tokens[begin:end]
        begin = end


def _messages(model: HMM, text: Tensor) -> Messages:
    trellis = model.trellis(text)
    so_far = trellis.forward.logsumexp(-1)                            # (T,) log p(x_1 … x_t)
    before = torch.cat([so_far.new_zeros(1), so_far[:-1]])
    height = trellis.delta.amax(-1)
    begins = trellis.path.new_full((1, trellis.delta.shape[1]), -1)
    return Messages(
        alpha=_exp(trellis.forward - so_far[:, None]),
        beta=_exp(trellis.backward - (so_far[-1] - so_far)[:, None]),
        scale=_exp(so_far - before),
        delta=_exp(trellis.delta - height[:, None]),
        height=height,
        winner=torch.cat([begins, trellis.backpointers]),
        path=trellis.path,
        log_p=so_far,
    )


def _exp(log: Tensor) -> Tensor:
    """-∞ minus -∞, which is nan, counts as 0."""
    return log.exp().nan_to_num(0.0)


def _join(parts: Sequence[Messages]) -> Messages:
    return Messages(*(torch.cat([getattr(part, name) for part in parts]) for name in Messages.__annotations__))


def _strongest(model: HMM, messages: Messages | None) -> Tensor:
    """(K,) states, in order: those of the Viterbi path, then those with the largest posteriors."""
    if len(model.initial) <= STATES:
        return torch.arange(len(model.initial), device=model.initial.device)
    strength = model.initial.clone() if messages is None else (messages.alpha * messages.beta).mean(0)
    if messages is not None:
        strength[messages.path[messages.path >= 0]] += 1
    return strength.topk(STATES).indices.sort().values


def _model(subject: Subject, shown: Tensor) -> dict[str, Any]:
    """π, a and b of the states that are shown."""
    model = subject.model
    most = int((model.emission[shown] > 0).sum(1).max())                    # symbols that a state emits
    probabilities, symbols = model.emission[shown].topk(min(SYMBOLS, max(1, most)))
    names = subject.run.labels
    return {
        "shown": shown.tolist(),
        **({"names": [names[state] for state in shown.tolist()]} if names else {}),
        "initial": pack_array(model.initial[shown]),
        "transition": pack_array(model.transition[shown][:, shown]),        # (K, K)
        "symbols": [subject.show(some) for some in symbols.tolist()],
        "labels": [subject.show(some) for some in typical_symbols(model.emission[shown], symbol_frequencies(model))],
        "emission": pack_array(probabilities),                              # (K, SYMBOLS)
    }


def symbol_frequencies(model: HMM) -> Tensor:
    """(V,) p(w) in a long text: emissions of the states, by the stationary distribution of the chain."""
    share = torch.full_like(model.initial, 1 / len(model.initial))
    for _ in range(ROUNDS):
        share = (share + share @ model.transition) / 2      # with the mean a cycle of states converges too
    return share @ model.emission


def typical_symbols(emission: Tensor, frequencies: Tensor) -> list[list[int]]:
    """(K, V), (V,): of each state the symbols of the largest lift p(w | s) / p(w), the largest first.

    By p(w | s) alone, all states of a model of words would be called "the".
    """
    found = []
    for row in emission:
        p, frequent = row.topk(min(FREQUENT, len(row)))
        frequent = frequent[p > 0]
        order = (row[frequent] / frequencies[frequent].clamp_min(1e-30)).argsort(descending=True, stable=True)
        found.append(frequent[order[:LABELS]].tolist())
    return found


def _read(subject: Subject, texts: Sequence[Tensor], messages: Messages, shown: Tensor) -> dict[str, Any]:
    tokens = torch.cat(list(texts))
    ends = torch.tensor([len(text) for text in texts]).cumsum(0)
    begins = [0, *ends[:-1].tolist()]
    alpha, beta = messages.alpha, messages.beta
    arriving = torch.cat([torch.zeros_like(alpha[:1]), alpha[:-1] @ subject.model.transition])
    arriving[begins] = subject.model.initial
    return {
        "tokens": subject.show(tokens.tolist()),
        "begins": begins,
        "log_p": [_finite(messages.log_p[end - 1]) for end in ends.tolist()],
        "alpha": pack_array(alpha[:, shown], digits=16),                  # (T, K), as all of these
        "beta": pack_array(beta[:, shown], digits=16),
        "gamma": pack_array((alpha * beta)[:, shown], digits=16),
        "delta": pack_array(messages.delta[:, shown], digits=16),
        "arriving": pack_array(arriving[:, shown], digits=16),            # Σ_{s'} α_{s'}(t-1) a_{s',s}, all states
        "emits": pack_array(subject.model.emission.T[tokens][:, shown], digits=16),    # b_{s,x_t}
        "winner": pack_array(messages.winner[:, shown].cpu(), "int32"),
        "scale": messages.scale.tolist(),
        "height": [_finite(height) for height in messages.height],
        "path": messages.path.tolist(),
    }


def _finite(number: Tensor) -> float | None:
    return float(number) if bool(number.isfinite()) else None


VIEW = View(
    "trellis", "The trellis",
    "States from top to bottom, each with the symbols that are typical of it; time from left to right; the line is the "
    "most probable path (Viterbi). Choose a cell to see the sum that gives its value, and the emissions and "
    "transitions of its state. The states of a tagger are its tags.",
    _fits, _make, needs="a hidden Markov model (hmm) or a tagger",
)
