"""Vectors from the command line: frames that are tagged and classified, pictures that get a caption."""

import json

import numpy as np
import pytest


@pytest.fixture
def clips(tmp_path):
    """Rising and falling numbers: the label says which, and one number alone cannot tell."""
    random, rows = np.random.default_rng(1), []
    for _ in range(60):
        steps = random.choice([-1, 1], 6)
        rows.append({"frames": [[value] for value in (np.cumsum(steps) / 3).tolist()],
                     "labels": ["up" if step > 0 else "down" for step in steps]})
    (tmp_path / "clips.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "clips.jsonl"


LEARN = ("train.epochs=30", "train.lr=0.02", "train.tokens=120", "model.dropout=0")


def test_frames_are_tagged_from_the_command_line(chainrule, complaint, clips, tmp_path):
    made = chainrule("train", clips, "--valid", clips, "--task", "tag", "--kind", "rnn", "model.hidden=16", *LEARN,
                     "--out", "runs/t", "--json").json
    assert made["accuracy"] > 0.95
    assert (made["frames"], made["sequences"]) == (360, 60)
    assert chainrule("eval", "runs/t", clips, "--json").json["accuracy"] == made["accuracy"]
    (tmp_path / "numbers.csv").write_text("0.333\n0.667\n0.333\n0\n")                 # no header, no label
    answers = chainrule("predict", "runs/t", "numbers.csv", "--json").json["answers"]
    assert [answer["answer"] for answer in answers] == ["up up down down"]
    assert np.array(answers[0]["outputs"]).shape == (4, 2)
    np.save(tmp_path / "wide.npy", np.zeros((1, 4, 2), np.float32))
    assert "has frames of 2 numbers, and this model reads 1" in complaint("predict", "runs/t", "wide.npy")


def test_sequences_are_classified_by_an_encoder(chainrule, tmp_path):
    rows = [f"{clip},{sign * step},{'rising' if sign > 0 else 'falling'}"
            for clip in range(40) for sign in ((-1) ** clip,) for step in range(5)]
    (tmp_path / "clips.csv").write_text("clip,x,label\n" + "\n".join(rows) + "\n")
    made = chainrule("train", "clips.csv", "--valid", "clips.csv", "--task", "classify", "--kind", "encoder",
                     "model.layers=1", "model.width=16", "model.heads=2", "model.context=8", *LEARN, "--out", "runs/c",
                     "--json").json
    assert made["accuracy"] == 1.0
    assert chainrule("predict", "runs/c", "clips.csv").out.split()[:2] == ["rising", "falling"]


@pytest.mark.parametrize(("words", "said"), [
    (["--task", "tag", "--kind", "gpt"], "Kinds that read vectors: feedforward, rnn, gru, lstm, encoder."),
    (["--task", "tag", "--kind", "rnn", "text.input=text"], "clips.jsonl"),
    (["--kind", "rnn", "model.features=3"], "--task lm reads text"),
])  # fmt: skip
def test_what_cannot_read_frames_says_so(complaint, clips, words, said):
    assert said in complaint("train", clips, *words, "--out", "runs/x")
