"""Sampling from GPT-2 (124M, random weights, bfloat16) on one GPU, compared with transformers in the same run.

    python benchmarks/gpt2_sampling.py [--rows 1 32 256] [--tokens 512] [--kernels ours overlap torch] [--json]

Both sample from the whole distribution at temperature 1, after a prompt of 8 tokens, and never stop early. Ours is
`chainrule.inference.generate` as `chainrule sample` calls it, with our Triton kernels or with torch's kernels only;
theirs is `generate`, and with one row also its static cache, which it compiles. Times include the prefill and the
capture of CUDA graphs; the first call of each warms up and is left out.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from chainrule import kernels
from chainrule.inference.generate import sample
from chainrule.models import build
from chainrule.training.pipeline import recipe_for

VOCAB = 50_257
PROMPT = 8
WAYS = {"ours": "chainrule", "overlap": "chainrule, kernels overlap", "torch": "chainrule, torch's kernels"}


def ours(compiled: bool, which: str) -> Callable[[int, int], int]:
    """`which`: our kernels, our kernels with overlapping launches, or torch's."""
    model = build("gpt2", recipe_for("gpt2").model, VOCAB).to("cuda", torch.bfloat16)
    if compiled:
        model.step = torch.compile(model.step, dynamic=False)  # type: ignore[method-assign]
    prompt = np.arange(1, PROMPT)                          # and the boundary

    def write(rows: int, tokens: int) -> int:
        kernels.STEPS_TO_LOAD = kernels.STEPS_ONCE_LOADED = tokens + 1 if which == "torch" else 0
        kernels.OVERLAP = which == "overlap"
        return len(list(sample(model, [prompt] * rows, tokens, ends=False)))

    return write


def theirs(cache: str | None = None) -> Callable[[int, int], int]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).to("cuda", torch.bfloat16).eval()
    extra: dict[str, Any] = {} if cache is None else {"cache_implementation": cache}

    def write(rows: int, tokens: int) -> int:
        prompt = torch.arange(PROMPT, device="cuda")[None].expand(rows, -1)
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0,
                             max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=VOCAB - 1, **extra)
        return out.shape[1] - PROMPT

    return write


def measured(write: Callable[[int, int], int], rows: int, tokens: int, times: int = 3) -> float:
    """Tokens a second, the best of several."""
    best = 0.0
    for number in range(times + 1):
        torch.cuda.synchronize()
        began = time.monotonic()
        written = write(rows, tokens)
        torch.cuda.synchronize()
        if number:
            best = max(best, rows * written / (time.monotonic() - began))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--kernels", nargs="+", choices=WAYS, default=["ours"], help="one or several")
    parser.add_argument("--compile", action="store_true", help="our step through torch.compile, which takes a minute")
    parser.add_argument("--alone", action="store_true", help="without transformers")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    sides: dict[str, Callable[[int, int], int]] = {}
    for which in args.kernels:
        sides[WAYS[which]] = ours(args.compile, which)
    if not args.alone:
        sides |= {"transformers": theirs(), "transformers, static cache": theirs("static")}
    figures: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "tokens": args.tokens}
    for name, write in sides.items():
        figures[name] = {}
        for rows in args.rows if "static" not in name else args.rows[:1]:
            figures[name][rows] = round(measured(write, rows, args.tokens))
            print(f"{name}, {rows} rows: {figures[name][rows]:,} tokens/s", flush=True)
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
