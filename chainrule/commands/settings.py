"""`chainrule settings`: every setting, its default and its meaning, as the dataclasses say them."""

from argparse import Namespace
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from chainrule import models
from chainrule.recipe import TRAIN, Text, make_recipe
from chainrule.settings import default, meanings

Row = dict[str, Any]


def settings(args: Namespace) -> dict[str, Any]:
    answer: dict[str, Any]
    if args.kind:
        answer = {"kind": args.kind, "idea": models.kind(args.kind).idea, "settings": of_kind(args.kind)}
        heading = {f"{args.kind}: {answer['idea']}": answer["settings"]}
    else:
        kinds = [{"name": name, "default": "", "meaning": kind.idea} for name, kind in models.KINDS.items()]
        every = {"text": of_class(Text, "text"), **{f"train, by {how}": of_class(train, "train") for how, train in TRAIN.items()}}
        own = {f"model, of {name}": rows for name in models.KINDS if (rows := of_class(models.model_class(name).Settings, "model"))}
        answer = {"kinds": {row["name"]: row["meaning"] for row in kinds}, "settings": every | own}
        heading = {"kinds": kinds, **every, **_merge(own)}
    if not args.json:
        show(heading)
    return answer


def of_kind(kind: str) -> list[Row]:
    """Every setting of a kind, with the defaults that this kind has."""
    recipe = make_recipe(kind, models.model_class(kind), {}, models.kind(kind).preset)
    rows = []
    for part in ("text", "model", "train"):
        made = getattr(recipe, part)
        rows += [row | {"default": getattr(made, row["name"].partition(".")[2])} for row in of_class(type(made), part)]
    return rows


def of_class(cls: type, prefix: str) -> list[Row]:
    says, hints = meanings(cls), get_type_hints(cls)
    return [
        {"name": f"{prefix}.{field.name}", "default": default(field), "meaning": says[field.name] + _options(hints[field.name])}
        for field in fields(cls)
    ]


def show(parts: dict[str, list[Row]]) -> None:
    rows = [row for part in parts.values() for row in part]
    name, value = (max(len(str(row[column])) for row in rows) for column in ("name", "default"))
    for heading, part in parts.items():
        print(f"\n{heading}")
        for row in part:
            print(f"  {row['name']:<{name}}  {_plain(row['default']):<{value}}  {row['meaning']}".rstrip())


def _merge(own: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Kinds with the same settings under one heading."""
    merged: dict[str, list[Row]] = {}
    for heading, rows in own.items():
        same = next((other for other, seen in merged.items() if seen == rows), None)
        if same:
            merged[f"{same}, {heading.removeprefix('model, of ')}"] = merged.pop(same)
        else:
            merged[heading] = rows
    return merged


def _options(hint: Any) -> str:
    return f" ({', '.join(map(str, get_args(hint)))})" if get_origin(hint) is Literal else ""


def _plain(value: Any) -> str:
    """A value as it would be given on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
