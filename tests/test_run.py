"""A run is whole, or it is no run, or `load` says what is wrong with it in one line."""

import errno
import json
import math
import os
from pathlib import Path

import pytest
import torch

from chainrule import models, run
from chainrule.errors import UserError
from chainrule.files import SEAL, seal_of
from chainrule.recipe import Text, make_recipe
from chainrule.run import FILES, LOG, MODEL, RECIPE, TOKENIZER, Done, load, save
from chainrule.text.tokenizers.tokenizer import train_tokenizer

SPLITS = {"train": {"tokens": 9, "bytes": 8, "documents": 1, "sha256": "ab"}}


def recipe_for(kind="uniform", **given):
    dotted = {"text.tokenizer": "characters"} | {name.replace("_", ".", 1): value for name, value in given.items()}
    return make_recipe(kind, models.model_class(kind), dotted, models.kind(kind).preset)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(Text(tokenizer="characters"), ["hello world"])


@pytest.fixture
def model(tokenizer):
    return models.build("uniform", recipe_for().model, len(tokenizer))


@pytest.fixture
def saved(tmp_path, model, tokenizer):
    path = tmp_path / "runs" / "u"
    save(path, model, tokenizer, recipe_for(), splits=SPLITS, log=[{"event": "result", "nats": 1.5}])
    return path


def test_a_saved_run_answers_the_same(saved, model, tokenizer):
    back = load(saved)
    tokens = torch.tensor([[0, 1, 2]])
    assert torch.equal(back.model.step(tokens, back.model.start(1))[0], model.step(tokens, model.start(1))[0])
    assert back.tokenizer.encode("hello").tolist() == tokenizer.encode("hello").tolist()
    assert back.recipe == recipe_for()
    assert back.about["splits"] == SPLITS
    assert run.read_log(saved) == [{"event": "result", "nats": 1.5}]
    assert sorted(file.name for file in saved.iterdir()) == sorted(FILES)
    assert not back.model.training


