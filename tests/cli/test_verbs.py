"""Each verb, end to end, on a small book."""

import io
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from chainrule import models
from chainrule.commands.show import place
from chainrule.recipe import TRAIN, Text
from chainrule.run import Run, load
from chainrule.settings import meanings
from chainrule.tasks import first_task
from chainrule.text.sources import Source

RECIPE = """
kind = "ngram"
[model]
order = 2
estimator = "add-k"
[text]
tokenizer = "bytes"
"""
FOUR = ("--kind", "ngram", "model.order=4", "text.tokenizer=characters", "--out", "runs/four")


def stdin(monkeypatch, text):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))


# train


def test_train_ends_with_the_result_and_what_to_try_next(chainrule, book):
    answer = chainrule("train", book, *FOUR)
    assert answer.code == 0
    assert answer.out.startswith("runs/four: ")
    assert "bits per byte" in answer.out
    assert "chainrule sample runs/four" in answer.err
    assert answer.err.rstrip().endswith("chainrule look runs/four")
    assert "validation: the last" in answer.err  # how the text was split is always said


def test_train_in_json_says_nothing_else(chainrule, book):
    answer = chainrule("train", book, *FOUR, "--json")
    assert answer.err == ""
    assert answer.json["run"] == "runs/four"
    assert 0 < answer.json["bits_per_byte"] < 3
    assert {"nats", "tokens", "bytes", "perplexity", "seconds", "parameters", "signature"} <= answer.json.keys()


def test_the_default_place_is_named_by_kind_and_text(chainrule, book):
    assert chainrule("train", book, "--kind", "bigram", "--json").json["run"] == "runs/bigram-book"


def test_the_same_run_is_not_made_twice(chainrule, book, trained, tmp_path):
    before = (tmp_path / "runs/four/model.safetensors").stat().st_mtime_ns
    first = chainrule("train", book, *FOUR)
    assert first.code == 0
    assert "exists already" in first.err
    assert (tmp_path / "runs/four/model.safetensors").stat().st_mtime_ns == before
    assert chainrule("train", book, *FOUR, "--overwrite").code == 0
    assert (tmp_path / "runs/four/model.safetensors").stat().st_mtime_ns > before


def test_a_run_that_lost_its_result_is_measured_again_but_not_trained_again(chainrule, book, trained, tmp_path):
    model, log = tmp_path / "runs/four/model.safetensors", tmp_path / "runs/four/log.jsonl"
    whole = model.read_bytes()
    log.write_text("")
    assert chainrule("train", book, *FOUR, "--json").json["bits_per_byte"] > 0
    assert model.read_bytes() == whole
    assert "round" not in log.read_text()


def test_a_recipe_file_gives_settings_and_the_command_line_wins(chainrule, book, tmp_path):
    (tmp_path / "r.toml").write_text(RECIPE)
    assert chainrule("train", book, "--recipe", "r.toml", "model.order=3", "--out", "runs/r").code == 0
    recipe = load("runs/r").recipe
    assert (recipe.kind, recipe.text.tokenizer) == ("ngram", "bytes")
    assert (recipe.model.order, recipe.model.estimator) == (3, "add-k")
    assert chainrule("train", book, "--recipe", "r.toml", "--kind", "bigram", "--out", "runs/b").code == 0
    assert load("runs/b").recipe.kind == "bigram"


def test_given_validation_and_test_texts_are_used(chainrule, book, tmp_path):
    (tmp_path / "v.txt").write_text("the cat ran.\n")
    (tmp_path / "t.txt").write_text("the dog ran.\n")
    answer = chainrule("train", book, *FOUR, "--valid", "v.txt", "--test", "t.txt", "--json")
    assert answer.json["bytes"] == 13
    assert load("runs/four").about["splits"].keys() == {"train", "valid", "test"}


