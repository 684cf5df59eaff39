"""SST-2 by prompts with 0, 4 and 16 examples: a language model as a classifier, without training.

    CHAINRULE_DATA=DATA python benchmarks/quality/few_shot.py RUN [--ways direct,channel] [--choose 100] [--limit 872]
        [--draws 5] [--template T]

For each way (direct, channel, and their ensembles) a template is chosen, and for the direct ones a calibration, on
--choose sentences of the training split, by the mean accuracy over the shots (--choose 0: those given); the validation
split is measured with the chosen ones only. A JSON line for each candidate, and one for each result.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import chainrule
from chainrule.commands.evaluation.few_shot import draw_shots, read_shots
from chainrule.exams import few_shot
from chainrule.exams.few_shot import examine_shots
from chainrule.exams.prompt_set import FewShot
from chainrule.files import write_text
from chainrule.run import Run
from chainrule.text.datasets import get

LABELS = "0=negative,1=positive"
TEMPLATES = {
    r"Review: {text}\nSentiment: {label}": LABELS,
    r"{text} It was {label}": "0=terrible,1=great",
    "{text} this movie is {label}": "0=awful,1=excellent",
}
CHANNEL_TEMPLATES = {
    r"Sentiment: {label}\nReview: {text}": LABELS,
    "It was {label} . {text}": "0=terrible,1=great",
    "{label} . {text}": "0=bad acting and no plot . boring . a waste of time . the worst,"
                        "1=great acting and a moving story . beautiful . highly recommended . the best",
}
CALIBRATIONS = ("none", "contextual", "pmi")
WAYS = {
    "direct": {},
    "channel": {"channel": True},
    "direct-ensemble": {"ensemble": True},
    "channel-ensemble": {"channel": True, "ensemble": True},
}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="run of a language model, or a GGUF file or folder to import")
    parser.add_argument("--ways", default="direct", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--shots", default="0,4,16")
    parser.add_argument("--choose", type=int, default=100, help="training sentences to choose on; 0: no choice")
    parser.add_argument("--limit", type=int, help="validation sentences (default: all 872)")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--choose-draws", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--template", help="one of the candidates only")
    parser.add_argument("--calibration", choices=CALIBRATIONS, help="this one only")
    parser.add_argument("--labels", default=LABELS, help="of --template")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(words)
    run = chainrule.load(args.run, args.device)
    few_shot.score_answers = Remembered(few_shot.score_answers)
    results = [measure(run, way, args) for way in args.ways.split(",")]
    if args.plot:
        write_text(args.plot, draw_shots(Path(args.run).name, results[-1]))


def measure(run: Run, way: str, args: argparse.Namespace) -> dict[str, Any]:
    """The choice on training sentences, and then the validation split."""
    options = FewShot(shots=read_shots(args.shots), seed=args.seed, chat=args.chat, **WAYS[way])
    templates = {args.template: args.labels} if args.template else CHANNEL_TEMPLATES if options.channel else TEMPLATES
    calibrations = (args.calibration,) if args.calibration else ("none",) if options.channel else CALIBRATIONS
    chosen = replace(options, template=next(iter(templates)), labels=next(iter(templates.values())),
                     calibration=calibrations[0])
    with TemporaryDirectory() as folder:
        tested, pool = split_training(Path(folder), max(args.choose, 1), args.seed)
        if args.choose:
            chosen = choose(run, str(tested), replace(options, examples=(str(pool),), draws=args.choose_draws),
                            templates, calibrations)
    began = time.perf_counter()
    final = replace(chosen, examples=("sst-2:train",), draws=args.draws, limit=args.limit)
    result = examine_shots(run, ["sst-2:valid"], final)
    say(run=Path(args.run).name, way=way, device=device_name(), template=result["template"], words=result["words"],
        calibration=final.calibration, chat=final.chat, examples=result["examples"], majority=result["majority"],
        results=result["results"], seconds=round(time.perf_counter() - began, 1), signature=result["signature"])
    return result


def choose(run, tested: str, options: FewShot, templates, calibrations) -> FewShot:
    """The candidate with the best mean accuracy on training sentences."""
    best, chosen = -1.0, options
    for (template, labels), calibration in product(templates.items(), calibrations):
        one = replace(options, template=template, labels=labels, calibration=calibration)
        result = examine_shots(run, [tested], one)
        accuracies = {part["shots"]: round(part["accuracy"], 4) for part in result["results"]}
        mean = float(np.mean(list(accuracies.values())))
        say(choose=template, direction=result["direction"], demonstrations=result["demonstrations"],
            calibration=calibration, train_sentences=result["examples"], accuracy=accuracies,
            mean=round(mean, 4), seconds=round(result["seconds"], 1))
        if mean > best:
            best, chosen = mean, one
    return chosen


class Remembered:
    """Scores of questions; those that were asked before are not computed again: calibrations share most of them."""

    def __init__(self, score):
        self.score, self.known = score, {}

    def __call__(self, model, questions, advance=lambda _: None):
        keys = [(one.prompt.tobytes(), tuple(answer.tobytes() for answer in one.answers)) for one in questions]
        new = {key: one for key, one in zip(keys, questions) if key not in self.known}
        if new:
            self.known |= zip(new, self.score(model, list(new.values()), advance))
        return np.array([self.known[key] for key in keys])


def split_training(folder: Path, count: int, seed: int) -> tuple[Path, Path]:
    """Whole sentences of the training split to choose on, and the others to draw shots from."""
    ((source,),) = [get("sst-2")["train"]]
    head, *rows = source.path.read_text(encoding="utf-8").splitlines()
    order = np.random.default_rng(seed).permutation(len(rows))
    long = [at for at in order if len(rows[at].split()) >= 8]    # the training split has phrases too
    held = set(long[:count])
    paths = folder / "tested.tsv", folder / "pool.tsv"
    paths[0].write_text("\n".join([head, *(rows[at] for at in long[:count])]) + "\n", encoding="utf-8")
    paths[1].write_text("\n".join([head, *(row for at, row in enumerate(rows) if at not in held)]) + "\n",
                        encoding="utf-8")
    return paths


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def say(**facts) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
