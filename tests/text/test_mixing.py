"""A weighted mix of texts: shares of what is drawn, windows of each text, and a run made of it."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from chainrule.cli import main
from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.text.corpus import MixedSplit, Part, prepare
from chainrule.text.mixing import MixedStreams, MixedWindows, Mixture, report_mix

WEIGHTS = (0.6, 0.22, 0.08, 0.08, 0.02)


def mixed(sizes, weights):
    """Texts of so many tokens, whose tokens are their places in the whole."""
    ends = np.cumsum(sizes)
    parts = [Part(f"{place}.txt", weight / sum(weights), int(end), size, size)
             for place, (weight, end, size) in enumerate(zip(weights, ends, sizes))]
    return MixedSplit(np.arange(ends[-1] + 1, dtype=np.uint32), int(ends[-1]), len(sizes), "", tuple(parts))


@pytest.mark.parametrize("rows", [100, 1000, 12_345])
def test_texts_are_drawn_as_often_as_their_weights_say(rows):
    mixture = Mixture(WEIGHTS, seed=1)
    drawn = mixture.drawn(rows)
    assert drawn.sum() == rows
    block = mixture.block
    assert np.abs(drawn - rows * np.array(WEIGHTS)).max() <= 1 + block / 2 * (rows % block > 0)
    assert np.abs(mixture.drawn(rows * block) - rows * block * np.array(WEIGHTS)).max() <= 1


def test_a_row_knows_how_many_of_its_text_were_before_it():
    mixture = Mixture(WEIGHTS, seed=3)
    texts, numbers = mixture.rows(0, 1000)
    for place in range(len(WEIGHTS)):
        assert numbers[texts == place].tolist() == list(range((texts == place).sum()))
    assert np.bincount(texts).tolist() == mixture.drawn(1000).tolist()
    for first, last in ((0, 7), (500, 777), (90, 130)):                     # in any order, as after a restart
        again = Mixture(WEIGHTS, seed=3).rows(first, last)
        assert (again[0].tolist(), again[1].tolist()) == (texts[first:last].tolist(), numbers[first:last].tolist())
    assert Mixture(WEIGHTS, seed=4).rows(0, 1000)[0].tolist() != texts.tolist()


def test_every_window_of_a_text_comes_once_before_any_comes_again_and_none_crosses_into_another():
    split = mixed([40, 400, 90], [0.5, 0.3, 0.2])
    order = MixedWindows(split, rows=4, length=5, seed=1)
    starts = np.concatenate([order.starts(step) for step in range(40)])
    bounds = [0, *(part.end for part in split.parts)]
    for place, (begin, end) in enumerate(pairwise(bounds)):
        own = starts[(starts >= begin) & (starts < end)]
        assert (own + 5 <= end).all()
        windows = order.parts[place].windows
        for epoch in range(len(own) // windows):
            assert len(set(own[epoch * windows : (epoch + 1) * windows])) == windows
    batch = order.at(3)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])


def test_epochs_are_those_of_the_arithmetic_of_gpt3s_table():
    """Tokens drawn times weight by size, as in table 2.2: small texts are read several times, large ones in part."""
    sizes, weights = [4100, 190, 120, 550, 30], [0.60, 0.22, 0.08, 0.08, 0.03]
    split = mixed(sizes, weights)
    order = MixedWindows(split, rows=10, length=1, seed=1)
    report = report_mix(split, order, steps=300)
    for part, size, weight in zip(report, sizes, weights):
        assert part.epochs == pytest.approx(3000 * weight / sum(weights) / size, rel=0.05)
        assert part.share == pytest.approx(weight / sum(weights), abs=0.005)


def test_a_stream_goes_on_within_its_stretch_and_stays_in_its_text():
    split = mixed([700, 660], [0.5, 0.5])
    order = MixedStreams(split, rows=3, length=5, seed=1)
    assert order.stretch == 32
    texts = set()
    for step in range(100):
        begins, ends = order.starts(step), order.starts(step) + 5
        assert ((begins < 700) == (ends <= 700)).all()
        texts |= set((begins < 700).tolist())
        if order.goes_on(step):
            assert begins.tolist() == (order.starts(step - 1) + 5).tolist()
    assert texts == {True, False}
    assert MixedStreams(mixed([700, 42], [1, 1]), 3, 5, seed=1).stretch == 2


def test_a_text_shorter_than_a_row_is_named():
    with pytest.raises(UserError, match=r"1.txt of text.mix is shorter than a row: 4 tokens to predict, and a row"):
        MixedWindows(mixed([40, 4], [1, 1]), 2, 5, seed=1)


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    (tmp_path / "a.txt").write_text("abcabc abc\n" * 200)
    (tmp_path / "b.txt").write_text("xyzxyz xyz\n" * 40)


def test_a_part_of_each_text_is_held_out(texts):
    corpus = prepare(["a.txt", "b.txt"], Text(tokenizer="characters", mix=(0.6, 0.4)))
    for name in ("train", "valid"):
        split = corpus.splits[name]
        assert [part.text for part in split.parts] == ["a.txt", "b.txt"]
        assert split.parts[-1].end == len(split.tokens) - 1
        for part, letters in zip(split.parts, ("abc", "xyz")):
            alone = split.only(part)
            text = corpus.tokenizer.decode(alone.tokens[1:-1])
            assert set(text) == {*letters, " ", "\n"}
            assert (alone.tokens[0], alone.tokens[-1], len(text.encode())) == (0, 0, part.bytes)
    again = prepare(["a.txt", "b.txt"], Text(tokenizer="characters", mix=(0.6, 0.4)))
    assert again.splits["valid"].parts == corpus.splits["valid"].parts
    given = prepare(["a.txt", "b.txt"], Text(tokenizer="characters", mix=(3, 1)), valid=["a.txt"])
    assert [part.text for part in given.splits["valid"].parts] == ["a.txt"]
    assert [part.weight for part in given.splits["train"].parts] == [0.75, 0.25]


SMALL = ["model.layers=1", "model.width=16", "model.heads=2", "model.context=8", "text.tokenizer=characters"]


@pytest.mark.parametrize("kind", [["gpt", *SMALL], ["rnn", "model.hidden=8", "train.length=8", SMALL[-1]]])
def test_a_run_reports_what_it_read_of_each_text(kind, texts, capsys):
    words = ["train", "a.txt", "b.txt", "text.mix=0.6,0.4", "--kind", *kind, "train.tokens=64", "train.steps=64"]
    assert main([*words, "--out", "runs/mix", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["mix"]
    assert (first["text"], second["text"]) == ("a.txt", "b.txt")
    assert first["share"] == pytest.approx(0.6, abs=0.13)
    assert second["epochs"] == pytest.approx(64 * 64 * 0.4 / 400, rel=0.35)
    assert first["bits_per_byte"] > 0
    assert main(["eval", "runs/mix", "b.txt"]) == 0


@pytest.mark.parametrize(("words", "says"), [
    (["--kind", "gpt", "text.mix=1,2,3"], "text.mix=1,2,3 has 3 weights, and there are 2 texts: a.txt, b.txt."),
    (["--kind", "ngram", "text.mix=1,2"], "ngram counts every token of a text once"),
    (["--kind", "word2vec", "text.mix=1,2"], "word2vec counts every token"),
    (["--kind", "gpt", "text.mix=1,0"], "text.mix=0: it must be more than 0"),
    (["--kind", "gpt", "text.mix=1,x"], "text.mix=x is not a number"),
    (["--kind", "gru", "--task", "classify", "text.mix=1,2"], "--task classify learns from examples"),
])  # fmt: skip
def test_a_mix_that_cannot_be_is_one_line(words, says, texts, capsys):
    assert main(["train", "a.txt", "b.txt", *words, "--out", "runs/no"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