def one_line(call, *words):
    with pytest.raises(UserError) as caught:
        call(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", [MODEL, TOKENIZER])
def test_a_truncated_file_is_named(saved, name):
    whole = (saved / name).read_bytes()
    (saved / name).write_bytes(whole[:-1])
    line = one_line(load, saved)
    assert str(saved / name) in line
    assert f"{len(whole) - 1} bytes of {len(whole)}" in line


@pytest.mark.parametrize("name", [MODEL, TOKENIZER])
def test_a_changed_byte_is_found(saved, name):
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(content)
    assert "has been changed" in one_line(load, saved)


@pytest.mark.parametrize("name", [MODEL, TOKENIZER])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    assert f"{name} is missing" in one_line(load, saved)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": "one"}', '{"format": 2}'])
def test_a_damaged_recipe_is_named(saved, content):
    (saved / RECIPE).write_text(content)
    assert f"{RECIPE} is damaged" in one_line(load, saved)


def test_no_folder_a_file_and_a_folder_that_is_no_run_are_told_apart(tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    assert "there is no run" in one_line(load, tmp_path / "nowhere")
    assert "is a file" in one_line(load, tmp_path / "file")
    assert "is not a run" in one_line(load, tmp_path / "folder")
    run.begin(tmp_path / "folder", recipe_for(), SPLITS)
    assert "is not finished: the same `chainrule train` continues" in one_line(load, tmp_path / "folder")


def change(path, **values):
    about = json.loads((path / RECIPE).read_text()) | values
    (path / RECIPE).write_text(json.dumps(about | {SEAL: seal_of(about)}))


def test_a_changed_setting_is_found(saved):
    text = (saved / RECIPE).read_text()
    assert '"held_out": 0.1' in text
    (saved / RECIPE).write_text(text.replace('"held_out": 0.1', '"held_out": 0.2'))
    assert f"{RECIPE} has been changed since it was written: its sha256 differs." in one_line(load, saved)


@pytest.mark.parametrize(("name", "value"), [
    ("base", []), ("base", {"path": 1, "sha256": "x"}), ("base", {"path": "x"}), ("files", []), ("files", {"x": 1}),
    ("base", {"path": "x", "sha256": "x", "more": 1}), ("files", {"model.safetensors": {"bytes": "x", "sha256": 1}}),
    ("labels", 1.5), ("labels", [[]]), ("kind", []), ("task", {}), ("splits", [1]), ("done", {}), ("text", "x"),
    ("chainrule", None), ("source", 1), ("format", math.inf),
])  # fmt: skip
def test_what_has_a_wrong_type_in_the_recipe_is_named(saved, name, value):
    change(saved, **{name: value})
    line = one_line(load, saved)
    assert f"{RECIPE} is damaged" in line
    assert f"`{name}`" in line or name in ("format", "kind", "task")


def test_a_run_of_an_earlier_version_without_a_seal_is_read(saved):
    about = json.loads((saved / RECIPE).read_text())
    del about[SEAL]
    (saved / RECIPE).write_text(json.dumps(about))
    assert load(saved).recipe.text.held_out == 0.1


def test_a_newer_run_is_refused_by_its_version(saved):
    change(saved, format=run.FORMAT + 1, chainrule="9.0")
    line = one_line(load, saved)
    assert "chainrule 9.0" in line
    assert "Upgrade" in line


def test_an_older_run_is_refused_with_what_to_do(saved):
    change(saved, format=1)
    assert one_line(load, saved) == (
        f"{saved} has run format 1, and this chainrule reads format 2. Train it again: "
        f"chainrule train … --out {saved} --overwrite."
    )
    assert "run format 1" in one_line(run.look_before_writing, saved, recipe_for(), False)
    assert run.look_before_writing(saved, recipe_for(), True) is None


def test_checkpoints_of_an_older_format_are_not_resumed_from(tmp_path):
    run.begin(tmp_path, recipe_for(), SPLITS)
    begun = tmp_path / "checkpoints" / "begun.json"
    begun.write_text(json.dumps(json.loads(begun.read_text()) | {"format": 1}))
    assert "checkpoints cannot be used" in one_line(run.look_before_writing, tmp_path, recipe_for(), False)
    assert run.look_before_writing(tmp_path, recipe_for(), True) is None


def test_settings_that_this_version_does_not_know_are_said_with_the_version(saved):
    change(saved, chainrule="0.0.7", model={"colour": "red"})
    line = one_line(load, saved)
    assert "chainrule 0.0.7" in line
    assert "model.colour" in line


def test_tables_that_do_not_fit_the_kind_are_refused(tmp_path, tokenizer):
    stranger = torch.nn.Linear(1, 1)
    save(tmp_path / "x", stranger, tokenizer, recipe_for())
    assert "does not fit a uniform" in one_line(load, tmp_path / "x")


def test_the_line_about_many_tensors_that_do_not_fit_is_short(tmp_path, tokenizer):
    few = models.build("ngram", recipe_for("ngram", model_order=3).model, len(tokenizer))
    save(tmp_path / "x", few, tokenizer, recipe_for("ngram", model_order=40))
    line = one_line(load, tmp_path / "x")
    assert "does not fit a ngram" in line
    assert len(line) < 400 + len(str(tmp_path))


def test_a_run_without_its_log_still_answers(saved):
    (saved / LOG).unlink()
    assert load(saved).recipe.kind == "uniform"
    assert run.read_log(saved) == []


# Where a run may be written


def test_a_new_or_empty_place_is_free(tmp_path):
    assert run.look_before_writing(tmp_path / "new", recipe_for(), False) is None
    assert run.look_before_writing(tmp_path, recipe_for(), False) is None


def test_a_place_that_cannot_be_written_to_is_refused_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    assert "is a file, so" in one_line(run.look_before_writing, tmp_path / "file" / "run", recipe_for(), False)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # the tests may run as root, who may all
    assert "may not be written to" in one_line(run.look_before_writing, tmp_path / "a" / "b", recipe_for(), False)


@pytest.mark.parametrize("name", [f".{MODEL}.abc.aside", ".tmpku9t5k"])    # the second is how safetensors names its own
def test_what_a_killed_process_left_over_is_no_obstacle_and_is_removed(tmp_path, name):
    (tmp_path / name).touch()
    assert run.look_before_writing(tmp_path, recipe_for(), False) is None
    (tmp_path / ".tmp").touch()
    (tmp_path / "notes.aside").touch()
    run.remove_unfinished(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {".tmp", "notes.aside"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_the_users_are_never_in_danger(tmp_path, overwrite):
    (tmp_path / "thesis.tex").touch()
    assert "thesis.tex" in one_line(run.look_before_writing, tmp_path, recipe_for(), overwrite)
    assert "is a file" in one_line(run.look_before_writing, tmp_path / "thesis.tex", recipe_for(), overwrite)


@pytest.mark.parametrize("overwrite", [False, True])
def test_checkpoints_of_another_program_are_never_in_danger(tmp_path, saved, overwrite):
    for folder in (tmp_path / "theirs" / "checkpoints", saved / "checkpoints"):
        folder.mkdir(parents=True)
        (folder / "epoch=3.ckpt").write_text("theirs")
    assert "checkpoints" in one_line(run.look_before_writing, tmp_path / "theirs", recipe_for(), overwrite)
    (saved / "checkpoints" / "000000007.safetensors").write_text("ours")
    run.forget_checkpoints(saved)
    assert [file.name for file in (saved / "checkpoints").iterdir()] == ["epoch=3.ckpt"]


def test_checkpoints_of_ours_are_no_obstacle_and_are_forgotten_whole(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for name in ("000000007.safetensors", "000000007.json", ".000000008.safetensors.x.aside"):
        (tmp_path / "checkpoints" / name).touch()
    assert run.look_before_writing(tmp_path, recipe_for(), False) is None
    run.forget_checkpoints(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_recipe_is_refused_setting_by_setting(saved):
    line = one_line(run.look_before_writing, saved, recipe_for(text_held_out=0.2, train_seed=7), False)
    assert "text.held_out is 0.1 there and 0.2 here; train.seed is 1 there and 7 here" in line
    line = one_line(run.look_before_writing, saved, recipe_for("bigram", train_seed=7), False)
    assert "kind is uniform there and bigram here." in line
    assert "seed" not in line


def test_overwrite_and_the_same_recipe_may_go_on(saved):
    assert run.look_before_writing(saved, recipe_for(train_seed=7), True) is None
    assert run.look_before_writing(saved, recipe_for(), False)["splits"] == SPLITS


def test_other_text_is_not_taken_for_the_same(saved):
    about = run.read_about(saved)
    run.same_text(saved, about, SPLITS)
    assert "train text differs" in one_line(run.same_text, saved, about, {"train": {"sha256": "cd"}})
    assert "test text differs" in one_line(run.same_text, saved, about, SPLITS | {"test": {"sha256": "ab"}})


def test_tuples_that_came_back_as_lists_are_no_difference():
    assert run.differences({"model": {"cutoffs": [0, 1]}}, {"model": {"cutoffs": (0, 1)}}) == []


# A full disk


class FullDisk:
    """The nth file that is synced does not fit any more."""

    def __init__(self, monkeypatch, at):
        self.calls, self.at, self.sync = 0, at, os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, handle):
        self.calls += 1
        if self.calls == self.at:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.sync(handle)


@pytest.mark.parametrize("at", range(1, len(FILES) + 3))  # the tokenizer syncs its own file and the folder first
def test_a_full_disk_leaves_the_earlier_run_whole(saved, model, tokenizer, monkeypatch, at):
    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    model.log_prob += 1
    FullDisk(monkeypatch, at)
    with pytest.raises(UserError, match="no space to write"):
        save(saved, model, tokenizer, recipe_for(train_seed=2))
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before
    assert load(saved).recipe == recipe_for()


def test_tensors_that_do_not_fit_are_a_full_disk_too(saved, model, tokenizer, monkeypatch):
    def full(tensors, path, facts):
        raise run.saving.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(run.saving, "save_file", full)
    with pytest.raises(UserError, match=f"no space to write .*{MODEL}"):
        save(saved, model, tokenizer, recipe_for(train_seed=2))
    assert load(saved).recipe == recipe_for()


def test_other_troubles_with_tensors_stay_what_they_are(saved, model, tokenizer, monkeypatch):
    def fail(tensors, path, facts):
        raise run.saving.SafetensorError("something new")

    monkeypatch.setattr(run.saving, "save_file", fail)
    with pytest.raises(run.saving.SafetensorError):
        save(saved, model, tokenizer, recipe_for())


def test_the_recipe_takes_its_place_last(tmp_path, model, tokenizer, monkeypatch):
    placed = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: placed.append(target.name) or replace(self, target))
    save(tmp_path / "x", model, tokenizer, recipe_for())
    placed = [name for name in placed if name in FILES]
    assert sorted(placed) == sorted(FILES)
    assert placed[-1] == RECIPE


def test_how_far_training_came_is_kept(tmp_path, model, tokenizer):
    save(tmp_path / "x", model, tokenizer, recipe_for(), done=Done(3, False, 2.5))
    assert Done(**load(tmp_path / "x").about["done"]) == Done(3, False, 2.5)
