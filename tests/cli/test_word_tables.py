"""The next-word table, a single analogy, and hand-set models from the command line."""

import numpy as np
import pytest

from chainrule.formats.vector_files import write_vectors
from chainrule.inference.vectors import Vectors
from chainrule.run import load

COWS = ["corn"] * 4 + ["grass"] * 3 + ["hay"] * 2 + ["if they are hungry", "which they like"]


@pytest.fixture
def cows(chainrule, tmp_path):
    (tmp_path / "cows.txt").write_text("".join(f"cows eat {end}\n" for end in COWS))
    words = ("--kind", "ngram", "model.order=3", "text.min_count=1", "text.held_out=0")
    assert chainrule("train", "cows.txt", *words, "model.estimator=mle", "--out", "runs/cows").code == 0
    assert chainrule("train", "cows.txt", *words, "--out", "runs/smooth").code == 0
    return "runs/cows"


def test_the_next_word_table_of_the_eleven_sentences_has_the_lectures_fractions(chainrule, complaint, cows):
    answer = chainrule("next", cows, "--prompt", "cows eat")
    assert [line.split() for line in answer.out.splitlines()] == [
        ["corn", "0.3636", "4/11"], ["grass", "0.2727", "3/11"], ["hay", "0.1818", "2/11"], ["if", "0.0909", "1/11"],
        ["which", "0.0909", "1/11"], ["8", "others", "0.0000"],
    ]
    table = chainrule("next", cows, "--prompt", "cows eat", "--top", "2", "--json").json
    assert [row["token"] for row in table["next"]] == ["corn", "grass"]
    assert table["next"][0]["counts"] == [4, 11]
    assert table["rest"] == pytest.approx(4 / 11)
    assert "ask for 1 or more" in complaint("next", cows, "--top", "0")


def test_a_smoothed_table_has_no_fractions_and_its_rows_are_the_models_own(chainrule, cows):
    rows = chainrule("next", "runs/smooth", "--prompt", "cows eat", "--top", "20", "--json").json["next"]
    assert all("counts" not in row for row in rows)
    assert sum(row["p"] for row in rows) == pytest.approx(1)
    scored = load("runs/smooth").score("cows eat corn")
    assert rows[0]["p"] == pytest.approx(2 ** -scored.bits[2], rel=1e-4)


def test_an_analogy_is_answered_with_its_cosines(chainrule, complaint, tmp_path):
    places = {"king": (1, 1, 0), "man": (0, 1, 0), "woman": (0, 0, 1), "queen": (1, 0, 1), "cow": (-1, 0.1, 0)}
    write_vectors(Vectors(list(places), np.array(list(places.values()), np.float32)), tmp_path / "v.txt", "glove")
    assert chainrule("import", "v.txt", "runs/v").code == 0
    answer = chainrule("analogy", "runs/v", "king", "man", "woman", "--top", "1")
    assert answer.out.splitlines()[0] == "king − man + woman = queen"
    k, m, w, q = (np.array(places[word]) / np.linalg.norm(places[word]) for word in ("king", "man", "woman", "queen"))
    asked = k - m + w
    assert answer.out.splitlines()[1].split() == ["queen", f"{asked @ q / np.linalg.norm(asked):.4f}"]
    assert chainrule("analogy", "runs/v", "king", "--top", "1", "--json").json["nearest"][0]["word"] == "man"
    said = complaint("analogy", "runs/v", "emperor", "man", "cow")
    assert "'emperor' is not among the 5 words that have a vector" in said
    assert "analogy: 2 words. Give three" in complaint("analogy", "runs/v", "king", "man")


def test_hand_set_networks_of_numbers_answer_each_frame(chainrule, complaint, tmp_path):
    (tmp_path / "one.csv").write_text("2\n-0.5\n1\n1\n")
    (tmp_path / "two.csv").write_text("2,-2\n0,3.5\n1,2.2\n")
    for name in ("summation", "comparison", "weather"):
        assert chainrule("import", name, f"runs/{name}").code == 0
    assert chainrule("predict", "runs/summation", "one.csv").out == "2 1.5 2.5 3.5\n"
    assert chainrule("predict", "runs/comparison", "two.csv").out == "1 1 0\n"
    (answer,) = chainrule("predict", "runs/comparison", "two.csv", "--json").json["answers"]
    assert [round(p, 2) for _, p in answer["probabilities"]] == [1.0, 0.92, 0.03]
    assert "frames of 1 numbers, and this model reads 2" in complaint("predict", "runs/comparison", "one.csv")
    assert "this model reads vectors" in complaint("predict", "runs/comparison", "README.txt")
    assert "holds a run already" in complaint("import", "weather", "runs/weather")
    assert "Did you mean weather?" in complaint("import", "wether", "runs/x")
    (tmp_path / "snow.txt").write_text("umbrella snow\n")
    assert "snow.txt line 1: no state emits 'snow'. The symbols are umbrella, none." in complaint(
        "predict", "runs/weather", "snow.txt")
    assert "was trained for --task lm" in complaint("predict", _rnn(chainrule), "snow.txt")
    answer = chainrule("next", "runs/weather", "--prompt", "snow")
    assert answer.err == "snow is not in the vocabulary of the model, and is read as <unk>\n"


def _rnn(chainrule):
    assert chainrule("import", "rhythm", "runs/rhythm").code == 0
    return "runs/rhythm"


def test_a_trained_hmm_predicts_its_states_by_number(chainrule, book):
    words = ("--kind", "hmm", "model.states=3", "text.tokenizer=words", "train.steps=3")
    assert chainrule("train", book, *words, "--out", "runs/h").code == 0
    lines = chainrule("predict", "runs/h", book).out.splitlines()
    assert len(lines) == len(book.read_text().splitlines())
    assert set(" ".join(lines).split()) <= {"0", "1", "2"}
