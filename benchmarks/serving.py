"""The engine of `chainrule serve` under load: output tokens a second, and the time to the first token.

    python benchmarks/serving.py [--clients 64] [--each 8] [--rows 64] [--json]        GPT-2's shape on a GPU, bfloat16
    python benchmarks/serving.py --small                                               a small GPT on a CPU

Each client sends its requests one after another: prompts of 16 to 512 random tokens, answers of 16 to 256 (a tenth of
that with --small). Compared with one client, whose requests come one after another; with offline sampling of as many
rows, after their prefill and with it; and with the first token of a single client. Random weights: only the speed is
measured. Every figure is a JSON line.
"""

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.model import LanguageModel
from chainrule.models import build
from chainrule.serve.engine import Engine, Limits
from chainrule.serve.requests import Request
from chainrule.training.pipeline import recipe_for

VOCAB = 50_257
SMALL = {"model.layers": 4, "model.width": 128, "model.heads": 4, "model.context": 256}


@dataclass(frozen=True)
class Load:
    prompt: tuple[int, int]      # tokens, least and most
    answer: tuple[int, int]
    vocab: int

    def requests(self, count: int, seed: int) -> list[Request]:
        random = np.random.default_rng(seed)
        return [Request(random.integers(1, self.vocab, random.integers(self.prompt[0], self.prompt[1] + 1)).tolist(),
                        int(random.integers(self.answer[0], self.answer[1] + 1)),
                        Sampling(seed=int(random.integers(1 << 30))), ends=False) for _ in range(count)]


def tell(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


async def one_client(engine: Engine, requests: list[Request], firsts: list[float]) -> int:
    """Output tokens of these requests, one after another."""
    tokens = 0
    for request in requests:
        began, first = time.perf_counter(), True
        async for some in engine.submit(request):
            if first:
                firsts.append(time.perf_counter() - began)
                first = False
            tokens += len(some)
    return tokens


async def all_clients(engine: Engine, every: list[list[Request]]) -> tuple[float, list[float]]:
    """Output tokens a second of clients that work at the same time, and the times to their first tokens."""
    firsts: list[float] = []
    began = time.perf_counter()
    tokens = await asyncio.gather(*(one_client(engine, requests, firsts) for requests in every))
    return sum(tokens) / (time.perf_counter() - began), firsts


def offline(model: LanguageModel, load: Load, rows: int) -> tuple[float, float]:
    """Tokens a second of sampling with so many rows, after the prefill and with it; the best of three."""
    prompts = [np.array(request.prompt) for request in load.requests(rows, 5)]
    best = (0.0, 0.0)
    for _ in range(3):
        began = time.perf_counter()
        first, count = began, 0
        for number, column in enumerate(sample(model, prompts, load.answer[1], ends=False)):
            count += len(column)
            if number == 0:
                column.tolist()
                first = time.perf_counter()
        column.tolist()
        end = time.perf_counter()
        best = max(best, ((count - rows) / (end - first), count / (end - began)))
    return best


def milliseconds(times: list[float]) -> dict[str, float]:
    return {"median_ms": round(1000 * statistics.median(times), 2), "worst_ms": round(1000 * max(times), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--each", type=int, default=8, help="requests of a client")
    parser.add_argument("--rows", type=int, help="rows of a decoding step")
    parser.add_argument("--layers", type=int, help="fewer, for a fast trial")
    parser.add_argument("--small", action="store_true", help="a small GPT on a CPU")
    args = parser.parse_args()
    torch.manual_seed(1)
    if args.small:
        load = Load((4, 51), (4, 25), 512)
        model = build("gpt", recipe_for("gpt", SMALL).model, load.vocab)
        machine = f"CPU, {torch.get_num_threads()} threads"
    else:
        load = Load((16, 512), (16, 256), VOCAB)
        changed = {} if args.layers is None else {"model.layers": args.layers}
        model = build("gpt2", recipe_for("gpt2", changed).model, VOCAB).to("cuda", torch.bfloat16)
        machine = torch.cuda.get_device_name()
    engine = Engine(model, Limits(rows=max(args.clients, 1), step_rows=args.rows, prefix_bytes=0))
    began = time.perf_counter()
    engine.start()
    asyncio.run(all_clients(engine, [[request] for request in load.requests(4, 1)]))
    tell(what="ready", machine=machine, torch=torch.__version__, seconds=round(time.perf_counter() - began, 1),
         rows=engine.shapes.rows)

    _, firsts = asyncio.run(all_clients(engine, [load.requests(20, 2)]))
    tell(what="first token, one client", **milliseconds(firsts))
    alone, _ = asyncio.run(all_clients(engine, [load.requests(12, 3)]))
    tell(what="one after another", tokens_per_s=round(alone))
    many = 0.0
    for _ in range(2):
        steps, calls = engine.stats.steps, engine.stats.prefill_calls
        began = time.perf_counter()
        rate, firsts = asyncio.run(all_clients(engine, [load.requests(args.each, 10 + c) for c in range(args.clients)]))
        seconds = time.perf_counter() - began
        many = max(many, rate)
        tell(what=f"{args.clients} clients", tokens_per_s=round(rate), seconds=round(seconds, 2),
             times_one_after_another=round(rate / alone, 1), steps=engine.stats.steps - steps,
             prefill_calls=engine.stats.prefill_calls - calls, **milliseconds(firsts))
    engine.close()
    del engine
    _, single = offline(model.eval(), load, 1)
    tell(what="one stream, offline, with its prefill", tokens_per_s=round(single), times=round(many / single, 1))
    after, whole = offline(model, load, args.clients)
    tell(what=f"offline, {args.clients} rows", after_prefill=round(after), with_prefill=round(whole),
         share_after_prefill=round(many / after, 2), share_with_prefill=round(many / whole, 2))


if __name__ == "__main__":
    main()
