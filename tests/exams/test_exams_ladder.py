"""benchmarks/quality/exams_ladder.py: the texts that it cuts, the tables that it prints, a row that fails."""

import json
import sys
from types import SimpleNamespace

import pytest
from programs import benchmark

ladder = benchmark("exams_ladder")

PART = {"accuracy": 0.5, "accuracy_interval": (0.25, 0.75)}
ROW = {
    "name": "KN-5", "bits_per_byte": 1.23456, "blimp": {**PART, "ties": 1234, "phenomena": {"binding": PART}},
    "lambada": {**PART, "perplexity": 1234.5, "perplexity_interval": (1000.0, 2000.0)},
}  # fmt: skip


def test_the_tables_have_ours_beside_the_published():
    imported = {"name": "other", "blimp": ROW["blimp"], "lambada": {**PART, "perplexity": None}}
    lines = ladder.tables([ROW, imported])
    assert "| KN-5 | 1.235 | 50.0 (25.0–75.0) | 1,234 | 50.00 (25.00–75.00) | 1,234 (1,000–2,000) |" in lines
    assert "| other | – | 50.0 (25.0–75.0) | 1,234 | 50.00 (25.00–75.00) | – |" in lines
    assert "| GPT-2, published | – | 83.0 | – | – | – |" in lines
    assert "| GPT-2 117M, published | – | – | – | 45.99 | 35.13 |" in lines
    assert "| binding | 50.0 (25.0–75.0) | 50.0 (25.0–75.0) | 64.4 | 73.5 | 74.7 | 80.9 | 87.3 |" in lines
    assert len({line.count("|") for line in lines[:3]}) == 1
    assert len({line.count("|") for line in lines[-3:]}) == 1


def test_a_text_is_cut_at_the_end_of_a_line_and_paragraphs_have_no_line_breaks(tmp_path, monkeypatch):
    (tmp_path / "gutenberg").mkdir()
    for name in ("train-00.txt", "valid.txt"):
        (tmp_path / "gutenberg" / name).write_text("one\ntwo\n\nthree\n  four\nfive\n")
    monkeypatch.setenv("CHAINRULE_DATA", str(tmp_path))
    assert ladder.cut("train", 13, tmp_path / "cut.txt").read_text() == "one two\n\n"
    assert ladder.cut("valid", 99, tmp_path / "cut.txt").read_text() == "one two\n\nthree\n  four five\n"


def test_a_row_that_fails_says_why_and_leaves_the_others(capsys, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")        # a program that fails
    args = SimpleNamespace(limit=None)
    assert ladder.attempt(ladder.examined, "mine", "absent", args, "cpu") is None
    said = json.loads(capsys.readouterr().out)
    assert said["name"] == "mine"
    assert said["command"][:2] == ["chainrule", "eval"]


@pytest.mark.parametrize(("words", "says"), [
    (["--run", "smollm"], "NAME=RUN is wanted"),
    ([], "set CHAINRULE_DATA"),
])
def test_a_wrong_call_is_one_line(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("CHAINRULE_DATA", raising=False)
    with pytest.raises(SystemExit):
        ladder.main(["--out", str(tmp_path / "out"), *words])
    assert says in capsys.readouterr().err.splitlines()[-1]
