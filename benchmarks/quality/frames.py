"""Frames of video classified one by one: recurrent networks and an encoder against windows of one and two frames.

    python benchmarks/quality/frames.py [--epochs N] [--seeds N] [--out FOLDER] [--json]

Each model learns the generated set `motion`, in which a dot moves over a grid, and says the direction of the step that
led to each frame of the test split. One frame alone cannot tell it, and in 15 % of the frames the dot is hidden.
Accuracy with its 95 % interval, for which the bootstrap draws whole sequences.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import chainrule

PLAIN = {"model.dropout": 0.0, "train.precision": "float32", "train.tokens": 384}
RECURRENT = {"model.hidden": 128, "model.layers": 1, "model.weight_dropout": 0.0, "train.lr": 5e-3, **PLAIN}
WINDOW = {"model.hidden": 128, "model.embedding": 32, "train.lr": 5e-3, **PLAIN}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "one frame": ("feedforward", {"model.order": 2, **WINDOW}),
    "two frames": ("feedforward", {"model.order": 3, **WINDOW}),
    "rnn": ("rnn", {name: value for name, value in RECURRENT.items() if name != "model.weight_dropout"}),
    "lstm": ("lstm", RECURRENT),
    "lstm, both ways": ("lstm", {"model.bidirectional": True, **RECURRENT}),
    "encoder": ("encoder", {"model.layers": 2, "model.width": 64, "model.heads": 4, "model.context": 16,
                            "train.lr": 3e-3, **PLAIN}),
}  # fmt: skip


def measure(name: str, epochs: float, seed: int, folder: Path) -> dict[str, Any]:
    kind, settings = MODELS[name]
    begun, cpu = time.monotonic(), time.process_time()
    out = folder / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
    given = {**settings, "train.epochs": epochs, "train.seed": seed}
    run = chainrule.train("motion", kind=kind, task="tag", out=out, settings=given)
    spent, used = time.monotonic() - begun, time.process_time() - cpu
    result = run.evaluate("motion:test")
    kept = {key: result[key] for key in ("accuracy", "accuracy_interval", "f1", "frames", "parameters")}
    times = {"seconds": round(spent, 1), "cpu_seconds": round(used, 1)}
    return {"model": name, "kind": kind, "seed": seed, **kept, **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=float, default=12)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder of the runs; none: a temporary one")
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.only:
            for seed in range(1, args.seeds + 1):
                row = measure(name, args.epochs, seed, args.out or Path(temporary))
                low, high = row["accuracy_interval"]
                print(json.dumps(row) if args.json else
                      f"| {name} | {row['accuracy']:.1%} | {low:.1%} to {high:.1%} | {row['parameters']:,} | {seed} |",
                      flush=True)


if __name__ == "__main__":
    main()
