"""`chainrule eval RUN blimp` and `lambada`: tables, JSON, and runs that cannot take an exam."""

import json

import pytest

BLIMP = [{"sentence_good": f"the {one} saw the fox.", "sentence_bad": f"the the {one} saw fox.",
          "linguistics_term": "binding", "UID": "order"} for one in ("cat", "dog", "cow")]


@pytest.fixture
def exams(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_DATA", str(tmp_path / "data"))
    for name, rows in ("blimp/order", BLIMP), ("lambada/lambada_test", [{"text": "the cat saw the fox"}]):
        path = tmp_path / f"data/{name}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "data"


def test_blimp_is_a_table_beside_published_results(chainrule, trained, exams):
    answer = chainrule("eval", trained, "blimp")
    assert answer.code == 0, answer.err
    head, binding, overall, said, signature = answer.out.splitlines()
    assert head.split()[:5] == ["phenomenon", "accuracy", "95", "%", "interval"]
    assert head.split()[5:] == ["n-gram", "LSTM", "Transformer-XL", "GPT-2", "human"]
    assert binding.split() == ["binding", "100.0", "100.0", "to", "100.0", "64.4", "73.5", "74.7", "80.9", "87.3"]
    assert overall.split()[-1] == "88.6"
    assert said == f"{trained}: 100.0% of 3 pairs, 0 ties"
    assert signature.startswith("exam:blimp|examples:3|unit:characters|")


def test_lambada_says_accuracy_and_perplexity(chainrule, trained, exams):
    answer = chainrule("eval", trained, "lambada")
    assert answer.code == 0, answer.err
    assert "perplexity of a word" in answer.out
    assert "GPT-2 117M: 45.99 %, perplexity 35.13 (published)" in answer.out


def test_in_json(chainrule, trained, exams):
    answer = chainrule("eval", trained, "blimp", "--limit", 2, "--json").json
    assert answer["pairs"] == 2
    assert answer["run"] == trained
    assert chainrule("eval", trained, "lambada", "--json").json["passages"] == 1


def test_a_file_of_that_name_comes_first(chainrule, trained, exams, book, tmp_path):
    (tmp_path / "blimp").write_text(book.read_text())
    assert "bits per byte" in chainrule("eval", trained, "blimp").out


def test_what_cannot_take_an_exam_is_said_in_a_line(chainrule, complaint, trained, exams, tmp_path):
    rows = "".join(f"{label}\tthe {word} ran\n" for label, word in [("a", "cat"), ("b", "dog")] * 8)
    (tmp_path / "rows.tsv").write_text("label\ttext\n" + rows)
    made = chainrule("train", "rows.tsv", "--valid", "rows.tsv", "--task", "classify", "--kind", "unigram", "--out",
                     "runs/classes", "text.tokenizer=words", "text.min_count=1")
    assert made.code == 0, made.err
    assert "was trained for --task classify" in complaint("eval", "runs/classes", "blimp")
    assert "text.errors cannot be set here" in complaint("eval", trained, "blimp", "text.errors=replace")
    assert "--limit 0" in complaint("eval", trained, "lambada", "--limit", 0)
    assert "an exam" in complaint("train", "lambada", "--out", "runs/exam")
    classify = ("--task", "classify", "--out", "runs/x")
    assert "lambada cannot be trained on: an exam" in complaint("train", "lambada", *classify)


def test_absent_data_is_one_line(complaint, trained, tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_DATA", str(tmp_path / "none"))
    assert "BLiMP is not on this machine" in complaint("eval", trained, "blimp")
