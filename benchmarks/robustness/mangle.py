"""Mangled runs, files and settings: each command must end with one clear line or with the right answer.

    python benchmarks/robustness/mangle.py [--cases 5000] [--seed 1] [--workers 2] [--seconds S] [--runs NAME …]
                                           [--only NUMBER …] [--keep DIR]

Tiny runs of all kinds and tasks, files of all formats that are read, all settings and the options of all queries
(mangle_cases.py). A case changes one thing: bytes are flipped, files truncated or exchanged, JSON keys removed or given
values of another type or size, numbers replaced. Its commands run in a process of their own, which may use 1 GB more
memory than before and 30 s of CPU time. What is found: a traceback, a hang, too much memory, a crash, or a silent
change: another answer of a run that was changed, or any answer where a setting makes no sense. JSON lines; the last is
the total.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import re
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mangle_cases import Case, copy_material, make_case
from mangle_data import write_data
from mangle_readings import Reading, exports, readings
from mangle_runs import SMALL, Trained, all_runs

MEMORY = 1 << 30        # bytes that a case may use more than the process had before it
CPU = 30                # seconds of CPU time
WALL = 600              # seconds: a case that waits for something that never comes
LONGEST = 1000          # characters of a clear line
GOOD = ("line", "same", "answer")


@dataclass(frozen=True)
class Outcome:
    """How the commands of a case ended; the last one that ran."""

    code: int | None = None         # None: an exception came through, or the process died
    out: str = ""
    err: str = ""
    trace: str = ""
    died: int = 0                   # the signal that ended the process
    peak: int = 0                   # bytes of memory more than before
    seconds: float = 0.0


# One case in a process of its own

def run_words(words: Sequence[Sequence[str]], folder: Path) -> Outcome:
    """The commands in this process, until one fails. Standard output and error are those of the last."""
    from chainrule.cli import main

    os.chdir(folder)
    os.environ["CHAINRULE_CACHE"] = str(folder / "cache")
    before, began = _peak(), time.process_time()
    outcome = Outcome()
    for some in words:
        with contextlib.ExitStack() as stack:
            for name in ("stdout", "stderr"):
                file = stack.enter_context((folder / name).open("w+", encoding="utf-8"))
                stack.callback(setattr, sys, name, getattr(sys, name))
                setattr(sys, name, file)
            code, trace = None, ""
            try:
                code = main(list(some))
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 2
            except BaseException:
                trace = traceback.format_exc()
        out, err = ((folder / name).read_text(encoding="utf-8", errors="replace") for name in ("stdout", "stderr"))
        outcome = Outcome(code, out, err, trace, 0, _peak() - before, time.process_time() - began)
        if code != 0:
            break
    return outcome


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit_process() -> None:
    used = int(re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))    # not what is only reserved
    resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def child(case: Case, material: Path, folder: Path, limits: bool = True) -> None:
    """Runs a case and writes its outcome to a file; never returns."""
    try:
        os.setsid()
        silence()
        copy_material(material, folder, case)
        case.change(folder)
        if limits:
            limit_process()
        outcome = run_words(case.words, folder)
        (folder / "outcome.json").write_text(json.dumps(vars(outcome)), encoding="utf-8")
    except BaseException:
        with contextlib.suppress(BaseException):
            (folder / "broken").write_text(traceback.format_exc())
    finally:
        os._exit(0)


def silence() -> None:
    """What libraries write past Python goes nowhere; and nothing is read from a terminal."""
    empty, nowhere = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY)
    for target, stream in ((empty, 0), (nowhere, 1), (nowhere, 2)):
        os.dup2(target, stream)


# Many at once

def run_cases(cases: Iterator[Case], material: Path, folder: Path, workers: int) -> Iterator[tuple[Case, Outcome]]:
    """Outcomes as they come. A process that takes too long is killed."""
    running: dict[int, tuple[Case, Path, float]] = {}            # by the file descriptor of its pidfd
    waiting = selectors.DefaultSelector()
    pids: dict[int, int] = {}
    more = True
    while more or running:
        while more and len(running) < workers:
            case = next(cases, None)
            if case is None:
                more = False
                break
            here = folder / f"case{case.number}"
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                child(case, material, here)
            handle = os.pidfd_open(pid)
            waiting.register(handle, selectors.EVENT_READ)
            running[handle], pids[handle] = (case, here, time.monotonic()), pid
        for key, _ in waiting.select(timeout=1.0):
            handle = int(key.fd)
            case, here, _ = running.pop(handle)
            _, status = os.waitpid(pids.pop(handle), 0)
            waiting.unregister(handle)
            os.close(handle)
            yield case, read_outcome(here, status)
            shutil.rmtree(here, ignore_errors=True)
        for handle, (_, _, began) in running.items():
            if time.monotonic() - began > WALL:
                os.kill(pids[handle], signal.SIGKILL)


def read_outcome(here: Path, status: int) -> Outcome:
    if (here / "broken").exists():
        raise RuntimeError(f"the case itself failed: {(here / 'broken').read_text()}")
    if os.WIFSIGNALED(status) or not (here / "outcome.json").exists():
        err = (here / "stderr").read_text(errors="replace") if (here / "stderr").exists() else ""
        return Outcome(died=os.WTERMSIG(status) if os.WIFSIGNALED(status) else -1, err=err)
    return Outcome(**json.loads((here / "outcome.json").read_text(encoding="utf-8")))


# What an outcome means

def classify(case: Case, outcome: Outcome, reference: str | None) -> str:
    """line, same and answer are right; traceback, hang, memory, crash, silent and unclear are findings."""
    if outcome.died:
        return "hang" if outcome.died in (signal.SIGXCPU, signal.SIGKILL) else "crash"
    if outcome.trace:
        return "traceback"
    if outcome.peak > MEMORY:
        return "memory"
    if outcome.code != 0:
        return _line(case, outcome)
    if case.refused:
        return "silent"
    if case.strict:
        return "same" if comparable(outcome.out) == reference else "silent"
    return "same" if reference is not None and comparable(outcome.out) == reference else "answer"


def _line(case: Case, outcome: Outcome) -> str:
    lines = [line for line in outcome.err.splitlines() if line.startswith("chainrule")]
    if "Traceback" in outcome.err or len(lines) != 1 or len(lines[0]) > LONGEST:
        return "unclear"
    if "out of memory" in lines[0] and case.what not in ("setting", "option", "resealed"):
        return "memory"
    return "line"


CHANGING = ("seconds", "tokens_per_second", "signature", "out", "elapsed", "minutes", "train_seconds")


def comparable(out: str) -> str:
    """The answer without what differs between two runs of the same command: times."""
    try:
        answer = json.loads(out)
    except ValueError:
        return out
    if not isinstance(answer, dict):
        return out
    return json.dumps({name: value for name, value in answer.items() if name not in CHANGING}, sort_keys=True)


# The material

def build(material: Path, runs: Sequence[Trained]) -> None:
    """Data, runs, and files of other formats. Training starts threads, so this is done in a process of its own."""
    def work() -> None:
        write_data(material / "data")
        for run in runs:
            _must(run_words([[*run.train_words, "--out", f"runs/{run.name}"]], material), run.name)
        for words in exports([run.name for run in runs]):
            _must(run_words([words], material), " ".join(words))
        (material / "complete").touch()

    in_child(work)


def _must(outcome: Outcome, what: str) -> None:
    if outcome.code != 0:
        raise RuntimeError(f"{what} failed: {outcome.err[-500:]} {outcome.trace[-1500:]}")


def in_child(work: Any) -> None:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    if os.waitpid(pid, 0)[1] != 0:
        raise SystemExit("the material could not be made")


def references(material: Path, folder: Path, cases: Sequence[Case], workers: int) -> dict[str, str]:
    """The answers of all commands on unchanged copies."""
    wanted = {_key(case.words): case for case in cases if case.what not in ("setting", "option")}
    whole = [Case(number, case.what, "unchanged", case.words) for number, case in enumerate(wanted.values())]
    found = {}
    for case, outcome in run_cases(iter(whole), material, folder, workers):
        if outcome.code != 0:
            raise SystemExit(f"unchanged, {case.words} failed: {outcome.err[-800:]}{outcome.trace[-2000:]}")
        found[_key(case.words)] = comparable(outcome.out)
    return found


def _key(words: Sequence[Sequence[str]]) -> str:
    return json.dumps([list(some) for some in words])


def warm_up() -> None:
    """Imports what commands import, so that no case pays for it; but nothing that starts threads."""
    import chainrule.commands.compare
    import chainrule.commands.convert
    import chainrule.commands.query
    import chainrule.commands.show
    import chainrule.commands.train
    import chainrule.commands.words
    import chainrule.models
    import chainrule.tasks

    for kind in SMALL:
        chainrule.models.model_class(kind)
    for task in chainrule.tasks.TASKS:
        chainrule.tasks.find_task(task)


def mangle(
    material: Path, folder: Path, runs: Sequence[Trained], numbers: Sequence[int], seed: int, workers: int,
    seconds: float,
) -> Iterator[tuple[Case, Outcome, str]]:
    files: Sequence[Reading] = readings([run.name for run in runs], material / "data")
    cases = [make_case(number, seed, runs, files) for number in numbers]
    known = references(material, folder / "whole", cases, workers)
    ends = time.monotonic() + seconds
    begun = itertools.takewhile(lambda _: time.monotonic() < ends, cases)
    for case, outcome in run_cases(begun, material, folder / "cases", workers):
        yield case, outcome, classify(case, outcome, known.get(_key(case.words)))


def report(case: Case, outcome: Outcome, found: str) -> Mapping[str, Any]:
    last = (outcome.trace or outcome.err).strip().splitlines()
    return {"case": case.number, "found": found, "what": case.what, "about": case.about,
            "words": [" ".join(words)[:300] for words in case.words], "last": last[-1][:400] if last else "",
            "died": outcome.died, "megabytes": round(outcome.peak / 2**20), "seconds": round(outcome.seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=math.inf, help="no case begins after these")
    parser.add_argument("--only", type=int, nargs="+", help="only these cases, and the whole traceback of each")
    parser.add_argument("--runs", nargs="+", metavar="NAME", help="only these runs (default: all kinds and tasks)")
    parser.add_argument("--keep", type=Path, help="folder of the runs and files, to be used again")
    args = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    import torch

    torch.set_num_threads(1)
    torch.zeros(1 << 20)        # its allocator reserves 1 GB of addresses with the first tensor
    warm_up()
    runs = [run for run in all_runs() if args.runs is None or run.name in args.runs]
    with tempfile.TemporaryDirectory(prefix="mangle") as name:
        folder, material = Path(name), (args.keep or Path(name) / "material").absolute()
        if not (material / "complete").exists():
            shutil.rmtree(material, ignore_errors=True)
            build(material, runs)
        counts: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        began = time.monotonic()
        for case, outcome, found in mangle(material, folder, runs, args.only or range(args.cases), args.seed,
                                           args.workers, args.seconds):
            counts[found] += 1
            kinds[case.what] += 1
            if kinds.total() % 500 == 0:
                print(json.dumps({"done": kinds.total(), "found": dict(counts)}), flush=True)
            if found not in GOOD or args.only:
                print(json.dumps(report(case, outcome, found)), flush=True)
                if args.only:
                    print(outcome.trace, outcome.err[-3000:], outcome.out[-500:], sep="\n", flush=True)
    right = sum(counts[name] for name in GOOD)
    print(json.dumps({"cases": sum(counts.values()), "right": right, "seed": args.seed, "found": dict(counts),
                      "of": dict(kinds), "minutes": round((time.monotonic() - began) / 60, 1)}))


if __name__ == "__main__":
    main()
