"""A run that is being trained: checkpoints, begun.json with what is trained, and what a killed process left."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chainrule import __version__
from chainrule.errors import UserError
from chainrule.files import write_text
from chainrule.recipe import Recipe
from chainrule.run.layout import BEGUN, BOARD, CHECKPOINT, CHECKPOINTS, CURVES, FORMAT, INSTEAD, UNFINISHED


def begin(path: Path, recipe: Recipe, splits: Mapping[str, Mapping[str, Any]]) -> None:
    """Records at `path` what is being trained there."""
    about = {"chainrule": __version__, "format": FORMAT, **recipe.as_dict(), "splits": splits}
    write_text(path / CHECKPOINTS / BEGUN, json.dumps(about, indent=1) + "\n")


def read_begun(path: Path, *, damaged_is_none: bool = False) -> dict[str, Any] | None:
    """What is being trained at `path`; None: no run is unfinished there."""
    file = path / CHECKPOINTS / BEGUN
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        if damaged_is_none:
            return None
        raise UserError(f"{file} is damaged, so the checkpoints beside it cannot be used. {INSTEAD}") from error


def forget_checkpoints(path: Path) -> None:
    folder = path / CHECKPOINTS
    (folder / BEGUN).unlink(missing_ok=True)    # first, so that what remains is never resumed from
    if folder.is_dir():
        for file in folder.iterdir():
            if CHECKPOINT.fullmatch(file.name):
                remove(file)
        if not any(folder.iterdir()):
            folder.rmdir()


def remove_unfinished(path: Path) -> None:
    """Deletes the files that a killed process was writing at `path`, which this process has locked."""
    for file in path.iterdir() if path.is_dir() else ():
        if UNFINISHED.fullmatch(file.name):
            remove(file)


def left_over(file: Path) -> bool:
    """Whether a file is what a killed chainrule process left."""
    if file.name in (BOARD, CURVES):
        return True
    if file.name == CHECKPOINTS and file.is_dir():
        return all(CHECKPOINT.fullmatch(inside.name) for inside in file.iterdir())
    return bool(UNFINISHED.fullmatch(file.name))


def remove(path: Path) -> None:
    """Deletes a file, or a folder with its content."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
