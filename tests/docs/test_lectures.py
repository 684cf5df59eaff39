"""docs/lectures.md: every command of the page runs, in one folder, and prints what the page says."""

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from chainrule.cli import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "lectures.md"
TEXTS = ROOT / "docs" / "lessons" / "texts"
LECTURES = ("0", "1", "2", "3", "4")
CODE = re.compile(r"`([^`]+)`")
NOT_YET = "not yet"
MISSING = 1                      # items without a command


@dataclass(frozen=True)
class Row:
    lecture: str
    item: str
    commands: tuple[str, ...]     # `chainrule …`, or a line of Python
    fragments: tuple[str, ...]    # what they print, all of it


def page_rows():
    """The rows of the page's tables."""
    lecture, found = "", []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            lecture = line.removeprefix("## ").partition(":")[0]
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if line.startswith("|") and len(cells) == 3 and cells[0] != "item" and not cells[0].startswith("---"):
            found.append(Row(lecture, cells[0], tuple(CODE.findall(cells[1])), tuple(CODE.findall(cells[2]))))
    return found


def preparation():
    """The commands of the page's session, which make the runs that rows share."""
    block = re.search(r"^```console\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[1]
    return [line[2:] for line in block.replace("\\\n", " ").splitlines() if line.startswith("$ ")]


def run_command(command, names):
    """Does what a reader of the page would do; Python prints its value, as the interpreter would."""
    words = shlex.split(command)
    if words[0] == "chainrule":
        assert main(words[1:]) == 0, command
    else:
        *statements, last = command.split("; ")
        exec("; ".join(statements), names)
        try:
            value = eval(last, names)
        except SyntaxError:
            exec(last, names)
        else:
            print(value)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with the texts of the lessons, and the runs that the page makes first."""
    folder = tmp_path_factory.mktemp("lectures")
    shutil.copytree(TEXTS, folder, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("CHAINRULE_CACHE", str(folder / ".cache"))
        patch.setattr("chainrule.viewer.views.cost.SECONDS", 0.0)
        for command in preparation():
            run_command(command, {})
        yield folder


@pytest.mark.parametrize("lecture", LECTURES)
def test_every_command_of_a_lecture_runs_and_prints_what_the_page_says(lecture, desk, capsys):
    """In one test, since a row may use what a row before it has made."""
    wrong = []
    for row in page_rows():
        if row.lecture != lecture:
            continue
        capsys.readouterr()
        names = {}
        for command in row.commands:
            run_command(command, names)
        printed = "".join(capsys.readouterr())
        wrong += [(row.item, fragment, printed) for fragment in row.fragments if fragment not in printed]
    assert wrong == []


def test_every_row_of_the_lectures_has_a_command_and_a_result_or_says_that_it_has_none_yet():
    rows = page_rows()
    without = [row.item for row in rows if not row.commands]
    assert len(rows) == 127
    assert {row.lecture for row in rows} == set(LECTURES)
    assert [row.item for row in rows if row.commands and not row.fragments] == []
    assert len(without) <= MISSING
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(NOT_YET) >= len(without)


def test_no_two_rows_of_a_lecture_are_the_same():
    names = [(row.lecture, row.item) for row in page_rows()]
    assert len(names) == len(set(names))
