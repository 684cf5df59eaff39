"""Each exercise's reference solution passes its tests; its stub and wrong solutions fail them."""

import inspect
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from exercises.wrong import WRONG

from chainrule.exercises import EXERCISES, LESSONS, MATERIAL, of_lesson
from chainrule.exercises.adapting import adapter_names, select_adapters
from chainrule.exercises.check import check_folder
from chainrule.exercises.snapshots import make_snapshot, write_all

SOLUTIONS = Path(__file__).parent / "solutions"
MISTAKES = [(name, wrong) for name, every in WRONG.items() for wrong in every]


def solution(exercise):
    return (SOLUTIONS / f"{exercise.module}.py").read_text(encoding="utf-8")


def verdict(folder, exercise, source, seed=None, until_failure=True):
    """What the tests find in a folder with this source."""
    (folder / f"{exercise.module}.py").write_text(source, encoding="utf-8")
    adapters = select_adapters(MATERIAL / exercise.lesson / "adapters.py", [exercise.module])
    (folder / "adapters.py").write_text(adapters, encoding="utf-8")
    (found,) = check_folder(folder, seed, seconds=20, until_failure=until_failure)
    return found


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
def test_the_reference_solution_passes(exercise, tmp_path):
    found = verdict(tmp_path, exercise, solution(exercise))
    assert found.passed, str(found)
    assert len(found.outcomes) >= 3


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
def test_the_stub_fails_every_test_and_says_that_it_is_not_written(exercise, tmp_path):
    found = verdict(tmp_path, exercise, exercise.stub.read_text(encoding="utf-8"), until_failure=False)
    assert not any(outcome.problem == "" for outcome in found.outcomes), str(found)
    assert any("is not written yet" in outcome.problem for outcome in found.outcomes)


@pytest.mark.parametrize(("name", "wrong"), MISTAKES, ids=[f"{name}: {wrong}" for name, wrong in MISTAKES])
def test_a_wrong_solution_fails(name, wrong, tmp_path):
    source = solution(EXERCISES[name])
    assert source.count(wrong.right) == 1, f"{wrong.right!r} is in the reference {source.count(wrong.right)} times"
    found = verdict(tmp_path, EXERCISES[name], source.replace(wrong.right, wrong.wrong))
    assert not found.passed
    assert "is not written yet" not in str(found)


def test_there_are_fourteen_exercises_with_five_mistakes_each_and_every_lesson_has_some():
    assert len(EXERCISES) >= 14
    assert {name: len(WRONG.get(name, [])) for name in EXERCISES if len(WRONG.get(name, [])) < 5} == {}
    assert all(of_lesson(lesson) for lesson in LESSONS)


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
def test_the_snapshots_are_what_chainrule_computes(exercise):
    made = make_snapshot(exercise)
    with np.load(exercise.snapshot) as kept:
        assert set(kept) == set(made)
        for name, array in made.items():
            if array.dtype.kind in "fc":
                np.testing.assert_allclose(kept[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
            else:
                np.testing.assert_array_equal(kept[name], array, err_msg=name)
    assert exercise.snapshot.stat().st_size < 16_000


CHEAP = [name for name in EXERCISES if name not in ("gpt", "feedforward", "beam-search")]


@pytest.mark.parametrize("name", CHEAP)
def test_a_seed_makes_other_snapshots_and_the_reference_still_passes(name, tmp_path):
    exercise = EXERCISES[name]
    found = verdict(tmp_path, exercise, solution(exercise), seed=5)
    assert found.passed, str(found)
    first, second = make_snapshot(exercise), make_snapshot(exercise, 5)
    assert any(first[key].shape != second[key].shape or (first[key] != second[key]).any() for key in first)


def signatures(path):
    """The parameters of the functions and methods of a module, by name."""
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    found = {name: value for name, value in own.items() if inspect.isfunction(value)}
    for name, value in own.items():
        if inspect.isclass(value):
            found |= {f"{name}.{part}": method for part, method in vars(value).items() if inspect.isfunction(method)}
    return {name: str(inspect.signature(value)) for name, value in found.items()}


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
def test_the_solution_has_the_signatures_of_the_stub(exercise):
    stub, solved = signatures(exercise.stub), signatures(SOLUTIONS / exercise.stub.name)
    assert stub.items() <= solved.items()


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_adapter_binds_one_exercise_and_every_file_of_a_lesson_belongs_to_one(lesson):
    exercises, path = of_lesson(lesson), MATERIAL / lesson / "adapters.py"
    bound = [adapter_names(path, exercise.module) for exercise in exercises]
    assert set().union(*bound) == adapter_names(path)
    assert sum(map(len, bound)) == len(adapter_names(path))
    expected = {"adapters.py", *(one.stub.name for one in exercises), *(one.tests.name for one in exercises)}
    assert {file.name for file in (MATERIAL / lesson).glob("*.py")} == expected
    assert {file.name for file in (MATERIAL / lesson / "snapshots").iterdir()} == {
        one.snapshot.name for one in exercises
    }


def test_stubs_and_tests_do_not_import_the_answer():
    allowed = {"chainrule.exercises.expect", "chainrule.model", "chainrule.testing"}
    for exercise in EXERCISES.values():
        for path in (exercise.stub, exercise.tests):
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "import" in line.split(" ")]
            used = {line.split()[1] for line in lines if line.startswith(("from chainrule", "import chainrule"))}
            assert used <= allowed, path


def test_the_command_writes_all_snapshots(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("chainrule.exercises.snapshots.EXERCISES", {"dpo": EXERCISES["dpo"]})
    monkeypatch.setattr("chainrule.exercises.MATERIAL", tmp_path)
    write_all()
    assert "dpo.npz" in capsys.readouterr().out
    assert (tmp_path / "pretraining" / "snapshots" / "dpo.npz").stat().st_size == EXERCISES[
        "dpo"
    ].snapshot.stat().st_size
