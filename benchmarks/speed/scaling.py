"""How the cost of a text grows with its length: seconds and bytes against T for recurrent networks and for GPT.

    python benchmarks/speed/scaling.py [--kinds rnn lstm gpt] [--lengths 128 … 4096] [--device cuda] [--json]

Three ways, as `chainrule.viewer.views.cost` has them: one step of learning; writing T tokens with the state carried
on; writing them with the whole text read again for each. Seconds are the best of several repeats. The slope is the
power of T over the larger half of the lengths: 1 is proportional to T, 2 to T².
"""

import argparse
import json
from typing import Any

from chainrule.commands.arguments.device import DEVICES
from chainrule.device import choose_device
from chainrule.models import build
from chainrule.progress import short
from chainrule.training.pipeline import recipe_for
from chainrule.viewer.views.cost import WAYS, Cost, fitted_power, measure_costs

VOCAB = 256
LENGTHS = [128, 256, 512, 1024, 2048, 4096]
SIZES = {
    "gpt": {"model.layers": 2, "model.width": 128, "model.heads": 2},
    "recurrent": {"model.layers": 2, "model.hidden": 128},
}


def make(kind: str, context: int, device: Any) -> Any:
    own = SIZES["gpt"] | {"model.context": context} if kind == "gpt" else SIZES["recurrent"]
    return build(kind, recipe_for(kind, own).model, VOCAB).to(device)


def line(kind: str, way: str, what: str, costs: list[Cost]) -> str:
    amounts = [getattr(cost, what) for cost in costs]
    shown = "".join(f"{1e3 * amount:>10.2f}" if what == "seconds" else f"{short(amount):>10}" for amount in amounts)
    return f"{kind:<6}{way:<8}{'ms' if what == 'seconds' else 'bytes':<6}{shown}{fitted_power(costs, what):>8.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["rnn", "lstm", "gpt"])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    args = parser.parse_args()
    device = choose_device(args.device)
    if not args.json:
        print(f"{'T':<20}" + "".join(f"{length:>10}" for length in args.lengths) + f"{'slope':>8}")
    for kind in args.kinds:
        model = make(kind, max(args.lengths), device)
        for way in args.ways:
            costs = measure_costs(model, way, args.lengths, repeats=args.repeats)
            slopes = {what: fitted_power(costs, what) for what in ("seconds", "bytes")}
            if args.json:
                table = {name: [getattr(cost, name) for cost in costs] for name in ("tokens", "seconds", "bytes")}
                print(json.dumps({"kind": kind, "way": way, **table, "slopes": slopes}), flush=True)
            else:
                print("\n".join(line(kind, way, what, costs) for what in slopes), flush=True)


if __name__ == "__main__":
    main()
