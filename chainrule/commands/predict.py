"""`chainrule predict`: a run answers examples; and how `predict` and `eval` read files and search for texts."""

from argparse import Namespace
from dataclasses import replace
from typing import Any

from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.inference.beam import Beam
from chainrule.inference.mbr import MinimumBayesRisk
from chainrule.inference.sampling import Sampling
from chainrule.run import Run, load
from chainrule.settings import make
from chainrule.tasks import find_task
from chainrule.tasks.task import Search


def predict(args: Namespace) -> dict[str, Any]:
    run = load(args.run, choose_device(args.device))
    task = find_task(run.recipe.task)
    if not task.examples:
        task.refuse(run)
    answers = task.predict(run, task.read_inputs(args.file, reading(run, args)), search_by(args))
    if not args.json:
        for answer in answers:
            print(" ".join(answer["answer"].splitlines()))
    return {"run": args.run, "answers": answers}


def search_by(args: Namespace) -> Search:
    """How texts are searched for, as the command line says."""
    if args.samples is None:
        return Beam(args.beam, args.alpha, limit=args.limit)
    return MinimumBayesRisk(args.samples, Sampling(args.temperature), args.limit)


def reading(run: Run, args: Namespace) -> Any:
    """The `text.*` settings by which a run reads a file: its own, with those that were given over them."""
    text: Any = run.recipe.text
    allowed = find_task(run.recipe.task).readable
    given = {}
    for name, value in args.settings.items():
        part, _, setting = name.partition(".")
        if part != "text" or setting not in allowed:
            *most, last = (f"text.{name}" for name in allowed)
            takes = f"{', '.join(most)} and {last}"
            raise UserError(f"{name}={value} cannot be set here: the run has its own. Only {takes} can.")
        given[setting] = value
    return replace(text, **{name: getattr(make(type(text), given, "text"), name) for name in given})
