"""The lessons are true: their code is the source's, commands run, pictures and links exist, and the site builds."""

import importlib.util
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load(name):
    spec = importlib.util.spec_from_file_location(f"website_{name}", ROOT / "website" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


lessons, toy_texts = load("lessons"), load("toy_texts")
PAGES = lessons.lessons()


def brief(command):
    """The command with a smaller budget of training; `python website/lessons.py run` runs it as it is."""
    small = {"train.steps": "3", "train.epochs": "3"}
    words = [f"{name}={small[name]}" if (name := word.partition("=")[0]) in small else word for word in command.words]
    return replace(command, line=shlex.join(words))


def test_there_is_a_lesson_for_each_lecture():
    assert [path.name[0] for path in PAGES] == list("123456")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_code_of_a_lesson_is_that_of_the_source(path):
    text = path.read_text(encoding="utf-8")
    assert lessons.SOURCE.search(text), "a lesson shows code"
    assert lessons.refreshed(text) == text, "run: python website/lessons.py refresh"


def test_code_that_is_not_the_source_is_noticed():
    text = PAGES[0].read_text(encoding="utf-8")
    assert lessons.refreshed(text.replace("counts = evidence.order.counts", "counts = evidence.order.contexts")) == text


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_commands_of_a_lesson_run(path, monkeypatch, tmp_path):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path))
    with lessons.desk() as folder:
        for command in lessons.commands(path.read_text(encoding="utf-8")):
            printed = lessons.run_command(brief(command))
            assert bool(printed.strip()) == bool(command.printed.strip()), command.line
            if command.exact:
                assert lessons.shorten(printed).split() == command.printed.split(), command.line
        made = {page.stem for page in folder.glob("*.html")}
    shown = set(re.findall(r"\(figures/([\w-]+)\.png\)", path.read_text(encoding="utf-8")))
    assert shown == made, "each picture is that of a page which a command writes"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_lesson_has_three_questions_and_exercises_that_exist(path):
    text = path.read_text(encoding="utf-8")
    questions = text.partition("## Three questions")[2].partition("## ")[0]
    assert re.findall(r"^(\d)\. \*\*.+?\?\*\*", questions, re.MULTILINE) == ["1", "2", "3"]
    folder = re.search(r"chainrule exercise (\w+) my-folder", text)[1]
    assert (ROOT / "chainrule" / "exercises" / folder).is_dir()


def test_the_commands_of_the_page_on_preferences_run_and_its_code_is_the_source(monkeypatch, tmp_path):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path))
    text = lessons.pages()[-1].read_text(encoding="utf-8")
    assert lessons.refreshed(text) == text, "run: python website/lessons.py refresh"
    with lessons.desk():
        for command in lessons.commands(text):
            assert lessons.run_command(brief(command)).strip(), command.line


def test_links_and_pictures_of_the_lessons_exist():
    for path in [*lessons.pages(), lessons.LESSONS / "index.md"]:
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (path.parent / link).exists(), f"{path.name}: {link}"


@pytest.mark.parametrize("name", toy_texts.TEXTS)
def test_a_text_of_the_lessons_is_what_its_rules_make(name):
    assert (lessons.TEXTS / name).read_text(encoding="utf-8") == toy_texts.TEXTS[name]()


def test_every_page_is_in_the_navigation_of_the_site():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f" {page}\n" not in navigation] == []


def test_the_site_builds_without_a_broken_link(tmp_path):
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    build = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    page = (tmp_path / "site" / "lessons" / "1-ngrams-and-hmm" / "index.html").read_text(encoding="utf-8")
    assert "maximum_likelihood" in page
    assert not re.search(r'(src|href)="https?://(fonts|cdn|unpkg)', page), "the site loads something from elsewhere"
