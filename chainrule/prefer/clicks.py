"""The file of clicks: pairs that TRL reads, and beside them a journal of every click, from which no line is removed.

    pairs.jsonl           {"prompt", "chosen", "rejected", …}, one line for each choice that stands
    pairs.clicks.jsonl    every event in order: choices, ties, skips, withdrawals, prompts that were typed

An event is written to the journal and then to the pairs, and both are on disk (fsync) before it counts as saved. If a
process dies between the two, the next one completes the pairs from the journal. A lock on the journal (flock) lets one
process write at a time. A pair that is withdrawn is overwritten with spaces where it stands, and readers of JSON lines
skip a blank line: the file stays the same file, so a program that appends to it, with the lock or without, loses no
line. What a crashed process left of a line is kept in the journal and blanked in the same way.
"""

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from chainrule.errors import NO_SPACE, UserError
from chainrule.files import sync
from chainrule.progress import say

Event: TypeAlias = dict[str, Any]
"""`event` (what it is), `id` (the same when a page sends it again), `rater`, `time`, and what that event has."""

FIELDS = ("prompt", "chosen", "rejected")    # of a pair, as TRL names them
PATIENCE = 0.2                               # seconds for another program to complete a line that has no end yet


class ClickFile:
    """Appends events, and knows all that were appended, by this process and by others."""

    def __init__(self, path: Path):
        self.pairs, self.journal = path, path.with_name(f"{path.stem}.clicks{path.suffix or '.jsonl'}")
        self.events: list[Event] = []
        self._known: set[str] = set()        # ids of events
        self._withdrawn: set[str] = set()    # ids of clicks
        self._written: set[str] = set()      # ids of clicks in the file of pairs
        self._journal_read = self._pairs_read = 0
        self._threads = threading.Lock()
        require_pairs(path)
        with self._locked() as journal:
            self._settle(journal)

    def add(self, event: Event) -> None:
        """Returns when the event is on disk. An event that is there already is not written twice."""
        with self._locked() as journal:
            if event["id"] not in self._known:
                journal.append(event)
                self._read_journal(journal)
            self._settle(journal)

    def refresh(self) -> None:
        """Reads what other processes have added."""
        with self._locked():
            pass

    def standing(self) -> list[Event]:
        """Events that were not withdrawn, without the withdrawals."""
        return [event for event in self.events if event["event"] != "undo" and event["id"] not in self._withdrawn]

    @contextmanager
    def _locked(self) -> Iterator["LineFile"]:
        """The journal, locked, with all of it read."""
        with self._threads, LineFile.open(self.journal) as journal:
            journal.lock()
            self._set_aside(journal, journal)
            self._read_journal(journal)
            yield journal

    def _read_journal(self, journal: "LineFile") -> None:
        new, self._journal_read = journal.objects(self._journal_read)
        for event in new:
            self.events.append(event)
            self._known.add(event["id"])
            if event["event"] == "undo":
                self._withdrawn.add(event["of"])

    def _settle(self, journal: "LineFile") -> None:
        """Makes the pairs what the journal says."""
        with LineFile.open(self.pairs) as pairs:
            if pairs.size < self._pairs_read:                   # another program has replaced the file
                self._written, self._pairs_read = set(), 0
            pairs.wait_for_line()
            self._set_aside(pairs, journal)
            new, self._pairs_read = pairs.objects(self._pairs_read)
            self._written |= {str(pair.get("click")) for pair in new}
            for event in self.events:
                if event["event"] != "choice" or event.get("compares"):
                    continue
                withdrawn, written = event["id"] in self._withdrawn, event["id"] in self._written
                if withdrawn and written:
                    pairs.blank(event["id"])
                    self._written.discard(event["id"])
                elif not withdrawn and not written:
                    pairs.append(pair_of(event))

    def _set_aside(self, file: "LineFile", journal: "LineFile") -> None:
        """Where the last line is not whole: what a crashed process left of it goes to the journal."""
        torn = file.torn_end()
        if as_object(torn) is not None:                         # only its end is missing
            file.write(b"\n")
        elif torn.strip():
            place = file.size - len(torn)
            if file is journal:
                journal.write(b"\n")
            journal.append(torn_event(file.path, torn))         # first, so that it is never lost
            file.overwrite(place, b" " * len(torn))
            say(f"{file.path} ended in a part of a line, which is kept in {journal.path}.")


