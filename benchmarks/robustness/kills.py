"""SIGKILL at random moments: the same command again must end as if it had never been killed, to the last bit.

    python benchmarks/robustness/kills.py [--trials 300] [--seed 1] [--cases lstm,compare …] [--seconds 3600]
    python benchmarks/robustness/kills.py --ranks 2 [--trials 20]    kills one of two ranks; torchrun's agent restarts

A trial is a command of kill_cases.py. It is killed once to three times, each time at a random moment: after some
seconds, or at the n-th place where it touches the disk: before a file is opened for writing, renamed, removed or
synced, and half-way through a write. Then it runs undisturbed. Everything that it leaves must be what an undisturbed
run leaves: every file of the run and of the cache (no temporary one among them), and of the log and of the results all
but the clock. Processes are forked from one that has imported torch and has one thread. JSON lines.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ["TOKENIZERS_PARALLELISM"] = "false"             # its threads could not be forked

import kill_cases
import safetensors.torch
import torch
from kill_cases import Case, every_case

from chainrule import cli, run
from chainrule.run import saving
from chainrule.training.step import Step

HANGS = 300.0                                              # seconds after which a command hangs
CLOCK = re.compile(r"time|elapsed|.*seconds.*|.*per_second.*|memory.*")    # what differs between two equal runs
PAGES = (".html",)                                         # they show such figures
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DISK = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.link"}


@dataclass(frozen=True)
class Kill:
    """When a process is killed: after so many seconds, or at the n-th place where it touches the disk."""

    seconds: float | None = None
    place: int | None = None
    rank: int = 0                                          # of several


@dataclass(frozen=True)
class Undisturbed:
    """What a command leaves, how long it takes, and how often it touches the disk."""

    left: dict[str, Any]
    seconds: float
    places: int


# In the process that is killed


class Places:
    """Counts the places where this process touches the disk, and kills it at the n-th."""

    def __init__(self, fatal: int | None):
        self.fatal, self.count = fatal, 0

    def reached(self, half: Callable[[], Any] | None = None) -> None:
        """`half`: what a process that is killed in the middle of this place has done of it."""
        self.count += 1
        if self.count == self.fatal:
            if half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """For the rest of this process's life."""
        fsync, write_bytes, write_text, save_file = os.fsync, Path.write_bytes, Path.write_text, saving.save_file

        def audit(event: str, words: tuple[Any, ...]) -> None:
            writes = event == "open" and isinstance(words[2], int) and words[2] & WRITES and words[0] != os.devnull
            if event in DISK or writes:
                self.reached()

        def synced(file: Any) -> None:
            self.reached()
            fsync(file)

        def bytes_written(path: Path, data: bytes) -> int:
            self.reached(lambda: write_bytes(path, data[: len(data) // 2]))
            return write_bytes(path, data)

        def text_written(path: Path, text: str, *words: Any, **more: Any) -> int:
            self.reached(lambda: write_text(path, text[: len(text) // 2], *words, **more))
            return write_text(path, text, *words, **more)

        def tensors_saved(tensors: Any, path: Path, facts: Any = None) -> None:
            def half() -> None:                            # safetensors writes to such a name and renames it
                data = safetensors.torch.save(tensors, facts)
                write_bytes(Path(path).parent / ".tmpkilled", data[: len(data) // 2])

            self.reached(half)
            save_file(tensors, path, facts)
            self.reached()

        sys.addaudithook(audit)
        for owner, name, watched in ((os, "fsync", synced), (Path, "write_bytes", bytes_written),
                                     (Path, "write_text", text_written), (saving, "save_file", tensors_saved)):
            setattr(owner, name, watched)


def run_command(words: Sequence[str], places: Places) -> int:
    """`chainrule WORDS` in this process."""
    places.watch()
    try:
        return cli.main(list(words))
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1


# In the process that forks


def warm_up(words: Sequence[str], folder: Path) -> None:
    """Runs a command in this process, so that those forked from it need not import anything. It starts no thread."""
    folder.mkdir()
    with chdir(folder), Path(os.devnull).open("w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        os.environ["CHAINRULE_CACHE"] = str(folder / "cache")
        cli.main(list(words))
    shutil.rmtree(folder)
    if len([*Path("/proc/self/task").iterdir()]) > 1:
        raise SystemExit(f"{' '.join(words)} left threads running, and a process with threads cannot be forked.")


def start(words: Sequence[str], folder: Path, kill: Kill | None, ranks: int = 1) -> tuple[int, float, int]:
    """A process that runs a command in `folder`. Its exit code (-9: killed), seconds, and places that it reached."""
    began, (reader, writer) = time.monotonic(), os.pipe()
    if not (process := os.fork()):
        _be_child(words, folder, kill, ranks, writer)
    os.close(writer)
    handle = os.pidfd_open(process)
    try:
        by_time = kill is not None and kill.seconds is not None and ranks == 1
        if not _ended(handle, kill.seconds if by_time and kill is not None else HANGS):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        seconds = time.monotonic() - began
        if code == -signal.SIGKILL and seconds > HANGS:
            raise SystemExit(f"{' '.join(words)} hangs: it did not end in {HANGS:.0f} s")
        return code, seconds, int(os.read(reader, 20) or 0)
    finally:
        os.close(handle)
        os.close(reader)


def _ended(handle: int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def _be_child(words: Sequence[str], folder: Path, kill: Kill | None, ranks: int, writer: int) -> None:
    """The end of it is that of the process: nothing of the parent is tidied up."""
    code = 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        os.environ["CHAINRULE_CACHE"] = str(folder / "cache")
        said = os.open(folder.with_suffix(".said"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, file in enumerate((nothing, said, said)):
            os.dup2(file, number)
        if ranks > 1:
            code = _launch(words, kill, ranks)
        else:
            places = Places(kill.place if kill else None)
            code = run_command(words, places)
            os.write(writer, str(places.count).encode())
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


# Several ranks: torchrun's agent starts them, notices that one has died, and starts all of them again


def _launch(words: Sequence[str], kill: Kill | None, ranks: int) -> int:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(1, 1, ranks, run_id="kills", rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0",
                          max_restarts=3, start_method="fork")
    try:
        ended: dict[int, int] = elastic_launch(config, _be_rank)(list(words), kill)
        return max(ended.values())
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1


def _be_rank(words: Sequence[str], kill: Kill | None) -> int:
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    mine = kill is not None and first and int(os.environ["RANK"]) == kill.rank
    if kill is not None and mine:
        Path("../victim").write_text("not yet")
        if kill.seconds is not None:
            timer = threading.Timer(kill.seconds, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
        else:
            _kill_in_step(kill.place or 1)
    code = cli.main(list(words))
    if mine:
        Path("../victim").write_text("missed")
    if code:
        sys.exit(code)
    return code


def _kill_in_step(number: int) -> None:
    take, calls = Step.take, iter(range(1, 1 << 30))

    def mortal(*words: Any) -> Any:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return take(*words)

    Step.take = mortal  # type: ignore[method-assign]


# What a command leaves


def left_in(folder: Path) -> dict[str, Any]:
    """Every file of a folder: its content without the clock."""
    return {str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*")) if path.is_file()
            } | {f"{path.relative_to(folder)}/": "a folder" for path in sorted(folder.rglob("*")) if path.is_dir()}


def _content(path: Path) -> Any:
    if path.name == run.LOG:
        return [_timeless(record) for record in run.read_log(path.parent) if record["event"] != "resume"]
    if path.name == "results.json":
        return _timeless(json.loads(path.read_text()))
    return "a page" if path.suffix in PAGES else hashlib.sha256(path.read_bytes()).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(one) for name, one in value.items() if not CLOCK.fullmatch(name)}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The files that differ, with what differs first."""
    lines = []
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            lines.append(f"{name} is {'left behind' if name not in one else 'missing'}")
        elif one[name] != other[name]:
            records = one[name], other[name]
            first = next((pair for pair in zip(*records) if pair[0] != pair[1]), tuple(map(len, records))) \
                if isinstance(one[name], list) else ""
            lines.append(f"{name} differs {first}")
    return lines


# Trials


class Trials:
    def __init__(self, folder: Path, cases: Sequence[Case], seed: int, ranks: int = 1):
        self.folder, self.cases, self.ranks = folder, cases, ranks
        self.random = random.Random(seed)
        self.now, self.data, self.base = folder / "now", folder / "data", folder / "base" / "out"
        self.undisturbed: dict[str, Undisturbed] = {}
        self.kills, self.where = 0, Counter[str]()

    def prepare(self) -> None:
        kill_cases.write_data(self.data)
        words = Case("base", kill_cases.BASE).command(self.data, self.base)
        self._must_end(words, self.base.parent, 1)

    def reference(self, case: Case) -> Undisturbed:
        if case.name not in self.undisturbed:
            words = case.command(self.data, self.base)
            if self.ranks == 1:
                warm_up(words, self.folder / "warm")
            self._clear()
            seconds, places = self._must_end(words, self.now, self.ranks)
            self.undisturbed[case.name] = Undisturbed(left_in(self.now), seconds, places)
        return self.undisturbed[case.name]

    def trial(self, case: Case) -> tuple[int, list[str]]:
        """Kills a command, and ends it: how often it was hit, and what differs from an undisturbed one."""
        aim, words = self.reference(case), case.command(self.data, self.base)
        self._clear()
        hits = 0
        for kill in self._kills(case, aim):
            code, _, _ = start(words, self.now, kill, self.ranks)
            hit = code == -signal.SIGKILL or self._victim() == "not yet"
            hits += hit
            if hit:
                self.where["seconds" if kill.seconds is not None else "place"] += 1
            if code not in (0, -signal.SIGKILL):
                return hits, [f"exit code {code} after {hits} kills: {self._said()}"]
        self.kills += hits
        if self.ranks == 1:                                # an agent has restarted the ranks itself
            code, _, _ = start(words, self.now, None)
            if code:
                return hits, [f"exit code {code} after {hits} kills: {self._said()}"]
        return hits, different(aim.left, left_in(self.now))

    def _kills(self, case: Case, aim: Undisturbed) -> Iterator[Kill]:
        if self.ranks > 1:
            rank, steps = self.random.randrange(self.ranks), self.random.randint(1, 6)
            by_time = self.random.random() < 0.5 or kill_cases.STEPS[0] not in case.words
            yield Kill(self.random.uniform(0, aim.seconds), rank=rank) if by_time else Kill(place=steps, rank=rank)
            return
        for _ in range(self.random.choice((1, 1, 2, 3))):
            if self.random.random() < 0.4:
                yield Kill(seconds=self.random.uniform(0, aim.seconds))
            else:
                yield Kill(place=self.random.randint(1, aim.places))

    def _victim(self) -> str:
        file = self.now.parent / "victim"
        said = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        return said

    def _said(self) -> str:
        lines = self.now.with_suffix(".said").read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-4:])

    def _clear(self) -> None:
        shutil.rmtree(self.now, ignore_errors=True)
        self.now.with_suffix(".said").unlink(missing_ok=True)

    def _must_end(self, words: Sequence[str], folder: Path, ranks: int) -> tuple[float, int]:
        code, seconds, places = start(words, folder, None, ranks)
        if code:
            raise SystemExit(f"chainrule {' '.join(words)}: exit code {code}: "
                             f"{folder.with_suffix('.said').read_text()[-3000:]}")
        return seconds, places


def run_trials(trials: Trials, number: int, seconds: float, say: Callable[..., None]) -> bool:
    """All cases in turn, for so many trials and so long; whether all ended as undisturbed.

    A trial in which every kill came too late is none.
    """
    began, good, done = time.monotonic(), 0, 0
    for case in itertools.cycle(trials.cases):
        if done >= number or time.monotonic() - began > seconds:
            break
        hits, problems = trials.trial(case)
        if not hits and not problems:
            continue
        done, good = done + 1, good + (not problems)
        if problems:
            say(trial=done, case=case.name, problems=problems[:6])
        if done % 50 == 0:
            say(done=done, equal=good, kills=trials.kills)
    say(trials=done, ended_bit_equal=good, kills=trials.kills, by=dict(trials.where), cases=len(trials.cases),
        seconds=round(time.monotonic() - began))
    return good == done


def say_line(**facts: Any) -> None:
    print(json.dumps(facts, default=str), flush=True)


def chosen(names: str | None, ranks: int) -> list[Case]:
    every = every_case()
    if names is not None:
        for name in names.split(","):
            if name not in every:
                raise SystemExit(f"--cases {name}: there is no such case. There are: {', '.join(every)}.")
        return [every[name] for name in names.split(",")]
    return [case for case in every.values() if ranks == 1 or case.ranks]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", help="names of cases, separated by commas; default: all")
    parser.add_argument("--seconds", type=float, default=3600.0, help="no trial begins after these")
    parser.add_argument("--ranks", type=int, default=1, help="2: one of two ranks is killed in each trial")
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(Path(folder), chosen(args.cases, args.ranks), args.seed, args.ranks)
        trials.prepare()
        good = run_trials(trials, args.trials, args.seconds, say_line)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
