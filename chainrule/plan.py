"""What training would take, before it starts: parameters, FLOPs, bytes on each GPU, days.

A weight that multiplies costs six FLOPs a token: a product and its sum, forward once and backward twice as much. So
does each number of a key that a query sees, half of the context on average, and of its value. With DDP every GPU holds
the whole training state; with FSDP (train.shard=true) a share of it, and whole only the words and the layers it is at.
What a token leaves for the way back is an estimate, for mixed precision with nothing computed twice.
"""

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.layers.cross_entropy import CHUNK_LOGITS
from chainrule.layers.embedding import TokenEmbedding
from chainrule.layers.parameters import group_parameters
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.models import build
from chainrule.models.published import PUBLISHED
from chainrule.recipe import MOST_TARGETS, Gradient, Pairs, Recipe

GIB = 1 << 30


@dataclass(frozen=True)
class GPU:
    memory: float       # GiB
    peak: float         # TFLOP/s of dense matrix products in bf16, or in fp16 where there is no bf16


GPUS = {
    "b200": GPU(179, 2250),
    "h200": GPU(140, 989),
    "h100": GPU(80, 989),
    "a100": GPU(80, 312),
    "a100-40gb": GPU(40, 312),
    "mi300x": GPU(192, 1307),
    "l40s": GPU(45, 362),
    "l4": GPU(22, 121),
    "rtx5090": GPU(32, 210),
    "rtx4090": GPU(24, 165),
    "rtx3090": GPU(24, 71),
    "v100": GPU(32, 125),
    "t4": GPU(15, 65),
}
USABLE = 0.94           # share of a GPU's memory that tensors get; the driver has the rest, or it lies between them
UTILISATION = 0.4       # share of the peak that training usually sees
CHINCHILLA = 20         # tokens a parameter, where nothing says how many (Hoffmann et al. 2022)
USUAL_VOCAB = 50257     # where nothing says how large
USUAL_LENGTH = 256      # tokens in a row, of a model without a context
GATHERED = 2            # layers that FSDP holds whole beside what is in no layer: the one it is at and the next
FURTHEST = 1 << 20      # GPUs; nobody has more
ENDS = re.compile(r"embedding\.(weight|output|bias)")    # names of what has a row for each word


@dataclass(frozen=True)
class Work:
    """What a model asks of any machine."""

    parameters: int
    flops: float        # to learn from one token
    hidden: int         # parameters of the hidden layers, which are Muon's
    layer: int          # parameters of the largest of them
    kept: float         # bytes that a token leaves for the way back
    cache: float        # bytes that a token leaves in a state, in bf16
    logits: float       # bytes of a token's logits and their gradient, while they are there


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
    tokens: float                   # targets in all
    batch: int                      # targets in a step
    gpu: str
    gpus: int
    rows: dict[str, int]            # in a micro-batch on one GPU; 0: not even one fits
    memory: dict[str, Memory]       # under ddp and fsdp, with so many rows, or with one where none fits

    @property
    def flops(self) -> float:
        return self.work.flops * self.tokens

    @property
    def seconds(self) -> float:
        return self.flops / flops_a_second(self.gpus, self.gpu)


def flops_a_second(gpus: int, gpu: str) -> float:
    return gpus * GPUS[gpu].peak * 1e12 * UTILISATION


