"""The Python interface: the examples of docs/tools/python.md run as they stand, and it agrees with the command line."""

import json
import re
from pathlib import Path

import pytest
import torch

import chainrule
from chainrule.api import as_list, dotted, text_name
from chainrule.cli import main
from chainrule.inference.text_score import TextScore

ANIMALS = [(one, other) for one in ("cat", "dog", "cow") for other in ("bird", "mouse", "fox")]
BOOK = "".join(f"the {one} saw the {other}, and the {other} ran.\n" for one, other in ANIMALS) * 4
REVIEWS = "text\tlabel\n" + "".join(f"a {word} film\t{word}\na {word} story\t{word}\n" for word in ("good", "bad") * 8)
PAGE = Path(__file__).parent.parent / "docs" / "tools" / "python.md"


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    (tmp_path / "book.txt").write_text(BOOK)
    (tmp_path / "reviews.tsv").write_text(REVIEWS)
    return tmp_path


@pytest.fixture
def run(desk):
    return chainrule.train("book.txt", kind="ngram", model_order=4, text_tokenizer="characters", out="runs/four")


def answer(capsys, *words):
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_examples_of_the_page_run_as_they_stand(desk, capsys):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "<Run runs/five: ngram, --task lm>" in printed
    assert "train.lr=-1: it must be more than 0." in printed
    assert "['good', 'bad']" in printed
    assert (desk / "attention.html").stat().st_size > 1000


def test_a_run_trained_in_python_is_that_of_the_command_line(run, desk, capsys):
    words = ("train", "book.txt", "--kind", "ngram", "model.order=4", "text.tokenizer=characters", "--out", "runs/cli")
    made = answer(capsys, *words)
    assert made["bits_per_byte"] == run.result["bits_per_byte"]
    assert chainrule.load("runs/cli").recipe == run.recipe


def test_generated_text_is_that_of_the_command_line(run, capsys):
    text = run.generate("the ", tokens=30, temperature=0.8, seed=3)
    words = ("sample", "runs/four", "--prompt", "the ", "--tokens", "30", "--temperature", "0.8", "--seed", "3")
    assert answer(capsys, *words)["texts"] == [text]
    assert "".join(run.stream("the ", tokens=30, temperature=0.8, seed=3)) == text
    assert run.generate("the ", tokens=30, temperature=0.8, seed=3, rows=2)[0] == text
    assert len(run.generate(["the ", "a "], tokens=5)) == 2


def test_a_score_is_that_of_the_command_line(run, desk, capsys):
    (desk / "short.txt").write_text("the cat saw.")
    score = run.score("the cat saw.")
    there = answer(capsys, "score", "runs/four", "short.txt")
    assert list(score.tokens) == there["shown"]
    assert list(score.bits) == pytest.approx(there["bits"])
    assert score.as_dict() == {name: there[name] for name in score.as_dict()}
    assert dict(score)["saw"[-1]] > 0
    assert len(score) == len("the cat saw.") + 1
    assert repr(score).startswith("<TextScore: ")


def test_what_is_infinite_is_none_and_said():
    score = TextScore(("a", "b"), (1.0, float("inf")), 2, True, "why")
    assert (score.total_bits, score.bits_per_byte, score.perplexity) == (None, None, None)
    assert score.as_dict()["why"] == "why"


def test_an_evaluation_is_that_of_the_command_line(run, capsys):
    there, here = answer(capsys, "eval", "runs/four", "book.txt"), run.evaluate(Path("book.txt"))
    assert here["bits_per_byte"] == there["bits_per_byte"]
    assert here["signature"] == there["signature"]
    assert run.evaluate(["book.txt"], settings={"text.errors": "replace"})["signature"] == there["signature"]
    with pytest.raises(chainrule.UserError, match=r"text\.vocab=3 cannot be set here"):
        run.evaluate("book.txt", settings={"text.vocab": 3})


def test_predictions_are_those_of_the_command_line(desk, capsys):
    run = chainrule.train("reviews.tsv", task="classify", kind="unigram", out="runs/reviews")
    (desk / "texts.txt").write_text("a good film\na bad film\n")
    here = run.predict(["a good film", "a bad film"])
    assert here == run.predict("texts.txt") == answer(capsys, "predict", "runs/reviews", "texts.txt")["answers"]
    assert [one["answer"] for one in here] == ["good", "bad"]
    with pytest.raises(chainrule.UserError, match="was trained for --task classify"):
        run.generate("a ")


