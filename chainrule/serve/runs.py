"""The runs of a server: each is loaded when it is first requested, and again when its files have changed.

Files can be deleted or damaged while the server runs. A request for such a run is then answered with the reason, and
the other runs still work.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from chainrule.errors import UserError, did_you_mean
from chainrule.inference.evaluate import count_parameters
from chainrule.run import ADAPTER, MODEL, RECIPE, TOKENIZER, load
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import every_view

Stamp: TypeAlias = tuple[Any, ...]


class Runs:
    def __init__(self, paths: Mapping[str, Path], device: torch.device | str = "cpu"):
        self.paths, self.device = paths, device
        self._loaded: dict[str, tuple[Stamp, Subject]] = {}

    def subject(self, name: str) -> Subject:
        """Loads the run if necessary. Only one caller at a time may ask for the same name."""
        path = self.paths[self.known(name)]
        stamp = stamp_of(path)
        if name not in self._loaded or self._loaded[name][0] != stamp:
            self._loaded.pop(name, None)    # first, so that memory need not hold both
            self._loaded[name] = stamp, Subject(name, load(path, self.device))
        return self._loaded[name][1]

    def known(self, name: str) -> str:
        if name not in self.paths:
            hint = did_you_mean(name, self.paths) or f" There are: {', '.join(self.paths)}."
            raise UserError(f"there is no run {name} here.{hint}")
        return name

    def about(self, name: str) -> dict[str, Any]:
        """What the page shows of a run: its size, and the views that fit it; or why it cannot be loaded."""
        try:
            subject = self.subject(name)
        except UserError as error:
            return {"name": name, "error": str(error)}
        return {
            "name": name,
            "kind": subject.run.recipe.kind,
            "task": subject.run.recipe.task,
            "parameters": count_parameters(subject.model),
            "views": [view.name for view in every_view().values() if view.fits(subject)],
        }


def stamp_of(path: Path) -> Stamp:
    """A value that differs once the run has been changed."""
    return tuple(_stamp(path / name) for name in (RECIPE, TOKENIZER, MODEL, ADAPTER))


def _stamp(file: Path) -> Stamp | None:
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
