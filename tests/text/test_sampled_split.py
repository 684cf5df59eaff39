"""A sample of a split: blocks of it, drawn by a seed, whose bytes are counted exactly; and a run that says so."""

import numpy as np

from chainrule.api import train
from chainrule.run import read_log
from chainrule.tasks import recipe_for
from chainrule.text.corpus import prepare, sample_split

BOOK = "".join(f"{number} sheep, {number * 7 % 13} cows; ö\n" for number in range(900))


def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    (tmp_path / "book.txt").write_text(BOOK)
    recipe = recipe_for("gpt", {"text.tokenizer": "characters"})
    return prepare([str(tmp_path / "book.txt")], recipe.text)


def test_a_sample_is_blocks_of_the_split_in_order(tmp_path, monkeypatch):
    made = corpus(tmp_path, monkeypatch)
    split = made.splits["train"]
    sample, note = sample_split(split, 5000, 3, made.tokenizer)
    again, _ = sample_split(split, 5000, 3, made.tokenizer)
    other, _ = sample_split(split, 5000, 4, made.tokenizer)
    assert np.array_equal(sample.tokens, again.tokens)
    assert not np.array_equal(sample.tokens, other.tokens)
    assert len(sample.tokens) == 1 + 2 * 2048
    text, whole = made.tokenizer.decode(sample.tokens[1:].tolist()), made.tokenizer.decode(split.tokens[1:].tolist())
    assert text[:2048] in whole
    assert text[2048:] in whole
    assert whole.index(text[:2048]) < whole.index(text[2048:])
    assert sample.bytes == len(text.encode())
    assert "2 of " in note
    assert "drawn by seed 3" in note


def test_a_run_says_that_it_was_evaluated_on_a_sample(tmp_path, monkeypatch):
    corpus(tmp_path, monkeypatch)
    size = {"text.tokenizer": "characters", "model.layers": 1, "model.width": 8, "model.heads": 1, "model.context": 16}
    run = train(tmp_path / "book.txt", kind="gpt", out=tmp_path / "run", device="cpu",
                settings={**size, "train.steps": 2, "train.evaluate_tokens": 700})
    result = next(record for record in read_log(run.path) if record["event"] == "result")
    assert result["tokens"] == 700
    assert result["sample"] == "1 of 2 blocks of 700 tokens, drawn by seed 1"
    assert any("evaluations read a sample" in record.get("note", "") for record in read_log(run.path))
