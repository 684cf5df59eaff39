"""A run whose process was killed at its very end: while its files took their places, or before its result was written.

Files are put where a kill leaves them: an exception would not do, since it tidies up.
"""

import json

import pytest

from chainrule import cli, files, run
from chainrule.errors import UserError

GPT = ("--kind", "gpt", "text.tokenizer=characters", "model.layers=1", "model.width=8", "model.heads=1",
       "model.context=16", "train.steps=2", "train.length=8", "train.tokens=16")
NGRAM = ("--kind", "ngram", "model.order=2", "text.tokenizer=characters")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("the cat saw the dog and the dog ran\na cow saw it\n" * 12)


def train(*words, out="out"):
    assert cli.main(["train", "book.txt", "--out", out, *words]) == 0


def left_unrenamed(path, *names):
    """As if the process had been killed before these files took their places."""
    for name in names:
        (path / name).rename(path / f".{name}.k1lled.aside")


def content(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != run.LOG}


@pytest.mark.parametrize("renamed", range(5))
def test_files_that_were_being_renamed_take_their_places(tmp_path, renamed):
    train(*NGRAM)
    out, before = tmp_path / "out", content(tmp_path / "out")
    left_unrenamed(out, *(run.MODEL, run.TOKENIZER_CONFIG, run.TOKENIZER, run.LOG, run.RECIPE)[renamed:])
    train(*NGRAM)
    assert content(out) == before
    assert {file.name for file in out.iterdir()} == {*run.FILES}


def test_a_run_that_is_replaced_is_the_old_one_or_the_new_one(tmp_path):
    train(*NGRAM)
    out = tmp_path / "out"
    old = {name: (out / name).read_bytes() for name in run.FILES}
    train(*NGRAM, "model.order=3", "--overwrite")
    left_unrenamed(out, run.LOG, run.RECIPE)
    for name in (run.LOG, run.RECIPE):
        (out / name).write_bytes(old[name])                # the weights are those of the new run already
    with pytest.raises(UserError, match="damaged"):
        run.load(out)
    run.finish_saving(out)
    assert run.load(out).recipe.model.order == 3


@pytest.mark.parametrize("damage", ["half", "other weights"])
def test_temporary_files_that_are_not_complete_are_not_used(tmp_path, damage):
    train(*NGRAM)
    out, before = tmp_path / "out", content(tmp_path / "out")
    recipe = (out / run.RECIPE).read_text()
    about = json.loads(recipe)
    about["files"][run.MODEL]["sha256"] = "0" * 64
    about[files.SEAL] = files.seal_of(about)
    (out / f".{run.RECIPE}.k1lled.aside").write_text(recipe[:-9] if damage == "half" else json.dumps(about))
    (out / f".{run.MODEL}.k1lled.aside").write_bytes(b"half")
    run.finish_saving(out)
    assert content(out).items() >= before.items()
    train(*NGRAM)
    assert content(out) == before


def without_result(path):
    """The log as it is before a finished model has been evaluated."""
    records = [record for record in run.read_log(path) if record["event"] != "result"]
    run.write_log(path, records)


def result(path):
    return {name: value for name, value in run.load(path).result.items() if "seconds" not in name}


@pytest.mark.parametrize("words", [
    ("--kind", "word2vec", "model.embedding=4", "text.min_count=1", "train.epochs=2"),
    (*GPT[2:], "--from", "base", "train.lora=2"),
    GPT, NGRAM,
], ids=["word2vec", "lora", "gpt", "ngram"])
def test_a_finished_model_is_evaluated_later_with_the_same_result_and_stays_as_it_is(tmp_path, words):
    if "base" in words:
        train(*GPT, out="base")
        words = [word for word in words if not word.startswith("model.") and "tokenizer" not in word]
    train(*words)
    out = tmp_path / "out"
    expected, before = result(out), content(out)
    without_result(out)
    train(*words)
    assert result(out) == expected
    assert content(out) == before


def test_a_comparison_that_was_killed_before_it_was_written_down_begins(tmp_path):
    from chainrule.compare.ladder import LadderPlan, read_comparison

    plan = LadderPlan(("book.txt",), None, {})
    (tmp_path / "ladder").mkdir()
    (tmp_path / "ladder" / ".comparison.json.k1lled.aside").touch()
    assert read_comparison(tmp_path / "ladder", plan) == {}
    (tmp_path / "ladder" / "thesis.tex").touch()
    with pytest.raises(UserError, match="files that are no comparison"):
        read_comparison(tmp_path / "ladder", plan)
