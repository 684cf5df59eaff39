"""How long a fresh process takes to learn tinyshakespeare to a given mark, on a GPU or a CPU.

    python benchmarks/speed/shakespeare.py [--recipe recipes/shakespeare-gpt-fast.toml] [--nats 1.4697] [--device cuda]
                                           [--times 3] [--json] [key=value …]

Counted from the start of `chainrule train` to the first look at the whole of the last tenth that costs at most `--nats`
a character: imports, reading, tokens, the first use of the GPU and all looks included. The text is read from
$CHAINRULE_DATA and its tokens are not kept between runs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parents[2] / "recipes" / "shakespeare-gpt-fast.toml"


def once(args: argparse.Namespace) -> dict[str, Any]:
    text = Path(os.environ["CHAINRULE_DATA"]) / "tinyshakespeare" / "input.txt"
    with tempfile.TemporaryDirectory() as folder:
        run, environment = Path(folder) / "run", os.environ | {"CHAINRULE_CACHE": str(Path(folder) / "cache")}
        words = ["train", str(text), "--recipe", args.recipe, "--device", args.device, "--out", str(run)]
        words += args.settings
        began = time.time()
        subprocess.run([sys.executable, "-m", "chainrule", *words], check=True, capture_output=True, env=environment)
        whole = time.time() - began
        records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    looks = [record for record in records if record["event"] == "evaluation"]
    reached = [record for record in looks if record["nats"] <= args.nats]
    return {
        "seconds": round(reached[0]["time"] - began, 2) if reached else None,
        "step": reached[0]["step"] if reached else None,
        "whole": round(whole, 2),
        "nats": round(next(record["nats"] for record in records if record["event"] == "result"), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default=str(RECIPE))
    parser.add_argument("--nats", type=float, default=1.4697)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    runs = []
    for number in range(args.times):
        runs.append(once(args))
        print(f"{number + 1}: {runs[-1]['seconds']} s to {args.nats} nats (step {runs[-1]['step']}); "
              f"the whole run {runs[-1]['whole']} s, {runs[-1]['nats']} nats", flush=True)
    if args.json:
        print(json.dumps(runs))


if __name__ == "__main__":
    main()
