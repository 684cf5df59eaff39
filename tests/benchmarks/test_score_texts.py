"""Texts that were written elsewhere are scored as those that `chainrule eval` writes."""

import sys

import pytest
from programs import benchmark

from chainrule.inference.metrics import measure_overlap

score_texts = benchmark("score_texts")
WANTED = ["the old man goes to sea", "a green wine of the sea", "to the old green man"]
WRITTEN = ["the old man goes to the sea", "a green Wine of the sea", "wine"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in (("source", ["x"] * 3), ("wanted", WANTED), ("texts", WRITTEN), ("short", WRITTEN[:2])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("lowercase", [False, True])
def test_scores_are_those_of_the_texts(files, monkeypatch, capsys, lowercase):
    words = ["score_texts", "texts", "source", "wanted", *(["--lowercase"] if lowercase else [])]
    monkeypatch.setattr(sys, "argv", words)
    score_texts.main()
    exact = measure_overlap(WRITTEN, [[text] for text in WANTED], lowercase=lowercase)
    assert f"BLEU {exact.bleu.value:.2f}" in capsys.readouterr().out
    other = measure_overlap(WRITTEN, [[text] for text in WANTED], lowercase=not lowercase)
    assert exact.bleu.value != other.bleu.value


@pytest.mark.parametrize(("name", "said"), [("short", "2 lines for 3 examples"), ("absent", "there is no file absent")])
def test_what_does_not_fit_is_one_line(files, monkeypatch, capsys, name, said):
    monkeypatch.setattr(sys, "argv", ["score_texts", name, "source", "wanted"])
    with pytest.raises(SystemExit):
        score_texts.main()
    assert said in capsys.readouterr().err.splitlines()[-1]
