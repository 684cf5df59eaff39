"""Defaults: what is given stays, the same good choice is made however the budget is given, and one line says it."""

from pathlib import Path

import pytest

from chainrule.api import training_recipe
from chainrule.defaults import choose
from chainrule.defaults.clock import Clock, measure_step
from chainrule.defaults.rates import STEPS, dropout_for, rate_settings
from chainrule.layers.attention import Attention
from chainrule.tasks import build_for, recipe_for
from chainrule.text.corpus import prepare
from chainrule.training.pipeline import make_run

BOOK = "the cat saw the dog, and the dog ran to the cow. " * 60
CHARACTERS = {"text.tokenizer": "characters"}
SMALL = {
    "gpt": {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 16},
    "lstm": {"model.layers": 1, "model.hidden": 16},
    "feedforward": {"model.hidden": 16, "model.embedding": 8},
}
BUDGETS = ({"train.steps": 300}, {"train.total_tokens": 19_200}, {"train.epochs": 7.26}, {"train.minutes": 0.5})
"""All of them 300 steps of 64 tokens, on a CPU that trains on 711 tokens a second."""


@pytest.fixture
def book(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(BOOK)
    return str(tmp_path / "book.txt")


def chosen(texts, kind=None, task=None, minutes=None, recipe=None, out=None, **given):
    return training_recipe([texts] if isinstance(texts, str) else texts, kind=kind, task=task, base=None, recipe=recipe,
                           valid=[], minutes=minutes, settings=given, device="cpu", out=out)


@pytest.fixture
def slow(monkeypatch):
    """A CPU that trains on so many tokens a second."""
    def at(speed):
        monkeypatch.setattr(choose, "measure_step", lambda recipe, corpus, seconds: speed)
    return at


@pytest.mark.parametrize("kind", SMALL)
def test_the_same_choice_however_the_budget_is_given(book, slow, kind):
    slow(711.2)
    few = {"train.tokens": 64}
    made = [chosen(book, kind, **CHARACTERS, **SMALL[kind], **few, **budget).train for budget in BUDGETS]
    assert len({(train.optimizer, train.lr, train.momentum, train.schedule, train.final_lr) for train in made}) == 1
    assert (made[0].optimizer, made[0].lr) == ("muon", 0.04)
    free = chosen(book, kind, **CHARACTERS, **SMALL[kind], **few).train
    asked = chosen(book, kind, **CHARACTERS, **SMALL[kind], **few, **{"train.epochs": free.epochs}).train
    assert free == asked
    assert 0.02 < free.lr < 0.04    # some hundreds of steps


def test_a_learning_rate_is_for_the_optimizer_of_the_kind(book):
    own = recipe_for("lstm", {}).train.optimizer
    assert own != "muon"
    made = chosen(book, "lstm", **CHARACTERS, **SMALL["lstm"], **{"train.lr": 0.005}).train
    assert (made.optimizer, made.lr, made.schedule) == (own, 0.005, "linear")
    assert chosen(book, "lstm", **CHARACTERS, **SMALL["lstm"], **{"train.lr": 0.005, "train.optimizer": "muon"}
                  ).train.optimizer == "muon"


def test_what_is_given_stays(book):
    given = {"train.lr": 0.5, "train.optimizer": "sgd", "train.tokens": 48, "model.dropout": 0.3,
             "train.schedule": "wsd", "train.steps": 7, "model.attention_dropout": 0.2}
    made = chosen(book, "gpt", **CHARACTERS, **SMALL["gpt"], **given)
    assert {name: getattr(getattr(made, name.split(".")[0]), name.split(".")[1]) for name in given} == given
    assert (made.model.layers, made.model.width, made.model.context) == (1, 16, 16)
    assert made.train.momentum is None


def test_one_line_says_what_was_chosen_and_by_what(book, capsys):
    made = chosen(book, "gpt", **CHARACTERS)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("chosen for 2.6k tokens of text, no budget, on a CPU: model.layers=")
    assert f"train.lr={made.train.lr:g}" in line
    assert f"train.epochs={made.train.epochs:g}" in line
    assert line.endswith("(each can be given instead)")


def test_a_recipe_file_is_complete(book, tmp_path, capsys):
    (tmp_path / "own.toml").write_text('kind = "lstm"\n[model]\nhidden = 8\n[train]\nsteps = 5\n')
    made = chosen(book, recipe=tmp_path / "own.toml")
    assert made == recipe_for("lstm", {"model.hidden": 8, "train.steps": 5})
    assert capsys.readouterr().err == ""


def test_counting_and_published_sizes_are_left_alone(book, capsys):
    assert chosen(book) == recipe_for("ngram")
    assert chosen(book, "gpt3-small", **{"train.steps": 5}) == recipe_for("gpt3-small", {"train.steps": 5})
    assert capsys.readouterr().err == ""


def test_a_short_text_gets_a_small_network_and_few_tokens_a_step(book, tmp_path):
    (tmp_path / "long.txt").write_text(BOOK * 100)
    short, long = (chosen(text, "gpt", **CHARACTERS) for text in (book, str(tmp_path / "long.txt")))
    assert short.model.width < long.model.width
    assert short.train.tokens < long.train.tokens
    assert short.train.epochs == 20
    few = chosen(str(tmp_path / "long.txt"), "gpt", **CHARACTERS, **{"train.steps": 300})
    assert few.model.width < long.model.width


# The clock


def test_a_slow_machine_gets_short_steps_and_a_small_network(book, slow, tmp_path):
    (tmp_path / "book.txt").write_text(BOOK * 40)
    slow(1e6)
    fast = chosen(book, "gpt", minutes=1.5, **CHARACTERS)
    slow(1000.0)
    made = chosen(book, "gpt", minutes=1.5, **CHARACTERS)
    assert made.train.minutes == 1.5
    assert made.model.width < fast.model.width
    assert made.train.tokens < fast.train.tokens
    sized = chosen(book, "gpt", minutes=1.5, **CHARACTERS, **SMALL["gpt"])
    assert sized.train.tokens <= 0.9 * 90 * 1000 / STEPS


def test_a_sample_is_evaluated_where_the_whole_would_take_too_long(book, slow):
    slow(100.0)
    made = chosen(book, "gpt", minutes=0.1, **CHARACTERS, **SMALL["gpt"])
    assert 0 < made.train.evaluate_tokens < len(BOOK) // 10
    assert chosen(book, "gpt", minutes=0.1, **CHARACTERS, **{"train.evaluate_tokens": 77}).train.evaluate_tokens == 77
    slow(1e6)
    assert chosen(book, "gpt", minutes=0.1, **CHARACTERS, **SMALL["gpt"]).train.evaluate_tokens is None


@pytest.mark.parametrize("kind", SMALL)
def test_the_slowest_machine_and_the_shortest_time_give_a_run_that_can_be_made(book, slow, kind):
    """What is chosen is never refused: an evaluation of 0 tokens once was."""
    slow(1e-3)
    made = chosen(book, kind, minutes=1e-4, **CHARACTERS)
    assert made.train.evaluate_tokens == 256
    assert make_run([book], made, Path("run")).finished


def test_an_unfinished_run_keeps_what_was_measured_for_it(book, slow, tmp_path):
    slow(500.0)
    made = chosen(book, "gpt", minutes=0.002, **CHARACTERS)
    make_run([book], made, tmp_path / "run")
    slow(1e7)
    assert chosen(book, "gpt", minutes=0.002, out=tmp_path / "run", **CHARACTERS) == made
    assert chosen(book, "gpt", minutes=0.003, out=tmp_path / "run", **CHARACTERS) != made
    other = chosen(book, "gpt", minutes=0.002, out=tmp_path / "run", **CHARACTERS, **{"train.seed": 2})
    assert other.train.seed == 2


def test_the_clock_counts_tokens():
    clock = Clock(10.0, 100.0, 6.0)
    assert clock.tokens == pytest.approx(900)
    assert clock.flops == pytest.approx(6000)
    assert clock.for_flops(12.0).tokens == pytest.approx(450)


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_a_measured_step_leaves_the_random_numbers_alone(book, kind):
    import torch

    recipe = recipe_for(kind, {**CHARACTERS, **SMALL[kind], "train.tokens": 64, "train.length": 16})
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert measure_step(recipe, prepare([book], recipe.text), 1.0) > 0
    assert torch.equal(torch.get_rng_state(), before)


# Rates


def test_the_rate_falls_with_the_size_and_with_the_steps():
    rates = [rate_settings("muon", parameters)["train.lr"] for parameters in (1e3, 1e5, 1e6, 1e7, 1e8)]
    assert rates[0] == rates[1] > rates[2] > rates[3] > rates[4] > 0
    assert [rate_settings("muon", 1e5, steps)["train.lr"] for steps in (50, 300, 1000, 2000, 9000)] == [
        0.04, 0.04, 0.028, 0.02, 0.02]
    assert "train.lr" not in rate_settings("sgd", 1e5, 300)


def test_dropout_rises_with_the_epochs_and_with_the_parameters_for_each_token():
    assert [dropout_for(epochs, 1) for epochs in (1, 8, 32, 256, 1024, 5000)] == [0.0, 0.0, 0.05, 0.1, 0.2, 0.3]
    assert [dropout_for(14, per_token) for per_token in (0.3, 2, 10, 40, 100)] == [0.0, 0.05, 0.1, 0.2, 0.3]
    assert dropout_for(1, 1000) == 0    # nothing is read twice


def test_attention_weights_are_not_dropped_on_a_cpu(book):
    made = chosen(book, "gpt", **CHARACTERS, **SMALL["gpt"], **{"model.dropout": 0.1})
    layers = [part for part in build_for(made, 30).modules() if isinstance(part, Attention)]
    assert [layer.dropout for layer in layers] == [0.0]
    plain = build_for(recipe_for("gpt", {**SMALL["gpt"], "model.dropout": 0.1}), 30)
    assert [part.dropout for part in plain.modules() if isinstance(part, Attention)] == [0.1]


def test_word_vectors_untie_the_output_unless_it_is_given(book):
    vectors = {"model.vectors": "there.txt", **SMALL["gpt"], "train.steps": 5}
    assert chosen(book, "gpt", **vectors).model.tied is False
    assert chosen(book, "gpt", **vectors, **{"model.tied": True}).model.tied is True
