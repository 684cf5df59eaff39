"""GRPO rollouts against offline sampling: GPT-2 (124M, random weights), 512 rows, tokens a second, side by side.

    python benchmarks/preferences/grpo_rollouts.py [--rows 512] [--generations 8] [--tokens 128] [--times 4] [--small]

Both sides answer the same prompts with the same temperature and the same limit. Offline is `sample` as `chainrule
sample` calls it, in bfloat16, with weights that do not change; it prefills each different prompt and captures its CUDA
graph in every call. A rollout copies the float32 weights of the policy, which change before each, into its sampler,
prefills and draws; `and_scored` also has a reward for each answer, and the log-probabilities of policy and reference,
as training needs them. Tokens are those of answers, up to and with their end: what is computed after it does not count.
The first call of each side warms up and is left out. Output: JSON lines; the last one has the shares.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from chainrule.device import choose_precision
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.models import build
from chainrule.preferences.reinforce.environment import Environment
from chainrule.preferences.reinforce.rollouts import Sampler, find_ends, plain_copy
from chainrule.tasks import recipe_for

VOCAB = 50_257
SMALL = {"model.layers": 2, "model.width": 32, "model.heads": 2, "model.context": 64}


class Numbers:
    """A tokenizer for random weights: a token is its number."""

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


def make_policy(small: bool, device: torch.device) -> Any:
    torch.manual_seed(1)
    kind, vocab = ("gpt", 100) if small else ("gpt2", VOCAB)
    policy: Any = build(kind, recipe_for(kind, SMALL if small else {}).model, vocab)
    return policy.to(device).eval()


def make_prompts(rows: int, generations: int, vocab: int) -> list[Any]:
    """Prompts of 8 to 15 tokens, each for a group of rows."""
    random = np.random.default_rng(1)
    prompts = [random.integers(1, vocab, 8 + number % 8) for number in range(-(-rows // generations))]
    return [prompt for prompt in prompts for _ in range(generations)][:rows]


def change_weights(policy: Any) -> None:
    """As an optimizer step does; it is not part of the time."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.0001)


def measure(
    side: str, play: Callable[[int], int], times: int, before: Callable[[], None], facts: dict[str, Any]
) -> float:
    """The median of tokens a second."""
    speeds = []
    for number in range(times + 1):
        before()
        wait()
        began = time.perf_counter()
        tokens = play(number)
        wait()
        if number:
            speeds.append(tokens / (time.perf_counter() - began))
    median = float(np.median(speeds))
    each = {"tokens_per_second": round(median), "each": [*map(round, speeds)]}
    print(json.dumps({"side": side, **each, **facts}), flush=True)
    return median


def lengths_of(prompts: Any, answers: Any) -> list[float]:
    """A reward that costs no time."""
    return [float(len(answer)) for answer in answers]


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--small", action="store_true", help="a tiny model, for a CPU")
    args = parser.parse_args()
    rows, tokens = (16, 12) if args.small else (args.rows, args.tokens)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.small else "cpu")
    precision = choose_precision("auto", device)
    policy = make_policy(args.small, device)
    prompts = make_prompts(rows, args.generations, 100 if args.small else VOCAB)
    texts = ["" for _ in prompts]
    offline = plain_copy(policy).to(precision.dtype)
    sampler = Sampler(policy, tokens, dtype=precision.dtype, longest=max(map(len, prompts)))
    reference = plain_copy(policy)
    tokenizer: Any = Numbers()
    environment = Environment(sampler, reference, lengths_of, tokenizer, precision)
    facts = {
        "rows": rows, "limit": tokens, "parameters": sum(one.numel() for one in policy.parameters()),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "torch": torch.__version__,
        "dtype": str(precision.dtype).removeprefix("torch."),
    }

    def play_offline(seed: int) -> int:
        columns = torch.stack(list(sample(offline, prompts, tokens, Sampling(seed=seed))), 1)
        return int(find_ends(columns.cpu().numpy()).lengths.sum())

    def play_rollout(seed: int) -> int:
        return int(sampler.draw(prompts, seed).lengths.sum())

    def play_scored(seed: int) -> int:
        return int(environment.play(prompts, texts, seed).batch.loss_mask.sum())

    change = lambda: change_weights(policy)  # noqa: E731
    began = time.perf_counter()
    first = measure("offline sampling", play_offline, args.times, lambda: None, facts)
    second = measure("rollouts", play_rollout, args.times, change, facts)
    third = measure("rollouts, and scored", play_scored, args.times, change, facts)
    print(json.dumps({"share": round(second / first, 3), "share_and_scored": round(third / first, 3),
                      "seconds": round(time.perf_counter() - began, 1), **facts}))


if __name__ == "__main__":
    main()