def make_plan(recipe: Recipe, gpus: int = 1, gpu: str = "h200") -> Plan:
    if not isinstance(recipe.train, Gradient):
        how = "from pairs of words" if isinstance(recipe.train, Pairs) else "by counting"
        raise UserError(f"{recipe.kind} learns {how}, in one reading or a few; there is nothing to plan.")
    published, train = PUBLISHED.get(recipe.kind), recipe.train
    vocab = recipe.text.vocab or (published.vocab if published else USUAL_VOCAB)
    length: int = train.length if train.length else getattr(recipe.model, "context", USUAL_LENGTH)
    work = work_of(recipe, vocab, length)
    batch = train.tokens or length * max(gpus, MOST_TARGETS // length)
    asked = _tokens(train, batch, flops_a_second(gpus, gpu) / work.flops)
    tokens = asked or (published and published.tokens) or CHINCHILLA * work.parameters
    rows = {how: _rows(work, train, length, batch, gpus, gpu, how) for how in ("ddp", "fsdp")}
    memory = {how: memory_of(work, train, max(1, rows[how]) * length, gpus, how) for how in rows}
    return Plan(work, vocab, length, tokens, batch, gpu, gpus, rows, memory)


def work_of(recipe: Recipe, vocab: int, length: int) -> Work:
    """From the model itself, made of shapes alone."""
    with torch.device("meta"):
        model = build(recipe.kind, recipe.model, vocab)
    parameters, flops, logits = _count(model), 6.0 * _multiplied(model), 8.0 * vocab
    if isinstance(recipe.model, TransformerSettings):
        layers = [_count(block) for block in model.stack.blocks]
        flops += attention_flops(recipe.model, length)
        kept, cache = kept_by_transformer(recipe.model), cache_of_transformer(recipe.model)
        return Work(parameters, flops, sum(layers), max(layers), kept, cache, logits)
    inside = [weight for name, weight in model.named_parameters() if not ENDS.match(name)]
    hidden = sum(weight.numel() for weight in inside)
    kept = 4.0 * sum(map(len, inside))                                   # each matrix leaves what it gave
    return Work(parameters, flops, hidden, hidden, kept, 0, logits)


def attention_flops(settings: TransformerSettings, length: int) -> float:
    """Scores of the keys that are seen, and the mixture of their values."""
    return 2 * 6 * settings.layers * settings.heads * settings.head_size * seen_on_average(length, settings.window)


def cache_of_transformer(settings: TransformerSettings) -> int:
    return 2 * 2 * settings.layers * settings.kv_heads * settings.head_size


def seen_on_average(length: int, window: int | None) -> float:
    """Keys that a query sees: 1, 2, … up to the window."""
    window = min(window or length, length)
    return window - window * (window - 1) / 2 / length


def kept_by_transformer(settings: TransformerSettings) -> float:
    """Bytes that a token leaves for the way back: the stream in float32, all else in bf16."""
    width, heads, keys = settings.width, settings.heads * settings.head_size, settings.kv_heads * settings.head_size
    hidden = {"relu": 1, "relu2": 2, "gelu": 2, "gelu-tanh": 2, "swiglu": 4}[settings.activation] * settings.hidden
    block = 2 * 4 * width + 2 * 2 * width                                # before two norms, and behind them
    block += 2 * (heads + 2 * keys + heads + hidden)                     # q, k and v, what they mix to, and the neurons
    block += 2 * (heads + keys) * (settings.qk_norm + (settings.positions == "rotary"))
    block += 2 * width * (settings.dropout > 0)                          # two masks of one byte
    return settings.layers * block + 12 * width


def memory_of(work: Work, train: Gradient, tokens: int, gpus: int, how: str) -> Memory:
    """Bytes on one GPU that goes through so many tokens at a time."""
    share, outside = 1 if how == "ddp" else gpus, work.parameters - work.hidden
    whole = work.parameters if share == 1 else min(work.parameters, GATHERED * work.layer + outside)
    gathered = 0 if share == 1 else 4 * whole                            # beside the share of them
    return Memory(
        weights=4 * work.parameters / share + gathered + 2 * whole,      # float32, and bf16 while they multiply
        gradients=4 * work.parameters / share + (4 * (work.layer + outside) if share > 1 else 0),
        optimizer=optimizer_bytes(work, train) / share,
        activations=work.kept * tokens,
        logits=min(work.logits * tokens, 8.0 * CHUNK_LOGITS["cuda"]),
    )


def optimizer_bytes(work: Work, train: Gradient) -> float:
    """AdamW keeps two numbers a weight, Muon one for those of hidden layers, SGD one if it has momentum."""
    if train.optimizer == "sgd":
        return 4.0 * work.parameters if train.momentum else 0.0
    return 8.0 * work.parameters - (4.0 * work.hidden if train.optimizer == "muon" else 0)


def refuse_what_cannot_fit(name: str, plan: Plan, train: Gradient) -> None:
    """One line that says what would fit."""
    if any(plan.rows.values()):
        return
    need, have = plan.memory["fsdp"].total / GIB, GPUS[plan.gpu].memory * USABLE
    line = f"{name} does not fit on {plan.gpus} x {plan.gpu}: {need:,.0f} GiB on each, and tensors get {have:,.0f}."
    cures = [f"{gpus} x {gpu} with FSDP would do" for gpu in _roomier(plan.gpu) if (gpus := enough(plan, train, gpu))]
    raise UserError(f"{line} {cures[0] if cures else 'A smaller model.context would need less'}.")


def enough(plan: Plan, train: Gradient, gpu: str) -> int | None:
    """The fewest GPUs, a whole power of two, on which FSDP has room for a row on each; None: no number of them is."""
    gpus = 1
    while gpus <= FURTHEST:
        if memory_of(plan.work, train, plan.length, gpus, "fsdp").total <= GPUS[gpu].memory * GIB * USABLE:
            return gpus
        gpus *= 2
    return None


def _roomier(gpu: str) -> list[str]:
    """The GPU itself, then those with more memory, the least first."""
    others = [name for name in GPUS if GPUS[name].memory > GPUS[gpu].memory]
    return [gpu, *sorted(others, key=lambda name: GPUS[name].memory)]


def _rows(work: Work, train: Gradient, length: int, batch: int, gpus: int, gpu: str, how: str) -> int:
    """Rows in a micro-batch: those asked for, or the most that fit, a power of two; 0: not even one."""
    room = GPUS[gpu].memory * GIB * USABLE
    most = max(1, math.ceil(batch / length / gpus))
    wanted = [train.micro_batch] if train.micro_batch else [1 << power for power in range(most.bit_length())]
    fitting = [rows for rows in wanted if memory_of(work, train, rows * length, gpus, how).total <= room]
    return max(fitting, default=0)


def _tokens(train: Gradient, batch: int, speed: float) -> float | None:
    """Targets in all, at so many a second; None: nothing says how many."""
    if train.epochs is not None:
        raise UserError(f"train.epochs={train.epochs:g}: a plan does not know the text. Give train.total_tokens, "
                        "train.steps or train.minutes.")
    if train.minutes is not None:
        return math.ceil(60 * train.minutes * speed)
    return train.total_tokens or (train.steps * batch if train.steps else None)


def _multiplied(model: Any) -> int:
    """Weights that are multiplied by: all but embeddings, which are looked up, unless one is also the output matrix."""
    looked_up = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding | TokenEmbedding)}
    used: list[Tensor] = [weight for weight in model.parameters() if id(weight) not in looked_up]
    used += [] if group_parameters(model)[1] else [model.embeddings]
    return sum(weight.numel() for weight in used)


def _count(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def as_dict(plan: Plan) -> dict[str, Any]:
    """Plain values for JSON."""
    memory = {
        how: {**asdict(memory), "total": memory.total, "rows": plan.rows[how], "fits": plan.rows[how] > 0}
        for how, memory in plan.memory.items()
    }
    return {
        "parameters": plan.work.parameters,
        "vocab": plan.vocab,
        "context": plan.length,
        "tokens": plan.tokens,
        "batch": plan.batch,
        "flops": plan.flops,
        "gpu": plan.gpu,
        "gpus": plan.gpus,
        "utilisation": UTILISATION,
        "seconds": plan.seconds,
        "days": plan.seconds / 86400,
        "cache": plan.work.cache * plan.length,
        "bytes": memory,
    }
