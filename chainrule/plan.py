"""The plan of a training run before it starts: parameters, FLOPs, bytes on each GPU, days.

With DDP every GPU holds the whole training state (weights, gradients, optimizer); with FSDP (train.shard=true) it holds
a shard of it, and the full weights only of the embeddings and of the layers at work. The bytes of activations are an
estimate for mixed precision without recomputation. Where nothing fits, the plan says how many GPUs would be enough.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from chainrule.device import shapes_only
from chainrule.errors import UserError
from chainrule.flops import GPUS, hidden_weights, idle_weights, kept_bytes, kv_cache_bytes, training_flops
from chainrule.layers.cross_entropy import CHUNK_LOGITS
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.models import build, model_class
from chainrule.models.published import PUBLISHED
from chainrule.recipe import MOST_TARGETS, Gradient, Pairs, Recipe
from chainrule.tasks import first_task, recipe_for

GIB = 1 << 30


USABLE = 0.94           # fraction of a GPU's memory that tensors get; the driver and fragmentation take the rest
UTILISATION = 0.4       # fraction of the peak FLOP/s that training usually reaches (MFU)
CHINCHILLA = 20         # tokens for each parameter, where no budget is given (Hoffmann et al. 2022)
USUAL_VOCAB = 50257     # where no vocabulary is given
USUAL_LENGTH = 256      # tokens in a row, for models without a context
GATHERED = 2            # layers that FSDP holds in full: the one at work and the next
MOST_GPUS = 1 << 20
PETAFLOP_DAY = 1e15 * 86400


@dataclass(frozen=True)
class Work:
    """What a model needs on any machine."""

    parameters: int
    flops: float        # forward and backward, for one token
    hidden: int         # parameters of the hidden layers, which Muon updates
    layer: int          # parameters of the largest of them
    activations: float  # bytes of activations that a token keeps for the backward pass, with its share of the source
    cache: float        # bytes of a token in the KV cache, in bf16, with its share of the source
    logits: float       # bytes of a token's logits and their gradient
    idle: int = 0       # parameters of experts that a token does not use


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


@dataclass(frozen=True)
class Plan:
    work: Work
    vocab: int
    length: int                     # tokens in a row
    source: int | None              # tokens in the source of a row; None: the model reads none
    tokens: float                   # targets in total
    batch: int                      # targets in one step
    gpu: str
    gpus: int
    rows: dict[str, int]            # rows of a micro-batch on one GPU; 0: not even one fits
    memory: dict[str, Memory]       # with ddp and fsdp, for that many rows, or for one row where none fits
    enough: "Enough | None"         # what would fit, where this does not; None: this fits, or nothing would

    @property
    def fits(self) -> bool:
        return any(self.rows.values())

    @property
    def flops(self) -> float:
        return self.work.flops * self.tokens

    @property
    def seconds(self) -> float:
        return self.flops / sustained_flops(self.gpus, self.gpu)


@dataclass(frozen=True)
class Enough:
    """The fewest GPUs, a power of two, on which FSDP fits a row each."""

    gpu: str
    gpus: int
    memory: Memory


def sustained_flops(gpus: int, gpu: str) -> float:
    return gpus * GPUS[gpu].peak * 1e12 * UTILISATION


def make_plan(recipe: Recipe, gpus: int = 1, gpu: str = "h200", source: int | None = None) -> Plan:
    """`source`: tokens in the source of a row, for models that read one; None: as many as the row has."""
    if not isinstance(recipe.train, Gradient):
        how = "from pairs of words" if isinstance(recipe.train, Pairs) else "by counting"
        raise UserError(f"{recipe.kind} learns {how}, in a few passes; plans are for gradient descent.")
    published, train = PUBLISHED.get(recipe.kind), recipe.train
    vocab = recipe.text.vocab or (published.vocab if published else USUAL_VOCAB)
    length: int = train.length if train.length else getattr(recipe.model, "context", USUAL_LENGTH)
    source = _source(recipe.kind, source, length)
    work = work_of(recipe, vocab, length, source)
    batch = train.tokens or length * max(gpus, MOST_TARGETS // length)
    asked = _tokens(train, batch, sustained_flops(gpus, gpu) / work.flops)
    tokens = asked or (published and published.tokens) or CHINCHILLA * work.parameters
    rows = {how: _rows(work, train, length, batch, gpus, gpu, how) for how in ("ddp", "fsdp")}
    memory = {how: memory_of(work, train, max(1, rows[how]) * length, gpus, how) for how in rows}
    fits = any(rows.values())
    return Plan(work, vocab, length, source, tokens, batch, gpu, gpus, rows, memory,
                None if fits else enough(work, train, length, gpu))


def _source(kind: str, source: int | None, length: int) -> int | None:
    if model_class(kind).needs_source:
        return source or length
    if source is not None:
        raise UserError(f"--source {source}: {kind} reads no source; seq2seq and transformer do.")
    return None


def work_of(recipe: Recipe, vocab: int, length: int, source: int | None = None) -> Work:
    """Measured on the model itself, built without memory (torch's meta device)."""
    with shapes_only():
        model = build(recipe.kind, recipe.model, vocab)
    parameters, flops, logits = _count(model), training_flops(model, length, source), 8.0 * vocab
    ratio = 0.0 if source is None else source / length
    if isinstance(recipe.model, TransformerSettings):
        stacks = [getattr(model, name) for name in ("stack", "encoder") if hasattr(model, name)]
        layers = [_count(block) for stack in stacks for block in stack.blocks]
        activations = kept_bytes(model, ratio)
        cache = 0.0 if model.bidirectional else kv_cache_bytes(recipe.model, length) / length
        cache += 4.0 * ratio * recipe.model.layers * recipe.model.kv_heads * recipe.model.head_size
        return Work(parameters, flops, sum(layers), max(layers), activations, cache, logits, idle_weights(model))
    hidden = sum(weight.numel() for _, weight in hidden_weights(model))
    return Work(parameters, flops, hidden, hidden, kept_bytes(model, ratio), 0, logits)


def memory_of(work: Work, train: Gradient, tokens: int, gpus: int, how: str) -> Memory:
    """Bytes on one GPU, for a micro-batch of so many tokens."""
    shards, outside = 1 if how == "ddp" else gpus, work.parameters - work.hidden
    whole = work.parameters if shards == 1 else min(work.parameters, GATHERED * work.layer + outside)
    gathered = 0 if shards == 1 else 4 * whole                            # beside the shards
    return Memory(
        weights=4 * work.parameters / shards + gathered + 2 * whole,      # float32, and a bf16 copy for matrix products
        gradients=4 * work.parameters / shards + (4 * (work.layer + outside) if shards > 1 else 0),
        optimizer=optimizer_bytes(work, train) / shards,
        activations=work.activations * tokens,
        logits=min(work.logits * tokens, 8.0 * CHUNK_LOGITS["cuda"]),
    )


def optimizer_bytes(work: Work, train: Gradient) -> float:
    """AdamW keeps two numbers for each weight; Muon one, for hidden layers; SGD one, if it has momentum."""
    if train.optimizer == "sgd":
        return 4.0 * work.parameters if train.momentum else 0.0
    return 8.0 * work.parameters - (4.0 * work.hidden if train.optimizer == "muon" else 0)


def enough(work: Work, train: Gradient, length: int, gpu: str) -> Enough | None:
    """The fewest of these GPUs, else of larger ones, on which FSDP fits one row each; None: no number is enough."""
    for name in _larger(gpu):
        for gpus in (1 << power for power in range(MOST_GPUS.bit_length())):
            memory = memory_of(work, train, length, gpus, "fsdp")
            if memory.total <= GPUS[name].memory * GIB * USABLE:
                return Enough(name, gpus, memory)
    return None


def _larger(gpu: str) -> list[str]:
    """The GPU itself, then those with more memory, in order of size."""
    others = [name for name in GPUS if GPUS[name].memory > GPUS[gpu].memory]
    return [gpu, *sorted(others, key=lambda name: GPUS[name].memory)]


def _rows(work: Work, train: Gradient, length: int, batch: int, gpus: int, gpu: str, how: str) -> int:
    """Rows of a micro-batch: those given, or the largest power of two that fits; 0: not even one fits."""
    memory = GPUS[gpu].memory * GIB * USABLE
    most = max(1, math.ceil(batch / length / gpus))
    wanted = [train.micro_batch] if train.micro_batch else [1 << power for power in range(most.bit_length())]
    fitting = [rows for rows in wanted if memory_of(work, train, rows * length, gpus, how).total <= memory]
    return max(fitting, default=0)


def _tokens(train: Gradient, batch: int, speed: float) -> float | None:
    """Targets in total, at `speed` targets a second; None: there is no budget."""
    if train.epochs is not None:
        raise UserError(f"train.epochs={train.epochs:g}: a plan does not know the text. Give train.total_tokens, "
                        "train.steps or train.minutes.")
    if train.minutes is not None:
        return math.ceil(60 * train.minutes * speed)
    return train.total_tokens or (train.steps * batch if train.steps else None)


def _count(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


@dataclass(frozen=True)
class PublishedRow:
    """A published model in the table of them all."""

    name: str
    year: int
    published: float | None      # parameters, as the paper states them
    parameters: int              # counted
    layers: int
    width: int
    heads: int
    context: int
    tokens: float | None         # targets it was trained on
    flops: float | None          # of training, counted


def published_table() -> list[PublishedRow]:
    return [_published_row(name) for name in PUBLISHED]


def _published_row(name: str) -> PublishedRow:
    """Counted on one layer and on two: parameters and FLOPs grow linearly with layers."""
    published, recipe = PUBLISHED[name], recipe_for(name, {}, first_task(name))
    settings, source = recipe.model, recipe.model.context if model_class(name).needs_source else None
    one, two = (
        work_of(replace(recipe, model=replace(settings, layers=layers)), published.vocab, settings.context, source)
        for layers in (1, 2)
    )
    parameters, flops = (
        getattr(one, what) + (settings.layers - 1) * (getattr(two, what) - getattr(one, what))
        for what in ("parameters", "flops")
    )
    return PublishedRow(
        name, published.year, published.parameters, parameters, settings.layers, settings.width, settings.heads,
        settings.context, published.tokens, flops * published.tokens if published.tokens else None,
    )


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan as plain values for JSON."""
    memory = {
        how: {**asdict(memory), "total": memory.total, "rows": plan.rows[how], "fits": plan.rows[how] > 0}
        for how, memory in plan.memory.items()
    }
    needs = plan.enough and {"gpu": plan.enough.gpu, "gpus": plan.enough.gpus, "total": plan.enough.memory.total}
    return {
        "parameters": plan.work.parameters,
        "active": plan.work.parameters - plan.work.idle,
        "vocab": plan.vocab,
        "context": plan.length,
        "source": plan.source,
        "tokens": plan.tokens,
        "batch": plan.batch,
        "flops": plan.flops,
        "petaflop_days": plan.flops / PETAFLOP_DAY,
        "gpu": plan.gpu,
        "gpus": plan.gpus,
        "utilisation": UTILISATION,
        "seconds": plan.seconds,
        "days": plan.seconds / 86400,
        "cache": plan.work.cache * plan.length,
        "bytes": memory,
        "fits": plan.fits,
        "enough": needs,
    }
