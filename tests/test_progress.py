import io
import sys
from types import SimpleNamespace

import pytest

from chainrule import progress
from chainrule.progress import bar, say, set_quiet, short, track


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def _not_quiet():
    set_quiet(False)
    yield
    set_quiet(False)


def test_short_work_prints_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with bar("counting", 100, "tokens") as advance:
        clock.now += 1.9
        advance(100)
    assert capsys.readouterr() == ("", "")


def test_long_work_says_a_line_now_and_then_on_stderr(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with bar("counting", 4000, "tokens") as advance:
        for _ in range(40):
            clock.now += 0.5
            advance(100, note="2 nats")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "counting: 10 % 400 tokens, 200 tokens/s, 18 s left, 2 nats",
        "counting: 60 % 2.4k tokens, 200 tokens/s, 8 s left, 2 nats",
    ]


def test_work_without_a_known_end_has_no_share(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with bar("reading", unit="bytes") as advance:
        clock.now += 4
        advance(8e9)
    assert capsys.readouterr().err == "reading: 8.0G bytes, 2.0G bytes/s\n"


def test_quiet_is_quiet(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    set_quiet(True)
    say("a line")
    with bar("counting", 10) as advance:
        clock.now += 60
        advance(10)
    assert capsys.readouterr() == ("", "")


def test_a_line_for_a_person_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    say("the last tenth is held out")
    assert capsys.readouterr() == ("", "the last tenth is held out\n")


def test_tracking_gives_every_item_and_counts_it(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    for item in track("abc", "reading", total=3):
        seen.append(item)
        clock.now += 1.5
    assert seen == ["a", "b", "c"]
    assert capsys.readouterr().err.startswith("reading: 67 % 2 steps")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_that_goes_away(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    with bar("counting", 10, "tokens") as advance:
        clock.now += 3
        advance(5, note="2 nats")
        clock.now += 1
        advance(5)
    assert "counting" in terminal.getvalue()
    assert terminal.getvalue().count("\n") < 20
    assert "\x1b[2K" in terminal.getvalue()


def test_of_bars_within_bars_a_terminal_shows_the_first(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    for _ in range(2):
        with bar("training", 10, "tokens") as advance:
            clock.now += 3
            advance(5)
            with bar("scoring", 10, "tokens") as further:
                clock.now += 3
                further(5)
    assert terminal.getvalue().count("training") >= 2
    assert "scoring" not in terminal.getvalue()


class Cell:
    """What IPython's `display` returns: a place under the cell whose content can be replaced."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> "Cell":
        assert raw
        assert display_id
        self.shown.append(data["text/plain"])
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        self.shown.append(data["text/plain"])


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell, shell = Cell(), SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=cell.display))
    return cell


def test_a_notebook_shows_one_line_that_changes(
    clock: Clock, cell: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    with bar("training", 100, "steps") as advance:
        for _ in range(12):
            clock.now += 0.25
            advance(1, note="2 nats")
        with bar("scoring", 10) as further:
            clock.now += 3
            further(5)
        advance(88)
    assert capsys.readouterr() == ("", "")
    assert cell.shown[0] == "training: 8 % 8 steps, 4 steps/s, 23 s left, 2 nats"
    assert cell.shown[-1].startswith("training: 100 % 100 steps")
    assert 3 <= len(cell.shown) <= 6


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not progress.in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert not progress.in_notebook()


@pytest.mark.parametrize(
    ("number", "wanted"), [(0, "0"), (999, "999"), (1234, "1.2k"), (1_234_567, "1.2M"), (2e9, "2.0G"), (-5e6, "-5.0M")]
)
def test_large_numbers_are_short(number: float, wanted: str) -> None:
    assert short(number) == wanted
