"""The protocol of all language models: Batch, Model, LanguageModel, the state, and taps.

    p(w1 … wT) = Π p(wt | w1 … wt-1)

A language model is that conditional distribution. `start` returns the state before the first token; each `step` reads
tokens and returns the logits of the token that follows each of them. Only the model reads its state; all other code
may `pick` rows of it, `join` it with others, move it to a device, or count its bytes.

Shapes: B rows, T tokens, S source tokens, V vocabulary, D width, E embedding.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from chainrule.defaults.budgets import Budget, CorpusSize

BOUNDARY = 0
"""The one token that begins and ends every text, in every vocabulary."""

IGNORE = -1
"""In the place of a target that does not count in the loss."""

State: TypeAlias = Any
"""Plain tensors with the rows on axis 0: a tensor, or a tuple or dict of states."""


@dataclass(frozen=True)
class Batch:
    """The tokens that a model reads, and the targets it should predict (teacher forcing: the inputs are the true text).

    Padding is on the right and given by `lengths`; a target that is IGNORE does not count wherever it stands.
    """

    tokens: Tensor                         # (B, T) what the model reads; (B, T, F) where it reads vectors: frames
    targets: Tensor                        # (B, T) what follows each token; (B,) where a row has one answer
    lengths: Tensor | None = None          # (B,) targets that are not padding; None: all of them
    context_only: Tensor | None = None     # (B,) leading targets that are only context: another window counts them
    source: Tensor | None = None           # (B, S) or (B, S, F): what the text is about
    source_lengths: Tensor | None = None   # (B,)
    reset: Tensor | None = None            # (B,) True where a row of a stream is reset instead of continued
    documents: Tensor | None = None        # (B, T) the document of each token of a packed row; None: each row has one

    @property
    def loss_mask(self) -> Tensor:
        """True where a target counts in the loss: neither padding nor context only."""
        mask = self.targets != IGNORE
        if self.targets.dim() > 1:
            position = torch.arange(self.targets.shape[1], device=self.targets.device)
            if self.lengths is not None:
                mask &= position < self.lengths[:, None]
            if self.context_only is not None:
                mask &= position >= self.context_only[:, None]
        return mask

    def to(self, device: torch.device | str) -> "Batch":
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def rows(self, here: slice) -> "Batch":
        return self.map(lambda tensor: tensor[here])

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """A batch whose tensors are `function` of this one's."""
        parts = (getattr(self, field.name) for field in fields(self))
        new: list[Any] = [None if part is None else function(part) for part in parts]
        return type(self)(*new)

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are not None."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in every.items() if tensor is not None}


class Model(nn.Module):
    """Anything that can be trained and evaluated."""

    learns_by: ClassVar[str] = "gradient"            # or "counting": of statistics that add up, in closed form, by EM
                                                     # or by L-BFGS; or "pairs": word vectors
    Settings: ClassVar[type]                         # its `model.*` settings, a frozen dataclass
    tasks: ClassVar[tuple[str, ...]] = ("lm",)       # what it can be trained for; first what it is made for
    classifies: ClassVar[bool] = False               # whether it gives a text a class by itself, without a head on it
    needs_source: ClassVar[bool] = False             # whether `start` needs a source: a text to translate, an image
    bidirectional: bool = False                      # whether it reads the tokens after the one that it describes
    embedding_parameters: ClassVar[tuple[str, ...]] = ("embedding",)    # prefixes of the names below all layers
    stacked_on: ClassVar[Mapping[str, str]] = {}     # a stack of layers -> the one below it, where layers are in two
    source_parameters: ClassVar[tuple[str, ...]] = ()    # patterns of names: weights that multiply a source's vectors
    compiles: ClassVar[bool] = True                  # whether torch.compile makes it faster
    label_smoothing: float = 0.0                     # fraction of each target that training spreads over all labels
    packs: bool = False                              # whether it keeps the documents of a packed row apart by itself
    begins_from: ClassVar[tuple[str, ...]] = ()      # other kinds (module:class) whose weights `--from` may give it
    recipe: ClassVar[Mapping[str, Any]] = {}         # dotted settings in which this kind differs from the defaults

    @classmethod
    def candidate_settings(
        cls, widths: Sequence[int], budget: "Budget", corpus: "CorpusSize"
    ) -> Sequence[Mapping[str, Any]]:
        """Dotted settings of the sizes from which a budget chooses, smallest first; empty: there is no choice."""
        return ()

    @classmethod
    def round_flops(cls, settings: Any) -> float | None:
        """FLOPs of a round of EM for each token; None: the kind is not trained by EM."""
        return None

    def forward(self, batch: Batch) -> Tensor:
        """Logits: unnormalised log-probabilities. The leading shape is that of `batch.targets`."""
        raise NotImplementedError

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        """The training objective: summed cross-entropy in nats, the count of targets, and the state after the batch.

        Kinds with a large vocabulary override it, so that the logits are never held all at once.
        """
        return *cross_entropy(self(batch), batch), None


