"""Settings: fields of frozen dataclasses, each declared once with its type, range, default and help.

    order: Annotated[int, Range(1, 1000)] = 5    # tokens in one n-gram: the predicted one and the order - 1 before it

This file checks every number against its range, reads the comments as help, and reads dotted `key=value` words.
"""

import ast
import inspect
import math
import re
import tokenize
from collections import ChainMap
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from chainrule.errors import UserError, did_you_mean

S = TypeVar("S")

LIMIT = 10**15     # the end of a range that states none
SHOWN = 10**6      # a higher end only guards against overflow, so a range is described without it

RENAMED = {
    "head.calm": "head.length_normalisation",
    "head.letters": "head.char_cnn",
    "model.asks": "model.query_layers",
    "model.cap": "model.logit_softcap",
    "model.gains": "model.norm_scale",
    "model.keys": "model.kv_heads",
    "model.smoothing": "model.label_smoothing",
    "model.wavelength": "model.rope_theta",
    "model.zero": "model.zero_init",
    "train.order": "train.batching",
    "train.rest_lr": "train.adamw_lr",
    "train.rows": "train.micro_batch",
}
"""Settings that had another name: an old one is answered with the new one, for kinds that have the new one."""


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may have: `least` and `most` are included, `above` and `below` are not."""

    least: float = -LIMIT
    most: float = LIMIT
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        high_enough = self.least <= value if self.above is None else self.above < value
        return high_enough and (value <= self.most if self.below is None else value < self.below)

    def __str__(self) -> str:
        """'1 or more', 'more than 0', 'from 0 to 1', 'from 0 to less than 1'."""
        end = f"less than {self.below}" if self.below is not None else str(self.most) if self.most < SHOWN else ""
        if self.above is not None:
            return f"more than {self.above}" + (f", and {'' if self.below else 'at most '}{end}" if end else "")
        return f"from {self.least} to {end}" if end else f"{self.least} or more"

    def check(self, name: str, value: float) -> None:
        said = f"{name}={value:g}" if isinstance(value, float) else f"{name}={value!s:.40}"
        if isinstance(value, float) and not math.isfinite(value):    # JSON has no word for it
            raise UserError(f"{said}: it must be finite.")
        if value not in self:
            raise UserError(f"{said}: it must be {f'at most {self.most}' if value > self.most >= SHOWN else self}.")


Count = Annotated[int, Range(1)]
Size = Annotated[int, Range(1, 1 << 24)]               # of one axis of a tensor
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
BelowOne = Annotated[float, Range(0, below=1)]         # a dropout probability, a momentum


@dataclass(frozen=True)
class Settings:
    """Base of all settings: a number out of its range is refused, however the instance is made.

    Checks of several fields together belong in a subclass's `__post_init__`, after `super().__post_init__()`.
    """

    part: ClassVar[str] = "model"    # what is before the dot of their names
    adjustable: ClassVar[tuple[str, ...]] = ()    # those that change no weight, so that a trained model may change them

    def __init_subclass__(cls, part: str | None = None) -> None:
        cls.part = part or cls.part

    def __post_init__(self) -> None:
        for name, hint in hints(type(self)).items():
            _check_range(f"{self.part}.{name}", getattr(self, name), hint)

    def adjusted(self, given: Mapping[str, Any]) -> Self:
        """The settings of a trained model with some of them changed: those that are `adjustable`."""
        for name, value in given.items():
            if name not in self.adjustable:
                can = ", ".join(f"{self.part}.{one}" for one in self.adjustable)
                raise UserError(f"{self.part}.{name}={value} cannot be set here: the run has its own. "
                                f"{f'Only {can}' if can else 'None of its settings'} can.")
        return make(type(self), asdict(self) | dict(given), self.part)


def hints(cls: type) -> dict[str, Any]:
    """The type of each field, with its range."""
    every = get_type_hints(cls, include_extras=True)
    return {field.name: every[field.name] for field in fields(cls)}


def range_of(hint: Any) -> Range | None:
    """The range declared in a type such as `Annotated[int, Range(1)] | None`, or None where there is none."""
    if get_origin(hint) is Annotated:
        return next((note for note in get_args(hint)[1:] if isinstance(note, Range)), None)
    return next((found for part in get_args(hint) if (found := range_of(part))), None)


def _check_range(name: str, value: Any, hint: Any) -> None:
    if (allowed := range_of(hint)) and value is not None:
        for number in value if isinstance(value, tuple) else (value,):
            if not isinstance(number, str):    # a word that the type allows beside numbers
                allowed.check(name, number)


@cache
def meanings(cls: type) -> dict[str, str]:
    """The help of each field: the comment on its line, in the source of the class or of those it inherits from."""
    parents = [meanings(base) for base in cls.__bases__ if is_dataclass(base)]
    source = inspect.cleandoc("\n" + inspect.getsource(cls)) + "\n"
    comments: dict[int, str] = {}
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ").strip()
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    declared = {field.name for field in fields(cls)}
    own = {
        node.target.id: _comment(comments, source.splitlines(), node.end_lineno or node.lineno)
        for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in declared
    }
    return dict(ChainMap(own, *parents))


def _comment(comments: Mapping[int, str], lines: list[str], number: int) -> str:
    """The comment on a line, and on the lines after it that hold only a comment."""
    words = [comments.get(number, "")]
    while words[0] and number < len(lines) and lines[number].lstrip().startswith("#"):
        number += 1
        words.append(comments[number])
    return " ".join(words)


def default(field: "Field[Any]") -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def make(cls: type[S], values: Mapping[str, Any], prefix: str) -> S:
    """An instance of `cls` from `values`; strings are read by the type of the field."""
    known, made = hints(cls), {}
    for name, value in values.items():
        if name not in known:
            raise UserError(unknown_setting(f"{prefix}.{name}", [f"{prefix}.{other}" for other in known]))
        made[name] = read(value, known[name], f"{prefix}.{name}")
    return cls(**made)


def unknown_setting(name: str, known: Collection[str]) -> str:
    """The new name of a renamed setting, the nearest one, or all that are known."""
    if RENAMED.get(name) in known:
        return f"unknown setting {name}: it is {RENAMED[name]} now."
    if near := did_you_mean(name, known):
        return f"unknown setting {name}.{near}"
    every = f"Known: {', '.join(known)}" if known else f"This kind has no {name.partition('.')[0]} settings"
    return f"unknown setting {name}. {every}."


def read(value: Any, hint: Any, name: str) -> Any:
    """`value` as the type `hint` wants it; a string from the command line or a plain value from a file."""
    if get_origin(hint) is Annotated:
        return read(value, get_args(hint)[0], name)
    if get_origin(hint) in (Union, UnionType):
        return _read_union(value, hint, name)
    if get_origin(hint) is Literal:
        options = get_args(hint)
        value = str(value).lower() if isinstance(value, bool) else value    # TOML's true is "true" here
        if value not in options:
            near = did_you_mean(str(value), map(str, options))
            raise UserError(f"{name}={value} is not one of {', '.join(map(str, options))}.{near}")
        return value
    if get_origin(hint) is tuple:
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        return _read_tuple([part for part in parts if part != ""], get_args(hint), name)
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}[hint]
    try:
        return _read_plain(value, hint)
    except (ValueError, TypeError, OverflowError):
        raise UserError(f"{name}={value} is not {wanted}.") from None


def _read_union(value: Any, hint: Any, name: str) -> Any:
    if NoneType in get_args(hint) and (value is None or value in ("none", "None")):
        return None
    options = [option for option in get_args(hint) if option is not NoneType]
    words = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
    if value in words:
        return value
    try:
        return read(value, options[0], name)
    except UserError as error:
        if not words or get_origin(options[0]) is Literal:
            raise
        raise UserError(f"{str(error).removesuffix('.')}, nor {' or '.join(map(str, words))}.") from None


def _read_tuple(parts: list[Any], options: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    if Ellipsis not in options and len(parts) != len(options):
        raise UserError(f"{name}={','.join(map(str, parts))}: it must be {len(options)} values, with commas between.")
    return tuple(read(part, options[0], name) for part in parts)


def _read_plain(value: Any, hint: type) -> Any:
    if hint is bool:
        if isinstance(value, bool):
            return value
        return str(value).lower() in ("true", "yes", "1") or _no(value)
    if hint is int and isinstance(value, str):
        return _read_whole(value)
    if hint is int and (isinstance(value, bool) or int(value) != value):
        raise ValueError(value)
    return hint(value)


def _read_whole(value: str) -> int:
    with suppress(ValueError):
        return int(value)
    number = float(value.replace("_", ""))    # 1e6 is a whole number
    if not number.is_integer():
        raise ValueError(value)
    return int(number)


def _no(value: Any) -> bool:
    if str(value).lower() in ("false", "no", "0"):
        return False
    raise ValueError(value)


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted settings: {"model": {"order": 5}} -> {"model.order": 5}."""
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


SETTING = re.compile(r"^([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+)=(.*)$", re.DOTALL)


def split_words(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Command-line words into those that are dotted settings and the rest, which keep their order."""
    rest, settings = [], {}
    for word in words:
        if found := SETTING.match(word):
            settings[found[1]] = found[2]
        else:
            rest.append(word)
    return rest, settings
