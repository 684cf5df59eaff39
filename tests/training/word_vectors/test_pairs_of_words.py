"""Vectors learned from a text: words of one kind end up near each other; a seed repeats; a stop is gone on from."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from chainrule import run
from chainrule.errors import UserError
from chainrule.inference.vectors import similarity, vectors_of
from chainrule.models import build
from chainrule.run import load
from chainrule.text.corpus import prepare
from chainrule.training import word_vectors
from chainrule.training.distributed import Ranks
from chainrule.training.log import Log
from chainrule.training.pipeline import make_run, recipe_for, train_model
from chainrule.training.word_vectors import train_by_pairs

CPU = torch.device("cpu")
FRUIT, BEASTS = ("apple", "plum", "pear", "fig"), ("cat", "dog", "cow", "fox")
SMALL = {"model.embedding": 16, "train.epochs": 3.0, "text.min_count": 1}


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Fruit is ripe and sweet; beasts run and bark."""
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    generator = torch.Generator().manual_seed(1)
    lines = []
    for number in range(3000):
        noun = (FRUIT, BEASTS)[number % 2][int(torch.randint(4, (1,), generator=generator))]
        lines.append(f"the ripe {noun} tastes sweet\n" if number % 2 == 0 else f"a quick {noun} runs home barking\n")
    path = tmp_path / "book.txt"
    path.write_text("".join(lines))
    return path


def trained(book, out, kind="word2vec", **given):
    return make_run([str(book)], recipe_for(kind, {**SMALL, **given}), out)


def vectors_at(out):
    made = load(out)
    return vectors_of(made.model, made.tokenizer)


@pytest.mark.parametrize(("kind", "given"), [
    ("word2vec", {"train.lr": 0.1, "model.sample": 0.01}),
    ("word2vec", {"train.lr": 0.1, "model.sample": 0.01, "model.algorithm": "cbow", "train.epochs": 6.0}),
    ("glove", {"train.epochs": 100.0}),
])
def test_words_of_one_kind_end_up_near_each_other(book, tmp_path, kind, given):
    made = trained(book, tmp_path / "run", kind, **given)
    assert made.finished
    vectors = vectors_at(tmp_path / "run")
    for ours, theirs in ((FRUIT, BEASTS), (BEASTS, FRUIT)):
        for word in ours:
            kin = min(similarity(vectors, word, other) for other in ours)
            assert kin > max(similarity(vectors, word, other) for other in theirs) + 0.1


def test_held_out_pairs_are_predicted_better_after_training(book, tmp_path):
    short = trained(book, tmp_path / "short", **{"train.epochs": 0.05})
    long = trained(book, tmp_path / "long")
    assert long.result["nats_per_pair"] < short.result["nats_per_pair"] - 0.5
    assert long.result["pairs"] == short.result["pairs"] > 100
    assert "perplexity" not in long.result


def test_glove_says_why_it_has_no_number(book, tmp_path):
    assert "fits the counts of one text" in trained(book, tmp_path / "run", "glove").result["why"]


def test_a_seed_repeats_and_another_does_not(book, tmp_path):
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    for out, seed in ((one, 1), (same, 1), (other, 2)):
        trained(book, out, **{"train.seed": seed})
    assert torch.equal(load(one).model.vectors, load(same).model.vectors)
    assert not torch.equal(load(one).model.vectors, load(other).model.vectors)