def test_word_vectors_are_evaluated_on_a_test_of_words(desk):
    run = chainrule.train("book.txt", kind="word2vec", out="runs/words", text_min_count=1, train_epochs=1)
    (desk / "pairs.txt").write_text("cat\tdog\t9\ncat\tran\t1\ncow\tfox\t7\n")
    assert run.evaluate("pairs.txt")["test"] == "similarity"
    with pytest.raises(chainrule.UserError, match="does not predict the next token"):
        run.score("the cat")


def test_a_language_model_has_nothing_to_predict(run):
    with pytest.raises(chainrule.UserError, match="was trained for --task lm"):
        run.predict(["a text"])


def test_settings_can_be_keywords():
    given = {"model_order": 3, "train_adamw_lr": 0.1, "train.lr": 1}
    assert dotted(given) == {"model.order": 3, "train.adamw_lr": 0.1, "train.lr": 1}


def test_an_unknown_keyword_is_an_unknown_setting(desk):
    with pytest.raises(chainrule.UserError, match="unknown setting"):
        chainrule.train("book.txt", layers=4)
    with pytest.raises(chainrule.UserError, match=r"unknown setting model\.keys: it is model\.kv_heads now\."):
        chainrule.train("book.txt", kind="gpt", model_keys=4)
    assert not (desk / "runs").exists()


@pytest.mark.parametrize(("call", "match"), [
    (lambda run: chainrule.train([]), "there is no text to train on"),
    (lambda run: chainrule.train("book.txt", model_order=2, settings={"model.order": 3}), "model.order is given twice"),
    (lambda run: chainrule.load("runs/four", "gpu"), "there is no device gpu. It is auto, cpu or cuda"),
    (lambda run: run.generate("The ", rows=0), "0 rows cannot be sampled"),
    (lambda run: run.generate("The ", stop=""), "stop=.* is not valid"),
])
def test_what_is_wrong_with_an_argument_is_said(run, call, match):
    with pytest.raises(chainrule.UserError, match=match):
        call(run)


def test_a_value_that_is_no_text_is_named(desk):
    run = chainrule.train("reviews.tsv", task="classify", kind="unigram", out="runs/reviews")
    with pytest.raises(chainrule.UserError, match="input line 2 is no text but a float: nan"):
        run.predict(["a good film", float("nan")])


def test_fine_tuning_may_start_from_a_run_itself(desk):
    small = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 16, "train.steps": 1}
    run = chainrule.train("book.txt", kind="gpt", out="runs/gpt", settings=small)
    tuned, same = (chainrule.train("book.txt", base=one, out="runs/tuned", train_steps=1) for one in (run, "runs/gpt"))
    assert tuned.recipe == same.recipe


def test_a_recipe_file_is_read_and_keywords_override_it(desk):
    (desk / "r.toml").write_text('kind = "ngram"\n[model]\norder = 2\n[text]\ntokenizer = "characters"\n')
    assert chainrule.train("book.txt", recipe="r.toml", out="runs/two").recipe.model.order == 2
    assert chainrule.train("book.txt", recipe="r.toml", model_order=3, out="runs/three").recipe.model.order == 3


def test_files_and_names():
    assert as_list("a") == as_list(Path("a")) == as_list(["a"]) == ["a"]
    assert (text_name("book.txt.gz"), text_name("ptb:test"), text_name("-")) == ("book", "ptb-test", "stdin")


def test_an_observer_sees_the_model_with_each_record_of_the_log(desk):
    seen = []

    def observe(model, record):
        seen.append((record["event"], record.get("step"), model.training, next(model.parameters()).detach().clone()))

    run = chainrule.train(
        "book.txt", kind="rnn", out="runs/observed", observe=observe, model_hidden=4, model_layers=1,
        train_steps=3, train_evaluate=0, text_tokenizer="characters",
    )
    steps = [(step, weights) for event, step, training, weights in seen if event == "step" and training]
    assert [step for step, _ in steps] == [1, 2, 3]
    assert not torch.equal(steps[0][1], steps[1][1])
    assert torch.equal(steps[-1][1], next(run.model.parameters()))
