"""`chainrule plan`: parameters, FLOPs, memory and days of training, before it starts."""

from argparse import Namespace
from typing import Any

from chainrule.errors import UserError, did_you_mean
from chainrule.flops import GPUS
from chainrule.plan import GIB, UTILISATION, Memory, Plan, as_dict, make_plan, refuse_what_cannot_fit
from chainrule.training.pipeline import recipe_for

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
