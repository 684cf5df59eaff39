"""Lesson pages: code shown from the source, outputs of commands, figures and pages, all made by running the lesson.

    python website/lessons.py refresh          copies the functions that a lesson shows from the source again
    python website/lessons.py run [NAME]       runs a lesson's commands, writes their outputs, figures and pages
    python website/lessons.py pages FOLDER     runs every lesson and writes only its pages, for the site

A lesson is a Markdown file. `<!-- source: FILE NAME -->` before a Python block names the function that the block shows.
A console block has commands after `$` and what they print. A command that writes NAME.html makes a page, whose
picture is figures/NAME.png; one that writes NAME.svg makes figures/NAME.svg.
"""

import argparse
import ast
import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[1]
LESSONS = ROOT / "docs" / "lessons"
MARGIN = 12     # pixels around a picture
TEXTS, FIGURES = LESSONS / "texts", LESSONS / "figures"

BLOCKS = re.DOTALL | re.MULTILINE
SOURCE = re.compile(r"<!-- source: (?P<file>\S+) (?P<name>\S+) -->\n```python\n.*?^```", BLOCKS)
CONSOLE = re.compile(r"(?P<exact><!-- exact -->\n)?```console\n(?P<body>.*?)^```", BLOCKS)


@dataclass(frozen=True)
class Command:
    line: str       # as it is written, with line breaks
    printed: str    # what the page says that it prints
    exact: bool     # whether it prints the same on every machine

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line.replace("\\\n", " "))


def lessons() -> list[Path]:
    return sorted(LESSONS.glob("[0-9]*.md"))


def pages() -> list[Path]:
    """The lessons, and the page on preferences, which has commands like theirs."""
    return [*lessons(), ROOT / "docs" / "training" / "preferences.md"]


# ------------------------------------------------------------------------------------------------ code from the source


def source_of(file: str, name: str) -> str:
    """The source of a function or class of the package, by its dotted name, without its outer indentation."""
    text = (ROOT / file).read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        node = next(child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part)
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    lines = text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
    return dedent("".join(lines))


def refreshed(text: str) -> str:
    """The lesson, with every shown function as it is in the source now."""

    def replace(match: re.Match[str]) -> str:
        file, name = match["file"], match["name"]
        return f"<!-- source: {file} {name} -->\n```python\n{source_of(file, name)}```"

    return SOURCE.sub(replace, text)


# ------------------------------------------------------------------------------------------------------------ commands


def commands(text: str) -> list[Command]:
    return [command for block in CONSOLE.finditer(text) for command in _of_block(block)]


def _of_block(block: re.Match[str]) -> Iterator[Command]:
    parts = re.split(r"^\$ ", block["body"], flags=re.MULTILINE)[1:]
    for part in parts:
        line, _, printed = re.sub(r"\\\n", "\\\0", part).partition("\n")
        yield Command(line.replace("\0", "\n"), printed, bool(block["exact"]))


def run_command(command: Command) -> str:
    """What the command prints to standard output, run in this process."""
    from chainrule.cli import main

    words, out = command.words, io.StringIO()
    assert words[0] == "chainrule", f"a lesson runs only chainrule: {command.line}"
    with contextlib.redirect_stdout(out):
        code = main(words[1:])
    assert code == 0, f"{command.line} ended with {code}"
    return out.getvalue()


@contextlib.contextmanager
def desk() -> Iterator[Path]:
    """A temporary folder with the lessons' data, as the current one."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="chainrule-lesson-") as folder:
        shutil.copytree(TEXTS, folder, dirs_exist_ok=True)
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def with_outputs(text: str) -> str:
    """The lesson, with what its commands print here and now."""

    def replace(block: re.Match[str]) -> str:
        shown = []
        for command in _of_block(block):
            print(f"$ {command.line}", file=sys.stderr)
            printed = run_command(command)
            shown.append(f"$ {command.line}\n" + (shorten(printed) if command.printed.strip() or printed else ""))
        return f"{block['exact'] or ''}```console\n{_separated(shown)}```"

    return CONSOLE.sub(replace, text)


def shorten(printed: str, most: int = 24) -> str:
    """At most so many lines of a long output."""
    lines = printed.rstrip("\n").split("\n")
    kept = lines if len(lines) <= most else [*lines[: most - 1], "…"]
    return "".join(f"{line.rstrip()}\n" for line in kept) if printed.strip() else ""


def _separated(shown: list[str]) -> str:
    """A blank line between an output and the next command."""
    *before, last = shown
    return "".join(part + "\n" * (part.count("\n") > 1) for part in before) + last


# ------------------------------------------------------------------------------------------------- figures and pages


def keep_figures(folder: Path) -> None:
    """Pictures of the pages that the lesson wrote, and its drawings."""
    FIGURES.mkdir(exist_ok=True)
    for drawing in folder.glob("*.svg"):
        shutil.copy(drawing, FIGURES)
    pages = sorted(folder.glob("*.html"))
    if pages:
        photograph(pages)


def photograph(pages: list[Path]) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for page in pages:
            tab = browser.new_page(viewport={"width": 1400, "height": 1000}, color_scheme="light")
            tab.goto(page.as_uri())
            tab.wait_for_timeout(1000)
            tab.add_style_tag(content=".top { visibility: hidden }")         # it would be in the margin
            box = tab.locator("section").first.bounding_box()
            assert box is not None
            area = {"x": box["x"] - MARGIN, "y": box["y"] - MARGIN,
                    "width": box["width"] + 2 * MARGIN, "height": box["height"] + 2 * MARGIN}
            tab.screenshot(path=FIGURES / f"{page.stem}.png", clip=area, full_page=True)
            tab.close()
        browser.close()


def run(path: Path) -> None:
    with desk() as folder:
        text = with_outputs(refreshed(path.read_text(encoding="utf-8")))
        keep_figures(folder)
    path.write_text(text, encoding="utf-8")


def write_pages(target: Path) -> None:
    """The pages that the lessons' commands write, for the site to embed."""
    target = target.resolve()
    target.mkdir(parents=True, exist_ok=True)
    for path in lessons():
        with desk() as folder:
            for command in commands(path.read_text(encoding="utf-8")):
                print(f"$ {command.line}", file=sys.stderr)
                run_command(command)
            for page in folder.glob("*.html"):
                shutil.copy(page, target)


def main() -> None:
    parser = argparse.ArgumentParser(description="lesson pages: code, outputs, figures")
    parser.add_argument("what", choices=["refresh", "run", "pages"])
    parser.add_argument("name", nargs="?", help="run: part of a lesson's file name; pages: a folder")
    given = parser.parse_args()
    if given.what == "pages":
        return write_pages(Path(given.name))
    for path in pages():
        if given.name is None or given.name in path.name:
            if given.what == "run":
                run(path)
            else:
                path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
