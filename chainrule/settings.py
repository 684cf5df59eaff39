"""Settings are fields of frozen dataclasses, each written once: name, type, default, and behind it its meaning.

    order: int = 5    # tokens in one gram: the word and the order - 1 before it

This file reads the comments back as help, and dotted `key=value` words into instances.
"""

import ast
import inspect
import re
import tokenize
from collections import ChainMap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from chainrule.errors import UserError, did_you_mean

S = TypeVar("S")


@cache
def meanings(cls: type) -> dict[str, str]:
    """The comment behind each field, from the source of the class and of those it inherits from."""
    parents = [meanings(base) for base in cls.__bases__ if is_dataclass(base)]
    source = inspect.cleandoc("\n" + inspect.getsource(cls)) + "\n"
    comments: dict[int, str] = {}
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ").strip()
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    own = {
        node.target.id: comments.get(node.end_lineno or node.lineno, "")
        for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return dict(ChainMap(own, *parents))


def default(field: "Field[Any]") -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def make(cls: type[S], values: Mapping[str, Any], prefix: str) -> S:
    """An instance of `cls` from `values`; strings are read by the type of the field."""
    hints = get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    made = {}
    for name, value in values.items():
        if name not in known:
            options = [f"{prefix}.{other}" for other in known]
            hint = did_you_mean(f"{prefix}.{name}", options) or (
                f" It takes {', '.join(options)}." if options else f" This kind has no {prefix} settings."
            )
            raise UserError(f"unknown setting {prefix}.{name}.{hint}")
        made[name] = read(value, hints[name], f"{prefix}.{name}")
    return cls(**made)


def read(value: Any, hint: Any, name: str) -> Any:
    """`value` as the type `hint` wants it; a string from the command line or a plain value from a file."""
    if get_origin(hint) in (Union, UnionType):
        return _read_union(value, hint, name)
    if get_origin(hint) is Literal:
        options = get_args(hint)
        value = str(value).lower() if isinstance(value, bool) else value    # true and false are words here, in TOML too
        if value not in options:
            near = did_you_mean(str(value), map(str, options))
            raise UserError(f"{name}={value} is not one of {', '.join(map(str, options))}.{near}")
        return value
    if get_origin(hint) is tuple:
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        return tuple(read(part, get_args(hint)[0], name) for part in parts if part != "")
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}[hint]
    try:
        return _read_plain(value, hint)
    except (ValueError, TypeError, OverflowError):
        raise UserError(f"{name}={value} is not {wanted}.") from None


def _read_union(value: Any, hint: Any, name: str) -> Any:
    options = [option for option in get_args(hint) if option is not NoneType]
    if value is None or value in ("none", "None"):
        return None
    return read(value, options[0], name)


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
    number = float(value.replace("_", ""))    # 1e6 is a whole number too
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
