"""Time per token of local, sliding, compressed and full attention, in short texts and in long ones.

    python benchmarks/speed/local_attention.py [--lengths 1024 16384] [--kinds local sliding compressed full]
                                               [--device cuda]

A training step (forward and backward pass) of one GPT at each length, with the same number of tokens in every step:
rows get longer and fewer. So a model whose attention costs O(T · window) takes the same time at every length. The
lengths take turns, and the median counts. One JSON object a line: milliseconds of a step, microseconds of a token, the
peak of memory (on a GPU); and for each kind the time per token at the longest length against that at the shortest.
"""

import argparse
import json
import statistics
import time
from typing import Any

import torch

from chainrule import kernels
from chainrule.commands.arguments.device import DEVICES
from chainrule.device import choose_device, choose_precision
from chainrule.kernels.ops import compiled
from chainrule.layers import local_attention
from chainrule.model import Batch
from chainrule.models.gpt import GPT, GPTSettings

KINDS: dict[str, dict[str, Any]] = {
    "local": {"attention": ("local",)},
    "sliding": {"attention": ("sliding",)},
    "sliding-blocks": {"attention": ("sliding",)},                 # by blocks where torch's kernel would be used
    "compressed": {"attention": ("compressed",)},
    "local,compressed": {"attention": ("local", "compressed")},    # T-DMCA
    "full": {},
}
VOCAB = 256


class Steps:
    """Training steps of one model at several lengths."""

    def __init__(self, kind: str, args: argparse.Namespace, device: torch.device):
        sizes = {"layers": args.layers, "width": args.width, "heads": args.heads, "context": max(args.lengths)}
        window = {"local": {"block": args.window}, "sliding": {"window": args.window}}
        own = KINDS[kind] | window.get(KINDS[kind].get("attention", ("full",))[0], {})
        torch.manual_seed(1)
        self.model = GPT(GPTSettings(**sizes, **own), VOCAB).to(device)
        self.loss = compiled(self.model.loss) if args.compile else self.model.loss
        self.precision, self.device = choose_precision(args.precision, device), device
        self.batches = {length: self._batch(args.tokens // length, length) for length in args.lengths}

    def _batch(self, rows: int, length: int) -> Batch:
        tokens = torch.randint(VOCAB, (rows, length + 1), generator=torch.Generator().manual_seed(2)).to(self.device)
        return Batch(tokens[:, :-1], tokens[:, 1:])

    def take(self, length: int) -> tuple[float, int]:
        """Seconds of a step, and the bytes at its peak."""
        self.model.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        began = time.perf_counter()
        with self.precision():
            nats, count, _ = self.loss(self.batches[length])
        (nats / count).backward()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0
        return time.perf_counter() - began, peak


def measure(kind: str, args: argparse.Namespace, device: torch.device) -> None:
    local_attention.WINDOW_KERNEL = kind != "sliding-blocks"
    steps, lengths = Steps(kind, args, device), args.lengths
    for length in lengths:
        for _ in range(args.warmup):
            steps.take(length)
    taken = {length: [] for length in lengths}
    for _ in range(args.steps):
        for length in lengths:
            taken[length].append(steps.take(length))
    medians = {}
    for length, every in taken.items():
        rows = args.tokens // length
        medians[length] = statistics.median(seconds for seconds, _ in every) / (rows * length)
        print(json.dumps({
            "kind": kind, "length": length, "rows": rows,
            "milliseconds": round(1e3 * medians[length] * rows * length, 2),
            "microseconds_per_token": round(1e6 * medians[length], 4),
            "fastest": round(1e6 * min(every)[0] / (rows * length), 4),
            "peak_gib": round(max(peak for _, peak in every) / 2**30, 2),
        }), flush=True)
    ratio = medians[max(lengths)] / medians[min(lengths)]
    print(json.dumps({"kind": kind, "ratio": round(ratio, 3), "of": [max(lengths), min(lengths)]}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 16384])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--window", type=int, default=256, help="tokens of a block, or of a sliding window")
    parser.add_argument("--tokens", type=int, default=131_072, help="tokens in a step, at every length")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", choices=DEVICES, default="auto")
    args = parser.parse_args()
    if args.tokens % max(args.lengths):
        parser.error(f"--tokens {args.tokens} is not a multiple of --lengths {max(args.lengths)}")
    device = choose_device(args.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    print(json.dumps({"device": name, "torch": torch.__version__, **vars(args)}), flush=True)
    with kernels.in_training(device.type == "cuda" and kernels.available()):
        for kind in args.kinds:
            measure(kind, args, device)


if __name__ == "__main__":
    main()
