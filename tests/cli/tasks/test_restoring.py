"""Masks, spans and noise from the command line: texts with blanks are filled in."""

import json
from pathlib import Path

import numpy as np
import pytest

TINY = ("model.layers=1", "model.width=32", "model.heads=2", "model.context=32", "train.steps=60", "train.tokens=512",
        "train.lr=0.01")


@pytest.mark.parametrize(("task", "kind"), [("mask", "encoder"), ("span", "transformer"), ("denoise", "transformer")])
def test_texts_are_restored(chainrule, asked, book, task, kind):
    made = chainrule("train", book, "--task", task, "--kind", kind, "--out", "runs/r", *TINY, "text.tokenizer=words",
                     "--json").json
    records = [json.loads(line) for line in Path("runs/r/log.jsonl").read_text().splitlines()]
    losses = [record["nats_per_token"] for record in records if record["event"] == "step"]
    assert losses[-1] < losses[0] - 0.2
    assert made["nats"] < losses[0]
    assert np.isfinite(made["perplexity"])
    said = chainrule("eval", "runs/r", book, "--beam", "1")
    assert "bits per token" in said.out.splitlines()[0]
    assert "|seed:0|length:" in said.out.splitlines()[1]
    measured = chainrule("eval", "runs/r", book, "--beam", "1", "--json").json
    assert measured["bits_per_token_interval"][0] < measured["bits_per_token"] < measured["bits_per_token_interval"][1]
    assert measured["perplexity"] < 14                                    # of 15 tokens
    lines = "the cat saw the ___, and the bird ran.\nthe ___ saw [MASK] fox, and the fox ran.\n"
    answers = asked(lines, "runs/r", "--top", "2", "--json").json["answers"]
    assert [1 <= len(some) <= 2 for some in answers[0]["alternatives"]] == [True]
    printed = asked(lines, "runs/r", "--top", "2").out.splitlines()
    assert printed[0] == answers[0]["answer"]
    assert printed[1].startswith("  1: ")
    assert asked(lines, "runs/r").out.splitlines() == [answer["answer"] for answer in answers]
    if task == "mask":
        assert measured["accuracy"] > 0.15
        assert all(0 <= one["p"] <= 1 for some in answers[1]["alternatives"] for one in some)
        assert answers[1]["answer"].endswith(" fox, and the fox ran.")


def test_a_recurrent_network_restores_spans(chainrule, asked, book):
    chainrule("train", book, "--task", "span", "--kind", "seq2seq", "--out", "runs/s", "model.hidden=16",
              "model.layers=1", "text.tokenizer=words", "train.steps=4", "--json")
    assert asked("the cat ___ ran.\n", "runs/s").out.startswith("the cat ")
    assert "exact_spans_interval" in chainrule("eval", "runs/s", book, "--json").json


@pytest.mark.parametrize(("lines", "more", "said"), [
    ("the cat\n", [], "stdin line 1 has no blank: write ___ or [MASK] where something is missing."),
    ("the ___\n\n", [], "stdin line 2 has no blank"),
    ("", [], "there is no input"),
    ("the ___ " * 9, [], "stdin line 1 has 9 blanks, and the run learned from rows with at most 2."),
    ("___ " + "the " * 40, [], "stdin line 1 has 43 tokens with its boundaries, and the model holds 32. Shorten it."),
    ("the ___", ["--top", "0"], "--top 0: ask for 1 to 20 alternatives."),
])
def test_lines_that_cannot_be_filled_are_said(chainrule, asked, book, lines, more, said):
    given = [word for word in TINY if not word.startswith("train.")]
    chainrule("train", book, "--task", "span", "--kind", "transformer", "--out", "runs/s", *given, "train.steps=1",
              "text.tokenizer=words", "--json")
    answer = asked(lines, "runs/s", *more)
    assert answer.code == 2
    assert said in answer.err.splitlines()[-1]


def test_alternatives_are_for_blanks(chainrule, asked, reviews):
    chainrule("train", reviews, "--task", "classify", "--kind", "unigram", "--out", "runs/c", "--json")
    assert "--top is for runs that fill in blanks" in asked("a film\n", "runs/c", "--top", "3").err
