"""Hidden Markov model, HMM (Rabiner 1989): a chain of hidden states that emit tokens. Trained by Baum–Welch.

    π_s  p(a text begins in s)     a_{s,s'}  p(s' follows s)     b_{s,o}  p(s emits the token o)

State: the belief, p(the hidden state that emits the next token | tokens read). A boundary ends a text; the next begins
with π. Baum–Welch is EM: expected counts (E step), then normalised (M step). Everything is float64, only logits and
scores are float32.

Shapes: B rows, T tokens, S states, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, Batch, LanguageModel, Tap
from chainrule.models.hmm import forward_backward, viterbi
from chainrule.models.hmm.forward_backward import PackedTexts, pack_texts
from chainrule.settings import Count, NonNegative, Range, Settings

if TYPE_CHECKING:
    from chainrule.defaults.budgets import Budget, CorpusSize

ROUNDS = 60    # of EM that should fit in the budget of a comparison; it decides the number of states


@dataclass(frozen=True)
class HMMSettings(Settings):
    states: Annotated[int, Range(1, 1 << 20)] = 64  # number of hidden states
    successors: Count | None = None  # allowed transitions from each state, chosen at random; none: all
    smoothing: NonNegative = 1e-6   # added to every expected count (add-k smoothing); 0: maximum likelihood

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.successors is not None and self.successors > self.states:
            raise UserError(f"model.successors={self.successors}: it must be at most model.states={self.states}.")


@dataclass(frozen=True)
class HMMStatistics:
    """Counts, or expected counts: they add over batches and ranks."""

    initial: Tensor        # (S,) texts that began in s: Σ γ_s(1)
    transitions: Tensor    # (S, S) times that s' followed s: Σ_t ξ_{s,s'}(t)
    emissions: Tensor      # (S, V) times that s emitted o: Σ_{t: x_t = o} γ_s(t)
    nats: float            # -log p of the texts; inf if one is impossible

    def __add__(self, other: "HMMStatistics") -> "HMMStatistics":
        pairs = zip(self.tensors(), other.tensors())
        return HMMStatistics.of([mine + theirs.to(mine.device) for mine, theirs in pairs])

    def tensors(self) -> list[Tensor]:
        return [self.initial, self.transitions, self.emissions, torch.tensor(self.nats, dtype=torch.float64)]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "HMMStatistics":
        initial, transitions, emissions, nats = tensors
        return cls(initial, transitions, emissions, float(nats))


@dataclass(frozen=True)
class Trellis:
    """All messages of one text of T tokens. Logarithms are natural."""

    forward: Tensor         # (T, S) log α: log p(tokens up to t, state)
    backward: Tensor        # (T, S) log β: log p(tokens after t | state)
    posterior: Tensor       # (T, S) γ: p(state | all tokens)
    delta: Tensor           # (T, S) log δ: log p of the best path to the state
    backpointers: Tensor    # (T - 1, S) Δ: the best state before each state
    path: Tensor            # (T,) the states of the best path


class HMM(LanguageModel):
    tasks = ("lm", "classify", "tag")
    learns_by = "counting"
    resets_at_boundary = True
    Settings = HMMSettings
    Statistics = HMMStatistics
    recipe: ClassVar[dict[str, Any]] = {"text.tokenizer": "characters", "train.steps": 50, "train.length": 512}
    initial: Tensor       # (S,) π
    transition: Tensor    # (S, S) a; zeros stay zero in training
    emission: Tensor      # (S, V) b

    @classmethod
    def candidate_settings(
        cls, widths: Sequence[int], budget: "Budget", corpus: "CorpusSize"
    ) -> list[dict[str, Any]]:
        """The power of two with which ROUNDS of EM fit in the budget."""
        most = math.sqrt(budget.flops / (6.0 * corpus.tokens) / ROUNDS)
        return [{"model.states": 1 << min(9, max(3, round(math.log2(max(1.0, most)))))}]

    @classmethod
    def round_flops(cls, settings: HMMSettings) -> float:
        """Forward, backward and expected transitions are one product with the transition matrix each."""
        return 6.0 * settings.states * settings.states

    def __init__(self, settings: HMMSettings, vocab: int):
        super().__init__()
        self.settings = settings
        states = settings.states
        for name, shape in ("initial", (states,)), ("transition", (states, states)), ("emission", (states, vocab)):
            self.register_buffer(name, torch.full(shape, 1 / shape[-1], dtype=torch.float64))
        self.belief = Tap()    # (B, T, S) the belief after each token

    # A language model

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> dict[str, Tensor]:
        return {"belief": self.initial.repeat(rows, 1)}

    def step(self, tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        beliefs, state = self._read(tokens, state)
        return (beliefs @ self.emission).log_().float(), state

    def score(
        self, tokens: Tensor, targets: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        columns = max(1, forward_backward.MESSAGES // (len(self.initial) * max(1, len(tokens))))
        scores = []
        for read, wanted in zip(torch.split(tokens, columns, 1), torch.split(targets, columns, 1)):
            beliefs, state = self._read(read, state)
            symbols, index = forward_backward.emission_rows(wanted, self.emission)
            scores.append((beliefs * symbols[index]).sum(-1).log_().float())
        return torch.cat(scores, 1), state

    def _read(self, tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The belief after each token (B, T, S)."""
        beliefs = self.initial.new_empty(*tokens.shape, len(self.initial))
        for packed in pack_texts(tokens, torch.ones_like(tokens, dtype=torch.bool), len(self.initial)):
            firsts = packed.positions[: packed.widths[0], None]
            goes_on, row = firsts % tokens.shape[1] == 0, firsts[:, 0] // tokens.shape[1]
            begin = torch.where(goes_on, state["belief"][row], self.initial)
            alpha, _ = forward_backward.forward(packed, begin, self.transition, self.emission)
            beliefs.view(-1, len(self.initial))[packed.positions] = alpha @ self.transition
        beliefs[tokens == BOUNDARY] = self.initial
        return self.belief(beliefs), {"belief": beliefs[:, -1].clone()} if tokens.shape[1] else state

    # Learning

    def forget(self, generator: torch.Generator) -> None:
        """Random distributions, each from a uniform Dirichlet(1, …, 1)."""
        for table in (self.initial, self.transition, self.emission):
            table.copy_(torch.empty(table.shape, dtype=table.dtype).exponential_(generator=generator))
        if self.settings.successors is not None:
            allowed = _random_successors(len(self.initial), self.settings.successors, generator)
            self.transition *= allowed.to(self.transition)
        for table in (self.initial, self.transition, self.emission):
            table /= table.sum(-1, keepdim=True)

    def collect(self, batch: Batch) -> HMMStatistics:
        """E step: the expected counts of each row, which is its first token and then its targets."""
        if batch.context_only is not None:
            raise ValueError("an HMM counts whole rows: a batch to collect from must not have context_only")
        row = torch.cat([batch.tokens[:, :1], batch.targets], 1)
        lengths = None if batch.lengths is None else (batch.lengths + 1) * (batch.lengths > 0)
        statistics = self._zero_counts(nats=0.0)
        for packed in self._packed(row, lengths):
            counts = forward_backward.expected_counts(packed, self.initial, self.transition, self.emission)
            initial, transitions, emissions, log_p = counts
            statistics += HMMStatistics(initial, transitions, emissions, -float(log_p.sum()))
        return statistics

    def update(self, statistics: HMMStatistics) -> None:
        """M step: π, a and b in proportion to their counts; a distribution without counts stays unchanged."""
        for table, counts in zip((self.initial, self.transition, self.emission), statistics.tensors()):
            counted = counts.sum(-1, keepdim=True) > 0
            smoothed = counts + self.settings.smoothing * (table > 0)
            table.copy_(torch.where(counted, smoothed / smoothed.sum(-1, keepdim=True), table))

    def count_paths(self, states: Tensor, tokens: Tensor, lengths: Tensor | None = None) -> HMMStatistics:
        """The counts where the states (B, T) are known; a token with a negative state is not counted."""
        real, known = self._real(tokens, lengths), states >= 0
        begins = forward_backward.text_starts(tokens, real)
        statistics = self._zero_counts(nats=torch.nan)
        statistics.initial.copy_(states[begins & known].bincount(minlength=len(self.initial)))
        moved = (real & known & ~begins)[:, 1:] & known[:, :-1]
        _count(statistics.transitions, states[:, :-1][moved], states[:, 1:][moved])
        _count(statistics.emissions, states[real & known], tokens[real & known])
        return statistics

    def _zero_counts(self, nats: float) -> HMMStatistics:
        zeros = torch.zeros_like
        return HMMStatistics(zeros(self.initial), zeros(self.transition), zeros(self.emission), nats)

    # Whole texts: rows of tokens (B, T), padded after `lengths`; a boundary at the start of a row is not emitted

    def log_likelihood(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B,): log p of each row, summed over all paths of states (the forward algorithm)."""
        log_p = self.initial.new_zeros(len(tokens))
        for packed in self._packed(tokens, lengths):
            _, scales = forward_backward.forward(packed, self.initial, self.transition, self.emission)
            log_p.index_add_(0, packed.positions // tokens.shape[1], scales.log_())
        return log_p

    def posteriors(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """γ (B, T, S): p(state | the whole text); zeros for padding, the first boundary and impossible texts."""
        gamma = self.initial.new_zeros(tokens.numel(), len(self.initial))
        for packed in self._packed(tokens, lengths):
            gamma[packed.positions] = forward_backward.posteriors(packed, self.initial, self.transition, self.emission)
        return gamma.view(*tokens.shape, -1)

    def viterbi(self, tokens: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The best path of states (B, T) and log p of each row with it (B,); -1 for tokens that are not emitted."""
        return viterbi.viterbi_paths(tokens, self._real(tokens, lengths), self.initial, self.transition, self.emission)

    def trellis(self, text: Tensor) -> Trellis:
        """All messages of one text (T,): α, β, γ, δ, Δ and the best path."""
        packs = list(self._packed(text[None], None))
        if len(packs) != 1 or packs[0].widths[0] != 1 or len(packs[0].tokens) != len(text):
            raise ValueError("a trellis is of one text: at least one token, and a boundary only at the end")
        model = self.initial, self.transition, self.emission
        alpha, scales = forward_backward.forward(packs[0], *model)
        steps = forward_backward.backward(packs[0], scales, *model[1:])
        beta = torch.stack([beta[0].clone() for _, beta, _ in steps]).flip(0)
        up_to = scales.log().cumsum(0)[:, None]                                 # log p(x_1 … x_t)
        onwards = scales.log().flip(0).cumsum(0).flip(0)[:, None]
        after = torch.cat([onwards[1:], torch.zeros_like(onwards[:1])])         # log p(x_{t+1} … x_T | x_1 … x_t)
        deltas = viterbi.log_deltas(packs[0], self.initial, self.transition, self.emission.T)
        delta = torch.cat(deltas, 1).T                                          # of one text: a column a step
        backpointers = viterbi.backpointers(delta, self.transition)
        path, _ = self.viterbi(text[None])
        return Trellis(alpha.log() + up_to, beta.log() + after, alpha * beta, delta, backpointers, path[0])

    def _packed(self, tokens: Tensor, lengths: Tensor | None) -> Iterator[PackedTexts]:
        return pack_texts(tokens, self._real(tokens, lengths), len(self.initial))

    def _real(self, tokens: Tensor, lengths: Tensor | None) -> Tensor:
        """(B, T): true where a state emitted the token."""
        real = torch.ones_like(tokens, dtype=torch.bool)
        if lengths is not None:
            real &= torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        real[:, :1] &= tokens[:, :1] != BOUNDARY
        return real


def _random_successors(states: int, successors: int, generator: torch.Generator) -> Tensor:
    """(S, S): true for the allowed transitions; s to s + 1 is always allowed, so that every state can be reached."""
    random = torch.rand(states, states, generator=generator)
    random[torch.arange(states), (torch.arange(states) + 1) % states] = 2
    return torch.zeros(states, states, dtype=torch.bool).scatter_(1, random.topk(successors).indices, True)


def _count(table: Tensor, rows: Tensor, columns: Tensor) -> None:
    """Add one at each (row, column)."""
    table += (rows * table.shape[1] + columns).bincount(minlength=table.numel()).view_as(table)
