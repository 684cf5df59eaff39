"""`chainrule settings`: the name, default, help and allowed values of every setting, from their dataclasses."""

from argparse import Namespace
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from chainrule import models
from chainrule.compare.budgets import Compare
from chainrule.recipe import TRAIN, Text
from chainrule.settings import default, hints, meanings, range_of
from chainrule.tasks import TASKS, find_task, first_task, recipe_for

Row = dict[str, Any]


def settings_command(args: Namespace) -> dict[str, Any]:
    parts = parts_of_kind(args.kind, args.task) if args.kind else parts_of_all()
    if not args.json:
        print_settings(parts)
    return {"settings": parts}


def parts_of_kind(kind: str, task_name: str | None = None) -> dict[str, list[Row]]:
    """Every setting of a kind, with the defaults that this kind has for a task."""
    models.kind(kind)
    recipe = recipe_for(kind, task=task_name or first_task(kind))
    rows = []
    for part in ("text", "model", "train", *(["head"] if recipe.head else [])):
        made = getattr(recipe, part)
        rows += [row | {"default": getattr(made, row["name"].partition(".")[2])} for row in of_class(type(made), part)]
    return {f"{kind}: {models.kind(kind).idea}": rows}


def parts_of_all() -> dict[str, list[Row]]:
    """The kinds, the settings that all kinds share, and those of each class of models."""
    parts = {"kinds": [{"name": name, "default": "", "meaning": kind.idea} for name, kind in models.KINDS.items()]}
    parts["text"] = of_class(Text, "text")
    parts |= {f"train, for kinds that learn by {how}": of_class(train, "train") for how, train in TRAIN.items()}
    every = [find_task(name) for name in TASKS]
    parts |= {f"text, of --task {one.name}": of_class(one.text, "text") for one in every if one.text is not Text}
    parts |= {f"head, of --task {one.name} by {how}": of_class(head, "head")
              for one in every for how, head in one.heads.items()}
    parts["compare, of chainrule compare"] = of_class(Compare, "compare")
    owners: dict[type, list[str]] = {}
    for name in models.KINDS:
        owners.setdefault(models.model_class(name).Settings, []).append(name)
    own = {f"model, of {', '.join(names)}": of_class(cls, "model") for cls, names in owners.items()}
    return parts | {heading: rows for heading, rows in own.items() if rows}


def of_class(cls: type, prefix: str) -> list[Row]:
    rows, types = [], hints(cls)
    for field in fields(cls):
        allowed = _allowed(types[field.name])
        meaning = meanings(cls)[field.name] + (f" ({allowed})" if allowed else "")
        rows.append({"name": f"{prefix}.{field.name}", "default": default(field), "meaning": meaning})
    return rows


def print_settings(parts: dict[str, list[Row]]) -> None:
    rows = [row for part in parts.values() for row in part]
    name, value = (max(len(str(row[column])) for row in rows) for column in ("name", "default"))
    for heading, part in parts.items():
        print(f"\n{heading}")
        for row in part:
            print(f"  {row['name']:<{name}}  {_plain(row['default']):<{value}}  {row['meaning']}".rstrip())


def _allowed(hint: Any) -> str:
    """The options of a Literal, or the range of a number."""
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Literal:
            return ", ".join(map(str, get_args(part)))
    return str(range_of(hint) or "")


def _plain(value: Any) -> str:
    """A value as it would be given on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
