"""Runs tests on a copy of the project with a bug in it. Imports the slow libraries once, and forks for every bug.

Reads one JSON object a line, {root, edits: [[file, right, wrong]], tests}, and answers with one, {code, failed,
output}: pytest's exit code, the tests that failed, and what pytest printed.

Imports point one way, so a bug is nowhere in the layers below its file: one process climbs the layers from bug to bug,
imports what is below, and forks there. A bug that is lower than the one before it is left to a process without them.
"""

import gc
import importlib
import inspect
import json
import os
import shutil
import signal
import sys
import tempfile
import tomllib
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch

LONGEST = 120    # seconds for the tests of one bug
NO_ANSWER = 99   # exit code where pytest itself fell over
SIMPLE = "-fno-inline"    # C++ is compiled in a quarter of the time, with the same bugs
LAZY = "chainrule/kernels/", "chainrule/exercises/"    # imported where others import it: not all of it is for a CPU
SLOW = [         # libraries that the tests of many bugs import; torch imports some of them only when it needs them
    "torch.distributed.tensor", "torch._dynamo", "transformers", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama", "fastapi", "fastapi.testclient", "uvicorn", "httpx", "openai",
    "sse_starlette", "prometheus_client", "hypothesis", "numpy", "rich", "safetensors.torch", "tokenizers", "sacrebleu",
    "zstandard", "hmmlearn.hmm", "pdb", "tomllib", "_pytest.junitxml",
]


def main() -> None:
    gc.disable()    # until all is imported, for what is imported stays
    torch.set_num_threads(1)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"    # none is needed, and they are slow to begin
    os.environ["CXX"] = f"{os.environ.get('CXX') or 'c++'} {SIMPLE}"
    sys.dont_write_bytecode = False    # whatever the environment says: the copy's bytecode serves every bug
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in SLOW:
            with suppress(ImportError):
                importlib.import_module(name)
    settle()
    with tempfile.TemporaryDirectory(prefix="chainrule-bug-") as folder:
        project, result = Path(folder) / "project", Path(folder) / "result"
        climber, answers = start_climber(project, result)
        climbed = 0
        for number, line in enumerate(sys.stdin):
            order = json.loads(line)
            if not project.exists():
                copy(Path(order["root"]), project)
            result.mkdir()
            needed = lowest_layer(project, order["edits"])
            with planted(project, order["edits"], number):
                if needed < climbed:
                    answer = json.dumps(run(project, order["tests"], result))
                else:
                    climbed = needed
                    print(json.dumps(order), file=climber, flush=True)
                    answer = answers.readline().rstrip()
            shutil.rmtree(result)
            print(answer, flush=True)
        climber.close()
        os.wait()


def start_climber(project: Path, result: Path) -> tuple[TextIO, TextIO]:
    """The input and output of a process that answers as this one, once it has imported the layers below the bug."""
    (asked, ask), (read, answer) = os.pipe(), os.pipe()
    if os.fork():
        os.close(asked)
        os.close(answer)
        return os.fdopen(ask, "w"), os.fdopen(read)
    os.close(ask)
    os.close(read)
    climbed = 0
    with os.fdopen(asked) as lines, os.fdopen(answer, "w") as answers:
        for line in lines:
            order = json.loads(line)
            needed = lowest_layer(project, order["edits"])
            if needed > climbed:
                import_layers(project, climbed, needed)
                climbed = needed
            imported = {module_name(file) for file, _, _ in order["edits"]} & sys.modules.keys()
            assert not imported, f"imported before its bug was planted: {imported}"
            print(json.dumps(run(project, order["tests"], result)), file=answers, flush=True)
    os._exit(0)


def import_layers(root: Path, first: int, end: int) -> None:
    """All modules of these layers whose libraries are there."""
    sys.path.insert(0, str(root))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for file in sorted(str(path.relative_to(root)) for path in (root / "chainrule").rglob("*.py")):
            if first <= layer(root, file) < end and not file.startswith(LAZY):
                with suppress(ImportError):
                    importlib.import_module(module_name(file))
    sys.path.remove(str(root))
    settle()


def module_name(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def settle() -> None:
    inspect.getmodule(compile("", "nowhere", "exec"))    # asks every module for its file, which is then remembered
    gc.collect()
    gc.freeze()    # what is imported here is never garbage: no child need look at it
    gc.enable()


def lowest_layer(root: Path, edits: list[list[str]]) -> int:
    return min((layer(root, file) for file, _, _ in edits), default=0)


@cache
def layers(root: Path) -> list[list[str]]:
    """The files or folders of each layer, from the lowest, as the contract on imports has them."""
    tools = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    [names] = [contract["layers"] for contract in tools["importlinter"]["contracts"] if contract["type"] == "layers"]
    return [[name.strip().replace(".", "/") for name in line.split("|")] for line in reversed(names)]


def layer(root: Path, file: str) -> int:
    """The layer that a file belongs to; 0, below all, where it belongs to none."""
    return next((number for number, names in enumerate(layers(root), 1)
                 if any(file == f"{name}.py" or file.startswith(f"{name}/") for name in names)), 0)


def copy(root: Path, folder: Path) -> None:
    """What tests read, with its bytecode, which stays valid: the copies have the times of the files.

    But not bytecode that another process is writing, x.pyc.123: it may be renamed to x.pyc before it is copied.
    """
    folder.mkdir()
    shutil.copy(root / "pyproject.toml", folder)
    for name in ("benchmarks", "chainrule", "tests"):
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("*.pyc.*"))


@contextmanager
def planted(folder: Path, edits: list[list[str]], time: int) -> Iterator[None]:
    """The copy has these bugs; afterwards it is as it was.

    Bytecode is known by the time of its source in whole seconds: every bug has one that no other has.
    """
    before = {folder / file: (folder / file).stat() for file, _, _ in edits}
    sources = {path: path.read_bytes() for path in before}
    for file, right, wrong in edits:
        source = (folder / file).read_text(encoding="utf-8")
        (folder / file).write_text(source.replace(right, wrong), encoding="utf-8")
        os.utime(folder / file, (time, time))
    try:
        yield
    finally:
        for path, facts in before.items():
            path.write_bytes(sources[path])
            os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def run(folder: Path, tests: list[str], result: Path) -> dict[str, Any]:
    """The answer of a process of its own, which takes with it whatever the bug has done."""
    output, failed = result / "output.txt", result / "failed.txt"
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(result / "hypothesis")    # no bug leaves examples for the next
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
    return int(pytest.main(["-q", "--tb=native", "-p", "no:cacheprovider", *tests], plugins=[Failures(failed, tests)]))


class Failures:
    """Writes down which tests fail. One example of a test is enough: its others are skipped then."""

    def __init__(self, path: Path, tests: list[str]):
        self.path, self.tests = path, tests
        self.caught: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.nodeid.startswith(tuple(self.caught)):
            pytest.skip("another example has failed")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.caught |= {test for test in self.tests if report.nodeid.startswith(test)}
            with self.path.open("a") as file:
                print(report.nodeid, file=file)


if __name__ == "__main__":
    main()
