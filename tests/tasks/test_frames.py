"""Sequences of vectors: read from arrays, tables and JSON lines, then classified and tagged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chainrule import models
from chainrule.errors import UserError
from chainrule.model import IGNORE
from chainrule.tasks import recipe_for
from chainrule.tasks.frames import Frames, encode_frames, read_frames
from chainrule.text.generated import Motion
from chainrule.text.sources import Source
from chainrule.text.tables import Place

RISING = "sequence,a,b,label\n1,1,0,first\n1,2,0,more\n1,3,1,more\n2,5,1,first\n2,6,1,more\n"


def read(folder: Path, name: str, text: str, task: str = "tag", labels: bool = True) -> list[Frames]:
    (folder / name).write_text(text)
    settings = recipe_for("lstm", {}, task).text
    return list(read_frames([Source(folder / name)], settings, labels))


def test_a_table_has_a_row_for_each_frame_and_a_sequence_ends_where_its_number_changes(tmp_path: Path) -> None:
    first, second = read(tmp_path, "a.csv", RISING)
    np.testing.assert_array_equal(first.frames, [[1, 0], [2, 0], [3, 1]])
    assert (first.tags, second.tags) == (("first", "more", "more"), ("first", "more"))
    np.testing.assert_array_equal(second.frames, [[5, 1], [6, 1]])
    assert (second.place.line, second.frames.dtype) == (5, np.float32)


def test_json_lines_and_an_array_hold_the_same(tmp_path: Path) -> None:
    frames = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    rows = [{"frames": part.tolist(), "labels": ["x", "y", "x"]} for part in frames]
    found = read(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    np.save(tmp_path / "a.npy", frames)
    (tmp_path / "a.txt").write_text("x y x\nx y x\n")
    sources = [Source(tmp_path / "a.npy"), Source(tmp_path / "a.txt")]
    other = list(read_frames(sources, recipe_for("lstm", {}, "tag").text))
    assert [example.about for example in found] == [example.about for example in other]
    assert [example.tags for example in found] == [example.tags for example in other]


@pytest.mark.parametrize(("name", "text", "said"), [
    ("a.jsonl", '{"frames": [[1, 2], [3]], "labels": ["a", "b"]}\n', "frame 2 has 1 numbers, and the first has 2"),
    ("a.jsonl", '{"frames": [[1], [3]], "labels": ["a", "b", "c"]}\n', "has 2 frames and 3 labels"),
    ("a.jsonl", '{"frames": [], "labels": []}\n', "has no list of vectors in frames"),
    ("a.csv", "a,b,label\n1,2,x\n3,y\n", "line 3 has 2 columns"),
    ("a.csv", "a,b,label\n1,two,x\n", "line 2 has 'two' where a number should be"),
    ("a.csv", "a,b\n1,2\n", "which one is the label?"),
])  # fmt: skip
def test_wrong_frames_are_refused_in_a_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        read(tmp_path, name, text)
    assert "\n" not in str(error.value)


def test_a_sequence_with_several_labels_has_no_class(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean --task tag"):
        _ = read(tmp_path, "a.csv", RISING, "classify")[0].label


def made(kind: str, features: int = 3, **settings: Any) -> Any:
    given = {f"model.{name}": value for name, value in settings.items()}
    recipe = recipe_for(kind, {"model.features": features, "model.dropout": 0.0, **given}, "tag")
    torch.manual_seed(0)
    return models.build(kind, recipe.model, 257).eval()


SMALL: dict[str, dict[str, Any]] = {
    "feedforward": {"order": 3, "hidden": 8, "embedding": 4}, "rnn": {"hidden": 8},
    "gru": {"hidden": 8, "layers": 1, "weight_dropout": 0.0},
    "lstm": {"hidden": 8, "layers": 1, "weight_dropout": 0.0, "bidirectional": True},
    "encoder": {"layers": 1, "width": 8, "heads": 2, "context": 16},
}  # fmt: skip


@pytest.mark.parametrize("kind", SMALL)
def test_padding_changes_no_frame(kind: str) -> None:
    body, frames = made(kind, **SMALL[kind]), torch.randn(2, 5, 3)
    lengths = torch.tensor([5, 3])
    alone = body.encode(frames[1:, :3], lengths[1:])
    torch.testing.assert_close(body.encode(frames, lengths)[1:, :3], alone)
    other = frames.clone()
    other[1, 3:] += 1
    torch.testing.assert_close(body.encode(other, lengths)[1:, :3], alone)


def test_a_window_of_one_frame_sees_no_other() -> None:
    body, frames = made("feedforward", order=2, hidden=8, embedding=4), torch.randn(1, 5, 3)
    before = body.encode(frames)
    frames[0, 2] += 1
    same = (body.encode(frames) == before).all(-1)[0].tolist()
    assert same == [True, True, False, True, True]


def test_a_recurrent_network_reads_the_numbers_as_they_are() -> None:
    """h_t = tanh(W h + U x_t + b), written out."""
    body, frames = made("rnn", 2, hidden=3), torch.randn(1, 4, 2)
    weights = dict(body.stack.layers[0].rnn.named_parameters())
    h, outputs = torch.zeros(3), []
    for x in frames[0]:
        h = torch.tanh(weights["weight_hh_l0"] @ h + weights["weight_ih_l0"] @ x
                       + weights["bias_ih_l0"] + weights["bias_hh_l0"])
        outputs.append(h)
    torch.testing.assert_close(body.encode(frames)[0], torch.stack(outputs))
    with pytest.raises(UserError, match="it predicts no token"):
        body.start(1)


def test_a_batch_pads_frames_with_zeros_and_ignores_their_labels() -> None:
    place = Place("a", 1)
    recipe = recipe_for("lstm", {"model.features": 2}, "tag")
    some = [Frames(np.ones((3, 2), np.float32), ("x", "y", "x"), place),
            Frames(np.full((1, 2), 2, np.float32), (), place)]
    encoded = encode_frames(some, recipe, ("x", "y"), each=True)
    batch = encoded.batch(np.array([0, 1]), [3])
    assert batch.tokens.tolist() == [[[1, 1]] * 3, [[2, 2], [0, 0], [0, 0]]]
    assert batch.targets.tolist() == [[0, 1, 0], [IGNORE] * 3]
    assert encoded.target_count == 3
    with pytest.raises(UserError, match="has frames of 2 numbers, and this model reads 5"):
        encode_frames(some, recipe_for("lstm", {"model.features": 5}, "tag"), ("x", "y"), each=True)


def test_the_label_of_a_moving_dot_is_the_step_that_led_to_the_frame() -> None:
    motion = Motion()
    frames, directions = motion.make(50, 1)
    shaped = frames.reshape(50, motion.frames, motion.grid, motion.grid)
    seen = shaped.max((2, 3)) > 100                                       # where the dot is not hidden
    steps, checked = list(motion.steps.values()), 0
    for clip in range(50):
        for now in range(1, motion.frames):
            if seen[clip, now - 1] and seen[clip, now]:
                before, after = (np.array(np.unravel_index(shaped[clip, at].argmax(), (motion.grid,) * 2))
                                 for at in (now - 1, now))
                assert ((after - before) % motion.grid).tolist() == [
                    part % motion.grid for part in steps[directions[clip, now]]]
                checked += 1
    assert checked > 300
    np.testing.assert_array_equal(frames, motion.make(50, 1)[0])
    assert not np.array_equal(frames, motion.make(50, 2)[0])
