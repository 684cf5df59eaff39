"""GPT-2 (124M) in training on one GPU, beside transformers' in the same run: tokens a second, and memory.

    python benchmarks/speed/gpt2_training.py [--rows 128] [--length 1024] [--seconds 10] [--kind gpt2] [--streamed]
                                             [--float8]
    python benchmarks/speed/gpt2_training.py --rows 64 --as-written [--apart] --alone

Ours is the trainer's own step (bfloat16, torch.compile, gradients clipped, AdamW) on random tokens; theirs is
GPT2LMHeadModel under autocast, compiled, with torch's fused AdamW and the same clipping. Both are warmed up.
Theirs has as many rows in a batch as fit beside its logits. With `--streamed` ours is measured once more, with the
residual stream in bfloat16 too (train.precision=bfloat16-stream), as in nanochat, and with `--float8` once more with
products in float8 (train.precision=float8). With `--as-written` ours is not compiled, and with `--apart` it runs
without the fused kernels. With `--profile` the kernels that took longest are listed.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from chainrule import kernels
from chainrule.device import choose_precision
from chainrule.kernels.ops import compiled
from chainrule.model import Batch
from chainrule.models import build
from chainrule.recipe import Gradient
from chainrule.training.param_groups import Optimizers
from chainrule.training.pipeline import recipe_for
from chainrule.training.step import Step

VOCAB = 50_257
GPU = torch.device("cuda")


def ours(
    kind: str, rows: Tensor, precision: str = "auto", *, compile: bool = True, fused: bool = True
) -> Callable[[], Any]:
    recipe = recipe_for(kind, {"model.context": rows.shape[1] - 1})
    model = build(kind, recipe.model, VOCAB).to(GPU).train()
    settings = Gradient(optimizer=recipe.train.optimizer)
    step = Step(model, Optimizers(model, settings), choose_precision(precision, GPU), 1.0, len(rows), False)
    step.loss, step.fused = compiled(model.loss) if compile else model.loss, fused and kernels.available()
    batch = Batch(rows[:, :-1], rows[:, 1:])
    return lambda: step.take(batch, None)


def theirs(rows: Tensor) -> Callable[[], Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, n_positions=rows.shape[1] - 1)
    model = GPT2LMHeadModel(config).to(GPU).train()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(input_ids=rows[:, :-1], labels=rows[:, :-1]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measured(step: Callable[[], Any], tokens: int, seconds: float) -> dict[str, float]:
    torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    warm_up, steps, began = time.monotonic() - began, 0, time.monotonic()
    while time.monotonic() - began < seconds:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        steps += 5
    rate = steps * tokens / (time.monotonic() - began)
    gigabytes = torch.cuda.max_memory_allocated() / 1e9
    return {"tokens_per_second": round(rate), "gigabytes": round(gigabytes, 1), "warm_up_seconds": round(warm_up, 1)}


def profiled(step: Callable[[], Any], steps: int = 2, kernels: int = 30) -> str:
    """Milliseconds of a step and launches, for the kernels that take longest; and for all together."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)
    lines = [f"{event.self_device_time_total / 1000 / steps:8.2f} ms {event.count // steps:5} {event.key[:100]}"
             for event in events[:kernels]]
    total = sum(event.self_device_time_total for event in events) / 1000 / steps
    return "\n".join([*lines, f"{total:8.2f} ms all kernels"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--their-rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--kind", default="gpt2")
    parser.add_argument("--streamed", action="store_true", help="also ours with the residual stream in bfloat16")
    parser.add_argument("--float8", action="store_true", help="also ours with matrix products in float8")
    parser.add_argument("--profile", action="store_true", help="list the kernels that took longest")
    parser.add_argument("--as-written", action="store_true", help="ours without torch.compile")
    parser.add_argument("--apart", action="store_true", help="ours without fused kernels")
    parser.add_argument("--alone", action="store_true", help="without transformers")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    this = partial(ours, args.kind, compile=not args.as_written, fused=not args.apart)
    sides = {"chainrule": (args.rows, this)}
    if args.streamed:
        sides["chainrule, streamed"] = (args.rows, partial(this, precision="bfloat16-stream"))
    if args.float8:
        sides["chainrule, float8"] = (args.rows, partial(this, precision="float8"))
    if not args.alone:
        sides["transformers"] = (args.their_rows, theirs)
    figures: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "length": args.length}
    for name, (count, make) in sides.items():
        rows = torch.randint(VOCAB, (count, args.length + 1), device=GPU)
        step = make(rows)
        figures[name] = {"rows": count} | measured(step, count * args.length, args.seconds)
        print(f"{name}: {figures[name]}", flush=True)
        if args.profile:
            print(profiled(step), flush=True)
        del step
        torch.compiler.reset()
        torch.cuda.empty_cache()
    if not args.alone:
        figures["ratio"] = figures["chainrule"]["tokens_per_second"] / figures["transformers"]["tokens_per_second"]
        print(f"{figures['ratio']:.2f} times as fast")
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
