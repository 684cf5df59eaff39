"""The tests bite: each of these bugs, planted in a copy of the project, is caught."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mutations.bugs import BUGS, Bug
from mutations.worker import copy, layer

ROOT = Path(__file__).parents[2]
PASSED, FAILED = 0, 1    # pytest's exit codes; others say that no test was run

# From the lowest layer to the highest, for the worker imports what is below a bug once for all bugs above it.
CLIMBING = sorted(BUGS, key=lambda bug: layer(ROOT, bug.file))

Ask = Callable[[list[list[str]], list[str]], dict[str, Any]]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    worker = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("worker.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None

    def ask(edits: list[list[str]], tests: list[str]) -> dict[str, Any]:
        print(json.dumps({"root": str(ROOT), "edits": edits, "tests": tests}), file=worker.stdin, flush=True)
        return json.loads(worker.stdout.readline())

    yield ask
    worker.stdin.close()
    worker.stdout.close()
    assert worker.wait(10) == 0


@pytest.mark.parametrize("bug", CLIMBING, ids=str)
def test_a_bug_is_caught(bug: Bug, ask: Ask) -> None:
    found = (ROOT / bug.file).read_text(encoding="utf-8").count(bug.right)
    assert found == 1, f"{bug.file} has {bug.right!r} {found} times: say where the bug is to be planted now"
    answer = ask([[bug.file, bug.right, bug.wrong]], list(bug.caught_by))
    assert answer["code"] == FAILED, f"not caught (code {answer['code']}):\n{answer['output']}"
    for test in bug.caught_by:
        assert any(failed.startswith(test) for failed in answer["failed"]), f"not caught by {test}:\n{answer['output']}"


def test_without_a_bug_the_same_tests_pass(ask: Ask) -> None:
    tests = sorted({test for bug in BUGS for test in bug.caught_by})
    answer = ask([], tests)
    assert answer["code"] == PASSED, answer["output"]


def test_there_are_bugs_enough_and_no_two_alike() -> None:
    assert len({(bug.file, bug.right, bug.wrong) for bug in BUGS}) == len(BUGS) >= 12
    assert all(bug.caught_by for bug in BUGS)


def test_layers_are_those_of_the_contract_on_imports() -> None:
    lowest, middle, highest = (layer(ROOT, f"chainrule/{file}") for file in ("errors.py", "layers/norm.py", "cli.py"))
    assert 0 < lowest < middle < highest
    assert layer(ROOT, "chainrule/__init__.py") == layer(ROOT, "benchmarks/layers.py") == 0    # below all


def test_bytecode_is_copied_with_the_time_of_its_source_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for folder in ("benchmarks", "chainrule", "tests"):
        (root / folder / "__pycache__").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    (root / "chainrule" / "one.py").touch()
    os.utime(root / "chainrule" / "one.py", (7, 7))
    for name in ("one.cpython-311.pyc", "one.cpython-311.pyc.140"):
        (root / "chainrule" / "__pycache__" / name).touch()
    copy(root, tmp_path / "copied")
    copied = tmp_path / "copied" / "chainrule"
    assert [path.name for path in (copied / "__pycache__").iterdir()] == ["one.cpython-311.pyc"]
    assert (copied / "one.py").stat().st_mtime == 7
