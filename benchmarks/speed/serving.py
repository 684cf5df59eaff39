"""`chainrule serve` under load: output tokens a second, and the time to the first token; and its engine alone.

    python benchmarks/speed/serving.py [--clients 64] [--each 8] [--rows 64]    GPT-2's shape on a GPU, bfloat16
    python benchmarks/speed/serving.py --http                                   the same through the server, over HTTP
    python benchmarks/speed/serving.py --small [--http]                         a small GPT on a CPU

Each client sends its requests one after another: prompts of 16 to 512 random tokens, answers of 16 to 256 (a tenth of
that with --small). Compared with one client, whose requests come one after another; with offline sampling of as many
rows, after their prefill and with it; and with the first token of a single client. Random weights: only the speed is
measured. Every figure is a JSON line.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import aiohttp
import numpy as np
import torch

from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.model import LanguageModel
from chainrule.models import build
from chainrule.recipe import Recipe
from chainrule.run import save
from chainrule.serve.engine import Engine, Limits
from chainrule.serve.requests import Request
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.words import WordLevel
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


Answer: TypeAlias = Callable[[Request], AsyncIterator[int]]
"""How a request is answered: the numbers of new tokens, as they come."""


def by_engine(engine: Engine) -> Answer:
    async def answer(request: Request) -> AsyncIterator[int]:
        async for some in engine.submit(request):
            yield len(some)

    return answer


async def one_client(answer: Answer, requests: list[Request], firsts: list[float]) -> int:
    """Output tokens of these requests, one after another."""
    tokens = 0
    for request in requests:
        began, first = time.perf_counter(), True
        async for count in answer(request):
            if first:
                firsts.append(time.perf_counter() - began)
                first = False
            tokens += count
    return tokens


async def all_clients(answer: Answer, every: list[list[Request]]) -> tuple[float, list[float]]:
    """Output tokens a second of clients that work at the same time, and the times to their first tokens."""
    firsts: list[float] = []
    began = time.perf_counter()
    tokens = await asyncio.gather(*(one_client(answer, requests, firsts) for requests in every))
    return sum(tokens) / (time.perf_counter() - began), firsts


# Over HTTP


def by_http(session: aiohttp.ClientSession, url: str, stream: bool) -> Answer:
    async def answer(request: Request) -> AsyncIterator[int]:
        body = {"prompt": list(request.prompt), "max_tokens": request.max_tokens, "seed": request.sampling.seed,
                "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
        async with session.post(f"{url}v1/completions", json=body) as response:
            response.raise_for_status()
            if not stream:
                yield (await response.json())["usage"]["completion_tokens"]
                return
            async for line in response.content:
                if line.startswith(b"data: {"):
                    usage = json.loads(line[6:]).get("usage")
                    yield usage["completion_tokens"] if usage else 0

    return answer


@contextmanager
def server(model: LanguageModel, recipe: Recipe, vocab: int, rows: int) -> Iterator[str]:
    """The address of `chainrule serve`, in a process of its own, with a run of this model."""
    tokenizer = Tokenizer.from_spec(WordLevel.spec(f"w{number}" for number in range(vocab - 2)))
    assert len(tokenizer) == vocab
    with TemporaryDirectory() as folder:
        save(Path(folder) / "gpt", model, tokenizer, recipe)
        command = [sys.executable, "-m", "chainrule", "serve", str(Path(folder) / "gpt"), "--rows", str(rows)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            if "http" not in line:
                raise RuntimeError(line + process.stderr.read())
            yield line[line.index("http") :].split()[0]
        finally:
            process.terminate()
            process.wait(60)


async def over_http(url: str, load: Load, args: argparse.Namespace) -> None:
    """As `main`, through the server: the first tokens by streams, the speed by whole answers and by streams."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(600)) as session:
        whole, stream = by_http(session, url, False), by_http(session, url, True)
        await all_clients(whole, [[request] for request in load.requests(4, 1)])
        _, firsts = await all_clients(stream, [load.requests(20, 2)])
        tell(what="HTTP: first token, one client", **milliseconds(firsts))
        alone, _ = await all_clients(whole, [load.requests(12, 3)])
        tell(what="HTTP: one after another", tokens_per_s=round(alone))
        for name, answer in (("whole answers", whole), ("streams", stream)):
            rate, firsts = await all_clients(answer, [load.requests(args.each, 10 + c) for c in range(args.clients)])
            tell(what=f"HTTP: {args.clients} clients, {name}", tokens_per_s=round(rate),
                 times_one_after_another=round(rate / alone, 1), **(milliseconds(firsts) if answer is stream else {}))


# Offline


def offline(model: LanguageModel, load: Load, rows: int) -> tuple[float, float]:
    """Tokens a second of sampling with so many rows, after the prefill and with it; the best of three."""
    prompts = [np.array(request.prompt) for request in load.requests(rows, 5)]
    after, whole = [], []
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
        after.append((count - rows) / (end - first))
        whole.append(count / (end - began))
    return max(after), max(whole)


def milliseconds(times: list[float]) -> dict[str, float]:
    return {"median_ms": round(1000 * statistics.median(times), 2), "worst_ms": round(1000 * max(times), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--each", type=int, default=8, help="requests of a client")
    parser.add_argument("--rows", type=int, help="rows of a decoding step")
    parser.add_argument("--layers", type=int, help="fewer, for a fast trial")
    parser.add_argument("--small", action="store_true", help="a small GPT on a CPU")
    parser.add_argument("--http", action="store_true", help="through `chainrule serve` in a process of its own")
    args = parser.parse_args()
    torch.manual_seed(1)
    if args.small:
        load = Load((4, 51), (4, 25), 512)
        recipe = recipe_for("gpt", SMALL)
        model = build("gpt", recipe.model, load.vocab)
        machine = f"CPU, {torch.get_num_threads()} threads"
    else:
        load = Load((16, 512), (16, 256), VOCAB)
        changed = {} if args.layers is None else {"model.layers": args.layers}
        recipe = recipe_for("gpt2", changed)
        model = build("gpt2", recipe.model, VOCAB)
        machine = torch.cuda.get_device_name()
    if args.http:
        with server(model, recipe, load.vocab, args.clients) as url:
            asyncio.run(over_http(url, load, args))
        return
    model = model if args.small else model.to("cuda", torch.bfloat16)
    engine = Engine(model, Limits(rows=max(args.clients, 1), step_rows=args.rows, prefix_bytes=0))
    answer, began = by_engine(engine), time.perf_counter()
    engine.start()
    asyncio.run(all_clients(answer, [[request] for request in load.requests(4, 1)]))
    tell(what="ready", machine=machine, torch=torch.__version__, seconds=round(time.perf_counter() - began, 1),
         rows=engine.shapes.rows)

    _, firsts = asyncio.run(all_clients(answer, [load.requests(20, 2)]))
    tell(what="first token, one client", **milliseconds(firsts))
    alone, _ = asyncio.run(all_clients(answer, [load.requests(12, 3)]))
    tell(what="one after another", tokens_per_s=round(alone))
    many = 0.0
    for _ in range(2):
        steps, calls = engine.stats.steps, engine.stats.prefill_calls
        began = time.perf_counter()
        rate, firsts = asyncio.run(all_clients(answer, [load.requests(args.each, 10 + c) for c in range(args.clients)]))
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