def pair_of(event: Event) -> dict[str, Any]:
    """The line of a choice in the file of pairs. Each column has one type in all lines, as `datasets` needs it."""
    chosen, rejected = event["chosen"], 1 - event["chosen"]
    as_answer = (lambda text: text) if isinstance(event["prompt"], str) else assistant_message
    return {
        "prompt": event["prompt"],
        "chosen": as_answer(event["answers"][chosen]),
        "rejected": as_answer(event["answers"][rejected]),
        "rater": event["rater"],
        "time": event["time"],
        "seed": event["seed"],
        "position": "left" if chosen == event["left"] else "right",    # of the chosen answer on the page
        "chosen_ended": event["ended"][chosen],                          # False: cut at the limit of tokens
        "rejected_ended": event["ended"][rejected],
        "click": event["id"],
        "pair": event["pair"],
        **event["source"],
    }


def assistant_message(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def require_pairs(path: Path) -> None:
    """Refuses a file that is not one of pairs, before anything is written. Its last line may be torn."""
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; name the file to write, as in {path / 'pairs.jsonl'}.")
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise UserError(f"--out {path} cannot be read: {error.strerror}.") from error
    for number, line in enumerate(lines, 1):
        pair = as_object(line)
        if line.strip() and (pair is None or not set(FIELDS) <= pair.keys()) and number < len(lines):
            raise UserError(f"{path}, line {number} is not a pair, which is a JSON object with {', '.join(FIELDS)}. "
                            "Choose another --out, or correct the line.")


def as_object(line: bytes) -> Event | None:
    """None: the line is not a whole JSON object."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def torn_event(file: Path, torn: bytes) -> Event:
    return {"event": "torn", "id": os.urandom(8).hex(), "rater": "", "time": round(time.time(), 3), "file": file.name,
            "text": torn.decode("utf-8", "backslashreplace")}


# Lines on disk


@dataclass(frozen=True)
class LineFile:
    """An open file of lines, to read and to append to."""

    path: Path
    handle: int

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["LineFile"]:
        """It is made, with its folder, where it does not exist."""
        try:
            new = not path.exists()
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
            raise UserError(f"{path} cannot be written: {error.strerror}. Choose another --out.") from error
        try:
            if new:
                sync(path.parent)
            yield cls(path, handle)
        finally:
            os.close(handle)                    # releases its lock

    @property
    def size(self) -> int:
        return os.fstat(self.handle).st_size

    def lock(self) -> None:
        with suppress(OSError):                 # some network file systems have no locks
            fcntl.flock(self.handle, fcntl.LOCK_EX)

    def append(self, value: Mapping[str, Any]) -> None:
        """Writes a line, and returns when it is on disk. Where that fails, spaces are left of it."""
        line = (json.dumps(value, allow_nan=False) + "\n").encode()
        before = self.size
        try:
            self.write(line)
            os.fsync(self.handle)
        except OSError:
            if (left := self.size - before) > 0:
                with suppress(OSError):
                    self.overwrite(before, b" " * min(left, len(line) - 1))
            raise

    def write(self, data: bytes) -> None:
        """At the end of the file, wherever other programs have moved it (O_APPEND)."""
        while data:
            data = data[os.write(self.handle, data) :]

    def overwrite(self, place: int, data: bytes) -> None:
        with self.path.open("r+b", buffering=0) as file:    # the other handle can only append
            file.seek(place)
            file.write(data)
            os.fsync(file.fileno())

    def blank(self, click: str) -> None:
        """Overwrites the line of a click with spaces."""
        place = 0
        for line in self.read().split(b"\n"):
            pair = as_object(line)
            if pair is not None and pair.get("click") == click:
                self.overwrite(place, b" " * len(line))
            place += len(line) + 1

    def read(self, begin: int = 0) -> bytes:
        return os.pread(self.handle, max(0, self.size - begin), begin)

    def objects(self, begin: int) -> tuple[list[Event], int]:
        """The values of whole lines from a place on, and the place after them."""
        data = self.read(begin)
        end = data.rfind(b"\n") + 1
        return [value for line in data[:end].split(b"\n") if (value := as_object(line)) is not None], begin + end

    def torn_end(self) -> bytes:
        """What follows the last end of a line."""
        if self.size == 0 or os.pread(self.handle, 1, self.size - 1) == b"\n":
            return b""
        data = self.read()
        return data[data.rfind(b"\n") + 1 :]

    def wait_for_line(self) -> None:
        """Gives a program that is writing a line the time to complete it."""
        until = time.monotonic() + PATIENCE
        while (torn := self.torn_end().strip()) and as_object(torn) is None and time.monotonic() < until:
            time.sleep(PATIENCE / 10)
