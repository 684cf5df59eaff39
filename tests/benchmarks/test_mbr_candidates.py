"""Texts that are drawn for many decision rules are those of minimum Bayes risk, and its choice is the same."""

import json
import sys

import pytest
import torch
from programs import benchmark

from chainrule.api import train
from chainrule.inference.mbr import MinimumBayesRisk, choose_search
from chainrule.inference.sampling import Sampling
from chainrule.tasks.translate import write_texts

candidates = benchmark("mbr_candidates")
WORDS = ["one", "two", "three", "four", "five"]
SETTINGS = {"text.tokenizer": "words", "text.min_count": 1, "model.hidden": 8, "model.layers": 1, "train.epochs": 2,
            "train.tokens": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    pairs = [(first, second) for first in WORDS for second in WORDS]
    rows = [{"source": f"{first} {second}", "target": f"{second} {first} {first}"} for first, second in pairs]
    (path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, seed in ("a", 1), ("b", 2):
        train(str(path / "pairs.jsonl"), valid=str(path / "pairs.jsonl"), task="translate", kind="seq2seq",
              out=str(path / name), settings=SETTINGS | {"train.seed": seed})
    return path


def called(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["mbr_candidates", *map(str, words)])
    candidates.main()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def drawn(folder, monkeypatch, capsys, *draws):
    given = [f"{name}={folder / name}" for name in ("a", "b")] + [f"pairs={folder / 'pairs.jsonl'}"]
    asked = [word for one in draws for word in ("--draw", one)]
    return called(monkeypatch, capsys, "draw", *given, *asked, "--samples", 9, "--limit", 7, "--device", "cpu",
                  "--out", folder / "drawn")


@pytest.mark.parametrize("together", ["a", "a+b"])
def test_the_choice_is_that_of_predict(folder, monkeypatch, capsys, together):
    (said,) = drawn(folder, monkeypatch, capsys, f"{together}:pairs:0.8:1")
    assert said["sources"] == 25
    file = folder / "drawn" / f"{together}_pairs_0.8_1.jsonl.xz"
    called(monkeypatch, capsys, "choose", file, "--out", folder / "texts")
    run, *others = (candidates.load(folder / name) for name in together.split("+"))
    run = run.averaged_with(*others) if others else run
    wanted = run.predict(str(folder / "pairs.jsonl"), search=choose_search(limit=7, samples=9, temperature=0.8))
    assert (folder / "texts").read_text().splitlines() == [answer["answer"] for answer in wanted]
    assert len({answer["answer"] for answer in wanted}) > 3


def test_log_probabilities_are_those_of_whole_texts(folder, monkeypatch, capsys):
    drawn(folder, monkeypatch, capsys, "a:pairs:0.8:1")
    run = candidates.load(folder / "a")
    encoded = run.task.encode(run.task.read_inputs(str(folder / "pairs.jsonl"), run.reading({})), run.recipe,
                              run.tokenizer, ())
    with candidates.lzma.open(folder / "drawn" / "a_pairs_0.8_1.jsonl.xz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    assert [row["id"] for row in rows] == list(range(25))
    assert all(sum(many for many, _ in row["texts"].values()) == 9 for row in rows)
    found = write_texts(run.model, encoded, run.tokenizer, MinimumBayesRisk(9, Sampling(0.8), 7))
    for number, row in enumerate(rows):
        assert set(row["texts"]) == {text for text, _ in found[number]}
        source = torch.tensor([encoded.source[number].tolist()])
        for text, (_, log_prob) in row["texts"].items():
            tokens = [0, *run.tokenizer.encode(text).tolist(), 0]
            ended = len(tokens) - 2 < 7
            read = torch.tensor([tokens[:-1] if ended else tokens[:-2]])
            with torch.no_grad():
                logits, _ = run.model.step(read, run.model.start(1, source))
            own = logits[0].log_softmax(-1)[torch.arange(read.shape[1]), torch.tensor(tokens[1 : 1 + read.shape[1]])]
            assert log_prob == pytest.approx(float(own.sum()), abs=2e-3)


def test_draws_of_several_files_are_pooled_and_those_of_absent_runs_left_out(folder, monkeypatch, capsys):
    said = drawn(folder, monkeypatch, capsys, "a:pairs:1.0:1", "absent:pairs:1.0:1", "b:pairs:1.0:1")
    assert ["left_out" in line for line in said] == [False, True, False]
    files = [folder / "drawn" / f"{name}_pairs_1.0_1.jsonl.xz" for name in ("a", "b")]
    each, both = [candidates.read_draws([file]) for file in files], candidates.read_draws(files)
    for first, second, together in zip(*each, both, strict=True):
        assert together == {text: first.get(text, 0) + second.get(text, 0) for text in {*first, *second}}


def test_how_often_a_text_was_drawn_counts():
    assert candidates.choose({"a b": 5, "c d": 1, "c e": 1, "c\nf": 1}) == "a b"
    assert candidates.choose({"a b": 1, "c d": 1, "c e": 1, "c\nf d": 2}) == "c f d"
