"""Networks from the command line: a text in, a model out."""

from pathlib import Path

import pytest
import torch

from chainrule import device
from chainrule.defaults.choose import choose_defaults
from chainrule.run import load, read_log
from chainrule.tasks import recipe_for


def test_a_network_is_trained_from_the_command_line(chainrule, book):
    words = ["train", book, "--kind", "lstm", "text.tokenizer=characters", "model.hidden=16", "train.lr=0.03"]
    answer = chainrule(*words, "train.steps=30", "--out", "runs/lstm", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["finished"]
    assert answer.json["bits_per_byte"] < 6
    assert chainrule("sample", "runs/lstm", "--tokens", 5).code == 0


def test_minutes_are_a_budget(chainrule, book, complaint):
    words = ["train", book, "text.tokenizer=characters", "--minutes", "0.01"]
    assert chainrule(*words, "--kind", "lstm", "model.hidden=8", "--out", "runs/lstm").code == 0
    assert "kinds that learn by gradient descent; ngram learns by counting" in complaint(*words, "--kind", "ngram")
    assert "hmm learns by counting, in as many passes as it needs. Leave it out" in complaint(*words, "--kind", "hmm")
    vectors = ("--kind", "word2vec", "text.tokenizer=words", "text.min_count=1", "--out", "runs/w")
    assert chainrule(*words, *vectors).code == 0
    assert "training has one budget" in complaint(*words, "--kind", "gru", "train.steps=5")


@pytest.mark.parametrize(("fastest", "said"), [(1, "1 thread,"), (2, "2 threads,")])
def test_what_is_trained_says_its_threads_and_a_mistake_is_answered_alone(
    chainrule, book, complaint, monkeypatch, fastest, said,
):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(device, "choose_threads", lambda given: fastest)
    words = ["train", book, "text.tokenizer=characters", "--minutes", "0.004"]
    try:
        assert "ngram learns by counting" in complaint(*words, "--kind", "ngram")
        answer = chainrule(*words, "--kind", "lstm", "model.hidden=8", "--out", "runs/lstm", "--device", "cpu")
    finally:
        torch.set_num_threads(before)
    assert f"\nlstm on cpu with {said} characters" in answer.err
    (begun,) = (record for record in read_log(Path("runs/lstm")) if record["event"] == "begin")
    assert begun["threads"] == fastest


@pytest.mark.parametrize("kind", ["gpt", "gru", "feedforward"])
def test_minutes_choose_what_was_left_open(chainrule, book, kind):
    words = ["train", book, "text.tokenizer=characters", "--kind", kind]
    answer = chainrule(*words, "--minutes", "0.004", "train.lr=0.001", "--out", "runs/short")
    assert answer.code == 0, answer.err
    assert ", 0.004 minutes, on a CPU: " in answer.err
    chosen = load("runs/short").recipe
    assert chosen.train.lr == 0.001
    assert chosen.train.minutes == 0.004
    sizes = ("width", "hidden")
    short = max(getattr(chosen.model, size, 0) or 0 for size in sizes)
    given = {"text.tokenizer": "characters", "train.minutes": 600}
    long = choose_defaults(recipe_for(kind, given), given, [str(book)], device="cpu").model
    assert short <= max(getattr(long, size, 0) or 0 for size in sizes)


def test_a_size_that_was_asked_for_stays(chainrule, book):
    words = ["train", book, "text.tokenizer=characters", "--kind", "gpt", "model.layers=1", "model.width=8",
             "model.heads=1", "model.context=16"]
    answer = chainrule(*words, "--minutes", "0.004", "--out", "runs/own")
    assert "chosen for" in answer.err
    assert load("runs/own").recipe.model.width == 8


def test_minutes_take_the_place_of_the_budget_of_a_recipe(chainrule, book, tmp_path):
    (tmp_path / "r.toml").write_text('kind = "lstm"\n[train]\nsteps = 1000000\ncompile = false\n[model]\nhidden = 8\n')
    answer = chainrule("train", book, "--recipe", "r.toml", "text.tokenizer=characters", "--minutes", "0.01")
    assert answer.code == 0, answer.err


DIVERGING = ("--kind", "rnn", "model.hidden=16", "model.nonlinearity=relu", "text.tokenizer=characters",
             "train.warmup=0", "train.lr=1e15", "train.steps=1", "--out", "runs/d")


def test_a_network_that_diverged_is_said_to_have(chainrule, complaint, book):
    told = "numbers that are not finite: it diverged; train again with a lower train.lr and --overwrite"
    assert told in chainrule("train", book, *DIVERGING).out
    assert told in chainrule("eval", "runs/d", book).out
    assert told in chainrule("score", "runs/d", book).out
    answer = chainrule("score", "runs/d", book, "--json").json
    assert (answer["total_bits"], answer["perplexity"]) == (None, None)
    assert told in answer["why"]
    for words in ([], ["--json"], ["--rows", "2"], ["--temperature", "0"]):
        assert told in complaint("sample", "runs/d", "--prompt", "the ", *words)


def test_a_context_longer_than_the_text_is_one_line(chainrule, book):
    words = ["train", book, "text.tokenizer=characters", "--json"]
    for given in (["lstm", "train.length=100000"], ["gpt", "model.size=tiny", "model.context=50000"]):
        answer = chainrule(*words, "--kind", *given)
        assert answer.code == 2
        (line,) = answer.err.splitlines()
        assert "the text is shorter than the context" in line


def test_a_gpt_is_sampled_in_int8_and_other_kinds_are_refused(chainrule, complaint, book):
    small = ("model.layers=1", "model.width=32", "model.heads=2", "train.steps=1", "text.tokenizer=characters")
    assert chainrule("train", book, "--kind", "gpt", "model.context=16", *small, "--out", "runs/gpt").code == 0
    for precision in ("float32", "bfloat16", "int8"):
        answer = chainrule("sample", "runs/gpt", "--tokens", 30, "--precision", precision, "--json")
        assert answer.code == 0, answer.err
        assert 20 < len(answer.json["texts"][0]) <= 30    # tokens; some bytes may join to one character
    assert chainrule("train", book, "--kind", "bigram", "text.tokenizer=characters", "--out", "runs/two").code == 0
    refused = complaint("sample", "runs/two", "--precision", "int8")
    assert "--precision int8 is for neural networks" in refused
    assert chainrule("train", book, "--kind", "lstm", "model.hidden=8", *small[3:], "--out", "runs/lstm").code == 0
    refused = complaint("sample", "runs/lstm", "--precision", "int8")
    assert "--precision int8 is for gpt; runs/lstm is a run of lstm" in refused
