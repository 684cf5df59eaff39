"""Progress bars on stderr: live in a terminal, a line that changes in a notebook, a plain line now and then elsewhere.

A bar appears only after two seconds, so short work prints no output.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")

PATIENCE = 2.0    # seconds before a bar appears
INTERVAL = 10.0   # seconds between plain lines
REDRAW = 0.5      # seconds between changes of a notebook's line

_quiet = False


def set_quiet(quiet: bool) -> None:
    global _quiet
    _quiet = quiet


def speaks() -> bool:
    """Whether this process prints: of those that torchrun starts, only the first does."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0"


def say(line: str) -> None:
    """One line for a person, on stderr."""
    if not _quiet and speaks():
        print(line, file=sys.stderr, flush=True)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook (Jupyter, Colab)."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class Bar:
    """Work under way: `advance(amount, note)` as it proceeds. Of nested bars only the outermost is shown live."""

    shown: ClassVar["Bar | None"] = None

    def __init__(self, title: str, total: float | None, unit: str):
        self.title, self.total, self.unit = title, total, unit
        self.done, self.note = 0.0, ""
        self.began = time.monotonic()
        self._last_line = self.began + PATIENCE - INTERVAL
        self._live: Any = None    # rich's bar, in a terminal
        self._cell: Any = None    # IPython's handle of the line, in a notebook

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.done += amount
        self.note = note or self.note
        now = time.monotonic()
        if _quiet or now - self.began < PATIENCE or not speaks():
            return
        if Bar.shown not in (None, self):
            return
        if sys.stderr.isatty():
            self._draw()
        elif in_notebook():
            self._display(now)
        elif now - self._last_line >= INTERVAL:
            self._last_line = now
            print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        seconds = max(time.monotonic() - self.began, 1e-9)
        rate = self.done / seconds
        share = f" {100 * self.done / self.total:.0f} %" if self.total else ""
        left = f", {(self.total - self.done) / rate:.0f} s left" if self.total and rate else ""
        note = f", {self.note}" if self.note else ""
        return f"{self.title}:{share} {short(self.done)} {self.unit}, {short(rate)} {self.unit}/s{left}{note}"

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        if self._cell is not None:
            self._cell.update({"text/plain": self.line()}, raw=True)
        if Bar.shown is self:
            Bar.shown = None

    def _display(self, now: float) -> None:
        """In a notebook: a line under the cell, which changes in place."""
        if self._cell is None:
            from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

            self._cell = display({"text/plain": self.line()}, raw=True, display_id=True)
            Bar.shown = self
        elif now - self._last_line >= REDRAW:
            self._cell.update({"text/plain": self.line()}, raw=True)
        else:
            return
        self._last_line = now

    def _draw(self) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            words = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}")
            self._live = Progress(*words, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self._task = self._live.add_task(self.title, total=self.total, line="")
            self._live.start()
            Bar.shown = self
        rate = self.done / max(time.monotonic() - self.began, 1e-9)
        line = f"{short(rate)} {self.unit}/s {self.note}"
        self._live.update(self._task, completed=self.done, line=line)


@contextmanager
def bar(title: str, total: float | None = None, unit: str = "steps") -> Iterator[Callable[..., None]]:
    """`with bar("counting", total, "tokens") as advance: … advance(amount, note="…")`"""
    shown = Bar(title, total, unit)
    try:
        yield shown.advance
    finally:
        shown.close()


def track(items: Iterable[T], title: str, total: float | None = None, unit: str = "steps") -> Iterator[T]:
    with bar(title, total, unit) as advance:
        for item in items:
            yield item
            advance()


def short(number: float) -> str:
    """1234567 -> 1.2M"""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= scale:
            return f"{number / scale:.1f}{letter}"
    return f"{number:.0f}"