@pytest.mark.parametrize("kind", ["word2vec", "glove"])
def test_a_run_stopped_by_hand_ends_where_it_would_have_ended(book, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(word_vectors, "CHUNK", 5000)
    whole = trained(book, tmp_path / "whole", kind, **{"train.epochs": 6.0})
    rounds = []
    one_round = word_vectors.PairTrainer._one_round

    def interrupted(training, advance):
        rounds.append(training.round)
        if len(rounds) == 4:
            signal.raise_signal(signal.SIGINT)
        one_round(training, advance)

    monkeypatch.setattr(word_vectors.PairTrainer, "_one_round", interrupted)
    stopped = trained(book, tmp_path / "cut", kind, **{"train.epochs": 6.0})
    assert (stopped.interrupted, stopped.finished) == (True, False)
    on_the_way = load(tmp_path / "cut").model.embeddings.clone()
    made = trained(book, tmp_path / "cut", kind, **{"train.epochs": 6.0})
    assert made.finished
    assert rounds[4] == 4                                  # and not from the beginning
    ended, wanted = (load(path).model.state_dict() for path in (tmp_path / "cut", tmp_path / "whole"))
    assert all(torch.equal(ended[name], wanted[name]) for name in wanted)
    assert not torch.equal(on_the_way, load(tmp_path / "whole").model.embeddings)
    assert whole.result == made.result | {name: whole.result[name] for name in ("train_seconds",)}
    assert not (tmp_path / "cut" / "checkpoints").exists()


def test_a_stop_while_pairs_are_counted_leaves_the_model_untrained(book, tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors.CooccurrenceCounts, "__init__", lambda *_: signal.raise_signal(signal.SIGINT))
    made = trained(book, tmp_path / "run", "glove")
    assert (made.interrupted, made.finished) == (True, False)


def test_checkpoints_are_written_now_and_then(book, tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "CHUNK", 5000)
    monkeypatch.setattr(word_vectors, "CHECKPOINT", 0.0)
    kept = []
    monkeypatch.setattr(word_vectors.Checkpoints, "write", lambda self, step, *_: kept.append(step))
    trained(book, tmp_path / "run", **{"train.epochs": 1.0})
    assert kept[:3] == [0, 1, 2]


def test_minutes_end_it_too(book, tmp_path):
    recipe = recipe_for("word2vec", {"model.embedding": 8, "train.minutes": 0.02})
    made = make_run([str(book)], recipe, tmp_path / "run")
    assert made.finished
    records = [record for record in run.read_log(tmp_path / "run") if record["event"] == "step"]
    assert records[-1]["lr"] < 0.3 * records[0]["lr"]


def test_the_log_has_loss_and_learning_rate_as_they_fall(book, tmp_path):
    trained(book, tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["event"] == "step"]
    assert 10 < len(steps) <= word_vectors.RECORDS + 1
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert [record["lr"] for record in steps] == sorted((record["lr"] for record in steps), reverse=True)
    assert steps[0]["lr"] == pytest.approx(0.025, rel=0.05)


def test_rare_words_and_the_boundary_have_no_vector(book, tmp_path):
    book.write_text(book.read_text() + "a unique word\n")
    trained(book, tmp_path / "run", **{"text.min_count": 2, "text.held_out": 0.0001})
    made = load(tmp_path / "run")
    assert not made.model.embeddings[:2].any()
    assert made.tokenizer.token(1) == "<unk>"
    assert "unique" not in vectors_at(tmp_path / "run").words


def test_chunks_end_where_texts_end_if_they_do(monkeypatch):
    monkeypatch.setattr(word_vectors, "CHUNK", 6)
    tokens = np.array([0, 2, 3, 0, 4, 5, 6, 0, 7, 7, 7, 7, 7, 7, 7, 7, 0, 2, 0])
    ends = list(word_vectors._chunk_ends(tokens))
    assert ends == [3, 7, 13, 19]
    assert np.array_equal(np.concatenate([tokens[a:b] for a, b in zip([0, *ends], ends)]), tokens)


def test_vectors_that_are_no_numbers_stop_it(book, tmp_path):
    with pytest.raises(UserError, match=r"the vectors are not finite. A lower train.lr \(it is 1e\+15\)"):
        trained(book, tmp_path / "run", "glove", **{"train.lr": 1e15})


@pytest.mark.parametrize("kind", ["glove", "word2vec"])
def test_a_text_without_pairs_is_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    lone = tmp_path / "lone.txt"
    lone.write_text("one\ntwo\nthree\n" * 9)
    with pytest.raises(UserError, match="no two known words near each other"):
        trained(lone, tmp_path / "run", kind)


def test_several_ranks_are_refused():
    with pytest.raises(UserError, match="on one device; start it without torchrun"):
        train_by_pairs(None, None, None, Log(), None, ranks=Ranks(0, 2))


@pytest.mark.parametrize(("given", "line"), [
    ({"epochs": 1, "minutes": 1}, "training has one budget"),
    ({"epochs": 0}, r"train\.epochs=0: it must be more than 0"),
    ({"tokens": 0}, r"train\.tokens=0: it must be 1 or more"),
    ({"seed": -1}, r"train\.seed=-1: it must be 0 or more"),
    ({"final_lr": 2}, r"train\.final_lr=2: it must be from 0 to 1"),
])
def test_settings_that_cannot_be_are_refused(given, line):
    with pytest.raises(UserError, match=line):
        recipe_for("word2vec", {f"train.{name}": value for name, value in given.items()})


@pytest.mark.data
@pytest.mark.parametrize("algorithm", ["skip-gram", "cbow"])
def test_as_much_is_learned_as_gensim_learns_from_the_same_text(tmp_path, monkeypatch, algorithm):
    """By the loss of held-out pairs, under both programs' vectors, after one epoch with the same settings."""
    gensim = pytest.importorskip("gensim.models.word2vec")
    data = Path(os.environ.get("CHAINRULE_DATA", "")) / "ptb"
    if not data.is_dir():
        pytest.skip("CHAINRULE_DATA does not hold ptb")
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    text = tmp_path / "text.txt"
    lines = (data / "ptb.train.txt").read_text().splitlines(keepends=True)[:20_000]
    text.write_text("".join(lines).replace("<unk>", ""))
    recipe = recipe_for("word2vec", {"train.epochs": 1.0, "train.lr": 0.05, "model.algorithm": algorithm})
    corpus = prepare([str(text)], recipe.text, valid=[str(data / "ptb.valid.txt")])
    model = build("word2vec", recipe.model, len(corpus.tokenizer))
    train_model(model, corpus, recipe, Log())
    sentences, skip = gensim.LineSentence(str(text)), int(algorithm == "skip-gram")
    there = gensim.Word2Vec(sentences, alpha=0.05, sg=skip, workers=1, epochs=1)
    theirs = build("word2vec", recipe.model, len(corpus.tokenizer))
    theirs.load_state_dict(model.state_dict())
    chunks = word_vectors.TextChunks(corpus.splits["train"].tokens, corpus.tokenizer, CPU)
    theirs.initialise(chunks.counts(len(corpus.tokenizer)), word_vectors.generator_of(1, 0, CPU))
    places = [there.wv.key_to_index[corpus.tokenizer.token(id)] for id in range(2, len(corpus.tokenizer))]
    theirs.vectors[2:] = torch.from_numpy(there.wv.vectors[places])
    theirs.outputs[2:] = torch.from_numpy(there.syn1neg[places])
    ours, gensims = (word_vectors.held_out_loss(made, corpus.splits["valid"].tokens, corpus.tokenizer)["nats_per_pair"]
                     for made in (model, theirs))
    assert ours < gensims + 0.06
