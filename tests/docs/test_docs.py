"""What the pages say is true: their code runs, their sessions run, and the new kind of the guide keeps the laws."""

import json
import re
import shlex
import sys
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from io import StringIO
from pathlib import Path

import pytest
import torch
from contract import test_laws as laws
from contract.cases import Case

from chainrule import models, tasks
from chainrule.cli import COMMANDS, main
from chainrule.formats.hand_written import built_in_models, read_hand_written
from chainrule.models.published import PUBLISHED
from chainrule.text.generated import EXAMPLE_SETS

ROOT = Path(__file__).parents[2]
BOOK = "the cat saw the dog. the dog saw the cat.\nThe cow eats grass, and the cow eats corn.\n" * 30

REVIEWS = "sentence\tlabel\n" + "a fine film\tgood\na dull film\tbad\na fine play\tgood\na dull play\tbad\n" * 8


def blocks(page, language):
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(page):
    """The chainrule commands of a page's sessions."""
    lines = "".join(blocks(page, "console")).replace("\\\n", " ").splitlines()
    return [shlex.split(line[2:]) for line in lines if line.startswith("$ chainrule")]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    for name in ("book.txt", "held-out.txt"):
        (tmp_path / name).write_text(BOOK)
    for name in ("reviews.tsv", "more.tsv"):
        (tmp_path / name).write_text(REVIEWS)
    (tmp_path / "lines.txt").write_text("a fine film\na dull play\n")
    return tmp_path


def import_source(monkeypatch, name, path, source):
    """The code of a page as a module of the package, until the test is over."""
    path.write_text(source)
    spec = spec_from_file_location(name, path)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)


@pytest.fixture
def hashed(desk, monkeypatch):
    """The guide followed to the letter: its file, its line, its check, its case."""
    file, line, check, case = blocks("docs/inside/adding-a-model.md", "python")
    name, path = "chainrule.models.hashed", desk / "hashed.py"
    import_source(monkeypatch, name, path, file)
    monkeypatch.setattr(models, "KINDS", {**models.KINDS, **eval("{" + line + "}", {"Kind": models.Kind})})
    exec(compile(check, "docs/inside/adding-a-model.md", "exec"), {})
    return eval(case.rstrip(",\n"), {"Case": Case})


@pytest.fixture
def rate(desk, monkeypatch):
    """The guide to tasks followed to the letter: its file and its line."""
    file, line = blocks("docs/inside/adding-a-task.md", "python")
    name, path = "chainrule.tasks.rate", desk / "rate.py"
    import_source(monkeypatch, name, path, file)
    monkeypatch.setattr(tasks, "TASKS", {**tasks.TASKS, **eval("{" + line + "}", {"Entry": tasks.Entry})})
    rows = ["a fine film\t5", "a dull film\t1", "a fine play\t4", "a dull play\t0"]
    (desk / "stars.tsv").write_text("text\tscore\n" + "".join(f"{row}\n" for row in rows * 10))
    return desk


def test_the_new_task_of_the_guide_works_at_once(rate, capsys):
    for words in commands("docs/inside/adding-a-task.md"):
        assert main(words[1:]) == 0, words
    out = capsys.readouterr().out
    assert "squared error " in out
    assert [float(line) for line in out.splitlines()[-2:]]                  # a number for each line
    assert main(["eval", "runs/stars", "stars.tsv", "--json"]) == 0
    before = json.loads(capsys.readouterr().out)["squared_error"]
    more = ["--task", "rate", "--from", "runs/stars", "train.epochs=20", "train.lr=0.01", "--out", "runs/more"]
    assert main(["train", "stars.tsv", *more, "--json"]) == 0
    capsys.readouterr()
    assert main(["eval", "runs/more", "stars.tsv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["squared_error"] < before / 2


def laws_for_any_case():
    """The laws that need only a case and its model."""
    for name, law in vars(laws).items():
        wants = set(signature(law).parameters) if name.startswith("test_") else None
        if wants and wants <= {"made", "case"}:
            yield name, law, wants


def test_the_new_kind_of_the_guide_keeps_the_laws(hashed):
    model, kept = hashed.train(), 0
    with torch.no_grad():
        for _, law, wants in laws_for_any_case():
            with suppress(pytest.skip.Exception):
                law(**{name: value for name, value in {"made": model, "case": hashed}.items() if name in wants})
                kept += 1
    assert kept >= 8


def test_the_new_kind_of_the_guide_works_at_once(hashed, capsys):
    for words in commands("docs/inside/adding-a-model.md"):
        assert main(words[1:]) == 0, words
    assert "added to every count" in capsys.readouterr().out


def test_the_session_of_the_readme_runs(desk, capsys):
    session = commands("README.md")
    assert len(session) >= 4
    for words in session:
        assert main(words[1:]) == 0, words


def test_the_session_of_the_page_on_log_linear_models_runs(desk):
    for words in commands("docs/models/log-linear.md"):
        assert main(words[1:]) == 0, words
    assert (desk / "decision.html").is_file()


def test_the_sessions_about_pictures_frames_and_questions_run(desk, monkeypatch, capsys):
    for made in EXAMPLE_SETS.values():
        monkeypatch.setattr(type(made), "sizes", {"train": 80, "valid": 8, "test": 8})
    session = commands("docs/tasks/pictures.md")
    assert len(session) == 8
    for words in session:
        assert main(words[1:]) == 0, words


def test_the_session_about_chats_runs(desk, monkeypatch, capsys):
    monkeypatch.setattr(type(EXAMPLE_SETS["smalltalk"]), "sizes", {"train": 20, "valid": 4, "test": 4})
    monkeypatch.setattr("sys.stdin", StringIO("Hello\n"))
    session = commands("docs/tools/chat.md")
    assert len(session) == 4
    for words in session:
        assert main(words[1:]) == 0, words


def test_the_python_of_the_readme_runs(desk):
    for code in blocks("README.md", "python"):
        exec(compile(code, "README.md", "exec"), {})


def test_the_page_on_models_by_hand_prints_what_it_says_and_its_sums_are_right(desk, capsys):
    for name in ("weather.txt", "numbers.csv", "two-sums.csv"):
        (desk / name).write_text((ROOT / "docs/lessons/texts" / name).read_text())
    for words in commands("docs/models/by-hand.md"):
        assert main(words[1:]) == 0, words
    printed = capsys.readouterr().out.splitlines()
    console = "".join(blocks("docs/models/by-hand.md", "console"))
    shown = [line for line in console.splitlines() if not line.startswith("$")]
    assert len(shown) == 3
    assert [line for line in shown if line not in printed] == []
    for written, name in zip(blocks("docs/models/by-hand.md", "toml"), ("weather", "rhythm"), strict=True):
        (desk / "model.toml").write_text(written)
        ours, theirs = (read_hand_written(path).model for path in (Path("model.toml"), built_in_models()[name]))
        for key, tensor in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[key], tensor)
    for code in blocks("docs/models/by-hand.md", "python"):
        exec(compile(code, "docs/models/by-hand.md", "exec"), {})


@pytest.mark.parametrize("page", ["README.md", "docs/tools/command-line.md"])
def test_every_verb_is_told_of(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [command for command in COMMANDS if f"chainrule {command}" not in text] == []


def test_every_kind_is_told_of():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [kind for kind in models.KINDS if f"`{kind}`" not in text and kind not in PUBLISHED] == []


@pytest.mark.parametrize("page", ["README.md", "docs/tools/command-line.md", "docs/inside/adding-a-model.md",
                                  "docs/inside/adding-a-task.md"])
def test_files_that_a_page_points_to_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []
