"""The recipe of a run: all its settings. This file declares those of the text and of training.

A kind declares its `model.*` settings beside its class, and a task its `head.*`; settings.py says how.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from chainrule.errors import UserError, did_you_mean
from chainrule.settings import BelowOne, Count, Fraction, NonNegative, Positive, Range, Settings, Size, make

if TYPE_CHECKING:
    from chainrule.model import Model

MOST_TARGETS = 1 << 14    # in one optimizer step, where train.tokens does not say how many

Precision: TypeAlias = Literal["auto", "float32", "bfloat16", "bfloat16-stream", "float8"]
Seed: TypeAlias = Annotated[int, Range(0, (1 << 63) - 1)]      # random generators take 64 bits, one of them a sign
Epochs: TypeAlias = Annotated[float, Range(above=0)]
Minutes: TypeAlias = Annotated[float, Range(above=0, most=10**7)]
Decay: TypeAlias = Annotated[float, Range(above=0, most=10)]


@dataclass(frozen=True)
class Text(Settings, part="text"):
    """`text.*`: the tokenizer and the split."""

    tokenizer: str = "bpe"          # bytes, characters, words, bpe, symbols, or the path of a tokenizer.json
    vocab: Annotated[int, Range(1, 1 << 31)] | None = None  # largest vocabulary; none: all tokens (bpe: by text size)
    min_count: Count | None = None  # words that occur less often become <unk> (words only); none: 2, or 1 where the
                                    # text holds <unk> already
    errors: Literal["strict", "replace"] = "strict"  # for bytes that are not UTF-8: stop with an error, or read U+FFFD
    separator: str = "<|endoftext|>"  # a line that holds only this separates two documents
    held_out: BelowOne = 0.1        # fraction held out for validation without --valid: whole documents, or a text's end
    mix: tuple[Positive, ...] = ()  # weights of the training texts, one for each that is named; none: as they are


@dataclass(frozen=True)
class RunningText(Text):
    """`text.*` of a text in which every token is predicted."""

    packed: bool = False            # documents in a row do not see each other: attention, state and positions restart


@dataclass(frozen=True)
class Counting(Settings, part="train"):
    """`train.*` of kinds that learn by counting: in one pass, or by EM."""

    seed: Seed = 1                  # seed of every random number
    steps: Count = 1                # passes over the text: an n-gram needs one, EM many
    restarts: Count = 1             # random initialisations, of which the one with the best likelihood is trained (EM)
    tolerance: NonNegative = 0.0    # stop when a pass improves the loss by fewer nats per token than this (EM)
    length: Count | None = None     # longest row, in tokens: longer texts are cut into independent pieces; none: no cut
    tokens: Count = 1 << 20         # targets in one batch, which bounds memory and does not change the result


BUDGETS = ("steps", "epochs", "total_tokens", "minutes")
"""Ways to say when gradient training ends. A recipe has one of them, so one that is given replaces any other."""

ENDS, PAIR_ENDS = 10, 5
"""Epochs of gradient training, and of word vectors, where no budget is given."""


@dataclass(frozen=True)
class Gradient(Settings, part="train"):
    """`train.*` of kinds that learn by gradient descent."""

    seed: Seed = 1                      # seed of every random number: initial weights, order of the data, dropout
    steps: Count | None = None          # budget: optimizer steps
    epochs: Epochs | None = None        # budget: passes over the training text; 10 where no budget is given
    total_tokens: Count | None = None   # budget: targets
    minutes: Minutes | None = None      # budget: wall-clock time; the learning-rate schedule follows the clock
    tokens: Count | None = None         # batch size in targets, over all ranks and micro-batches; none: up to 16,384
    length: Size | None = None          # sequence length in tokens; none: the model's context, or 64 without one
    batching: Literal["windows", "streams"] = "windows"  # shuffled windows; or in order, with state (truncated BPTT)
    micro_batch: Size | None = None     # rows in one micro-batch (gradient accumulation); none: as memory allows
    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"  # muon: Muon for hidden matrices, AdamW for the rest
    lr: Positive = 1e-3                 # peak learning rate; Muon's updates are scaled to the size of AdamW's
    adamw_lr: Positive | None = None    # peak learning rate of AdamW's part beside Muon; none: train.lr
    momentum: BelowOne | None = None    # momentum of Muon or SGD; none: 0.95 for Muon, 0 for SGD
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.95)  # AdamW's decay rates of the first and second moment
    weight_decay: NonNegative | None = None  # decoupled weight decay of matrices; none: 0.1, and 0 for SGD
    schedule: Literal["cosine", "linear", "wsd", "constant"] = "cosine"  # learning-rate decay; wsd: only at the end
    warmup: Fraction = 0.02             # fraction of training in which the learning rate rises linearly
    decay: Fraction = 0.3               # fraction of training in which the learning rate falls (wsd)
    final_lr: Fraction = 0.1            # learning rate at the end, as a fraction of the peak
    body_lr: Positive | None = None     # learning rate of the body under a new head, times train.lr; none: the same
    layer_decay: Decay = 1.0            # layer-wise learning-rate decay: each layer's rate over that of the layer above
    freeze: tuple[str, ...] = ()        # parameters to freeze: prefixes of their names, or a number N: the embeddings
                                        # and the first N layers, or all
    lora: Size | None = None            # rank of LoRA adapters, which train while the base of --from is frozen
    lora_alpha: Positive | None = None  # LoRA's alpha: the update is scaled by alpha / rank; none: twice the rank
    clip: NonNegative = 1.0             # clip the global gradient norm to this; 0: no clipping
    r_drop: NonNegative = 0.0           # R-Drop: weight of the divergence between two passes over a batch, each with
                                        # its own dropout; 0: one pass
    evaluate: Annotated[float, Range(0)] | None = None  # steps between evaluations on the validation split; 0: none;
                                        # less than 1: as a fraction of all steps; none: once an epoch
    evaluate_tokens: Count | None = None  # evaluate on a sample of the validation split of about so many tokens, drawn
                                        # by the seed; none: on all of it
    patience: Count | None = None       # early stopping after so many evaluations without improvement; none: off
    keep_best: bool = True              # save the weights of the best evaluation; false: those of the last step
    precision: Precision = "auto"       # of matrix products, or of the residual stream too; auto: bfloat16 where fast;
                                        # float8: a Transformer's products in training steps, on Ada and Hopper
    compile: Literal["auto", "true", "false"] = "auto"  # torch.compile; auto: on a GPU, where it saves time overall
    graph: Literal["auto", "true", "false"] = "auto"  # run a step as one CUDA graph; auto: on a GPU, if it is faster
    shard: bool = False                 # under torchrun: shard the weights over ranks (FSDP) instead of copies (DDP)
    checkpoint: Annotated[float, Range(0)] = 300.0  # seconds between checkpoints; 0: after each step
    gradients: bool = False             # log gradient norms by layer, and by distance in tokens from the last target
    tensorboard: bool = False           # write TensorBoard files too, where it is installed

    @property
    def lora_scale(self) -> float:
        """Factor of the adapters' product."""
        return 2.0 if self.lora is None or self.lora_alpha is None else self.lora_alpha / self.lora

    @property
    def budget(self) -> tuple[str, float]:
        """Which of BUDGETS ends training, and at what number."""
        given = [(name, getattr(self, name)) for name in BUDGETS if getattr(self, name) is not None]
        return given[0] if given else ("epochs", ENDS)

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_two_budgets(self)
        if self.momentum is not None and self.optimizer == "adamw":
            raise UserError("train.momentum is for muon and sgd; adamw has train.betas.")
        if self.adamw_lr is not None and self.optimizer != "muon":
            raise UserError(f"train.adamw_lr is for muon; {self.optimizer} has train.lr alone.")
        if self.lora_alpha is not None and self.lora is None:
            raise UserError("train.lora_alpha is for LoRA adapters; add them with train.lora=8.")
        if self.lora is not None and self.shard:
            raise UserError("train.lora needs the whole model on each rank; leave out train.shard=true.")
        if self.shard and self.graph == "true":
            raise UserError("train.graph=true needs the whole model on each rank; leave out train.shard=true.")
        if self.r_drop and self.batching == "streams":
            raise UserError("train.r_drop reads each batch twice, and streams go on from the state of one pass; "
                            "leave out train.batching=streams.")
        if self.patience is not None and self.evaluate == 0:
            raise UserError("train.patience needs evaluations on the validation split; train.evaluate=0 has none.")