def test_text_may_come_from_stdin(chainrule, book, monkeypatch):
    stdin(monkeypatch, book.read_text())
    assert chainrule("train", "-", "--kind", "bigram", "--json").json["run"] == "runs/bigram-stdin"


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("uniform", []), ("unigram", []), ("bigram", []), ("ngram", []), ("hmm", ["train.steps=3", "model.states=8"])],
)
def test_any_kind_trains_samples_scores_and_evaluates(chainrule, book, kind, settings):
    made = chainrule("train", book, "--kind", kind, "text.tokenizer=characters", *settings, "--out", "runs/k", "--json")
    assert made.code == 0, made.err
    assert made.json["bits_per_byte"] > 0
    assert len(chainrule("sample", "runs/k", "--tokens", "8", "--json").json["texts"]) == 1
    scored = chainrule("score", "runs/k", book, "--json").json
    evaluated = chainrule("eval", "runs/k", book, "--json").json
    assert scored["bits_per_byte"] == pytest.approx(evaluated["bits_per_byte"], rel=1e-5)


# sample


def test_a_sample_is_the_prompt_and_what_follows(chainrule, trained):
    answer = chainrule("sample", trained, "--prompt", "the ", "--tokens", "30")
    assert answer.out.startswith("the ")
    assert len(answer.out) > 10
    assert answer.out == chainrule("sample", trained, "--prompt", "the ", "--tokens", "30").out
    assert answer.out != chainrule("sample", trained, "--prompt", "the ", "--tokens", "30", "--seed", "9").out


def test_rows_are_told_apart_and_json_has_them_all(chainrule, trained):
    printed = chainrule("sample", trained, "--rows", "3", "--tokens", "9").out
    assert [line for line in printed.splitlines() if line.startswith("---")] == ["--- 1", "--- 2", "--- 3"]
    assert len(chainrule("sample", trained, "--rows", "3", "--tokens", "9", "--json").json["texts"]) == 3


def test_streamed_and_whole_samples_are_the_same_text(chainrule, trained):
    whole = chainrule("sample", trained, "--tokens", "40", "--json").json["texts"][0]
    assert chainrule("sample", trained, "--tokens", "40").out == whole + "\n"


def test_every_dial_of_sampling_reaches_the_die(chainrule, trained):
    dials = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 4}
    words = [word for name, value in dials.items() for word in (f"--{name.replace('_', '-')}", value)]
    answer = chainrule("sample", trained, *words, "--stop", "ran", "--stop", "saw", "--tokens", "9", "--json").json
    assert answer["sampling"] == dials | {"stop": ["ran", "saw"]}


def test_a_sample_ends_before_a_stop_text(chainrule, trained):
    text = chainrule("sample", trained, "--tokens", "80", "--json").json["texts"][0]
    stopped = chainrule("sample", trained, "--tokens", "80", "--stop", "the", "--json").json["texts"][0]
    assert stopped == text.partition("the")[0]


@pytest.mark.parametrize("dial", ["--rows=0", "--tokens=-1", "--temperature=-1", "--top-k=0", "--top-p=0", "--seed=-1"])
def test_dials_out_of_range_are_refused(complaint, trained, dial):
    assert complaint("sample", trained, "--prompt", "the ", dial)


# score and eval


def test_the_bits_of_every_token_add_up(chainrule, trained, book):
    answer = chainrule("score", trained, book, "--json").json
    assert len(answer["bits"]) == len(answer["shown"]) == answer["tokens"]
    assert sum(answer["bits"]) == pytest.approx(answer["total_bits"])
    assert answer["bits_per_byte"] == pytest.approx(answer["total_bits"] / len(book.read_bytes()))


def test_scores_are_a_table_for_people(chainrule, trained, monkeypatch):
    stdin(monkeypatch, "the cat")
    lines = chainrule("score", trained).out.splitlines()
    assert len(lines) == 7 + 1 + 1  # characters, the end, the total
    assert lines[0].split()[0] == "t"
    assert lines[-1].startswith("total")
    assert "bits per byte" in lines[-1]


