"""Every setting that is not a model's own, once, with its meaning. A recipe is what a run was made from."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from chainrule.errors import UserError, did_you_mean
from chainrule.settings import flatten, make

MOST_TARGETS = 1 << 14    # in a step of gradient descent, where train.tokens does not say how many


@dataclass(frozen=True)
class Text:
    tokenizer: str = "bpe"          # bytes, characters, words, bpe, or the path of a ready tokenizer.json
    vocab: int | None = None        # most tokens in the vocabulary; None: all that the text gives (bpe: by its size)
    min_count: int = 2              # words seen less often than this become <unk> (words only)
    errors: Literal["strict", "replace"] = "strict"  # bytes that are not UTF-8: stop and name the place, or read U+FFFD
    separator: str = "<|endoftext|>"  # a line that holds only this ends one document and begins the next
    held_out: float = 0.1           # share kept for validation without --valid: whole documents, or a text's end


Precision: TypeAlias = Literal["auto", "float32", "bfloat16", "bfloat16-stream"]


@dataclass(frozen=True)
class Counting:
    """`train.*` for kinds that learn by counting."""

    seed: int = 1                   # everything left to chance begins here
    steps: int = 1                  # rounds of counting; an n-gram needs one, EM many
    restarts: int = 1               # random starts, of which the likeliest goes on (EM)
    tolerance: float = 0.0          # stop when a round gains fewer nats per token than this (EM)
    length: int | None = None       # longest row, in tokens; the pieces of longer texts begin afresh; None: never cut
    tokens: int = 1 << 20           # targets read at a time, which bounds memory and changes no result

    def __post_init__(self) -> None:
        for name in ("steps", "restarts", "length", "tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"train.{name}={value}: it is 1 or more.")
        if not self.tolerance >= 0:
            raise UserError(f"train.tolerance={self.tolerance}: it is 0 or more.")
        _refuse_seed(self.seed)


BUDGETS = ("steps", "epochs", "total_tokens", "minutes")
"""Ways to say when training by gradient ends. A recipe has one of them, so a given one takes the place of any other."""

ENDS, PAIR_ENDS = 10, 5
"""Epochs, where no budget is given."""


@dataclass(frozen=True)
class Gradient:
    """`train.*` for kinds that learn by gradient."""

    seed: int = 1                       # all chance begins here: first weights, order of the data, dropout
    steps: int | None = None            # the end, in optimizer steps
    epochs: float | None = None         # the end, in readings of the whole text; no end given: 10
    total_tokens: int | None = None     # the end, in targets
    minutes: float | None = None        # the end, by the clock; the schedule follows the clock too
    tokens: int | None = None           # targets in a step, over all ranks and micro-batches; None: up to 16,384
    length: int | None = None           # tokens in a row; None: the model's context, or 64 where it has none
    batching: Literal["windows", "streams"] = "windows"  # shuffled; or in order, the state carried on (truncated BPTT)
    micro_batch: int | None = None      # rows in one micro-batch, which changes no result; None: what memory holds
    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"  # muon: for hidden matrices, and adamw for the rest
    lr: float = 1e-3                    # highest learning rate; muon's steps are as long as adamw's would be
    adamw_lr: float | None = None       # that of adamw beside muon; None: lr
    momentum: float | None = None       # share of the last direction that goes on; None: 0.95 for muon, 0 for sgd
    betas: tuple[float, ...] = (0.9, 0.95)  # how much adamw remembers of gradients, and of their squares
    weight_decay: float | None = None   # share of a matrix lost in a step, times lr; None: 0.1, and 0 for sgd
    schedule: Literal["cosine", "linear", "wsd", "constant"] = "cosine"  # how lr falls; wsd: only at the end
    warmup: float = 0.02                # share of training in which lr rises
    decay: float = 0.3                  # share of training in which lr falls (wsd)
    final_lr: float = 0.1               # lr at the end, as a share of the highest
    body_lr: float | None = None        # that of the body under a head, as a share of lr; None: lr for both
    layer_decay: float = 1.0            # that of each layer, as a share of that of the one above it
    freeze: tuple[str, ...] = ()        # beginnings of names of weights that stay; N: embeddings and N layers; or all
    lora: int | None = None             # rank of adapters that learn while the body stays as --from brought it
    lora_alpha: float | None = None     # the adapters count alpha / lora times; None: twice
    clip: float = 1.0                   # longest gradient, all weights together; longer ones are cut; 0: never
    evaluate: float | None = None       # steps between looks at the validation text; <1: share of all; None: by epoch
    patience: int | None = None         # stop after this many looks in a row without a better one; None: never
    keep_best: bool = True              # the run's model is the best that was looked at; false: the last
    precision: Precision = "auto"       # of matrix products, or of what blocks pass upward too; auto: bfloat16 if quick
    compile: Literal["auto", "true", "false"] = "auto"  # torch.compile; auto: on a GPU, where it repays itself
    graph: Literal["auto", "true", "false"] = "auto"  # a step as one CUDA graph; auto: on a GPU, where steps are short
    shard: bool = False                 # under torchrun each rank holds a share of the weights (FSDP), not all (DDP)
    checkpoint: float = 300.0           # seconds between checkpoints; 0: after each step
    gradients: bool = False             # record gradient norms by layer, and by tokens back from the last target
    tensorboard: bool = False           # write for TensorBoard too, where it is installed

    @property
    def lora_scale(self) -> float:
        """What the adapters' product is multiplied by."""
        return 2.0 if self.lora is None or self.lora_alpha is None else self.lora_alpha / self.lora

    @property
    def budget(self) -> tuple[str, float]:
        """Which of BUDGETS ends it, and at what."""
        given = [(name, getattr(self, name)) for name in BUDGETS if getattr(self, name) is not None]
        return given[0] if given else ("epochs", ENDS)

    def __post_init__(self) -> None:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            names = " and ".join(f"train.{name}" for name in given)
            raise UserError(f"{names}: training has one end; give one of them.")
        for name in ("steps", "total_tokens", "tokens", "length", "micro_batch", "patience", "lora"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"train.{name}={value}: it is 1 or more.")
        for name in ("epochs", "minutes", "lr", "adamw_lr", "body_lr", "layer_decay", "lora_alpha"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise UserError(f"train.{name}={value:g}: it is more than 0, and finite.")
        _refuse_seed(self.seed)
        for name in ("weight_decay", "clip", "evaluate", "checkpoint"):
            if (value := getattr(self, name)) is not None and not value >= 0:
                raise UserError(f"train.{name}={value:g}: it is 0 or more.")
        for name in ("warmup", "decay", "final_lr"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"train.{name}={getattr(self, name):g}: it is a share, from 0 to 1.")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            betas = ",".join(f"{beta:g}" for beta in self.betas)
            raise UserError(f"train.betas={betas}: two numbers from 0 to less than 1.")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise UserError(f"train.momentum={self.momentum:g}: it is from 0 to less than 1.")
        self._refuse_what_would_do_nothing()

    def _refuse_what_would_do_nothing(self) -> None:
        if self.momentum is not None and self.optimizer == "adamw":
            raise UserError("train.momentum is for muon and sgd; adamw has train.betas.")
        if self.adamw_lr is not None and self.optimizer != "muon":
            raise UserError(f"train.adamw_lr is for muon; {self.optimizer} has train.lr alone.")
        if self.lora_alpha is not None and self.lora is None:
            raise UserError("train.lora_alpha is of adapters; train.lora=8 has them put on.")
        if self.lora is not None and self.shard:
            raise UserError("train.lora is for ranks that hold the whole model; train.shard=true goes without.")
        if self.shard and self.graph == "true":
            raise UserError("train.graph=true is for ranks that hold the whole model; train.shard=true goes without.")
        if self.patience is not None and self.evaluate == 0:
            raise UserError("train.patience needs looks at the validation text; train.evaluate=0 has none.")


@dataclass(frozen=True)
class Pairs:
    """`train.*` for kinds that learn from pairs of words that stand near each other."""

    seed: int = 1                   # all chance begins here: first vectors, noise, what is passed over
    epochs: float | None = None     # the end, in readings of the whole text; no end given: 5
    minutes: float | None = None    # the end, by the clock; the learning rate follows the clock too
    tokens: int | None = None       # words in a step, or cells of a table of pairs; fewer at first; None: by the device
    lr: float = 0.025               # learning rate at first; it falls in a straight line
    final_lr: float = 0.004         # lr at the end, as a share of the first

    @property
    def budget(self) -> tuple[str, float]:
        """Whether epochs or minutes end it, and at what."""
        return ("minutes", self.minutes) if self.minutes is not None else ("epochs", self.epochs or PAIR_ENDS)

    def __post_init__(self) -> None:
        if self.epochs is not None and self.minutes is not None:
            raise UserError("train.epochs and train.minutes: training has one end; give one of them.")
        for name in ("epochs", "minutes", "lr"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise UserError(f"train.{name}={value:g}: it is more than 0, and finite.")
        if self.tokens is not None and self.tokens < 1:
            raise UserError(f"train.tokens={self.tokens}: it is 1 or more.")
        _refuse_seed(self.seed)
        if not 0 <= self.final_lr <= 1:
            raise UserError(f"train.final_lr={self.final_lr:g}: it is a share, from 0 to 1.")


RUNNING = ("train.batching", "train.length", "train.tokens")
"""Where a kind's own defaults are for running text, and no other task wants them."""

TRAIN: Mapping[str, type] = {"counting": Counting, "gradient": Gradient, "pairs": Pairs}


class TaskSettings:
    """What a task adds to a recipe. These are the values of `lm`; each Task (tasks/task.py) has its own."""

    name: ClassVar[str] = "lm"
    text: ClassVar[type[Text]] = Text               # its `text.*` settings
    heads: ClassVar[Mapping[str, type]] = {}        # its `head.*` settings, by how a kind learns; none: no head
    running_text: ClassVar[bool] = True             # whether every token of a running text is a target


LANGUAGE_MODELLING = TaskSettings()


def _refuse_seed(seed: int) -> None:
    """Generators of chance take 64 bits, of which one is a sign."""
    if not 0 <= seed < 1 << 63:
        raise UserError(f"train.seed={seed}: it is 0 or more, and at most {(1 << 63) - 1}.")


@dataclass(frozen=True)
class Base:
    """The run that a recipe begins from."""

    path: str                       # its folder, in full
    sha256: str                     # of the file that has its weights


@dataclass(frozen=True)
class Recipe:
    kind: str
    task: str
    text: Text
    model: Any                      # an instance of the kind's Settings
    train: Any                      # an instance of TRAIN[learns_by]
    head: Any = None                # an instance of the task's heads[learns_by], where there is one
    base: Base | None = None        # where its first weights come from; None: chance

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def make_recipe(
    kind: str, model_class: Any, given: Mapping[str, Any], preset: Mapping[str, Any] = {},
    task: TaskSettings = LANGUAGE_MODELLING,
) -> Recipe:
    """House defaults, then the kind's, then the preset's, then what the user gave; keys are dotted."""
    head = task.heads.get(model_class.learns_by)
    parts: dict[str, dict[str, Any]] = {"text": {}, "model": {}, "train": {}, **({"head": {}} if head else {})}
    own = {name: value for name, value in model_class.recipe.items() if task.running_text or name not in RUNNING}
    for name, value in over(over(own, preset), given).items():
        part, _, rest = name.partition(".")
        if part not in parts or not rest:
            begins = [f"{name}." for name in parts]
            hint = did_you_mean(part, parts) or f" Settings begin with {', '.join(begins[:-1])} or {begins[-1]}"
            raise UserError(f"unknown setting {name}.{hint}")
        parts[part][rest] = value
    recipe = Recipe(
        kind,
        task.name,
        make(task.text, parts["text"], "text"),
        make(model_class.Settings, parts["model"], "model"),
        make(TRAIN[model_class.learns_by], parts["train"], "train"),
        make(head, parts["head"], "head") if head else None,
    )
    for name, value in flatten(recipe.as_dict()).items():
        if isinstance(value, float) and not math.isfinite(value):    # which JSON has no word for
            raise UserError(f"{name}={value:g}: it must be finite. `chainrule settings {kind}` says what it means.")
    return recipe


def over(settings: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` with `others` over them; a budget takes the place of any other."""
    budgets = {f"train.{name}" for name in BUDGETS}
    replaced = budgets if budgets & others.keys() else set()
    return {name: value for name, value in settings.items() if name not in replaced} | dict(others)
