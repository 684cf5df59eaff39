"""Hidden Markov model (Rabiner 1989): states follow one another unseen, and each emits a token.

    π_s  a text begins in s        a_{s,s'}  s is followed by s'        b_{s,o}  s emits the token o

State: the belief, p(the state that emits the next token | what was read). A boundary ends a text, so the next begins
with π. Learned by Baum–Welch: expected counts (E), divided (M). All is float64; only answers are float32.

Shapes: B rows, T tokens, S states, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, Batch, LanguageModel, Tap
from chainrule.models.hmm import forward_backward, viterbi
from chainrule.models.hmm.forward_backward import Packed, pack
from chainrule.settings import Count, NonNegative, Range, Settings


@dataclass(frozen=True)
class HMMSettings(Settings):
    states: Annotated[int, Range(1, 1 << 20)] = 64  # hidden states
    successors: Count | None = None  # states that each state can be followed by, drawn at random; none: all
    smoothing: NonNegative = 1e-6   # added to every expected count, so that no probability is 0; 0: maximum likelihood

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.successors is not None and self.successors > self.states:
            raise UserError(f"model.successors={self.successors}: it must be at most model.states={self.states}.")


@dataclass(frozen=True)
class HMMStatistics:
    """Counts, or expected counts: they add over batches and ranks."""

    first: Tensor    # (S,) texts that began in s: Σ γ_s(1)
    moves: Tensor    # (S, S) times that s' followed s: Σ_t ξ_{s,s'}(t)
    emits: Tensor    # (S, V) times that s emitted o: Σ_{t: x_t = o} γ_s(t)
    nats: float      # -log p of what was read; inf where that was impossible

    def __add__(self, other: "HMMStatistics") -> "HMMStatistics":
        pairs = (self.first, other.first), (self.moves, other.moves), (self.emits, other.emits)
        first, moves, emits = (mine + theirs.to(mine.device) for mine, theirs in pairs)
        return HMMStatistics(first, moves, emits, self.nats + other.nats)

    def tensors(self) -> list[Tensor]:
        return [self.first, self.moves, self.emits, torch.tensor(self.nats, dtype=torch.float64)]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "HMMStatistics":
        first, moves, emits, nats = tensors
        return cls(first, moves, emits, float(nats))


@dataclass(frozen=True)
class Trellis:
    """Everything that the recursions know of one text of T tokens, in natural logarithms where it says log."""

    forward: Tensor         # (T, S) log p(tokens to t, state)
    backward: Tensor        # (T, S) log p(tokens after t | state)
    posterior: Tensor       # (T, S) γ: p(state | all tokens)
    best: Tensor            # (T, S) log δ
    predecessors: Tensor    # (T - 1, S) Δ: the state before each state
    path: Tensor            # (T,) the likeliest states


class HMM(LanguageModel):
    tasks = ("lm", "classify", "tag")
    learns_by = "counting"
    resets_at_boundary = True
    Settings = HMMSettings
    Statistics = HMMStatistics
    recipe: ClassVar[dict[str, Any]] = {"text.tokenizer": "characters", "train.steps": 50, "train.length": 512}
    initial: Tensor       # (S,) π
    transition: Tensor    # (S, S) a; what is 0 stays 0
    emission: Tensor      # (S, V) b

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
            symbols, index = forward_backward.emissions_of(wanted, self.emission)
            scores.append((beliefs * symbols[index]).sum(-1).log_().float())
        return torch.cat(scores, 1), state

    def _read(self, tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The belief after each token (B, T, S)."""
        beliefs = self.initial.new_empty(*tokens.shape, len(self.initial))
        for packed in pack(tokens, torch.ones_like(tokens, dtype=torch.bool), len(self.initial)):
            firsts = packed.places[: packed.widths[0], None]
            goes_on, row = firsts % tokens.shape[1] == 0, firsts[:, 0] // tokens.shape[1]
            begin = torch.where(goes_on, state["belief"][row], self.initial)
            messages, _ = forward_backward.forward(packed, begin, self.transition, self.emission)
            beliefs.view(-1, len(self.initial))[packed.places] = messages @ self.transition
        beliefs[tokens == BOUNDARY] = self.initial
        return self.belief(beliefs), {"belief": beliefs[:, -1].clone()} if tokens.shape[1] else state

    # Learning

    def forget(self, generator: torch.Generator) -> None:
        """Every distribution drawn evenly from all distributions: a Dirichlet of ones."""
        for table in (self.initial, self.transition, self.emission):
            table.copy_(torch.empty(table.shape, dtype=table.dtype).exponential_(generator=generator))
        if self.settings.successors is not None:
            self.transition *= _allowed(len(self.initial), self.settings.successors, generator).to(self.transition)
        for table in (self.initial, self.transition, self.emission):
            table /= table.sum(-1, keepdim=True)

    def collect(self, batch: Batch) -> HMMStatistics:
        """E: the expected counts of each row, which is its first token and then its targets."""
        if batch.context_only is not None:
            raise ValueError("an HMM counts whole rows: a batch to collect from has no context_only")
        row = torch.cat([batch.tokens[:, :1], batch.targets], 1)
        lengths = None if batch.lengths is None else (batch.lengths + 1) * (batch.lengths > 0)
        statistics = self._no_counts(nats=0.0)
        for packed in self._packed(row, lengths):
            counts = forward_backward.expected_counts(packed, self.initial, self.transition, self.emission)
            first, moves, emits, log_p = counts
            statistics += HMMStatistics(first, moves, emits, -float(log_p.sum()))
        return statistics

    def update(self, statistics: HMMStatistics) -> None:
        """M: every distribution in proportion to its counts; one of which nothing was counted stays as it is."""
        given = (self.initial, statistics.first), (self.transition, statistics.moves), (self.emission, statistics.emits)
        for table, counts in given:
            counted = counts.sum(-1, keepdim=True) > 0
            smoothed = counts + self.settings.smoothing * (table > 0)
            table.copy_(torch.where(counted, smoothed / smoothed.sum(-1, keepdim=True), table))

    def count_paths(self, states: Tensor, tokens: Tensor, lengths: Tensor | None = None) -> HMMStatistics:
        """The counts where the states (B, T) are known; what has a negative state is not counted."""
        real, known = self._real(tokens, lengths), states >= 0
        begins = forward_backward.beginnings(tokens, real)
        statistics = self._no_counts(nats=torch.nan)
        statistics.first.copy_(states[begins & known].bincount(minlength=len(self.initial)))
        moved = (real & known & ~begins)[:, 1:] & known[:, :-1]
        _count(statistics.moves, states[:, :-1][moved], states[:, 1:][moved])
        _count(statistics.emits, states[real & known], tokens[real & known])
        return statistics

    def _no_counts(self, nats: float) -> HMMStatistics:
        zeros = torch.zeros_like
        return HMMStatistics(zeros(self.initial), zeros(self.transition), zeros(self.emission), nats)

    # Whole texts: rows of tokens (B, T), of which `lengths` are real; a boundary at the head of a row is not emitted

    def log_likelihood(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B,): log p of each row, the sum over all paths."""
        log_p = self.initial.new_zeros(len(tokens))
        for packed in self._packed(tokens, lengths):
            _, scales = forward_backward.forward(packed, self.initial, self.transition, self.emission)
            log_p.index_add_(0, packed.places // tokens.shape[1], scales.log_())
        return log_p

    def posteriors(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """γ (B, T, S): p(state | the whole text); zeros where nothing was emitted or the text is impossible."""
        gamma = self.initial.new_zeros(tokens.numel(), len(self.initial))
        for packed in self._packed(tokens, lengths):
            gamma[packed.places] = forward_backward.posteriors(packed, self.initial, self.transition, self.emission)
        return gamma.view(*tokens.shape, -1)

    def viterbi(self, tokens: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The likeliest states (B, T) and log p of each row with them (B,); -1 where nothing was emitted."""
        return viterbi.best_paths(tokens, self._real(tokens, lengths), self.initial, self.transition, self.emission)

    def trellis(self, text: Tensor) -> Trellis:
        """All messages of one text (T,), for looking at."""
        packs = list(self._packed(text[None], None))
        if len(packs) != 1 or packs[0].widths[0] != 1 or len(packs[0].tokens) != len(text):
            raise ValueError("a trellis is of one text: some tokens, and no boundary but at the end")
        model = self.initial, self.transition, self.emission
        messages, scales = forward_backward.forward(packs[0], *model)
        afters = [after[0].clone() for _, after, _ in forward_backward.backward(packs[0], scales, *model[1:])][::-1]
        backward, best = torch.stack(afters), viterbi.best_messages(packs[0], *model)
        so_far, in_all = scales.log().cumsum(0)[:, None], scales.log().flip(0).cumsum(0).flip(0)[:, None]
        rest = torch.cat([in_all[1:], torch.zeros_like(in_all[:1])])
        predecessors = viterbi.best_predecessors(best, self.transition)
        path, _ = self.viterbi(text[None])
        return Trellis(messages.log() + so_far, backward.log() + rest, messages * backward, best, predecessors, path[0])

    def _packed(self, tokens: Tensor, lengths: Tensor | None) -> Iterator[Packed]:
        return pack(tokens, self._real(tokens, lengths), len(self.initial))

    def _real(self, tokens: Tensor, lengths: Tensor | None) -> Tensor:
        """(B, T): true where a token was emitted."""
        real = torch.ones_like(tokens, dtype=torch.bool)
        if lengths is not None:
            real &= torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        real[:, :1] &= tokens[:, :1] != BOUNDARY
        return real


def _allowed(states: int, successors: int, generator: torch.Generator) -> Tensor:
    """(S, S): true for so many successors of each state, the next among them, so that every state can be reached."""
    chance = torch.rand(states, states, generator=generator)
    chance[torch.arange(states), (torch.arange(states) + 1) % states] = 2
    return torch.zeros(states, states, dtype=torch.bool).scatter_(1, chance.topk(successors).indices, True)


def _count(table: Tensor, rows: Tensor, columns: Tensor) -> None:
    """Add one at each (row, column)."""
    table += (rows * table.shape[1] + columns).bincount(minlength=table.numel()).view_as(table)
