"""`chainrule predict` of tables and lines: which column is the text, and what is wrong with a file."""

import gzip
import io
import json
import os
from threading import Thread
from types import SimpleNamespace

from cli.tasks.small import NUMBERS, WRITERS


def test_the_rows_of_a_table_are_answered(chainrule, asked, complaint, reviews, tmp_path):
    chainrule("train", reviews, "--task", "classify", "--kind", "unigram", "text.tokenizer=words", "text.min_count=1",
              "--out", "runs/c")
    objects = [{"id": 1, "text": "a fine\n\nfilm"}, {"id": 2, "text": "the dull play", "label": None}]
    packed = gzip.compress("".join(json.dumps(one) + "\n" for one in objects).encode())
    tables = {
        "a.tsv": b"index\tsentence\n0\ta fine film\n1\tthe dull play\n",
        "a.csv": b'sentence,label\n"a fine\nfilm",never seen\nthe dull play,\n',
        "a.jsonl.gz": packed, "a.jsonl": gzip.decompress(packed),
        "a.txt": b"a fine film\nthe dull play\n", "lines": b"a fine film\nthe dull play\n",
    }
    for name, table in tables.items():
        (tmp_path / name).write_bytes(table)
        assert chainrule("predict", "runs/c", name).out == "good\nbad\n", name
    (tmp_path / "unclear.tsv").write_text("text\tbody\na\tb\n")
    assert "more than one column that could be the text" in complaint("predict", "runs/c", "unclear.tsv")
    (tmp_path / "empty.jsonl").write_text("\n")
    assert "empty.jsonl is empty" in complaint("predict", "runs/c", "empty.jsonl")
    (tmp_path / "headed.tsv").write_text("sentence\n")
    assert "there is no input" in complaint("predict", "runs/c", "headed.tsv")
    for name in ("gone.jsonl", "gone.tsv.gz", "gone.csv"):
        assert complaint("predict", "runs/c", name) == f"chainrule: there is no file {name}."


def test_where_things_stand_in_another_table_can_be_said(chainrule, complaint, reviews, tmp_path):
    chainrule("train", reviews, "--task", "classify", "--kind", "unigram", "text.tokenizer=words", "text.min_count=1",
              "--out", "runs/c")
    (tmp_path / "other.tsv").write_text("what\thow\twhy\na fine film\tgood\tx\nthe dull play\tbad\ty\n")
    assert "Choose: text.column=NAME" in complaint("predict", "runs/c", "other.tsv")
    assert chainrule("predict", "runs/c", "other.tsv", "text.column=what").out == "good\nbad\n"
    told = chainrule("eval", "runs/c", "other.tsv", "text.column=what", "text.label=how", "--json").json
    assert (told["accuracy"], told["examples"]) == (1.0, 2)
    (tmp_path / "bare.tsv").write_text("a fine film\nthe dull play\n")
    assert "text.header=false" in complaint("predict", "runs/c", "bare.tsv")
    assert chainrule("predict", "runs/c", "bare.tsv", "text.header=false", "text.column=1").out == "good\nbad\n"


def test_the_only_column_of_a_table_may_have_no_name(chainrule, complaint, numbers, tmp_path):
    given = ["model.layers=1", "model.width=8", "model.heads=1", "model.context=16", "train.steps=1", "--json"]
    chainrule("train", *numbers, "--task", "translate", "--kind", "transformer", "--out", "runs/m", *given)
    (tmp_path / "bare.tsv").write_text("one two\ntwo one\n")
    assert "first line is 'one two': if that is a text and no header" in complaint("predict", "runs/m", "bare.tsv")
    for words in (["bare.tsv", "text.header=false"], ["bare.tsv", "text.header=false", "text.source=1"]):
        assert len(chainrule("predict", "runs/m", *words).out.splitlines()) == 2
    assert len(chainrule("predict", "runs/m", "bare.tsv", "text.source=one two").out.splitlines()) == 1
    (tmp_path / "named.tsv").write_text("source\none two\n")
    assert len(chainrule("predict", "runs/m", "named.tsv").out.splitlines()) == 1


