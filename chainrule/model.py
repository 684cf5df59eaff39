"""The protocol. Everything else is written against this page.

    p(w1 … wT) = Π p(wt | w1 … wt-1)

A language model fills in that conditional. It `start`s with a state that has read nothing, and each `step` reads tokens
and answers with what may follow. Only the model looks inside its state; everyone else may `pick` rows of it, `join` it
with others, move it, or count its bytes.

Shapes: B rows, T tokens, S source tokens, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BOUNDARY = 0
"""The one token that begins and ends every text, in every vocabulary."""

UNCOUNTED = -1
"""In the place of a target that counts for nothing."""

State: TypeAlias = Any
"""Plain tensors with the rows on axis 0: a tensor, or a tuple or dict of states."""


@dataclass(frozen=True)
class Batch:
    """What a model reads, and what it should have said. Padding is on the right and said by `lengths`; a target that is
    UNCOUNTED counts for nothing wherever it stands."""

    tokens: Tensor                         # (B, T) what the model reads
    targets: Tensor                        # (B, T) what follows each token; (B,) where a row has one answer
    lengths: Tensor | None = None          # (B,) targets that are real; None: all of them
    skips: Tensor | None = None            # (B,) leading targets that give context only, being counted elsewhere
    source: Tensor | None = None           # (B, S) or (B, S, F): what the text is about
    source_lengths: Tensor | None = None   # (B,)
    afresh: Tensor | None = None           # (B,) True for a row of a stream that begins here, whatever was carried on

    @property
    def counted(self) -> Tensor:
        """True where a target counts: neither padding nor mere context."""
        counted = self.targets != UNCOUNTED
        if self.targets.dim() > 1:
            position = torch.arange(self.targets.shape[1], device=self.targets.device)
            if self.lengths is not None:
                counted &= position < self.lengths[:, None]
            if self.skips is not None:
                counted &= position >= self.skips[:, None]
        return counted

    def to(self, device: torch.device | str) -> "Batch":
        return self.changed(lambda part: part.to(device, non_blocking=True))

    def rows(self, here: slice) -> "Batch":
        return self.changed(lambda part: part[here])

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """A batch like this one, each of its tensors changed."""
        parts = (getattr(self, field.name) for field in fields(self))
        new: list[Any] = [None if part is None else change(part) for part in parts]
        return Batch(*new)

    def tensors(self) -> dict[str, Tensor]:
        """Those that it has."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in every.items() if tensor is not None}


class Model(nn.Module):
    """Anything that can be trained and evaluated."""

    learns_by: ClassVar[str] = "gradient"            # or "counting": in closed form, or by EM
    Settings: ClassVar[type]                         # its `model.*` settings, a frozen dataclass
    compiles: ClassVar[bool] = True                  # whether torch.compile makes it quicker
    recipe: ClassVar[Mapping[str, Any]] = {}         # where this kind differs from the house's defaults, dotted

    def forward(self, batch: Batch) -> Tensor:
        """Unnormalised log-probabilities; the leading shape is that of `batch.targets`."""
        raise NotImplementedError

    def nats(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        """`loss` of a batch, and the state it leaves: what training goes down. Large vocabularies override it."""
        return *loss(self(batch), batch), None


class LanguageModel(Model):
    """A model that can also go on from where it is."""

    context: int | None = None                       # how many tokens a state can hold; None: no limit
    reach: int | None = None                         # how many tokens back an answer can depend on; None: no limit
    forgets: bool = False                            # whether a boundary makes the state what `start` gives

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        """The state of `rows` texts of which nothing has been read, the boundary included.

        `source`: what they are about, one for each; `lengths`: how much of each source is real.
        """
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T) -> (B, T, V): what follows each token. The old state is spent."""
        raise NotImplementedError

    def score(self, tokens: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T): log p of targets[:, t] once tokens[:, t] has been read; a kind that can look it up overrides this."""
        logits, state = self.step(tokens, state)
        return logits.float().log_softmax(-1).gather(-1, targets[..., None])[..., 0], state

    def nats(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        logits, state = self.step(batch.tokens, self.begin(batch, state))
        return *loss(logits, batch), state

    def forward(self, batch: Batch) -> Tensor:
        logits, _ = self.step(batch.tokens, self.begin(batch))
        return logits

    def roomy(self, state: State, tokens: int) -> State:
        """The same state, with room in which so many more tokens, read one by one, change no shape."""
        return state

    def room(self, source: Tensor | None) -> int | None:
        """How many tokens a state can hold beside a source; as many as without one, unless it counts among them."""
        return self.context

    def begin(self, batch: Batch, state: State = None) -> State:
        """The state before the rows of a batch: that of `start`, unless they go on from another."""
        if state is not None and batch.afresh is None:
            return state
        begun = self.start(len(batch.tokens), batch.source, batch.source_lengths)
        return begun if state is None else _where(batch.afresh, begun, state)


class Statistics(Protocol):
    """What counting collects: it adds, over batches and over ranks."""

    nats: float                                      # -log p of what was read, by the model that read it; nan: unknown

    def __add__(self, other: Self) -> Self: ...

    def tensors(self) -> Iterable[Tensor]:
        """All of it, to be sent to another rank: integers or floats of at most four dimensions."""

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Self:
        """What `tensors` gave, put together again."""


class CountingModel(Protocol):
    """A model that learns by counting: an n-gram in one round, EM in many."""

    def forget(self, generator: torch.Generator) -> None:
        """Begin anew, with whatever chance the start needs drawn from `generator`."""

    def collect(self, batch: Batch) -> Any:
        """The Statistics of one batch."""

    def update(self, statistics: Any) -> None:
        """The parameters that fit the statistics best."""


def loss(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """A sum in nats and a count: divide once, at the end, over micro-batches and ranks."""
    counted = batch.counted
    targets = batch.targets.where(counted, UNCOUNTED)    # rather than choosing rows, which would wait for a GPU
    nats = cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), ignore_index=UNCOUNTED, reduction="sum")
    return nats, counted.sum()


