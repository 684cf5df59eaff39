"""`chainrule predict`: a run's answers to examples; and how `predict` and `eval` search for output texts."""

from argparse import Namespace
from typing import Any

from chainrule.inference.beam import Beam
from chainrule.inference.mbr import MinimumBayesRisk
from chainrule.inference.sampling import Sampling
from chainrule.run import load
from chainrule.tasks.task import Search


def predict_command(args: Namespace) -> dict[str, Any]:
    answers = load(args.run, args.device).predict(args.file, settings=args.settings, search=search_by(args))
    if not args.json:
        for answer in answers:
            print(" ".join(answer["answer"].splitlines()))
    return {"run": args.run, "answers": answers}


def search_by(args: Namespace) -> Search:
    """How output texts are searched for, by the options of the command line."""
    if args.samples is None:
        return Beam(args.beam, args.alpha, limit=args.limit)
    return MinimumBayesRisk(args.samples, Sampling(args.temperature), args.limit)
