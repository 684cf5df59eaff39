"""Defaults of tasks that learn from examples: few examples are read often, and what is given stays."""

import itertools

import pytest
import torch

from chainrule.api import training_recipe
from chainrule.defaults import example_defaults
from chainrule.defaults.example_defaults import STEPS, Facts, default_kind, example_settings
from chainrule.errors import UserError
from chainrule.tasks import recipe_for

ROWS = "sentence\tlabel\n" + "a fine film\tgood\na dull film\tbad\na fine play\tgood\na dull play\tbad\n" * 8
TAGS = "the\tDET\ncat\tNOUN\nran\tVERB\n\n" * 30
PAIRS = "source\ttarget\n" + "a b c\tc b a\nb a c\tc a b\n" * 20


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    monkeypatch.chdir(tmp_path)
    for name, text in {"reviews.tsv": ROWS, "tags.conllu": TAGS, "pairs.tsv": PAIRS}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def chosen(file, task, kind=None, **given):
    return training_recipe([file], kind=kind, task=task, base=None, recipe=None, valid=[], minutes=None, settings=given,
                           device="cpu")


def timed(file, task, minutes, kind=None):
    return training_recipe([file], kind=kind, task=task, base=None, recipe=None, valid=[], minutes=minutes, settings={},
                           device="cpu")


