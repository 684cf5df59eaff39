"""Sampling from GPT-2 (124M, random weights, bfloat16) on one GPU, compared with transformers in the same run.

    python benchmarks/speed/gpt2_sampling.py [--rows 1 32 256] [--tokens 512] [--kernels ours overlap torch]
                                             [--breakdown]

Both sample from the whole distribution at temperature 1, after a prompt of 8 tokens, and never stop early. Ours is
`chainrule.inference.generate` as `chainrule sample` calls it, with our Triton kernels or with torch's kernels only;
theirs is `generate`, and with one row also its static cache, which it compiles. Times include all that a call does; the
first call of each compiles kernels and is left out. A call of ours finds the CUDA graph that the last one with the same
shapes has captured, and its KV cache. So there are two figures: of such calls, and of calls that find none.
--breakdown: what the parts of a call cost, and a step.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from chainrule import kernels
from chainrule.device import CudaGraph
from chainrule.inference.captured import kept_steps
from chainrule.inference.decoding import DecodeLoop, prefill_prompts
from chainrule.inference.forward import eval_mode
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling, SamplingStrategy, uniform_blocks, uniforms
from chainrule.models import build
from chainrule.training.pipeline import recipe_for

VOCAB = 50_257
PROMPT = 8
CALLS = 5
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


def measured(write: Callable[[int, int], int], rows: int, tokens: int, begin: Callable[[], None]) -> str:
    """Tokens a second, the best of several calls, and the milliseconds of each; `begin` comes before each."""
    seconds = []
    for _ in range(CALLS + 1):
        begin()
        torch.cuda.synchronize()
        began = time.perf_counter()
        written = write(rows, tokens)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    every = " ".join(f"{1e3 * one:.1f}" for one in seconds[1:])
    return f"{rows * written / min(seconds[1:]):,.0f} tokens/s (ms: {every})"


# What the parts of a call cost


def milliseconds(part: Callable[[], Any], times: int = 9) -> str:
    """The median of what a part takes until the host goes on, and until the GPU is done."""
    host, whole = [], []
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        part()
        host.append(time.perf_counter() - began)
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - began)
    return f"{1e3 * statistics.median(whole):.3f} ms, of which the host {1e3 * statistics.median(host):.3f}"


def microseconds(replay: Callable[[], Any], steps: int, calls: int) -> float:
    """The time of a step on the GPU, where each call orders so many."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()
    first.record()
    for _ in range(calls):
        replay()
    last.record()
    last.synchronize()
    return 1e3 * first.elapsed_time(last) / (steps * calls)


@torch.inference_mode()
def breakdown(model: Any, rows: int, tokens: int) -> None:
    prompts, strategy = [np.arange(1, PROMPT)] * rows, SamplingStrategy(Sampling(), ends=False)
    uniform = next(uniform_blocks(lambda step: uniforms(1, step, rows), 16, torch.device("cuda")))

    def begun(keep: bool) -> DecodeLoop:
        """A loop that has drawn the first token, from the prefill's logits."""
        loop = DecodeLoop(model, prefill_prompts(model, prompts), strategy, strategy.settings if keep else None)
        loop.next_tokens(uniform[:1], tokens)
        return loop

    def second(keep: bool) -> Callable[[], None]:
        loops = [begun(keep) for _ in range(9)]
        return lambda: [loop := loops.pop(), loop.next_tokens(uniform[:1], tokens - 1), loop.close()][2]

    with eval_mode(model):
        print(f"  prefill of {PROMPT} tokens: {milliseconds(lambda: prefill_prompts(model, prompts))}")
        print(f"  prefill and first token: {milliseconds(lambda: begun(False))}")
        state = prefill_prompts(model, prompts).state
        print(f"  reserving the KV cache: {milliseconds(lambda: model.reserve(state, tokens))}")
        print(f"  free memory asked for: {milliseconds(torch.cuda.mem_get_info)}")
        print(f"  is the model the same: {milliseconds(lambda: kept_steps.fingerprint(model))}")
        print(f"  16 x {rows} random numbers: {milliseconds(lambda: [uniforms(1, step, rows) for step in range(16)])}")
        print(f"  second token, with reserving and capture: {milliseconds(second(False))}")
        kept_steps.forget_all()
        begun(True).close()
        first = begun(True)
        first.next_tokens(uniform[:1], tokens - 1)
        first.close()
        print(f"  second token, by the graph of the last call: {milliseconds(second(True))}")
        loop = begun(False)
        loop.next_tokens(uniform[:1], tokens - 1)
        graph = loop.graph
        assert graph is not None
        calls = (tokens - 16) // 16 - 1
        in_blocks = microseconds(lambda: loop.next_tokens(uniform, 16), 16, calls)
        print(f"  a token, in blocks of 16 that are ordered ahead: {in_blocks:.1f} us")
        state = model.reserve(prefill_prompts(model, prompts).state, 400)
        column = torch.ones(rows, 1, dtype=torch.long, device="cuda")
        with kernels.in_decoding(True):
            model.step(column, state)
            alone = CudaGraph(lambda: [model.step(column, state)[0]][:0], [], tidy=False)
        print(f"  the model's step alone, as a graph: {microseconds(lambda: alone.replay(()), 1, 300):.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--kernels", nargs="+", choices=WAYS, default=["ours"], help="one or several")
    parser.add_argument("--compile", action="store_true", help="our step through torch.compile, which takes a minute")
    parser.add_argument("--breakdown", action="store_true", help="what the parts of a call of ours cost")
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
            found = figures[name][rows] = {"a call": measured(write, rows, args.tokens, lambda: None)}
            if name in WAYS.values():
                found["a call that captures its graph"] = measured(write, rows, args.tokens, kept_steps.forget_all)
            for what, speed in found.items():
                print(f"{name}, {rows} rows, {what}: {speed}", flush=True)
    if args.breakdown:
        kernels.STEPS_TO_LOAD = kernels.STEPS_ONCE_LOADED = 0
        model: Any = build("gpt2", recipe_for("gpt2").model, VOCAB).to("cuda", torch.bfloat16)
        for rows in args.rows:
            print(f"parts of a call with {rows} rows and {args.tokens} tokens:", flush=True)
            breakdown(model, rows, args.tokens)
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