def pick(state: State, rows: Tensor) -> State:
    """The rows of a state, in the order given; a row may be taken twice, so this is also how to branch."""
    return changed(state, lambda tensor: tensor.index_select(0, rows.to(tensor.device)))


def join(states: Sequence[State]) -> State:
    """Rows of several states as one. Where tensors differ in length they are padded with zeros on the right."""
    first = states[0]
    if isinstance(first, dict):
        return {name: join([state[name] for state in states]) for name in first}
    if isinstance(first, tuple):
        return tuple(join(parts) for parts in zip(*states, strict=True))
    shape = [max(sizes) for sizes in zip(*(state.shape[1:] for state in states), strict=True)]
    return torch.cat([_pad(state, shape) for state in states])


def tensors(state: State) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    else:
        for part in state.values() if isinstance(state, dict) else state:
            yield from tensors(part)


def state_bytes(state: State) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(state))


def changed(state: State, change: Callable[[Tensor], Tensor]) -> State:
    """A state like this one, each of its tensors changed; they come in the order of `tensors`."""
    if isinstance(state, dict):
        return {name: changed(part, change) for name, part in state.items()}
    if isinstance(state, tuple):
        return tuple(changed(part, change) for part in state)
    return change(state)


def _where(rows: Any, these: State, those: State) -> State:
    """The rows that are True from the one state, all others from the other, of which it has the form."""
    new = tensors(these)
    return changed(those, lambda part: next(new).to(part).where(rows.view(-1, *[1] * (part.dim() - 1)), part))


def _pad(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    if list(tensor.shape[1:]) == list(shape):
        return tensor
    padded = tensor.new_zeros((len(tensor), *shape))
    padded[(slice(None), *(slice(size) for size in tensor.shape[1:]))] = tensor
    return padded


class Tap(nn.Module):
    """A named place in a model that can be looked at; free when nobody watches.

        self.belief = Tap()            in the model
        belief = self.belief(belief)   where it is made; returns what it was given
    """

    def __init__(self, parts: Sequence[str] = ()) -> None:
        super().__init__()
        self.parts = tuple(parts)                    # names of what lies along the axis before the last, such as gates
        self.seen: list[Tensor] | None = None

    @property
    def watched(self) -> bool:
        return self.seen is not None

    def forward(self, value: Tensor) -> Tensor:
        if self.seen is not None:
            self.seen.append(value.detach())
        return value


def taps(model: nn.Module) -> dict[str, Tap]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Tap)}


@contextmanager
def watch(model: nn.Module, *names: str) -> Iterator[dict[str, list[Tensor]]]:
    """What passes through the named taps (all of them, if none is named), one list a tap, in the order it passes."""
    every = taps(model)
    chosen = {name: every[name] for name in names or every}
    for tap in chosen.values():
        tap.seen = []
    try:
        yield {name: tap.seen for name, tap in chosen.items() if tap.seen is not None}
    finally:
        for tap in chosen.values():
            tap.seen = None
