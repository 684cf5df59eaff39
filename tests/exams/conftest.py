"""Small exams in a folder of their own, and runs that take them."""

import json

import pytest

import chainrule

TEXT = "the cat sleeps .\nthe cats sleep .\nthe cat sleeps .\nthe dog sleeps .\n"
PAIRS = {
    "agreement": ("subject_verb_agreement", [
        ("The cat sleeps.", "The cat sleep."),        # right: p(sleeps | cat) = 3 / 11, p(sleep | cat) = 1 / 11
        ("The cats sleep.", "The cats sleeps."),      # right
        ("The bird sings.", "The bird sing."),        # a tie: all three are unknown
        ("The cat sleep.", "The cat sleeps."),        # wrong on purpose
    ]),
    "animate_subject_trans": ("s-selection", [("The dog sleeps.", "The sleeps dog.")]),
}
PASSAGES = ["the cat sleeps . the cat", "the dog sleeps", "the cats sleep . the cats sleep", "a bird sings"]


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def exam_data(tmp_path, monkeypatch):
    """$CHAINRULE_DATA with a small BLiMP and a small LAMBADA."""
    monkeypatch.setenv("CHAINRULE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    for paradigm, (term, pairs) in PAIRS.items():
        rows = [{"sentence_good": good, "sentence_bad": bad, "linguistics_term": term, "UID": paradigm}
                for good, bad in pairs]
        write_lines(tmp_path / f"data/blimp/{paradigm}.jsonl", rows)
    write_lines(tmp_path / "data/blimp/models_summary.jsonl", [{"UID": "overall", "ngram": 0.6}])
    write_lines(tmp_path / "data/lambada/lambada_test.jsonl", [{"text": text} for text in PASSAGES])
    return tmp_path / "data"


@pytest.fixture
def bigram(tmp_path):
    """A bigram of the lower-case words of TEXT, with 1 added to every count."""
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "valid.txt").write_text(TEXT)
    settings = {"model.order": 2, "model.estimator": "add-k", "model.k": 1.0, "text.tokenizer": "words",
                "text.min_count": 1}
    return chainrule.train(tmp_path / "text.txt", kind="ngram", valid=tmp_path / "valid.txt", settings=settings,
                           out=tmp_path / "run")