@dataclass(frozen=True)
class Pairs(Settings, part="train"):
    """`train.*` of word vectors, which learn from pairs of words that occur near each other."""

    seed: Seed = 1                  # seed of every random number: initial vectors, negative samples, subsampling
    epochs: Epochs | None = None    # budget: passes over the training text; 5 where no budget is given
    minutes: Minutes | None = None  # budget: wall-clock time; the learning-rate schedule follows the clock
    tokens: Count | None = None     # words in a step, or cells of the co-occurrence table; none: by the device
    lr: Positive = 0.025            # initial learning rate, which falls linearly
    final_lr: Fraction = 0.004      # learning rate at the end, as a fraction of the initial one

    @property
    def budget(self) -> tuple[str, float]:
        """Whether epochs or minutes end training, and at what number."""
        return ("minutes", self.minutes) if self.minutes is not None else ("epochs", self.epochs or PAIR_ENDS)

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_two_budgets(self)


def _refuse_two_budgets(train: Gradient | Pairs) -> None:
    given = [f"train.{name}" for name in BUDGETS if getattr(train, name, None) is not None]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)}: training has one budget; give one of them.")


RUNNING = ("train.batching", "train.length", "train.tokens")
"""A kind's own defaults of these are for running text; other tasks do not use them."""

TRAIN: Mapping[str, type[Settings]] = {"counting": Counting, "gradient": Gradient, "pairs": Pairs}


