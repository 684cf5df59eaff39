"""How a run reads a text that it is asked about: as it read its own, but for what the command line says."""

from argparse import Namespace
from dataclasses import replace
from typing import Any

from chainrule.errors import UserError
from chainrule.run import Run
from chainrule.settings import make
from chainrule.tasks.registry import EXAMPLES

RUNNING = ("errors", "separator")
TABLES = ("errors", "header", "column", "second", "label", "source", "target", "tag")
"""Settings that may differ from those the run was trained with: of running text; of examples, where things stand."""


def reading(run: Run, args: Namespace) -> Any:
    """The `text.*` of the run's task."""
    text: Any = run.recipe.text
    allowed = [name for name in (TABLES if run.recipe.task in EXAMPLES else RUNNING) if hasattr(text, name)]
    given = {}
    for name, value in args.settings.items():
        part, _, setting = name.partition(".")
        if part != "text" or setting not in allowed:
            *most, last = (f"text.{name}" for name in allowed)
            takes = f"{', '.join(most)} and {last}"
            raise UserError(f"{name}={value} cannot be set here: the run has its own. Only {takes} can.")
        given[setting] = value
    return replace(text, **{name: getattr(make(type(text), given, "text"), name) for name in given})
