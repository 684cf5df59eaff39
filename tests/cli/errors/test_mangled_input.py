"""Damaged and hostile input files from the command line: bounded time and memory, and one clear line."""

import gzip

import pytest

from chainrule.run import load
from chainrule.text import tables
from chainrule.text.sources import find_sources


def test_a_table_of_captions_with_a_header_only(complaint, tmp_path):
    (tmp_path / "none.csv").write_text("a,b,caption\n")
    line = complaint("train", "none.csv", "--kind", "seq2seq", "--task", "caption", "--out", "runs/c")
    assert "none.csv has no examples to learn from" in line


def test_frames_without_a_sequence(complaint, tmp_path):
    (tmp_path / "none.csv").write_text("sequence,a,label\n")
    line = complaint("train", "none.csv", "--kind", "lstm", "--task", "tag", "text.input=frames", "--out", "runs/c")
    assert "none.csv" in line


@pytest.mark.parametrize("suffix", ["tsv", "tsv.gz"])
def test_a_table_that_is_larger_than_the_limit(complaint, tmp_path, monkeypatch, suffix):
    text = b"sentence\tlabel\n" + b"a fine film\tgood\na dull play\tbad\n" * 100
    (tmp_path / f"large.{suffix}").write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    monkeypatch.setenv(tables.LIMIT, "1e-6")
    line = complaint("train", f"large.{suffix}", "--task", "classify", "--kind", "ngram", "--out", "runs/c")
    assert "has more than 1e-06 GB of text" in line
    assert "raise the limit: CHAINRULE_TABLE_GB=2e-06" in line
    assert ("% of it was read" in line) == (suffix == "tsv")
    monkeypatch.setenv(tables.LIMIT, "much")
    line = complaint("train", f"large.{suffix}", "--task", "classify", "--kind", "ngram", "--out", "runs/c")
    assert "CHAINRULE_TABLE_GB=much is not a size" in line


def test_a_pattern_over_links_in_a_circle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b", "c"):
        (tmp_path / "texts" / folder).mkdir(parents=True)
        for other in ("a", "b", "c"):
            (tmp_path / "texts" / folder / f"to-{other}").symlink_to(tmp_path / "texts" / other)
    (tmp_path / "texts" / "a" / "one.txt").write_text("the cat sat on the mat. " * 20)
    (tmp_path / "texts" / "two.txt").write_text("the dog ran. " * 20)
    (tmp_path / "texts" / "itself").symlink_to("itself")
    both = ["texts/a/one.txt", "texts/two.txt"]
    assert [str(source.path) for source in find_sources("texts/**/*.txt", tmp_path)] == both
    assert [str(source.path) for source in find_sources("**/*.txt", tmp_path)] == both
    assert [str(source.path) for source in find_sources("texts/**", tmp_path)] == both
    assert [str(source.path) for source in find_sources("te*/**/**/[o]*.txt", tmp_path)] == both[:1]
    assert [str(source.path) for source in find_sources(f"{tmp_path}/**/a/*", tmp_path)] == [str(tmp_path / both[0])]


def test_an_option_with_two_dashes_for_its_value(complaint, trained):
    assert "--device=-- has no value" in complaint("sample", trained, "--device=--")


def test_a_word_of_any_length_makes_a_short_line(complaint, book):
    line = complaint("train", book, "--kind", "ngram", f"model.order={'x' * 9000}")
    assert "model.order=xxx" in line
    assert len(line) < 500


@pytest.mark.parametrize("words", [
    ("lstm", "model.hidden=1e20"), ("ngram", "model.order=99999999999999999999"), ("lstm", "train.length=1e20"),
    ("gpt", "model.layers=1e20"), ("gpt", "train.lr=1e20"), ("gpt", "train.layer_decay=1e308"),
    ("gpt", "train.clip=1e16"), ("gpt", "train.weight_decay=1e300"), ("hmm", "model.smoothing=1e20"),
])  # fmt: skip
def test_numbers_beyond_all_sense(complaint, book, words):
    kind, setting = words
    assert setting.partition("=")[0] in complaint("train", book, "--kind", kind, setting, "--out", "runs/n")


def test_more_layers_to_freeze_than_a_number_can_say(chainrule, book):
    answer = chainrule("train", book, "--kind", "gpt", "train.freeze=" + "9" * 5000, "--out", "runs/n")
    last = answer.err.splitlines()[-1]
    assert answer.code == 2
    assert last.startswith("chainrule: train.freeze=999")
    assert len(last) < 500


def test_a_column_whose_number_has_thousands_of_digits(complaint, tmp_path):
    (tmp_path / "few.tsv").write_text("sentence\tlabel\na fine film\tgood\na dull play\tbad\n")
    line = complaint("train", "few.tsv", "--kind", "ngram", "--task", "classify", "text.label=" + "9" * 5000)
    assert "no column 999" in line
    assert len(line) < 500


def test_the_json_of_a_score_is_written_in_pieces(chainrule, book, trained, monkeypatch):
    whole = chainrule("score", trained, book, "--json").json
    monkeypatch.setattr("chainrule.inference.text_score.PIECE", 7)
    assert chainrule("score", trained, book, "--json").json == whole
    score = load(trained).score(book.read_text())
    assert whole["shown"] == list(score.tokens)
    assert whole["bits"] == pytest.approx(list(score.bits), rel=1e-6)
    assert whole["total_bits"] == pytest.approx(score.total_bits, rel=1e-6)
    assert {name: type(value) for name, value in whole.items()} == {
        "run": str, "shown": list, "bits": list, "total_bits": float, "tokens": int, "bytes": int,
        "bits_per_byte": float, "perplexity": float}
    lines = chainrule("score", trained, book).out.splitlines()
    assert len(lines) == whole["tokens"] + 1
