"""`model.vectors`: the embedding of a network begins with word vectors made elsewhere, and freezes if asked to."""

import numpy as np
import pytest
import torch

from chainrule import run
from chainrule.errors import UserError
from chainrule.formats.vector_files import write_vectors
from chainrule.inference.vectors import Vectors
from chainrule.run import load
from chainrule.training.pipeline import make_run, recipe_for

SIZE = 16
MATRIX = np.random.default_rng(1).normal(size=(3, SIZE)).astype(np.float32)
THERE = Vectors(["cat", "dog", "unicorn"], MATRIX)
WIDTHS = {
    "feedforward": {"model.embedding": SIZE, "model.hidden": 16},
    "rnn": {"model.embedding": SIZE, "model.hidden": 16},
    "gru": {"model.embedding": SIZE, "model.hidden": 16, "model.layers": 1},
    "lstm": {"model.embedding": SIZE, "model.hidden": 16, "model.layers": 1},
    "gpt": {"model.width": SIZE, "model.layers": 1, "model.heads": 2, "model.context": 8},
}
QUICK = {
    "text.tokenizer": "words", "train.steps": 3, "train.tokens": 64, "train.length": 8, "train.lr": 1e-9,
    "train.weight_decay": 0.0, "train.evaluate": 0.0, "model.tied": False,
}


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    (tmp_path / "book.txt").write_text("the cat saw the dog\na dog and a cat ran\n" * 60)
    write_vectors(THERE, tmp_path / "there.txt", "word2vec")
    return tmp_path


def trained(desk, kind, **given):
    recipe = recipe_for(kind, {**QUICK, **WIDTHS.get(kind, {}), "model.vectors": str(desk / "there.txt"), **given})
    make_run([str(desk / "book.txt")], recipe, desk / "run", overwrite=True)
    return load(desk / "run")


def row(made, word):
    return made.model.embeddings[made.tokenizer.id(word)].detach()


@pytest.mark.parametrize("kind", WIDTHS)
def test_any_network_is_initialised_with_them(desk, kind, capsys):
    made = trained(desk, kind)
    torch.testing.assert_close(row(made, "cat"), torch.from_numpy(MATRIX[0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(row(made, "dog"), torch.from_numpy(MATRIX[1]), atol=1e-5, rtol=0)
    assert row(made, "saw").any()
    assert "vectors for 2 of 9 tokens (22.2%), trained further" in capsys.readouterr().err
    (told,) = [record for record in run.read_log(desk / "run") if record["event"] == "vectors"]
    assert (told["covered"], told["share"], told["frozen"]) == (2, 2 / 9, False)


@pytest.mark.parametrize("kind", ["lstm", "gpt"])
def test_under_a_tied_output_they_are_as_long_as_random_ones(desk, kind, capsys):
    made, plain = (trained(desk, kind, **{"model.tied": True, **given}) for given in ({}, {"model.vectors": None}))
    ours, random = (torch.stack([row(one, word) for word in ("cat", "dog")]).norm(dim=1) for one in (made, plain))
    assert float(ours.mean()) == pytest.approx(float(random.mean()), rel=1e-3)
    cosine = torch.cosine_similarity(row(made, "cat"), torch.from_numpy(MATRIX[0]), dim=0)
    assert float(cosine) == pytest.approx(1, abs=1e-5)
    assert "which makes them as long as random ones (tied output)" in capsys.readouterr().err


@pytest.mark.parametrize("kind", WIDTHS)
def test_frozen_vectors_stay_and_others_are_trained_further(desk, kind):
    free = trained(desk, kind, **{"train.lr": 0.1})
    assert not torch.allclose(row(free, "cat"), torch.from_numpy(MATRIX[0]), atol=1e-3)
    kept = trained(desk, kind, **{"train.lr": 0.1, "model.vectors_frozen": True})
    assert torch.equal(row(kept, "cat"), torch.from_numpy(MATRIX[0]))


@pytest.mark.parametrize("kind", WIDTHS)
def test_normalised_vectors_have_a_mean_square_of_1_and_their_directions(desk, kind):
    made = trained(desk, kind, **{"model.vectors_frozen": True, "model.vectors_normalised": True})
    for word, vector in zip(("cat", "dog"), torch.from_numpy(MATRIX)):
        torch.testing.assert_close(row(made, word), vector / vector.square().mean().sqrt())


def test_words_that_are_not_there_keep_their_random_start(desk):
    with_them, without = trained(desk, "lstm"), trained(desk, "lstm", **{"model.vectors": None})
    torch.testing.assert_close(row(with_them, "saw"), row(without, "saw"), atol=1e-6, rtol=0)
    assert not torch.allclose(row(with_them, "cat"), row(without, "cat"), atol=1e-3)


def test_they_come_from_a_run_too(desk):
    words = recipe_for("word2vec", {"model.embedding": SIZE, "text.min_count": 1, "train.epochs": 1.0})
    make_run([str(desk / "book.txt")], words, desk / "words")
    made, source = trained(desk, "gru", **{"model.vectors": str(desk / "words")}), load(desk / "words")
    torch.testing.assert_close(row(made, "cat"), row(source, "cat"), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("given", "line"), [
    ({"model.embedding": 8}, r"has vectors of 16 numbers, and this model's are of 8. Set model.embedding"),
    ({"model.vectors": "nowhere.txt"}, r"model.vectors=nowhere.txt: there is no such file or run"),
    ({"text.tokenizer": "bytes"}, r"has no vector for any token of this vocabulary"),
    ({"model.vectors": None, "model.vectors_frozen": True}, r"model.vectors_frozen=true is of the vectors of"),
    ({"model.vectors": None, "model.vectors_normalised": True}, r"model.vectors_normalised=true is of the vectors of"),
])
def test_what_does_not_fit_is_refused(desk, given, line):
    with pytest.raises(UserError, match=line):
        trained(desk, "lstm", **given)
