"""Decoding on a CPU, one text at a time: tokens a second and the time of a prefill, compared with transformers.

    python benchmarks/speed/cpu_decoding.py [--run RUN] [--precision float32 int8] [--repeats 12] [--text FILE]

Both sides have the shape of SmolLM2-135M (or of the run, an imported Llama), in float32, the same prompt and as many
threads, and choose the most probable token. Ours is `chainrule.inference.generate.sample`, as `chainrule sample` calls
it; theirs is `generate`. They take turns in one process, a few tokens each; a ratio is that of two neighbouring turns.
A turn is timed from its first token to its last; the prefill is the time to the first token of a long prompt. Figures
are lines of JSON: medians and ranges, and how many times as fast as transformers each side is.
--text: bits per byte of a text in each precision (needs --run). --bfloat16: transformers in bfloat16 too.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chainrule  # noqa: F401 (before torch, since it sets how long torch's threads spin: the same for both sides)

# isort: split
import numpy as np
import torch

from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.inference.text_score import score_tokens
from chainrule.model import BOUNDARY
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.run import load

SMOLLM2 = GPTSettings(
    layers=30, width=576, heads=9, kv_heads=3, hidden=1536, context=2048, activation="swiglu", qk_norm=False,
    norm_scale=True, norm_embedding=False, epsilon=1e-5, rope_theta=1e5, zero_init=False, tied=True,
)  # fmt: skip
SMOLLM2_VOCAB = 49_152
SMALL = GPTSettings(size="tiny", zero_init=False)     # of recipes for a CPU
SMALL_VOCAB = 65
Times = tuple[float, float]                           # seconds to the first token, and for each that follows
Side = Callable[[int, int], Times]


def timed(moments: Iterator[float], began: float) -> Times:
    first, *rest = moments
    return first - began, (rest[-1] - first) / len(rest) if rest else 0.0


def ours(model: GPT) -> Side:
    def generate(prompt: int, tokens: int) -> Times:
        began = time.perf_counter()
        columns = sample(model, [np.arange(1, prompt)], tokens, Sampling(temperature=0), ends=False)
        return timed((time.perf_counter() for _ in columns), began)

    return generate


def theirs(settings: GPTSettings, vocab: int, dtype: torch.dtype = torch.float32) -> Side:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.generation.streamers import BaseStreamer

    config = LlamaConfig(
        vocab_size=vocab, hidden_size=settings.width, intermediate_size=settings.hidden,
        num_hidden_layers=settings.layers, num_attention_heads=settings.heads, num_key_value_heads=settings.kv_heads,
        max_position_embeddings=settings.context, rms_norm_eps=settings.epsilon, tie_word_embeddings=True,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).to(dtype).eval()

    class Moments(BaseStreamer):
        def __init__(self) -> None:
            self.moments: list[float] = []

        def put(self, value: Any) -> None:
            self.moments.append(time.perf_counter())

        def end(self) -> None:
            pass

    def generate(prompt: int, tokens: int) -> Times:
        streamer, ids, began = Moments(), torch.arange(prompt)[None], time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
                       min_new_tokens=tokens, pad_token_id=0, streamer=streamer)
        return timed(iter(streamer.moments[1:]), began)    # the first is that of the prompt

    return generate


def take_turns(sides: dict[str, Side], prompt: int, tokens: int, repeats: int) -> dict[str, list[Times]]:
    times: dict[str, list[Times]] = {name: [] for name in sides}
    for number in range(repeats + 1):
        for name, side in sides.items():
            taken = side(prompt, tokens)
            if number:                                     # the first turn is a warm-up
                times[name].append(taken)
    return times


def figures(times: dict[str, list[Times]], which: int, base: str) -> Iterator[dict[str, Any]]:
    """Median and range of the seconds of each side, and how many times as fast it is as `base`."""
    for name, taken in times.items():
        seconds = [one[which] for one in taken]
        ratios = [other[which] / own for own, other in zip(seconds, times[base])]
        yield {
            "side": name, "ms": round(1e3 * statistics.median(seconds), 1),
            "range_ms": [round(1e3 * min(seconds), 1), round(1e3 * max(seconds), 1)],
            "ratio": round(statistics.median(ratios), 2), "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        }  # fmt: skip


def model_in(precision: str, path: str | None) -> GPT:
    if path is not None:
        model: Any = load(path).model
    else:
        torch.manual_seed(1)
        model = GPT(SMOLLM2, SMOLLM2_VOCAB).eval()
    if precision == "int8":
        model.quantise()
    return model


def bits_per_byte(model: Any, run: Any, text: str, limit: int) -> float:
    tokens = run.tokenizer.encode(text)[:limit]
    size = len(run.tokenizer.decode(tokens).encode())
    return score_tokens(model, run.tokenizer, np.append(BOUNDARY, tokens), size).bits_per_byte or math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", help="an imported Llama; without it random weights")
    parser.add_argument("--precision", nargs="+", choices=["float32", "int8"], default=["float32", "int8"])
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=20, help="of a turn")
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--prefill", type=int, default=500, help="tokens of the long prompt; 0: leave it out")
    parser.add_argument("--bfloat16", action="store_true", help="transformers in bfloat16 too")
    parser.add_argument("--text", help="a file whose bits per byte are computed in each precision")
    parser.add_argument("--text-tokens", type=int, default=2000)
    args = parser.parse_args()
    print(json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__}), flush=True)
    models = {precision: model_in(precision, args.run) for precision in args.precision}
    settings, vocab = models[args.precision[0]].settings, len(models[args.precision[0]].embeddings)
    if args.text:
        run, text = load(args.run), Path(args.text).read_text(encoding="utf-8")
        for name, model in models.items():
            bits = bits_per_byte(model, run, text, args.text_tokens)
            print(json.dumps({"bits_per_byte": round(bits, 4), "precision": name}), flush=True)
    sides = {f"chainrule {name}": ours(model) for name, model in models.items()}
    sides["transformers float32"] = theirs(settings, vocab)
    for line in figures(take_turns(sides, args.prompt, args.tokens + 1, args.repeats), 1, "transformers float32"):
        print(json.dumps({"what": "a token", **line, "tokens_per_s": round(1e3 / line["ms"], 1)}), flush=True)
    if args.prefill:
        for line in figures(take_turns(sides, args.prefill, 1, max(3, args.repeats // 4)), 0, "transformers float32"):
            print(json.dumps({"what": f"prefill of {args.prefill}", **line}), flush=True)
    if args.bfloat16:
        slow = {"transformers bfloat16": theirs(settings, vocab, torch.bfloat16)}
        for line in figures(take_turns(slow, args.prompt, 4, 2), 1, "transformers bfloat16"):
            print(json.dumps({"what": "a token", **line}), flush=True)
    small = {"chainrule, small GPT": ours(GPT(SMALL, SMALL_VOCAB).eval())}
    for line in figures(take_turns(small, 32, 2, args.repeats), 0, "chainrule, small GPT"):
        print(json.dumps({"what": "first token", **line}), flush=True)


if __name__ == "__main__":
    main()
