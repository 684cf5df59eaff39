"""Defaults of tasks that learn from examples: classify, tag, translate and those like them.

An epoch has at least some steps, and training takes about STEPS of them, so few examples are read more often. A network
that reads the whole text reads it in both directions; on a CPU it is smaller. Where hardly a word comes twice (names,
or a language without spaces) a classifier reads characters: most words of another text would be unknown to it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from chainrule import models
from chainrule.defaults.budgets import SPEED
from chainrule.defaults.rates import SIZES, rate_settings
from chainrule.device import choose_device, shapes_only
from chainrule.errors import UserError
from chainrule.layers.parameters import group_parameters
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.models.rnn import StackSettings
from chainrule.progress import short
from chainrule.recipe import BUDGETS, Recipe, over
from chainrule.tasks import build_for, find_task, recipe_for
from chainrule.tasks.example_task import ExampleTask
from chainrule.tasks.examples import gather_examples

STEPS = 3000                # of training, about
EPOCHS = (3.0, 60.0)        # passes over the examples, at least and at most
PER_EPOCH = 100             # steps of an epoch, where there are enough examples
FEWEST = 8                  # steps of an epoch, of the fewest examples
TOKENS = {"classify": (64, 2048), "tag": (128, 2048), "translate": (256, 8192)}    # of a step, at least and at most
OTHERS = (512, 4096)
LARGE = 3e6                 # words of all examples, from which on a network is larger
RARE = {"short": 0.4, "long": 0.75}    # share of words that come once, above which texts are read as characters
SHORT = 3.0                 # words of a short text, at most
FEW_WORDS = 1e6             # of all texts, below which an n-gram classifier reads characters,
LETTERS = 5                 # so many at a time
SAMPLE = 5000               # texts whose words are counted

MOST_TEXT = 5e7             # characters of all texts, from which on a log-linear classifier takes gigabytes of memory
TEXT_PER_SECOND = 2e5       # that it learns on a CPU

FEW = 1000                  # steps of a classifier, for fewer of which the rate is higher, and dropout lower
RECURRENT = 0.5             # of the FLOPs per second of other small networks
OF_FEW = {"train.lr": 1e-2, "model.dropout": 0.1, "head.dropout": 0.2}

OF_OUR_SIZE = ("model.dropout", "model.embedding_dropout", "model.label_smoothing", "train.weight_decay",
               "head.dropout")
"""Regularisation that goes with the size that is chosen: a small network of the user's would learn too little."""

DottedSettings = Mapping[str, Any]
SMALL = {"model.layers": 2, "model.width": 128, "model.heads": 4}    # a Transformer on a CPU
DECAY = {"train.schedule": "linear", "train.final_lr": 0.0}