def test_a_text_that_cannot_be_is_infinite_and_json_still_json(chainrule, book, tmp_path):
    chainrule("train", book, "--kind", "bigram", "model.estimator=mle", "text.tokenizer=characters", "--out", "runs/m")
    (tmp_path / "new.txt").write_text("zzz")
    answer = chainrule("score", "runs/m", "new.txt", "--json")
    assert answer.json["total_bits"] is None
    assert None in answer.json["bits"]
    assert "probability 0" in answer.json["why"]
    assert "infinite" in chainrule("score", "runs/m", "new.txt").out
    assert chainrule("eval", "runs/m", "new.txt", "--json").json["nats"] is None


def test_evaluation_is_what_the_tokens_say(chainrule, trained, book):
    bits = chainrule("score", trained, book, "--json").json
    answer = chainrule("eval", trained, book, "--json").json
    assert answer["nats"] == pytest.approx(bits["total_bits"] * math.log(2) / bits["tokens"], rel=1e-5)
    assert answer["signature"].startswith("unit:characters|")
    assert answer["signature"] in chainrule("eval", trained, book).out


@pytest.mark.parametrize(("verb", "method"), [("eval", "evaluate"), ("predict", "predict")])
@pytest.mark.parametrize(("words", "tf32"), [((), True), (("--precision", "float32"), False)])
def test_on_a_gpu_large_sets_are_multiplied_in_tf32_unless_float32_is_asked_for(
    chainrule, trained, book, monkeypatch, verb, method, words, tf32
):
    def measured(run, *args, **given):
        while_it_ran.append(torch.backends.cuda.matmul.allow_tf32)
        return {"signature": ""} if verb == "eval" else []

    while_it_ran = []
    monkeypatch.setattr(Run, method, measured)
    assert chainrule(verb, trained, book, *words, "--json").code == 0
    assert while_it_ran == [tf32]


