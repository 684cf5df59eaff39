"""`chainrule settings`, `data`, `plan`, `distance`: settings, known texts, what training costs, how far it went."""

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, Literal, get_args, get_origin

from chainrule import models
from chainrule.defaults.budgets import Compare
from chainrule.errors import UserError, did_you_mean
from chainrule.flops import GPUS
from chainrule.models.published import PUBLISHED, Published
from chainrule.plan import (
    GIB,
    PETAFLOP_DAY,
    USABLE,
    UTILISATION,
    Memory,
    Plan,
    as_dict,
    make_plan,
    published_table,
    sustained_flops,
)
from chainrule.progress import short
from chainrule.recipe import TRAIN, Gradient, Text
from chainrule.run import load
from chainrule.settings import default, hints, meanings, range_of
from chainrule.tasks import TASKS, find_task, first_task, recipe_for
from chainrule.text.datasets import catalogue, get
from chainrule.text.sources import Source
from chainrule.training.finetune import distances_of_run

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
    shared = of_class(Gradient, "train")
    parts |= {f"train, of --task {one.name}": [row for row in of_class(train, "train") if row not in shared]
              for one in every for train in one.train.values()}
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
    words = next((get_args(part) for part in (hint, *get_args(hint)) if get_origin(part) is Literal), ())
    return ", or ".join(filter(None, [str(range_of(hint) or ""), ", ".join(map(str, words))]))


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


# chainrule plan: what training would cost, and the table of published models

DAY = 86400


def plan_command(args: Namespace) -> dict[str, Any]:
    if args.published:
        return list_published(args)
    if args.kind is None:
        raise UserError("plan: name a kind, such as gpt2; `chainrule plan --published` lists the published ones.")
    if args.gpus < 1:
        raise UserError(f"--gpus {args.gpus}: it must be 1 or more.")
    if args.source is not None and args.source < 1:
        raise UserError(f"--source {args.source}: it must be 1 or more.")
    if args.gpu not in GPUS:
        near = did_you_mean(args.gpu, GPUS) or f" Known: {', '.join(GPUS)}."
        raise UserError(f"unknown GPU {args.gpu}.{near}")
    models.kind(args.kind)
    made = make_plan(recipe_for(args.kind, args.settings, first_task(args.kind)), args.gpus, args.gpu, args.source)
    if not args.json:
        print_plan(args.kind, made)
    return {"kind": args.kind, **as_dict(made)}


def list_published(args: Namespace) -> dict[str, Any]:
    if args.kind is not None:
        raise UserError(f"--published lists all published models; leave out {args.kind}, or leave out --published.")
    rows = published_table()
    if not args.json:
        head = ("year", "paper", "counted", "layers", "width", "heads", "context", "tokens", "FLOPs", "PF/s-days")
        print(f"{'name':<17}" + "".join(f"{title:>10}" for title in head))
        for row in rows:
            paper, tokens = (in_units(number) if number else "–" for number in (row.published, row.tokens))
            cost = (f"{row.flops:.3g}", days(row.flops)) if row.flops else ("–", "–")
            cells = (row.year, paper, in_units(row.parameters), row.layers, row.width, row.heads, row.context, tokens)
            print(f"{row.name:<17}" + "".join(f"{cell:>10}" for cell in (*cells, *cost)))
        for differs in dict.fromkeys(size.differs for size in PUBLISHED.values() if size.differs):
            names = [name for name, size in PUBLISHED.items() if size.differs == differs]
            print(f"{names[0]}{f' to {names[-1]}' if len(names) > 1 else ''}: {differs}.")
    return {"published": [asdict(row) for row in rows]}


