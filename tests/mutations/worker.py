"""Runs tests on copies of the project with a bug in them. Imports the slow libraries once, and forks for every bug.

Reads one JSON object a line, {root, edits: [[file, right, wrong]], tests}, and answers with one, {code, failed,
output}: pytest's exit code, the tests that failed, and what pytest printed.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import hypothesis  # noqa: F401
import numpy  # noqa: F401
import pytest
import rich  # noqa: F401
import safetensors.torch  # noqa: F401
import tokenizers  # noqa: F401
import torch

LONGEST = 120    # seconds for the tests of one bug
NO_ANSWER = 99   # exit code where pytest itself fell over


def main() -> None:
    torch.set_num_threads(1)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"    # none is needed, and they are slow to begin
    sys.dont_write_bytecode = True
    for line in sys.stdin:
        order = json.loads(line)
        with tempfile.TemporaryDirectory(prefix="chainrule-bug-") as folder:
            copy(Path(order["root"]), Path(folder))
            for file, right, wrong in order["edits"]:
                plant(Path(folder) / file, right, wrong)
            print(json.dumps(run(Path(folder), order["tests"])), flush=True)


def copy(root: Path, folder: Path) -> None:
    shutil.copy(root / "pyproject.toml", folder)
    for name in ("benchmarks", "chainrule", "tests"):
        shutil.copytree(root / name, folder / name)    # with the bytecode of what stays as it is: a copy keeps its time


def plant(path: Path, right: str, wrong: str) -> None:
    source = path.read_text(encoding="utf-8")
    path.write_text(source.replace(right, wrong), encoding="utf-8")


def run(folder: Path, tests: list[str]) -> dict[str, Any]:
    """The answer of a process of its own, which takes with it whatever the bug has done."""
    output, failed = folder / "output.txt", folder / "failed.txt"
    child = os.fork()
    if not child:
        code = NO_ANSWER
        try:
            signal.alarm(LONGEST)
            with output.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            code = test(folder, tests, failed)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "failed": failed.read_text().splitlines() if failed.exists() else [],
        "output": output.read_text(errors="replace")[-4000:],
    }


def test(folder: Path, tests: list[str], failed: Path) -> int:
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    import chainrule

    assert Path(chainrule.__file__).is_relative_to(folder), "the tests would run on another copy"
    return int(pytest.main(["-q", "--tb=short", "-p", "no:cacheprovider", *tests], plugins=[Failures(failed)]))


class Failures:
    """Writes down which tests fail."""

    def __init__(self, path: Path):
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self.path.open("a") as file:
                print(report.nodeid, file=file)


if __name__ == "__main__":
    main()
