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


def test_vectors_without_a_text_get_a_caption(chainrule, complaint, tmp_path):
    rows = [f"{x},{y},{'left' if x < 0 else 'right'}\n" for x in (-2, -1, 1, 2) for y in (0, 1)]
    (tmp_path / "places.csv").write_text("x,y,text\n" + "".join(rows) * 4)
    chainrule("train", "places.csv", "--valid", "places.csv", "--task", "caption", "--kind", "seq2seq", "--out",
              "runs/v", "model.hidden=16", "model.layers=1", "model.dropout=0", "text.tokenizer=words", "train.lr=0.02",
              "text.min_count=1", "train.epochs=40", "train.tokens=64")
    (tmp_path / "new.csv").write_text("x,y\n-2,0\n1.5,1\n")
    assert chainrule("predict", "runs/v", "new.csv").out.split() == ["left", "right"]
    np.save(tmp_path / "new.npy", np.array([[-2, 0], [1.5, 1]]))
    assert chainrule("predict", "runs/v", "new.npy").out.split() == ["left", "right"]
    assert chainrule("predict", "runs/v", "places.csv").out.split()[:2] == ["left", "left"]
    (tmp_path / "wide.csv").write_text("x,y,z\n1,2,3\n")
    assert "reads vectors, rows x vectors x 2" in complaint("predict", "runs/v", "wide.csv")


COLOURS = {"red": (220, 20, 20), "blue": (20, 20, 220)}


@pytest.fixture
def pictures(tmp_path):
    """A table of PPM files, each of one colour, which is the caption."""
    random, rows = np.random.default_rng(0), []
    (tmp_path / "pictures").mkdir()
    for number in range(24):
        name = list(COLOURS)[number % 2]
        pixels = (random.integers(0, 30, (6, 6, 3)) + COLOURS[name]).astype(np.uint8)
        (tmp_path / "pictures" / f"{number}.ppm").write_bytes(b"P6 6 6 255\n" + pixels.tobytes())
        rows.append(f"pictures/{number}.ppm,a {name} one\n")
    (tmp_path / "table.csv").write_text("path,caption\n" + "".join(rows))
    return "table.csv"


def test_pictures_get_a_caption(chainrule, complaint, pictures, tmp_path):
    chainrule("train", pictures, "--valid", pictures, "--task", "caption", "--kind", "transformer", "--out", "runs/p",
              "model.layers=1", "model.width=16", "model.heads=2", "model.context=16", "model.convolutions=4,8",
              "text.tokenizer=words", "train.epochs=40", "train.tokens=108", "train.lr=0.01")
    measured = chainrule("eval", "runs/p", pictures, "--json").json
    assert (measured["exact"], measured["texts"]) == (1.0, 24)
    assert "exact 100" in chainrule("eval", "runs/p", pictures).out
    (tmp_path / "new.jsonl").write_text('{"path": "pictures/1.ppm"}\n{"path": "pictures/2.ppm"}\n')
    assert chainrule("predict", "runs/p", "new.jsonl").out.splitlines() == ["a blue one", "a red one"]
    assert chainrule("predict", "runs/p", "pictures/3.ppm").out == "a blue one\n"
    np.save(tmp_path / "new.npy", np.full((1, 6, 6, 3), COLOURS["red"], np.uint8))
    assert chainrule("predict", "runs/p", "new.npy").out == "a red one\n"
    (tmp_path / "large.ppm").write_bytes(b"P6 12 12 255\n" + bytes(COLOURS["blue"]) * 144)
    assert "has a picture of 12 x 12 x 3; this model reads 6 x 6 x 3" in complaint("predict", "runs/p", "large.ppm")
    assert chainrule("predict", "runs/p", "large.ppm", "text.resize=6,6").out == "a blue one\n"
    (tmp_path / "none.png").write_text("no picture")
    assert "none.png is not a picture that can be read" in complaint("predict", "runs/p", "none.png")
    (tmp_path / "bad.csv").write_text("path,caption\nnone.png,a red one\n")
    assert "bad.csv line 2: " in complaint("eval", "runs/p", "bad.csv")