@dataclass(frozen=True)
class Facts:
    """The examples, as far as the choice depends on them."""

    task: str
    device: str
    count: int
    words: int                  # of all texts in them, or characters
    longest: int                # words of the longest, or characters
    unit: str = "words"

    def __str__(self) -> str:
        return f"{short(self.count)} examples of {self.words / max(1, self.count):.0f} {self.unit}"

    @property
    def reading(self) -> DottedSettings:
        """The tokenizer of a classifier."""
        return {"text.tokenizer": self.unit}

    def training(self) -> DottedSettings:
        """Batch size and epochs."""
        least, most = TOKENS.get(self.task, OTHERS)
        if self.device == "cpu":
            most = max(least, most // 2)
        tokens = max(self.longest, min(most, max(min(least, self.words // FEWEST), self.words // PER_EPOCH)))
        epochs = min(EPOCHS[1], max(EPOCHS[0], STEPS * tokens / max(1, self.words)))
        return {"train.tokens": tokens, "train.epochs": float(round(epochs)), **DECAY}

    @property
    def large(self) -> bool:
        return self.device != "cpu" and self.words > LARGE


def example_settings(
    recipe: Recipe, given: DottedSettings, texts: Sequence[str], valid: Sequence[str], device: str
) -> tuple[DottedSettings, str]:
    """What is chosen, and by what it was."""
    task = find_task(recipe.task)
    recipe = task.complete(recipe, texts)
    if not isinstance(task, ExampleTask):
        sized = any(f"model.{name}" in given for name in SIZES)
        size = SMALL if device == "cpu" and not sized and isinstance(recipe.model, TransformerSettings) else {}
        return {**size, **_rates(recipe, given, size)}, f"{recipe.kind} on {device}"
    if getattr(recipe.text, "input", None) == "frames":
        return _rates(recipe, given, {}), f"{recipe.kind} by its size"
    facts = facts_of(recipe, given, texts, valid, device)
    chosen = {**_size(recipe, facts), **facts.training()}
    usual = task.name == "classify" and "model.bidirectional" in chosen and "train.optimizer" not in given
    if usual and _steps(recipe, given, chosen, facts) < FEW:
        chosen |= OF_FEW
    if any(f"model.{name}" in given for name in SIZES):
        chosen = {name: value for name, value in chosen.items()
                  if name.removeprefix("model.") not in SIZES and name not in OF_OUR_SIZE}
    if "model.vectors" in given:
        chosen.pop("model.embedding", None)
    if getattr(recipe.model, "hidden", 0) % 2 or getattr(recipe.head, "auxiliary", 0):
        chosen.pop("model.bidirectional", None)    # which needs as many units each way, and predicts no text
    if any(f"train.{name}" in given for name in BUDGETS):
        chosen.pop("train.epochs", None)
    return chosen, f"{facts}, on {device}"


def _steps(recipe: Recipe, given: DottedSettings, chosen: DottedSettings, facts: Facts) -> float:
    """Of training, where a budget is given."""
    name, amount = recipe.train.budget
    if not any(f"train.{one}" in given for one in BUDGETS):
        return float(STEPS)
    tokens = recipe.train.tokens if "train.tokens" in given else chosen["train.tokens"]
    if name == "minutes":
        return float(STEPS) if facts.device != "cpu" else amount * _steps_a_minute(recipe, given, chosen, tokens)
    return float(amount * {"steps": 1, "epochs": facts.words / tokens, "total_tokens": 1 / tokens}[name])


def _steps_a_minute(recipe: Recipe, given: DottedSettings, chosen: DottedSettings, tokens: int) -> float:
    """Of a recurrent network on a usual CPU. Not measured, so that a run that goes on gets the same settings again."""
    with shapes_only():
        body = build_for(recipe_for(recipe.kind, over(chosen, given), recipe.task), 2, ("a", "b")).body
    weights = sum(matrix.numel() for _, matrix in group_parameters(body)[0])
    return 60 * RECURRENT * SPEED["cpu"] / (6 * weights * tokens)


def facts_of(
    recipe: Recipe, given: DottedSettings, texts: Sequence[str], valid: Sequence[str], device: str
) -> Facts:
    """Of the training examples."""
    task: Any = find_task(recipe.task)
    train = gather_examples(task.read, texts, recipe.text, valid=valid, seed=recipe.train.seed).splits["train"]
    tokenizer = given.get("text.tokenizer")
    spelled = tokenizer in ("characters", "bytes") or (
        tokenizer is None and task.name == "classify" and _is_spelled([text for one in train for text in one.written]))
    length = len if spelled else _words
    lengths = [max(map(length, example.written), default=1) for example in train]
    unit = "characters" if spelled else "words"
    return Facts(task.name, device, len(train), sum(lengths), max(1, *lengths), unit)


def ngram_reading(facts: Facts, given: DottedSettings) -> DottedSettings:
    """The tokens of a classifier that has a weight for each n-gram. Of few texts it has not seen enough of each word,
    and reads the letters that words have in common; an n-gram of characters is as long as a short word."""
    few = facts.unit == "characters" or facts.words < FEW_WORDS
    tokenizer = given.get("text.tokenizer", "characters" if few else None)
    chosen = {} if tokenizer is None or "text.tokenizer" in given else {"text.tokenizer": tokenizer}
    return {**chosen, "model.order": LETTERS} if tokenizer in ("characters", "bytes") else chosen


def _words(text: str) -> int:
    return 1 + text.count(" ")


def _is_spelled(texts: Sequence[str]) -> bool:
    """Whether texts are better read as characters: most of their words come once."""
    some = texts[:SAMPLE]
    counts = Counter(word for text in some for word in text.split())
    total, once = counts.total(), sum(count == 1 for count in counts.values())
    return once > RARE["short" if total <= SHORT * len(some) else "long"] * total


def _size(recipe: Recipe, facts: Facts) -> DottedSettings:
    model, task = recipe.model, facts.task
    if isinstance(model, TransformerSettings):
        return _transformer(recipe, facts)
    if task in ("classify", "tag") and isinstance(model, StackSettings):
        return _bidirectional(task, facts)
    if isinstance(model, StackSettings) and hasattr(model, "label_smoothing"):    # seq2seq
        hidden = 256 if facts.device == "cpu" else 512
        return {"model.layers": 2, "model.hidden": hidden, "model.dropout": 0.4, "model.label_smoothing": 0.1,
                "train.lr": 1e-3}
    words = facts.reading if task in ("classify", "tag") else {}
    return {"train.lr": 1e-3, **words, **({"model.dropout": 0.3} if hasattr(model, "dropout") else {})}


def _bidirectional(task: str, facts: Facts) -> DottedSettings:
    """A recurrent network that reads words, or characters, in both directions."""
    small = facts.device == "cpu"
    both = {
        **facts.reading, "model.bidirectional": True, "model.tied": False, "model.weight_dropout": 0.0,
        "train.optimizer": "muon", "train.lr": 5e-3,
    }
    if task == "classify":
        return {**both, "model.layers": 1, "model.hidden": 256 if small else 512, "model.embedding": 200,
                "model.dropout": 0.3, "model.embedding_dropout": 0.1, "head.pool": "max", "head.dropout": 0.5}
    return {**both, "model.layers": 1 if small else 2, "model.hidden": 256 if small else 400, "model.embedding": 200,
            "model.dropout": 0.5, "model.embedding_dropout": 0.2, "head.char_cnn": True, "head.dropout": 0.5}


def _transformer(recipe: Recipe, facts: Facts) -> DottedSettings:
    small = facts.device == "cpu"
    layers, width = (2, 128) if small else (6, 512) if facts.large else (4, 256)
    chosen: dict[str, Any] = {
        "model.layers": layers, "model.width": width, "model.heads": width // 64 if width > 128 else 4,
        "model.dropout": 0.1 if facts.large else 0.3, "train.warmup": 0.05,
    }
    if small:
        chosen["model.attention_dropout"] = 0.0
    if facts.task == "translate":
        chosen |= {"model.label_smoothing": 0.1} if hasattr(recipe.model, "label_smoothing") else {}
        chosen |= {"model.tied": True} if hasattr(recipe.model, "tied") else {}
        chosen |= {"train.optimizer": "muon", "train.lr": 3e-3, "train.weight_decay": 0.5}
    else:
        chosen |= {"train.optimizer": "muon", "train.lr": 2e-3}
    return chosen


def _rates(recipe: Recipe, given: DottedSettings, size: DottedSettings) -> DottedSettings:
    """Where only the network's size decides, its own or that chosen: optimizer and learning rate."""
    model = recipe.model
    if not isinstance(model, TransformerSettings):
        return {}
    optimizer = str(given.get("train.optimizer", "muon"))
    layers, width = size.get("model.layers", model.layers), size.get("model.width", model.width)
    return rate_settings(optimizer, 12 * layers * width**2)


def default_kind(
    task: str, texts: Sequence[str] = (), given: Mapping[str, Any] = {}, valid: Sequence[str] = (),
    device: str = "auto",
) -> str:
    """Where no kind is given. `given`: settings; those that only a network has say that it is one."""
    if task == "classify":
        return "loglinear" if _log_linear_suits(texts, given, valid) else "lstm"
    if task == "lm" and "train.minutes" in given:    # an n-gram would not use them
        return "lstm" if choose_device(device).type == "cpu" else "gpt"
    suits = find_task(task).suits
    usual = {"tag": "hmm", "mask": "encoder"}.get(task)
    kinds = ("ngram", "transformer", "gpt")    # the first that the task suits
    return usual or next((kind for kind in kinds if suits(models.model_class(kind))), "ngram")


def _log_linear_suits(texts: Sequence[str], given: DottedSettings, valid: Sequence[str]) -> bool:
    """Single texts of words that fit into memory, and into the minutes if these are given. Pairs need a network: what
    matters is how one text answers the other. So do texts read as letters, such as names: n-grams do not count."""
    minutes, task = given.get("train.minutes"), cast(Any, find_task("classify"))
    own = {name: value for name, value in given.items() if name != "train.minutes"}
    if any(name.startswith(("train.", "head.")) for name in own):
        return False
    try:
        recipe = task.complete(recipe_for("loglinear", own, "classify"), texts)
        train = gather_examples(task.read, texts, recipe.text, valid=valid, seed=0).splits["train"]
    except UserError:    # vectors, a setting of other kinds, or a mistake, for which training has its own line
        return False
    written = [text for example in train for text in example.written]
    size = sum(map(len, written))
    fits = size <= MOST_TEXT if minutes is None else size <= min(MOST_TEXT, 60 * float(minutes) * TEXT_PER_SECOND)
    return fits and len(written) == len(train) and not _is_spelled(written)