def test_how_the_text_is_read_may_be_said_and_nothing_else(chainrule, complaint, trained, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 the cat")
    assert "text.errors=replace" in complaint("eval", trained, "latin.txt")
    assert chainrule("eval", trained, "latin.txt", "text.errors=replace").code == 0
    assert chainrule("score", trained, "latin.txt", "text.errors=replace").code == 0
    assert "model.order=3 cannot be set here" in complaint("eval", trained, "latin.txt", "model.order=3")
    assert "text.errors=maybe is not one of" in complaint("eval", trained, "latin.txt", "text.errors=maybe")


# settings, data, export and import


def test_settings_show_every_field_with_its_meaning(chainrule):
    out = chainrule("settings").out
    for cls, prefix in [(Text, "text"), (TRAIN["counting"], "train")]:
        for name, meaning in meanings(cls).items():
            assert meaning
            assert any(f"{prefix}.{name} " in line and meaning in line for line in out.splitlines())
    assert all(kind.idea in out for kind in models.KINDS.values())


@pytest.mark.parametrize("kind", list(models.KINDS))
def test_settings_of_a_kind_have_its_own_defaults(chainrule, kind):
    (settings,) = chainrule("settings", kind, "--json").json["settings"].values()
    rows = {row["name"]: row for row in settings}
    cls = models.model_class(kind)
    assert all(row["meaning"] for row in rows.values()), "a setting without a meaning"
    assert {f"model.{name}" for name in meanings(cls.Settings)} <= rows.keys()
    own = cls.recipe if first_task(kind) == "lm" else {}
    for name, value in {**own, **models.kind(kind).preset}.items():
        assert rows[name]["default"] == value
    assert chainrule("settings", kind).out.count("\n") >= len(rows)


def test_options_of_a_setting_are_listed(chainrule):
    assert "kneser-ney, add-k, mle" in chainrule("settings", "ngram").out


def test_an_n_gram_goes_out_as_arpa_and_comes_back_the_same(chainrule, book, tmp_path):
    chainrule("train", book, "--kind", "ngram", "model.order=3", "text.tokenizer=words", "--out", "runs/w")
    assert chainrule("export", "runs/w", "w.arpa", "--to", "arpa", "--json").json["bytes"] > 0
    assert chainrule("import", "w.arpa", "runs/back", "--json").json["order"] == 3
    ours, theirs = (chainrule("eval", run, book, "--json").json for run in ("runs/w", "runs/back"))
    assert theirs["nats"] == pytest.approx(ours["nats"], rel=1e-5)


def test_export_and_import_replace_nothing_unasked(chainrule, complaint, book, tmp_path):
    chainrule("train", book, "--kind", "bigram", "text.tokenizer=words", "--out", "runs/w")
    (tmp_path / "taken.arpa").write_text("mine")
    assert "exists already" in complaint("export", "runs/w", "taken.arpa", "--to", "arpa")
    assert "is a folder" in complaint("export", "runs/w", "runs", "--to", "arpa")
    assert (tmp_path / "taken.arpa").read_text() == "mine"
    assert chainrule("export", "runs/w", "taken.arpa", "--to", "arpa", "--overwrite").code == 0
    assert chainrule("import", "taken.arpa", "runs/i").code == 0
    assert "holds a run already" in complaint("import", "taken.arpa", "runs/i")
    assert "holds another run" in complaint("import", "taken.arpa", "runs/w")
    assert chainrule("import", "taken.arpa", "runs/i", "--overwrite").code == 0


def test_only_n_grams_become_arpa(complaint, chainrule, book):
    chainrule("train", book, "--kind", "uniform", "--out", "runs/u")
    assert "n-gram" in complaint("export", "runs/u", "u.arpa", "--to", "arpa")


def test_known_texts_are_listed_and_fetched(chainrule, complaint):
    out = chainrule("data").out
    assert "python-docs" in out
    assert "tinyshakespeare" in out
    assert "python-docs" in json.dumps(chainrule("data", "--json").json)
    assert "Did you mean python-docs?" in complaint("data", "get", "pyton-docs")
    assert "data get NAME" in complaint("data", "get")
    assert "data get NAME" in complaint("data", "fetch", "python-docs")


def test_a_text_is_fetched_and_its_place_said(chainrule):
    assert " files in " in chainrule("data", "get", "python-docs").out
    (train,) = chainrule("data", "get", "die", "--json").json["splits"]["train"]
    assert Path(train["path"]).is_file()
    lines = chainrule("data", "get", "die").out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["train", "valid", "test"]
    assert lines[0] == f"train: {train['path']}"


def test_a_part_of_a_file_is_said_with_its_bytes():
    assert place([Source(Path("a"), 5, 1000)]) == "a, bytes 5 to 1,000"
    assert place([Source(Path("a"), 1000)]) == "a, bytes 1,000 to the end"


def test_a_text_of_several_documents_scores_as_it_is_measured(chainrule, trained, tmp_path):
    (tmp_path / "two.txt").write_text("the dog\n<|endoftext|>\nthe cat\n")
    for more in ([], ["text.separator=the cat"]):
        scored, measured = (chainrule(verb, trained, "two.txt", *more, "--json").json for verb in ("score", "eval"))
        for name in ("tokens", "bytes", "bits_per_byte"):
            assert scored[name] == pytest.approx(measured[name]), name
    assert scored["bytes"] < len("the dog\n<|endoftext|>\nthe cat\n")


def test_an_infinite_temperature_can_be_told(chainrule, trained):
    answer = chainrule("sample", trained, "--temperature", "inf", "--tokens", "3", "--json").json
    assert answer["sampling"]["temperature"] is None


def test_a_text_from_stdin_is_read_as_often_as_it_is_wanted(chainrule, complaint, book, monkeypatch):
    words = ["--kind", "gpt", "--minutes", "0.01", "text.tokenizer=characters"]
    stdin(monkeypatch, Path(book).read_text())
    assert chainrule("train", "-", *words, "--out", "runs/s").code == 0
    stdin(monkeypatch, Path(book).read_text())
    assert "it cannot be in two splits" in complaint("train", "-", "--valid", "-", *words)
