"""Every setting that is not a model's own, once, with its meaning. A recipe is what a run was made from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from chainrule.errors import UserError, did_you_mean
from chainrule.settings import make


@dataclass(frozen=True)
class Text:
    tokenizer: str = "bpe"          # bytes, characters, words, bpe, or the path of a ready tokenizer.json
    vocab: int | None = None        # most tokens the vocabulary may have; None: as many as the text gives (bpe: chosen by its size)
    min_count: int = 2              # words seen less often than this become <unk> (words only)
    errors: Literal["strict", "replace"] = "strict"  # bytes that are not UTF-8: stop and name the place, or put U+FFFD there
    separator: str = "<|endoftext|>"  # a line that holds only this ends one document and begins the next
    held_out: float = 0.1           # share kept for validation where no --valid is given: whole documents, or the end of a single text


@dataclass(frozen=True)
class Counting:
    """`train.*` for kinds that learn by counting."""

    seed: int = 1                   # everything left to chance begins here
    steps: int = 1                  # rounds of counting; an n-gram needs one, EM many
    restarts: int = 1               # random starts, of which the likeliest goes on (EM)
    tolerance: float = 0.0          # stop when a round gains fewer nats per token than this (EM)
    length: int | None = None       # longest row, in tokens; longer texts are cut and each piece begins afresh; None: never cut
    tokens: int = 1 << 20           # targets read at a time, which bounds memory and changes no result

    def __post_init__(self) -> None:
        for name in ("steps", "restarts", "length", "tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"train.{name}={value}: it is 1 or more.")
        for name in ("seed", "tolerance"):
            if not getattr(self, name) >= 0:
                raise UserError(f"train.{name}={getattr(self, name)}: it is 0 or more.")


TRAIN: Mapping[str, type] = {"counting": Counting}


@dataclass(frozen=True)
class Recipe:
    kind: str
    task: str
    text: Text
    model: Any                      # an instance of the kind's Settings
    train: Any                      # an instance of TRAIN[learns_by]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_recipe(kind: str, model_class: Any, given: Mapping[str, Any], preset: Mapping[str, Any] = {}, task: str = "lm") -> Recipe:
    """House defaults, then the kind's, then the preset's, then what the user gave; keys are dotted."""
    parts: dict[str, dict[str, Any]] = {"text": {}, "model": {}, "train": {}}
    for name, value in {**model_class.recipe, **preset, **given}.items():
        part, _, rest = name.partition(".")
        if part not in parts or not rest:
            hint = did_you_mean(part, parts) or " Settings begin with text., model. or train."
            raise UserError(f"unknown setting {name}.{hint}")
        parts[part][rest] = value
    return Recipe(
        kind,
        task,
        make(Text, parts["text"], "text"),
        make(model_class.Settings, parts["model"], "model"),
        make(TRAIN[model_class.learns_by], parts["train"], "train"),
    )