class LanguageModel(Model):
    """A model that predicts the next token, from a state that it continues."""

    context: int | None = None                       # how many tokens a state can hold; None: no limit
    receptive_field: int | None = None               # how many tokens back a prediction can depend on; None: no limit
    resets_at_boundary: bool = False                 # whether reading a boundary returns the state that `start` gives

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        """The state of `rows` texts of which no token has been read yet, not even the boundary.

        `source`: what the texts are about, one for each; `lengths`: how much of each source is not padding.
        """
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T) -> (B, T, V): logits of what follows each token. The old state must not be used again."""
        raise NotImplementedError

    def next_logits(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T) -> (B, V): `step`, with the logits of what follows the last token; a kind that saves those of the
        other tokens overrides this."""
        logits, state = self.step(tokens, state)
        return logits[:, -1], state

    def score(self, tokens: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T): log p of targets[:, t] after tokens[:, t] was read; a kind that can look it up overrides this."""
        logits, state = self.step(tokens, state)
        return logits.float().log_softmax(-1).gather(-1, targets[..., None])[..., 0], state

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        logits, state = self.step(batch.tokens, self.begin(batch, state))
        return *cross_entropy(logits, batch), state

    def forward(self, batch: Batch) -> Tensor:
        logits, _ = self.step(batch.tokens, self.begin(batch))
        return logits

    def reserve(self, state: State, tokens: int) -> State:
        """The same state with memory for so many more tokens, so that reading them one by one changes no shape."""
        return state

    def max_tokens(self, source: Tensor | None) -> int | None:
        """How many tokens a state can hold in addition to a source; None: no limit."""
        return self.context

    def begin(self, batch: Batch, state: State = None) -> State:
        """The state before the rows of a batch: that of `start`, unless they continue another."""
        if state is not None and batch.reset is None:
            return state
        begun = self.start(len(batch.tokens), batch.source, batch.source_lengths)
        return begun if state is None else _where(batch.reset, begun, state)


@runtime_checkable
class Encoder(Protocol):
    """A network that gives each token a vector: the body under a head that classifies or tags."""

    width: int              # D: numbers in the vector of a token
    inputs: int             # E: numbers in the embedding of a token
    backward: int           # how many of the D numbers, the last ones, were read from the end of the text

    def encode(self, tokens: Tensor, lengths: Tensor | None = None, more: Tensor | None = None) -> Tensor:
        """(B, T), or (B, T, F) where the inputs are vectors, -> (B, T, D). What padding gets is not defined.

        `lengths` (B,): the tokens that are not padding, at least 1; `more` (B, T, E): added to the embeddings.
        """
        ...


@runtime_checkable
class Embeddings(Protocol):
    """A model with one vector for each token of its vocabulary."""

    @property
    def embeddings(self) -> Tensor:
        """(V, E)"""
        ...

    def set_embeddings(self, matrix: Tensor, frozen: bool = False) -> None:
        """Replaces them by pretrained vectors; frozen: training leaves them as they are."""


class Statistics(Protocol):
    """What counting collects. Statistics add up, over batches and over ranks."""

    nats: float                                      # -log p of the batch under the model; nan: unknown

    def __add__(self, other: Self) -> Self: ...

    def tensors(self) -> Iterable[Tensor]:
        """All of it, to be sent to another rank: integers or floats of at most four dimensions."""

    def of(self, tensors: Sequence[Tensor]) -> Self:
        """Statistics of the same kind, from the tensors that `tensors` returned; usually a class method."""


class CountingModel(Protocol):
    """A model that learns by counting: an n-gram in one round, EM in many."""

    Statistics: ClassVar[type]           # the class of what `collect` returns

    def forget(self, generator: torch.Generator) -> None:
        """Resets the parameters; random ones are drawn from `generator`."""

    def collect(self, batch: Batch) -> Any:
        """The Statistics of one batch (the E step)."""

    def update(self, statistics: Any) -> None:
        """Sets the parameters to the maximum-likelihood estimate from the statistics (the M step)."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...


