"""`chainrule settings`, `data` and `plan`: lists of settings and of known texts, and what training would cost."""

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, Literal, get_args, get_origin

from chainrule import models
from chainrule.compare.budgets import Compare
from chainrule.errors import UserError, did_you_mean
from chainrule.flops import GPUS
from chainrule.plan import GIB, UTILISATION, Memory, Plan, as_dict, make_plan, refuse_what_cannot_fit
from chainrule.progress import short
from chainrule.recipe import TRAIN, Text
from chainrule.settings import default, hints, meanings, range_of
from chainrule.tasks import TASKS, find_task, first_task, recipe_for
from chainrule.text.datasets import catalogue, get
from chainrule.text.sources import Source

# chainrule settings: the name, default, help and allowed values of every setting, from their dataclasses

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


# chainrule data: the list of known texts, and the download of one

def data_command(args: Namespace) -> dict[str, Any]:
    if args.get is None:
        return list_all(args)
    if args.get != "get" or args.name is None:
        raise UserError("data: `chainrule data` lists the known texts, and `chainrule data get NAME` downloads one.")
    splits = get(args.name)
    if not args.json:
        for split, sources in splits.items():
            print(f"{split}: {place(sources)}")
    plain_splits = {split: [plain(source) for source in sources] for split, sources in splits.items()}
    return {"name": args.name, "splits": plain_splits}


def plain(source: Source) -> dict[str, Any]:
    return asdict(source) | {"path": str(source.path)}


def list_all(args: Namespace) -> dict[str, Any]:
    entries = catalogue()
    if not args.json:
        name, size = max(len(entry.name) for entry in entries), 7
        for entry in entries:
            print(f"{entry.name:<{name}}  {short(entry.bytes) + 'B':>{size}}  {entry.idea}  [{entry.where}]")
    return {"texts": [asdict(entry) for entry in entries]}


def place(sources: Sequence[Source]) -> str:
    """One file by its path and byte range, several by their folder."""
    if len(sources) > 1:
        return f"{len(sources)} files in {os.path.commonpath([source.path for source in sources])}"
    (source,) = sources
    if not source.begin and source.end is None:
        return str(source.path)
    return f"{source.path}, bytes {source.begin:,} to {'the end' if source.end is None else f'{source.end:,}'}"


DAY = 86400


def plan_command(args: Namespace) -> dict[str, Any]:
    if args.gpus < 1:
        raise UserError(f"--gpus {args.gpus}: it must be 1 or more.")
    if args.gpu not in GPUS:
        near = did_you_mean(args.gpu, GPUS) or f" Known: {', '.join(GPUS)}."
        raise UserError(f"unknown GPU {args.gpu}.{near}")
    recipe = recipe_for(args.kind, args.settings)
    made = make_plan(recipe, args.gpus, args.gpu)
    refuse_what_cannot_fit(args.kind, made, recipe.train)
    if not args.json:
        print_plan(args.kind, made)
    return {"kind": args.kind, **as_dict(made)}


def print_plan(kind: str, plan: Plan) -> None:
    gpu, work = GPUS[plan.gpu], plan.work
    print(f"{kind}: {in_units(work.parameters)} parameters, vocabulary {plan.vocab:,}, rows of {plan.length:,} tokens")
    print(f"{in_units(plan.tokens)} tokens in steps of {in_units(plan.batch)}: {plan.flops:.3g} FLOPs")
    card = f"{plan.gpus} x {plan.gpu} ({gpu.memory:g} GiB, {gpu.peak:g} TFLOP/s)"
    print(f"{card} at {UTILISATION:.0%} of the peak: {span(plan.seconds)}")
    print(f"\n{'GiB on each GPU':<16}{'ddp':>10}{'fsdp':>10}")
    for name in (*Memory.__dataclass_fields__, "total"):
        numbers = (getattr(memory, name) / GIB for memory in plan.memory.values())
        print(f"{name:<16}" + "".join(f"{number:>10.1f}" for number in numbers))
    fits = (f"{rows} rows" if rows else "too large" for rows in plan.rows.values())
    print(f"{'micro-batch':<16}" + "".join(f"{what:>10}" for what in fits))
    if work.cache:
        weights, cache = 2 * work.parameters / GIB, work.cache * plan.length / GIB
        print(f"\nInference: {weights:.2f} GiB of weights in bf16, and {cache:.3f} GiB of KV cache for each row.")


def in_units(number: float) -> str:
    """124.4M, 300B"""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:g}"


def span(seconds: float) -> str:
    for unit, size in (("days", DAY), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.3g} seconds"
