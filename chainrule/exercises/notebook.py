"""The notebook of some exercises, made from their stubs: a cell with each stub, and a cell that checks what is written.

The tests are also in the notebook's metadata in the format of otter-grader, so that `otter.Notebook().check(NAME)` and
otter's autograder run them.
"""

import ast
import json
from collections.abc import Sequence
from typing import Any

from chainrule.exercises import LESSONS, Exercise


def make_notebook(exercises: Sequence[Exercise]) -> str:
    """The notebook as JSON (nbformat 4.5), without outputs."""
    lesson = LESSONS[exercises[0].lesson]
    about = "Replace `raise NotImplementedError` in each cell, run the cell, and run the cell below it to check."
    cells = [_cell("markdown", f"# Exercises: {lesson}\n\n{about}", "title")]
    for exercise in exercises:
        about, code = _parts(exercise)
        check = f'from chainrule.exercises.check import check\n\ncheck("{exercise.name}", globals())'
        cells += [
            _cell("markdown", f"## {exercise.name}\n\n```text\n{about}\n```", f"{exercise.name}-text"),
            _cell("code", code, f"{exercise.name}-code"),
            _cell("code", check, f"{exercise.name}-check"),
        ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    tests = {exercise.name: _otter_test(exercise) for exercise in exercises}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}, "otter": {"OK_FORMAT": True, "tests": tests}}
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _parts(exercise: Exercise) -> tuple[str, str]:
    """The docstring of a stub, and the code after it."""
    source = exercise.stub.read_text(encoding="utf-8")
    tree = ast.parse(source)
    end = tree.body[0].end_lineno
    return ast.get_docstring(tree) or "", "\n".join(source.splitlines()[end:]).strip()


def _cell(kind: str, source: str, name: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "id": name, "metadata": {}, "source": source.splitlines(keepends=True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _otter_test(exercise: Exercise) -> dict[str, Any]:
    code = (f">>> from chainrule.exercises.check import check\n>>> verdict = check('{exercise.name}', globals())\n"
            ">>> verdict if not verdict.passed else None\n")
    case = {"code": code, "hidden": False, "locked": False, "points": 1}
    suite = {"cases": [case], "scored": True, "setup": "", "teardown": "", "type": "doctest"}
    return {"name": exercise.name, "points": None, "suites": [suite]}