def cross_entropy(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Σ -log softmax(logits)[target] in nats, and the number of targets: divide once, at the end."""
    mask = batch.loss_mask
    targets = batch.targets.where(mask, IGNORE)    # rather than selecting rows, for which a GPU would have to wait
    logits = logits.flatten(0, -2).float()
    nats = functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="sum")
    return nats, mask.sum()


def pick(state: State, rows: Tensor) -> State:
    """The rows of a state, in the order given; a row may be taken twice, so this is also how to branch."""
    return map_state(state, lambda tensor: tensor.index_select(0, rows.to(tensor.device)))


def join(states: Sequence[State]) -> State:
    """The rows of several states as one. Where tensors differ in length they are padded with zeros on the right."""
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


def map_state(state: State, function: Callable[[Tensor], Tensor]) -> State:
    """A state whose tensors are `function` of this one's, called in the order of `tensors`."""
    if isinstance(state, dict):
        return {name: map_state(part, function) for name, part in state.items()}
    if isinstance(state, tuple):
        return tuple(map_state(part, function) for part in state)
    return function(state)


def _where(rows: Any, these: State, those: State) -> State:
    """The rows that are True from `these`, all others from `those`, in the form and dtype of `those`."""
    new = tensors(these)
    return map_state(those, lambda part: next(new).to(part).where(rows.view(-1, *[1] * (part.dim() - 1)), part))


def _pad(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    if list(tensor.shape[1:]) == list(shape):
        return tensor
    padded = tensor.new_zeros((len(tensor), *shape))
    padded[(slice(None), *(slice(size) for size in tensor.shape[1:]))] = tensor
    return padded


class Tap(nn.Module):
    """A named activation in a model that can be watched; it is free when it is not watched.

        self.belief = Tap()            in the model
        belief = self.belief(belief)   where it is computed; returns its argument
    """

    def __init__(self, parts: Sequence[str] = ()) -> None:
        super().__init__()
        self.parts = tuple(parts)                    # names along the last axis but one, such as an LSTM's gates
        self.callback: Callable[[Tensor], None] | None = None

    @property
    def watched(self) -> bool:
        return self.callback is not None

    def forward(self, value: Tensor) -> Tensor:
        if self.callback is not None:
            self.callback(value.detach())
        return value


def taps(model: nn.Module) -> dict[str, Tap]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Tap)}


@contextmanager
def watch(
    model: nn.Module, *names: str, callback: Callable[[str, Tensor], None] | None = None
) -> Iterator[dict[str, list[Tensor]]]:
    """What passes through the named taps (through all, if none is named): one list for each, in order of time.

    With a `callback` no tensor is stored: it is called with the tap's name and the tensor, as each passes.
    """
    every = taps(model)
    chosen = {name: every[name] for name in names or every}
    seen: dict[str, list[Tensor]] = {name: [] for name in chosen}
    for name, tap in chosen.items():
        tap.callback = seen[name].append if callback is None else partial(callback, name)
    try:
        yield seen
    finally:
        for tap in chosen.values():
            tap.callback = None
