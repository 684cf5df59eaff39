"""Which views fit which models: one tiny untrained model of every kind and task is asked, and the table is Markdown.

    python -m chainrule.viewer.coverage        prints the table of docs/tools/look.md

A view decides by the parts of a model and never by its kind, so a model without training answers as a trained one does.
"""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import torch

from chainrule.models import KINDS, model_class
from chainrule.models.published import PUBLISHED
from chainrule.recipe import Text
from chainrule.run import Run
from chainrule.tasks import TASKS, build_for, find_task, recipe_for
from chainrule.tasks.classify import DELIMITER, EXTRACT
from chainrule.tasks.denoise import MASK
from chainrule.text.tokenizers.tokenizer import train_tokenizer
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import every_view

ENOUGH = 4          # views that every kind has for every task
TEXT = "the cow eats the grass\nthe dog eats the bone\n"
LABELS = {"classify": ("bad", "good"), "tag": ("NOUN", "VERB", "DET")}
SIZES = {"hidden": 6, "embedding": 6, "width": 8, "layers": 2, "heads": 2, "context": 64, "states": 3, "order": 2}
OF_TASK = {"caption": {"model.source_features": 4}}


def every_subject() -> Iterator[Subject]:
    """A tiny model of each kind for each of its tasks."""
    for kind in KINDS:
        for task in TASKS if kind not in PUBLISHED else ():
            if find_task(task).suits(model_class(kind)):
                yield tiny_subject(kind, task)


def tiny_subject(kind: str, task: str) -> Subject:
    """Untrained, with random weights from a fixed seed."""
    recipe = recipe_for(kind, tiny_settings(kind, task) | {"text.tokenizer": "words"}, task)
    tokenizer = train_tokenizer(Text(tokenizer="words", min_count=1), [TEXT]).with_special([DELIMITER, EXTRACT, MASK])
    labels = LABELS.get(task, ())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = build_for(recipe, len(tokenizer), labels)
    return Subject(f"{kind}-{task}", Run(Path(f"{kind}-{task}"), recipe, tokenizer, model.eval(), {}, labels))


def tiny_settings(kind: str, task: str) -> dict[str, Any]:
    """Those of SIZES that the kind has."""
    known = {field.name for field in fields(find_task(task).model_class(kind).Settings)}
    return {f"model.{name}": size for name, size in SIZES.items() if name in known} | OF_TASK.get(task, {})


def fitting_views(subject: Subject) -> list[str]:
    return [view.name for view in every_view().values() if view.fits(subject)]


@cache
def views_by_kind() -> dict[tuple[str, str], list[str]]:
    """The views of each kind and task."""
    return {(one.run.recipe.kind, one.run.recipe.task): fitting_views(one) for one in every_subject()}


def coverage_table() -> str:
    """A row for each task and the kinds that have the same views."""
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (kind, task), views in views_by_kind().items():
        rows.setdefault((task, tuple(views)), []).append(kind)
    order = sorted(rows.items(), key=lambda row: list(TASKS).index(row[0][0]))
    lines = [f"| {task} | {', '.join(kinds)} | {', '.join(views)} |" for (task, views), kinds in order]
    return "\n".join(["| task | kinds | views |", "|---|---|---|", *lines, ""])


if __name__ == "__main__":
    print(coverage_table(), end="")