def facts(words, task="classify", device="cuda", longest=20):
    return Facts(task, device, words // 10, words, longest)


def test_training_takes_about_as_many_steps_whatever_the_size():
    for words in (60_000, 200_000, 600_000):
        training = facts(words).training()
        steps = training["train.epochs"] * words / training["train.tokens"]
        assert STEPS / 1.5 < steps < STEPS * 1.5, words
    assert facts(10**8).training()["train.epochs"] == 3
    assert facts(1000).training()["train.epochs"] == 60


def test_a_step_holds_the_longest_example():
    assert facts(10_000, longest=3000).training()["train.tokens"] >= 3000


def test_a_classifier_reads_words_in_both_directions(desk):
    made = chosen("reviews.tsv", "classify", "lstm")
    assert (made.model.bidirectional, made.text.tokenizer, made.head.pool) == (True, "words", "max")
    assert made.train.epochs == 60


def test_names_are_read_as_characters_and_a_step_counts_them(desk, capsys):
    names = ["".join(letters) for letters in itertools.permutations("aeinor", 4)]
    (desk / "names.tsv").write_text("text\tlabel\n" + "".join(f"{name}\t{name[-1]}\n" for name in names))
    made = chosen("names.tsv", "classify")
    assert made.kind == "lstm"
    assert (made.text.tokenizer, made.train.tokens) == ("characters", 64)
    assert "324 examples of 4 characters" in capsys.readouterr().err
    assert chosen("names.tsv", "classify", "lstm", **{"text.tokenizer": "words"}).train.tokens == 324 // 8
    assert chosen("names.tsv", "classify", "ngram").text.tokenizer == "characters"
    assert chosen("reviews.tsv", "classify", "ngram") == recipe_for("ngram", {}, "classify")


def test_an_ngram_classifier_reads_few_texts_as_characters_and_many_as_pieces_of_words(desk, capsys, monkeypatch):
    made = chosen("reviews.tsv", "classify", "loglinear")
    assert (made.text.tokenizer, made.model.order) == ("characters", 5)
    assert "text.tokenizer=characters, model.order=5 (each can be given instead)" in capsys.readouterr().err
    monkeypatch.setattr("chainrule.defaults.example_defaults.FEW_WORDS", 50)
    assert chosen("reviews.tsv", "classify", "loglinear") == recipe_for("loglinear", {}, "classify")
    for given, wanted in [
        ({"text.tokenizer": "words"}, ("words", 3)), ({"text.tokenizer": "bytes"}, ("bytes", 5)),
        ({"text.tokenizer": "characters", "model.order": 2}, ("characters", 2)),
    ]:
        capsys.readouterr()
        made = chosen("reviews.tsv", "classify", "loglinear", **given)
        assert (made.text.tokenizer, made.model.order) == wanted
        assert ("model.order=5" in capsys.readouterr().err) == (wanted == ("bytes", 5))
    assert chosen("reviews.tsv", "classify", "unigram").text.tokenizer == "words"


def test_few_sentences_are_read_as_words_though_many_words_come_once(desk):
    words = [f"word{number}" for number in range(200)]
    rows = [f"the {words[5 * at]} of a {words[5 * at + 1]} is {words[5 * at + 2]}\tyes" for at in range(20)]
    (desk / "few.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\nno\tno\n" * 2)
    assert chosen("few.tsv", "classify", "lstm").text.tokenizer == "words"


@pytest.mark.parametrize(("task", "file", "kind", "given"), [
    ("classify", "reviews.tsv", "lstm", {"model.hidden": 7, "train.epochs": 2.0}),
    ("classify", "reviews.tsv", "gpt", {"model.width": 6, "model.heads": 3, "train.steps": 9}),
    ("classify", "reviews.tsv", "gru", {"head.auxiliary": 0.5}),
    ("tag", "tags.conllu", "gru", {"head.char_cnn": False, "train.lr": 0.7}),
    ("tag", "tags.conllu", "encoder", {"model.dropout": 0.45}),
    ("translate", "pairs.tsv", "transformer", {"model.layers": 1, "model.width": 10, "model.heads": 5}),
    ("translate", "pairs.tsv", "seq2seq", {"model.hidden": 10, "train.minutes": 1.0}),
    ("classify", "reviews.tsv", "feedforward", {"train.optimizer": "sgd"}),
])
def test_what_is_given_stays_and_fits_what_is_chosen(desk, task, file, kind, given):
    made = chosen(file, task, kind, **given)
    for name, value in given.items():
        part, _, field = name.partition(".")
        assert getattr(getattr(made, part), field) == value
    budgets = [made.train.steps, made.train.minutes, made.train.epochs]
    assert sum(budget is not None for budget in budgets) == 1


def test_one_line_says_it(desk, capsys):
    chosen("tags.conllu", "tag", "lstm")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("chosen for 27 examples of 3 words, on cpu: ")
    assert "head.char_cnn=True" in line


def test_each_task_has_a_kind():
    assert [default_kind(task) for task in ("lm", "tag", "translate", "mask", "caption", "chat")] == [
        "ngram", "hmm", "transformer", "encoder", "transformer", "gpt"]


@pytest.mark.parametrize(("given", "kind"), [
    ({}, "loglinear"), ({"text.tokenizer": "words", "model.order": 2}, "loglinear"),
    ({"train.minutes": 1.0}, "loglinear"), ({"train.minutes": 1e-6}, "lstm"), ({"train.steps": 5}, "lstm"),
    ({"model.hidden": 8}, "lstm"), ({"head.pool": "max"}, "lstm"),
], ids=str)
def test_single_texts_are_learned_by_a_log_linear_classifier_unless_a_setting_is_of_a_network(desk, given, kind):
    assert default_kind("classify", ["reviews.tsv"], given) == kind


def test_pairs_vectors_and_what_does_not_fit_into_memory_are_learned_by_a_network(desk, monkeypatch):
    (desk / "both.tsv").write_text("sentence1\tsentence2\tlabel\n" + "a cat\tan animal\tyes\na cat\ta dog\tno\n" * 9)
    (desk / "vectors.tsv").write_text("a\tb\tlabel\n" + "1.5\t2\tyes\n2.5\t1\tno\n" * 9)
    assert [default_kind("classify", [name]) for name in ("both.tsv", "vectors.tsv", "missing.tsv")] == ["lstm"] * 3
    monkeypatch.setattr(example_defaults, "MOST_TEXT", 300)
    assert default_kind("classify", ["reviews.tsv"]) == "lstm"


@pytest.mark.parametrize(("device", "kind"), [("cpu", "lstm"), ("cuda", "gpt")])
def test_a_running_text_with_minutes_is_learned_by_a_kind_that_uses_them(monkeypatch, device, kind):
    monkeypatch.setattr(example_defaults, "choose_device", lambda name: torch.device(device))
    assert default_kind("lm", ["book.txt"], {"train.minutes": 2.0}) == kind
    assert default_kind("lm", ["book.txt"], {"model.order": 3}) == "ngram"


def test_a_tagger_that_counts_says_that_it_does_not_use_the_minutes(desk, capsys):
    assert timed("tags.conllu", "tag", 0.5).kind == "hmm"
    assert "hmm, the default of --task tag, learns by counting" in capsys.readouterr().err
    with pytest.raises(UserError, match="hmm learns by counting, in as many passes as it needs"):
        timed("tags.conllu", "tag", 0.5, "hmm")


def test_a_classifier_of_few_steps_is_the_same_however_they_are_given(desk):
    """On a CPU; on a GPU a minute has thousands of steps."""
    few, enough = (timed("reviews.tsv", "classify", minutes, "lstm") for minutes in (0.001, 30))
    for made, steps in ((few, 20), (enough, 3000)):
        other = chosen("reviews.tsv", "classify", "lstm", **{"train.steps": steps})
        assert (made.train.lr, made.model.dropout, made.head.dropout) == (
            other.train.lr, other.model.dropout, other.head.dropout)
    assert few.train.lr > enough.train.lr
    assert few.head.dropout < enough.head.dropout


def test_minutes_that_are_enough_for_a_kind_without_a_clock_are_no_mistake(desk):
    assert timed("reviews.tsv", "classify", 1.0).kind == "loglinear"


def test_a_network_of_a_given_size_keeps_the_dropout_of_its_kind(desk):
    small = {"model.width": 16, "model.heads": 2}
    own, sized = (chosen("pairs.tsv", "translate", "transformer", **given) for given in ({}, small))
    assert (own.model.dropout, own.model.label_smoothing, own.train.weight_decay) == (0.3, 0.1, 0.5)
    assert (sized.model.dropout, sized.model.label_smoothing, sized.train.weight_decay) == (0.0, 0.0, None)


def test_what_restores_a_text_is_small_on_a_cpu(desk):
    (desk / "book.txt").write_text("a fine film and a dull play.\n" * 40)

    def size(task, kind, **given):
        made = chosen("book.txt", task, kind, **given)
        return made.model.layers, made.model.width, made.train.lr

    for task, kind in (("mask", "encoder"), ("span", "transformer"), ("denoise", "transformer")):
        assert size(task, kind) == (2, 128, 0.02)
    assert size("mask", "encoder", **{"model.width": 384})[:2] == (6, 384)
    assert size("mask", "encoder", **{"train.lr": 0.1}) == (2, 128, 0.1)
    large = example_settings(recipe_for("encoder", {}, "mask"), {}, ["book.txt"], [], "cuda")[0]
    assert "model.width" not in large
    assert large["train.lr"] < 0.01


@pytest.mark.parametrize(("given", "few"), [
    ({"train.steps": 400}, True), ({"train.epochs": 2}, True), ({"train.total_tokens": 2000}, True), ({}, False),
    ({"train.steps": 2000}, False), ({"train.minutes": 0.1}, False), ({"train.steps": 400, "train.lr": 0.002}, None),
    ({"train.steps": 400, "train.optimizer": "adamw"}, False), ({"train.epochs": "2", "train.tokens": "64"}, True),
])
def test_few_steps_of_a_classifier_are_longer_and_drop_less(desk, given, few):
    made = chosen("reviews.tsv", "classify", "lstm", **given)
    assert (made.train.lr, made.model.dropout, made.head.dropout) == {
        True: (0.01, 0.1, 0.2), False: (0.005, 0.3, 0.5), None: (0.002, 0.1, 0.2)}[few]
