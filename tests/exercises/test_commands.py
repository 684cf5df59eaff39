"""`chainrule exercise`: list, copy, check; and the notebook."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from chainrule.cli import main
from chainrule.exercises import EXERCISES, LESSONS, of_lesson
from chainrule.exercises.check import check, check_folder
from chainrule.exercises.expect import same, same_list
from chainrule.exercises.notebook import make_notebook

SOLUTIONS = Path(__file__).parent / "solutions"


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        capsys.readouterr()
        code = main(["exercise", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_list_names_every_exercise(call):
    code, out, _ = call()
    assert code == 0
    assert all(name in out for name in [*EXERCISES, *LESSONS])
    assert [one["name"] for one in json.loads(call("--json")[1])["exercises"]] == list(EXERCISES)


def test_a_student_copies_one_fails_writes_it_and_passes(call, tmp_path):
    assert call("kneser-ney", "mine")[0] == 0
    names = {"README.md", "adapters.py", "exercises.ipynb", "kneser_ney.py", "snapshots", "test_kneser_ney.py"}
    assert {path.name for path in (tmp_path / "mine").iterdir()} == names
    code, out, err = call("check", "mine")
    assert (code, err) == (1, "")
    assert out == "kneser-ney: not begun\n\n0 of 1 exercises pass.\n"
    shutil.copy(SOLUTIONS / "kneser_ney.py", "mine/kneser_ney.py")
    code, out, _ = call("check", "mine")
    assert code == 0
    assert "  passes  continuation counts are types not tokens\n" in out
    assert out.endswith("1 of 1 exercises pass.\n")
    assert call("check", "mine", "--seed", 7)[0] == 0
    assert not (tmp_path / "mine" / "__pycache__").exists()


def test_a_lesson_is_copied_whole(call):
    code, out, _ = call("recurrent", "deep/folder", "--json")
    assert code == 0
    assert json.loads(out)["exercises"] == ["elman", "lstm"]
    shutil.copy(SOLUTIONS / "lstm.py", "deep/folder/lstm.py")
    code, out, _ = call("check", "deep/folder", "--json")
    assert code == 1
    results = json.loads(out)
    assert {one["exercise"]: one["passed"] for one in results["exercises"]} == {"elman": False, "lstm": True}
    assert results["failed"] == 1


def test_tests_in_the_students_folder_do_not_count(call, tmp_path):
    call("viterbi", "mine")
    Path("mine/test_viterbi.py").write_text("def test_path(): pass\n")
    Path("mine/snapshots/viterbi.npz").unlink()
    Path("mine/viterbi.py").write_text("def viterbi(pi, a, b, x): return x * 0, 0.0\n")
    assert call("check", "mine")[0] == 1


def test_the_copied_tests_run_where_they_are(call, tmp_path, monkeypatch):
    """As pytest runs them: with the folder on the path, and the snapshots beside them."""
    call("lstm", "mine")
    shutil.copy(SOLUTIONS / "lstm.py", "mine/lstm.py")
    monkeypatch.syspath_prepend(tmp_path / "mine")
    for name in ("lstm", "adapters", "test_lstm"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    tests = importlib.import_module("test_lstm")
    tests.test_all_steps()
    Path("mine/snapshots/lstm.npz").unlink()
    with pytest.raises(FileNotFoundError):
        tests.test_all_steps()
    for name in ("lstm", "adapters", "test_lstm"):
        del sys.modules[name]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("viterby", "x"), "unknown exercise viterby. Did you mean viterbi?"),
        (("viterbi",), "name a folder too"),
        (("check", "nowhere"), "nowhere is not a folder"),
        (("check", "empty"), "empty has no adapters.py"),
        (("check", "broken"), "broken/adapters.py, line 1: "),
        (("check", "latin"), "latin/adapters.py is not UTF-8"),
        (("check", "unbound"), "unbound/adapters.py binds no exercise"),
        (("check", "raises"), "raises/adapters.py cannot be imported: ValueError: no."),
        (("viterbi", "empty"), "empty exists already"),
        (("viterbi", "file.txt"), "file.txt exists already"),
        (("viterbi", "file.txt/mine"), "file.txt is a file"),
        (("viterbi", "new", "--seed", "1"), "--seed belongs to"),
        (("check", "empty", "--seed", "-1"), "--seed -1"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_lost(call, tmp_path, words, said):
    for folder, source in {
        "empty": None,
        "broken": "def (",
        "unbound": "x = 1",
        "raises": "raise ValueError('no')\ndef viterbi(): pass",
        "latin": "# \udcfc",
    }.items():
        (tmp_path / folder).mkdir()
        if source:
            (tmp_path / folder / "adapters.py").write_text(source, encoding="utf-8", errors="surrogateescape")
    (tmp_path / "file.txt").write_text("mine")
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert said in line
    assert (tmp_path / "file.txt").read_text() == "mine"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["broken", "empty", "file.txt", "latin", "raises", "unbound"]


def test_errors_of_the_students_code_name_the_line(call):
    call("bigram", "mine")
    Path("mine/bigram.py").write_text(
        "import sys\n\n\ndef bigram_mle(tokens, V):\n    print('debugging')\n    return tokens[V * 100]\n\n\n"
        "def softmax(y, beta):\n    sys.exit(3)\n\n\ndef roll(p, u):\n    return 'a'\n\n\n"
        "def write(p, u):\n    return None\n"
    )
    code, out, err = call("check", "mine")
    assert code == 1
    assert "IndexError in bigram_mle (bigram.py, line 6)" in out
    assert "SystemExit in softmax (bigram.py, line 10): 3" in out
    assert "roll(p, u=0.0) has entries of type <U1, not numbers" in out
    assert "write(p, u) returned None" in out
    assert "debugging" in err


def test_a_loop_without_end_is_stopped(call):
    call("viterbi", "mine")
    Path("mine/viterbi.py").write_text("def viterbi(pi, a, b, x):\n    while True:\n        pass\n")
    (found,) = check_folder(Path("mine"), seconds=0.05, until_failure=True)
    assert "TimeoutError in viterbi (viterbi.py, line " in found.outcomes[0].problem
    assert "does a loop end?" in found.outcomes[0].problem


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_notebook_has_the_stubs_and_checks_what_is_written_in_it(lesson):
    notebook = json.loads(make_notebook(of_lesson(lesson)))
    assert notebook["nbformat"] == 4
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in notebook["cells"] if cell["cell_type"] == "code")
    exercise, namespace = of_lesson(lesson)[-1], {}
    for source in code[-2:]:
        assert "NotImplementedError" in source or "check(" in source
        exec(compile(source, "notebook", "exec"), namespace)
    assert not check(exercise.name, namespace).passed
    assert set(notebook["metadata"]["otter"]["tests"]) == {one.name for one in of_lesson(lesson)}


def test_what_a_notebook_defines_is_checked():
    namespace = {}
    exec((SOLUTIONS / "dpo.py").read_text(), namespace)
    assert check("dpo", namespace).passed
    namespace["implicit_reward"] = lambda policy, reference, beta: policy
    verdict = check("dpo", namespace)
    assert not verdict.passed
    assert "β (log π(y|x) - log π_ref(y|x))" in repr(verdict)
    with pytest.raises(ValueError, match="unknown exercise dpoo"):
        check("dpoo", {})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([[1.0, 2.0]], r"x has shape \(1, 2\), not \(2,\)"),
        ([1.0, np.nan], r"x is nan at \[1\]"),
        ([1.0, 3.0], r"x\[1\] is 3, not 2. Expected: a formula"),
        ([1.0, np.inf], r"x\[1\] is inf, not 2"),
        (None, "x returned None"),
        ([[1.0], [1.0, 2.0]], "x is not an array"),
    ],
)
def test_a_difference_is_described(found, said):
    with pytest.raises(AssertionError, match=said):
        same(found, np.array([1.0, 2.0]), "x", "a formula")


def test_a_difference_of_lists_is_described():
    same_list((1, 2), [1, 2], "x")
    with pytest.raises(AssertionError, match=r"x\[1\] is 3, not 2"):
        same_list([1, 3], [1, 2], "x")
    with pytest.raises(AssertionError, match="x has 1 entries, not 2"):
        same_list([1], [1, 2], "x")


def test_broken_laws_are_named_one_line_each(call):
    call("feedforward", "mine")
    source = (SOLUTIONS / "feedforward.py").read_text()
    Path("mine/feedforward.py").write_text(source.replace("self.E[windows]", "(self.E[windows] + tokens.sum())"))
    (found,) = check_folder(Path("mine"))
    title, *laws = found.outcomes[-1].problem.splitlines()
    assert title.startswith("FeedForwardLM breaks ")
    assert laws
    assert all(line.startswith("check_") for line in laws)
    assert any("rows" in line for line in laws)
