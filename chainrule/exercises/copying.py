"""Copying exercises to a student's folder: stubs, adapters, tests, snapshots, a notebook, and how to begin."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chainrule.errors import UserError
from chainrule.exercises import ADAPTERS, LESSONS, MATERIAL, SNAPSHOTS, Exercise
from chainrule.exercises.adapting import select_adapters
from chainrule.exercises.notebook import make_notebook

HOW_TO_BEGIN = """# {title}

{rows}

Each stub has the formula and the shapes. Replace `raise NotImplementedError` by your code, then check it:

    chainrule exercise check .

or run `pytest` here. `adapters.py` is the only file that binds your code to the tests: change it if you name or place
your functions differently. `exercises.ipynb` has the same stubs, to be filled in and checked in a notebook.
"""


def copy_exercises(exercises: Sequence[Exercise], folder: Path) -> list[str]:
    """Makes a folder with these exercises of one lesson, all at once or not at all; returns the names of its files."""
    refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as aside:
        made = Path(aside) / "made"
        (made / SNAPSHOTS).mkdir(parents=True)
        for exercise in exercises:
            shutil.copyfile(exercise.stub, made / exercise.stub.name)
            shutil.copyfile(exercise.tests, made / exercise.tests.name)
            shutil.copyfile(exercise.snapshot, made / SNAPSHOTS / exercise.snapshot.name)
        write_own(exercises, made)
        made.rename(folder)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def write_own(exercises: Sequence[Exercise], folder: Path) -> None:
    """The files that depend on which exercises are chosen."""
    lesson = exercises[0].lesson
    adapters = select_adapters(MATERIAL / lesson / ADAPTERS, [exercise.module for exercise in exercises])
    rows = "\n".join(f"- `{exercise.stub.name}`: {exercise.idea}" for exercise in exercises)
    (folder / ADAPTERS).write_text(adapters, encoding="utf-8")
    (folder / "README.md").write_text(HOW_TO_BEGIN.format(title=LESSONS[lesson], rows=rows), encoding="utf-8")
    (folder / "exercises.ipynb").write_text(make_notebook(exercises), encoding="utf-8")


def refuse_existing(folder: Path) -> None:
    if folder.is_symlink() or folder.exists():
        kind = "folder" if folder.is_dir() else "file"
        raise UserError(f"{folder} exists already, and an exercise is copied to a new folder only: choose another "
                        f"name. The {kind} is as it was.")
    near = next(path for path in folder.absolute().parents if path.exists())
    if not near.is_dir():
        raise UserError(f"{near} is a file, so {folder} cannot be made. Choose another folder.")