class TaskSettings:
    """What a task adds to a recipe. These are the values of `lm`; each Task (tasks/task.py) has its own."""

    name: ClassVar[str] = "lm"
    text: ClassVar[type[Text]] = RunningText                # its `text.*` settings
    heads: ClassVar[Mapping[str, type[Settings]]] = {}      # its `head.*` settings, by how a kind learns; none: no head
    train: ClassVar[Mapping[str, type[Settings]]] = {}      # its `train.*` settings; none: TRAIN
    running_text: ClassVar[bool] = True                     # whether every token of a running text is a target
    own_training: ClassVar[bool] = False                    # whether a kind's own defaults of `train.*` are left out


LANGUAGE_MODELLING = TaskSettings()


@dataclass(frozen=True)
class Base:
    """The run whose weights training starts from (--from)."""

    path: str                       # its absolute path
    sha256: str                     # of its weights file


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a run, apart from the text itself."""

    kind: str
    task: str
    text: Text
    model: Any                      # an instance of the kind's Settings
    train: Any                      # an instance of TRAIN[learns_by]
    head: Any = None                # an instance of the task's heads[learns_by], where there is one
    base: Base | None = None        # the run that the initial weights come from; None: they are random

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def make_recipe(
    kind: str, model_class: "type[Model]", given: Mapping[str, Any], preset: Mapping[str, Any] = {},
    task: TaskSettings = LANGUAGE_MODELLING,
) -> Recipe:
    """The defaults, then the kind's, then the preset's, then those given; keys are dotted, and later ones win."""
    how = model_class.learns_by
    head = None if model_class.classifies else task.heads.get(how)
    parts: dict[str, dict[str, Any]] = {"text": {}, "model": {}, "train": {}, **({"head": {}} if head else {})}
    own = {name: value for name, value in model_class.recipe.items() if task.running_text or name not in RUNNING}
    defaults = {name: value for name, value in over(own, preset).items()
                if not (task.own_training and name.startswith("train."))}
    for name, value in over(defaults, given).items():
        part, _, rest = name.partition(".")
        if part not in parts or not rest:
            begins = [f"{name}." for name in parts]
            hint = did_you_mean(part, parts) or f" Settings begin with {', '.join(begins[:-1])} or {begins[-1]}"
            raise UserError(f"unknown setting {name}.{hint}")
        parts[part][rest] = value
    return Recipe(
        kind,
        task.name,
        make(task.text, parts["text"], "text"),
        make(model_class.Settings, parts["model"], "model"),
        make(task.train.get(how, TRAIN[how]), parts["train"], "train"),
        make(head, parts["head"], "head") if head else None,
    )


def over(settings: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """`settings`, updated by `others`; a budget among these replaces any other."""
    budgets = {f"train.{name}" for name in BUDGETS}
    replaced = budgets if budgets & others.keys() else set()
    return {name: value for name, value in settings.items() if name not in replaced} | dict(others)