def test_a_text_of_many_lines_has_an_answer_of_one(chainrule, complaint, tmp_path):
    rows = [{"id": number, "body": f"{word}\n\n{word}", "subject": "x\ny"} for number, word in enumerate(NUMBERS)]
    (tmp_path / "mail.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chainrule("train", "mail.jsonl", "--valid", "mail.jsonl", "--task", "translate", "--kind", "seq2seq", "--out",
              "runs/m", "text.tokenizer=characters", "train.epochs=40", *WRITERS["seq2seq"], "--json")
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps({"id": 1, "body": row["body"]}) + "\n" for row in rows))
    for name in ("mail.jsonl", "asked.jsonl"):
        assert chainrule("predict", "runs/m", name).out == "x y\n" * 5
        answers = chainrule("predict", "runs/m", name, "--json").json["answers"]
        assert [answer["answer"] for answer in answers] == ["x\ny"] * 5
    (tmp_path / "unclear.tsv").write_text("a\tb\tc\n1\t2\t3\n")
    assert "has the columns a, b, c; which is the source" in complaint("predict", "runs/m", "unclear.tsv")


def test_predict_says_what_is_wrong_with_its_lines(chainrule, asked, complaint, reviews, tmp_path):
    chainrule("train", reviews, "--task", "classify", "--kind", "unigram", "text.tokenizer=words", "--out", "runs/c")
    assert "there is no file gone.txt" in complaint("predict", "runs/c", "gone.txt")
    (tmp_path / "bad.txt").write_bytes(b"a \xff film\n")
    assert "bad.txt is not UTF-8" in complaint("predict", "runs/c", "bad.txt")
    assert "echo 'a fine film' | chainrule predict RUN" in complaint("predict", "runs/c", "a fine film")
    assert "no line came" in asked("", "runs/c").err
    said = complaint("eval", "runs/c", reviews, "text.vocab=9")
    assert "text.vocab=9 cannot be set here: the run has its own. Only text.errors, text.header, text.column" in said
    said = complaint("predict", "runs/c", reviews, "model.order=3")
    assert "model.order=3 cannot be set here: the run has its own." in said


def test_lines_are_read_as_any_text_is(chainrule, complaint, reviews, tmp_path, monkeypatch):
    """Packed, with a byte order mark, by \\r\\n; and what is not UTF-8 is refused, or replaced."""
    chainrule("train", reviews, "--task", "classify", "--kind", "unigram", "text.tokenizer=characters", "--out",
              "runs/c")
    (tmp_path / "a.txt").write_text("a fine film\nthe dull play\n")
    expected = chainrule("predict", "runs/c", "a.txt", "--json").json["answers"]
    marked = "\ufeffa fine film\r\nthe dull play\r\n".encode()
    (tmp_path / "b.txt").write_bytes(marked)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(marked))
    for name in ("b.txt", "b.txt.gz", "-"):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(marked)))
        assert chainrule("predict", "runs/c", name, "--json").json["answers"] == expected, name
    (tmp_path / "latin.txt").write_bytes("a café\n".encode("latin-1"))
    assert "text.errors=replace" in complaint("predict", "runs/c", "latin.txt")
    assert len(chainrule("predict", "runs/c", "latin.txt", "text.errors=replace").out.splitlines()) == 1
    (tmp_path / "wide.txt").write_bytes("a fine film\n".encode("utf-16"))
    assert "wide.txt is UTF-16" in complaint("predict", "runs/c", "wide.txt")


def test_lines_may_come_from_a_pipe_with_a_name(chainrule, reviews, tmp_path):
    chainrule("train", reviews, "--task", "classify", "--kind", "unigram", "text.tokenizer=characters", "--out",
              "runs/c")
    os.mkfifo(tmp_path / "pipe")
    writer = Thread(target=lambda: (tmp_path / "pipe").write_text("a fine film\n"))
    writer.start()
    assert chainrule("predict", "runs/c", "pipe").out == "good\n"
    writer.join()