def print_plan(kind: str, plan: Plan) -> None:
    gpu, work = GPUS[plan.gpu], plan.work
    source = f", sources of {plan.source:,}" if plan.source else ""
    active = f", {in_units(work.parameters - work.idle)} active for a token" if work.idle else ""
    print(f"{kind}: {in_units(work.parameters)} parameters{active}, vocabulary {plan.vocab:,}, rows of {plan.length:,} "
          f"tokens{source}")
    print(f"{in_units(plan.tokens)} tokens in steps of {in_units(plan.batch)}: {cost_line(plan)}")
    card = f"{plan.gpus} x {plan.gpu} ({gpu.memory:g} GiB, {gpu.peak:g} TFLOP/s)"
    print(f"{card} at {UTILISATION:.0%} of the peak: {span(plan.seconds)}")
    print_memory(plan)
    if not plan.fits:
        print(f"\n{why_not(kind, plan)}")
    if work.cache:
        weights, cache = 2 * work.parameters / GIB, work.cache * plan.length / GIB
        print(f"\nInference: {weights:.2f} GiB of weights in bf16, and {cache:.3f} GiB of KV cache for each row.")
    if (published := PUBLISHED.get(kind)) is not None:
        print_published(published, plan)


def days(flops: float) -> str:
    """Petaflop/s-days."""
    number = flops / PETAFLOP_DAY
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def cost_line(plan: Plan) -> str:
    """With attention, and by the rule of thumb that papers use: 6 · parameters · tokens."""
    rule = 6.0 * plan.work.parameters * plan.tokens
    return (f"{plan.flops:.3g} FLOPs, {days(plan.flops)} petaflop/s-days "
            f"(6 · parameters · tokens: {rule:.3g}, {days(rule)})")


def print_memory(plan: Plan) -> None:
    """A column for each way to hold the state, and one for GPUs that would be enough."""
    columns, fits = dict(plan.memory), [f"{rows} rows" if rows else "too large" for rows in plan.rows.values()]
    if plan.enough:
        columns[f"fsdp on {plan.enough.gpus}"] = plan.enough.memory
        fits.append("1 row")
    print(f"\n{'GiB on each GPU':<16}" + "".join(f"{name:>14}" for name in columns))
    for name in (*Memory.__dataclass_fields__, "total"):
        print(f"{name:<16}" + "".join(f"{getattr(memory, name) / GIB:>14.1f}" for memory in columns.values()))
    print(f"{'micro-batch':<16}" + "".join(f"{what:>14}" for what in fits))


def why_not(kind: str, plan: Plan) -> str:
    need, have = plan.memory["fsdp"].total / GIB, GPUS[plan.gpu].memory * USABLE
    line = f"{kind} does not fit on {plan.gpus} x {plan.gpu}: it needs {need:,.0f} GiB on each, and has {have:,.0f}."
    if plan.enough is None:
        return f"{line} A row's activations alone are too large for any GPU here: a smaller model.context needs less."
    seconds = plan.flops / sustained_flops(plan.enough.gpus, plan.enough.gpu)
    return f"{line} {plan.enough.gpus} x {plan.enough.gpu} with FSDP would be enough, and take {span(seconds)}."


def print_published(published: Published, plan: Plan) -> None:
    if published.parameters:
        print(f"\nThe paper says {in_units(published.parameters)} parameters."
              + (f" Theirs differs: {published.differs}." if published.differs else ""))
    if published.mix:
        print(f"\n{'mix of texts':<26}{'tokens':>8}{'weight':>8}{'epochs':>8}{'paper':>8}")
        for part in published.mix:
            epochs = plan.tokens * part.weight / part.tokens
            print(f"{part.text:<26}{in_units(part.tokens):>8}{part.weight:>8.0%}{epochs:>8.2f}{part.epochs:>8.2f}")


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


# chainrule distance: how far fine-tuning has moved the weights


def distance_command(args: Namespace) -> dict[str, Any]:
    every = distances_of_run(load(args.run), args.base)
    if not args.json:
        print(f"{'':<18}{'parameters':>12}{'distance':>12}{'relative':>10}{'from random':>13}")
        for one in every:
            print(f"{one.name:<18}{short(one.parameters):>12}{one.distance:>12.4g}{one.relative:>10.2%}"
                  f"{one.from_random:>13.4g}")
    return {"run": args.run, "layers": [one.as_dict() for one in every]}
