"""/v1/predict: the answers of `chainrule predict`, for classes, tags, translations, blanks, captions; and errors."""

import base64
import io
import json
import struct
import sys
import zlib
from dataclasses import replace

import httpx
import numpy as np
import pytest
import torch
from serve.serving import serving
from viewer.live import save_run
from viewer.subjects import subject
from viewer.tasks import task_subject

from chainrule.cli import main
from chainrule.inference.beam import Beam
from chainrule.run import load, save
from chainrule.tasks import build_for, recipe_for
from chainrule.tasks.denoise import MASK
from chainrule.viewer.subject import Subject

QUESTIONS = {
    "gpt-classify": ["the cat said", "you (too)!"],
    "encoder-tag": ["the cat said", "dog"],
    "seq2seq-translate": ["the cat", "who said (me)?"],
    "encoder-mask": ["the ___ said who", "the cat said ___"],
    "hmm": ["the cat said", "dog"],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    every = [task_subject(*name.rsplit("-", 1)) for name in list(QUESTIONS)[:3]]
    every = [*every, masked(), task_subject("encoder", "classify"), subject("hmm"), subject("gpt")]
    with serving({one.name: save_run(folder / one.name, one) for one in every}) as running:
        yield running


def masked():
    """An encoder that knows the token of a blank."""
    made = task_subject("encoder", "mask")
    tokenizer = made.run.tokenizer.with_special([MASK])
    torch.manual_seed(3)
    model = build_for(made.run.recipe, len(tokenizer), ()).eval()
    return Subject(made.name, replace(made.run, tokenizer=tokenizer, model=model))


def ask(served, **body):
    return httpx.post(f"{served.url}v1/predict", json=body)


def command(monkeypatch, capsys, run, lines, *words):
    written = "".join(f"{line}\n" for line in lines).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written), encoding="utf-8"))
    capsys.readouterr()
    assert main(["predict", str(run), *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["answers"]


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_are_those_of_the_command(served, name, monkeypatch, capsys):
    wanted = command(monkeypatch, capsys, served.paths[name], QUESTIONS[name])
    answer = ask(served, model=name, input=QUESTIONS[name]).json()
    assert answer == {"object": "list", "model": name, "task": answer["task"], "answers": wanted}
    alone = ask(served, model=name, input=QUESTIONS[name][0]).json()["answers"]
    assert [one["answer"] for one in alone] == [wanted[0]["answer"]]


def test_search_by_the_options_of_the_command(served, monkeypatch, capsys):
    path, lines = served.paths["seq2seq-translate"], QUESTIONS["seq2seq-translate"]
    given = {"--beam": ("beam", 2), "--alpha": ("alpha", 0.0), "--limit": ("limit", 5)}
    words = [str(word) for option, (_, value) in given.items() for word in (option, value)]
    wanted = command(monkeypatch, capsys, path, lines, *words)
    assert ask(served, model="seq2seq-translate", input=lines, **dict(given.values())).json()["answers"] == wanted
    wanted = command(monkeypatch, capsys, path, lines, "--samples", "3", "--temperature", "0.5")
    sampled = ask(served, model="seq2seq-translate", input=lines, samples=3, temperature=0.5)
    assert sampled.json()["answers"] == wanted


def test_objects_are_rows_of_a_table(served):
    by_text = ask(served, model="encoder-classify", input=["the cat", "you"]).json()["answers"]
    rows = [{"text": "the cat"}, {"text": "you"}]
    assert ask(served, model="encoder-classify", input=rows).json()["answers"] == by_text
    assert ask(served, model="encoder-classify", input=rows[0]).json()["answers"][0]["answer"] == by_text[0]["answer"]


def test_alternatives_for_blanks(served):
    answer = ask(served, model="encoder-mask", input="the ___ said", top=2).json()["answers"][0]
    assert [len(some) for some in answer["alternatives"]] == [2]


def png(pixels):
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts)


def test_pictures_are_read_from_the_request_alone(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    (tmp_path / "one.png").write_bytes(png(pixels))
    (tmp_path / "one.jsonl").write_text('{"path": "one.png"}\n')
    made = task_subject("seq2seq", "translate").run
    recipe = recipe_for("seq2seq", {
        "model.hidden": 8, "model.picture": (8, 8, 3), "text.input": "pictures", "text.tokenizer": "characters",
    }, "caption")  # fmt: skip
    save(tmp_path / "run", build_for(recipe, len(made.tokenizer), ()), made.tokenizer, recipe)
    wanted = load(tmp_path / "run").predict(tmp_path / "one.jsonl", search=Beam(width=2, limit=3))
    with serving({"run": tmp_path / "run"}) as running:
        content = base64.b64encode(png(pixels)).decode()
        for given in (content, f"data:image/png;base64,{content}"):
            assert ask(running, input={"picture": given}, beam=2, limit=3).json()["answers"] == wanted
        for wrong in ({"path": str(tmp_path / "one.png")}, {"picture": str(tmp_path / "one.png")}, {"picture": "AAAA"}):
            refused = ask(running, input=wrong)
            assert refused.status_code == 400, refused.text
            assert str(tmp_path) not in refused.json()["error"]["message"]


@pytest.mark.parametrize(("body", "line"), [
    ({"model": "gpt", "input": "a"}, "gpt was trained for --task lm"),
    ({"model": "encoder-tag", "input": ""}, "is empty"),
    ({"model": "encoder-tag", "input": []}, "input"),
    ({"model": "encoder-tag", "input": ["a", 3]}, "input"),
    ({"model": "encoder-tag"}, "input"),
    ({"model": "encoder-tag", "input": "a", "top": 3}, "top is for runs that fill in blanks"),
    ({"model": "encoder-tag", "input": "a", "beams": 3}, "Did you mean beam?"),
    ({"model": "seq2seq-translate", "input": "a", "temperature": 1.0}, "give samples too"),
    ({"model": "seq2seq-translate", "input": "a", "beam": 0}, "beam"),
    ({"model": "encoder-mask", "input": "no blank"}, "has no blank"),
    ({"model": "encoder-mask", "input": {"text": "a"}}, "reads texts"),
    ({"model": "encoder-classify", "input": {"one": "a", "two": "b", "three": "c"}}, "input has the columns"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_json_line(served, body, line):
    answer = ask(served, **body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert line in error["message"]
    assert "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"
