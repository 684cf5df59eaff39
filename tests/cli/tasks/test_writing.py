"""Translations, captions and answers from the command line: by a beam, and by minimum Bayes risk."""

import json

import pytest
from cli.tasks.small import WRITERS


@pytest.mark.parametrize("kind", WRITERS)
def test_texts_are_translated(chainrule, asked, numbers, kind):
    epochs = 100 if kind == "seq2seq" else 50
    given = ["text.tokenizer=words", "text.min_count=1", f"train.epochs={epochs}", "train.tokens=64", *WRITERS[kind]]
    chainrule("train", *numbers, "--valid", "n.en", "--valid", "n.de", "--task", "translate", "--kind", kind,
              "--out", "runs/m", *given, "--json")
    measured = chainrule("eval", "runs/m", *numbers, "--json").json
    assert measured["chrf"] > 90
    assert "tok:13a" in measured["signature"]
    assert asked("two four one\n", "runs/m").out == "zwei vier eins\n"
    greedy = asked("two four one\n", "runs/m", "--beam", "1", "--json").json["answers"]
    assert greedy[0]["answer"] == "zwei vier eins"


def test_of_many_texts_the_one_most_like_the_others_is_told(chainrule, asked, complaint, numbers):
    given = ["text.tokenizer=words", "text.min_count=1", "train.epochs=100", "train.tokens=64", *WRITERS["seq2seq"]]
    chainrule("train", *numbers, "--task", "translate", "--kind", "seq2seq", "--out", "runs/m", *given, "--json")
    lines = "two four one\nfive five two\n"
    many = asked(lines, "runs/m", "--samples", "16", "--temperature", "0.5", "--json").json["answers"]
    assert [answer["answer"] for answer in many] == ["zwei vier eins", "fünf fünf zwei"]
    assert all(0.5 < answer["score"] <= 1 for answer in many)                    # how like the others it is
    assert asked(lines, "runs/m", "--samples", "16", "--temperature", "0.5").out == "zwei vier eins\nfünf fünf zwei\n"
    measured = chainrule("eval", "runs/m", *numbers, "--samples", "8", "--temperature", "0.5", "--json").json
    assert measured["chrf"] > 90
    assert (measured["samples"], measured["temperature"], measured["limit"]) == (8, 0.5, 256)
    by_beam = chainrule("eval", "runs/m", *numbers, "--beam", "3", "--alpha", "0.5", "--limit", "7", "--json").json
    assert (by_beam["beam"], by_beam["alpha"], by_beam["limit"]) == (3, 0.5, 7)
    assert not {"beam", "alpha"} & measured.keys()
    wild = chainrule("eval", "runs/m", *numbers, "--samples", "1", "--temperature", "inf", "--json").json
    assert wild["chrf"] < 60
    assert wild["temperature"] is None                                           # JSON knows no infinity
    for how in ([], ["--samples", "4"]):
        assert [len(line.split()) for line in asked(lines, "runs/m", *how, "--limit", "2").out.splitlines()] == [2, 2]
    assert "samples=0 is not valid" in complaint("eval", "runs/m", *numbers, "--samples", "0")
    assert "limit=0 is not valid" in complaint("eval", "runs/m", *numbers, "--limit", "0")
    cold = ["--samples", "1", "--temperature", "-1"]
    assert "temperature=-1.0 is not valid" in complaint("eval", "runs/m", *numbers, *cold)


def test_vectors_are_told_in_words(chainrule, tmp_path):
    rows = [f"{x},{y},{'left' if x < 0 else 'right'}\n" for x in (-2, -1, 1, 2) for y in (0, 1)]
    (tmp_path / "shapes.csv").write_text("x,y,text\n" + "".join(rows) * 4)
    chainrule("train", "shapes.csv", "--valid", "shapes.csv", "--task", "caption", "--kind", "seq2seq", "--out",
              "runs/v", "model.hidden=16", "model.layers=1", "model.dropout=0", "text.tokenizer=words", "train.lr=0.02",
              "text.min_count=1", "train.epochs=40", "train.tokens=64", "--json")
    assert chainrule("eval", "runs/v", "shapes.csv", "--json").json["rouge_l"] > 90


def test_questions_are_answered(chainrule, asked, complaint, tmp_path):
    rows = [{"question": f"where is {name} ?", "context": f"{name} is in {place} .", "answers": [f"in {place}"]}
            for name in ("Anna", "Ben", "Clara") for place in ("York", "Rome", "Oslo")]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    chainrule("train", "qa.jsonl", "--valid", "qa.jsonl", "--task", "answer", "--kind", "seq2seq", "model.hidden=24",
              "model.layers=1", "model.dropout=0", "model.encoder=feedforward", "text.tokenizer=words",
              "train.epochs=30", "train.tokens=128", "train.lr=0.02", "--out", "runs/q")
    measured = chainrule("eval", "runs/q", "qa.jsonl", "--json").json
    assert (measured["exact"], measured["f1"], measured["texts"]) == (1.0, 1.0, 36)
    assert asked("where is Ben ?\tBen is in Rome .\n", "runs/q").out == "in Rome\n"
    (tmp_path / "new.tsv").write_text("question\tcontext\nwhere is Anna ?\tAnna is in Oslo .\n")
    assert chainrule("predict", "runs/q", "new.tsv").out == "in Oslo\n"
    assert "none is known as the answers" in complaint("eval", "runs/q", "new.tsv")
    (tmp_path / "bare.tsv").write_text("question\tcontext\twhy\na ?\t\tx\n")
    assert "bare.tsv line 2 is empty where the context should be" in complaint("predict", "runs/q", "bare.tsv")
    (tmp_path / "lines.txt").write_text("where is Ben ?\n")
    assert "lines.txt line 1 has no tab" in complaint("predict", "runs/q", "lines.txt")


def test_a_network_that_diverged_writes_no_empty_texts(chainrule, complaint, numbers):
    words = ["--task", "translate", "--kind", "transformer", "model.layers=1", "model.width=16", "model.heads=2",
             "model.context=64", "model.zero_init=false", "train.warmup=0", "train.lr=1e15", "train.weight_decay=1e15",
             "train.optimizer=adamw", "train.steps=1", "--out", "runs/t"]
    assert chainrule("train", *numbers, *words).code == 0
    assert "it diverged; train again with a lower train.lr" in complaint("predict", "runs/t", numbers[0])
    assert "it diverged; train again with a lower train.lr" in complaint("eval", "runs/t", *numbers)
