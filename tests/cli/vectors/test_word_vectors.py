"""Word vectors from the command line: trained, tested, exported, imported, used."""

import re
import shlex
from pathlib import Path

import pytest

QUESTIONS = ": animals\ncat bird dog fox\ncat cat dog dog\ncat unicorn dog fox\n: none\nx y z w\n"
PAIRS = "cat\tdog\t9\ncat\tsaw\t2\nbird\tmouse\t8\nbird\tthe\t1\nunicorn\tcat\t5\n"


@pytest.fixture
def vectors(chainrule, book, tmp_path):
    answer = chainrule("train", book, "--kind", "word2vec", "model.embedding=8", "text.min_count=1", "train.epochs=2",
                       "--out", "runs/words")
    assert answer.code == 0, answer.err
    (tmp_path / "questions.txt").write_text(QUESTIONS)
    (tmp_path / "pairs.tsv").write_text(PAIRS)
    return "runs/words"


def test_training_says_what_it_is_worth_and_what_to_do_next(chainrule, book):
    answer = chainrule("train", book, "--kind", "word2vec", "text.min_count=1", "--out", "runs/words")
    assert "nats per pair, over" in answer.out
    assert "chainrule export runs/words vectors.txt --to word2vec\n  chainrule look runs/words\n" in answer.err
    assert "perplexity" not in answer.out
    told = chainrule("train", book, "--kind", "glove", "train.epochs=1", "--out", "runs/glove", "--json").json
    assert "fits the counts of one text" in told["why"]


def test_analogies_are_measured_by_section(chainrule, vectors):
    told = chainrule("eval", vectors, "questions.txt", "--json").json
    assert (told["test"], told["covered"], told["questions"]) == ("analogies", 2, 4)
    assert told["sections"]["none"]["accuracy"] is None
    assert len(told["accuracy_interval"]) == len(told["accuracy_with_inputs_interval"]) == 2
    shown = chainrule("eval", vectors, "questions.txt").out
    assert "over 2 of 4 questions" in shown
    assert "where the inputs are answers too" in shown


def test_similarities_are_measured(chainrule, vectors):
    told = chainrule("eval", vectors, "pairs.tsv", "--json").json
    assert (told["test"], told["covered"], told["pairs"]) == ("similarity", 4, 5)
    assert -1 <= told["spearman"] <= 1
    assert "over 4 of 5 pairs" in chainrule("eval", vectors, "pairs.tsv").out


def test_a_test_of_unknown_words_says_so(chainrule, vectors, tmp_path):
    (tmp_path / "other.tsv").write_text("unicorn\tyeti\t9\n")
    assert "unknown (too few words have a vector)" in chainrule("eval", vectors, "other.tsv").out


@pytest.mark.parametrize("form", ["word2vec", "word2vec-binary", "glove"])
def test_what_is_exported_is_imported_again(chainrule, vectors, form):
    assert chainrule("export", vectors, "out.vec", "--to", form).code == 0
    told = chainrule("import", "out.vec", "runs/back", "--json").json
    assert told["embedding"] == 8
    one, other = (chainrule("eval", run, "pairs.tsv", "--json").json for run in (vectors, "runs/back"))
    assert other["spearman"] == pytest.approx(one["spearman"])


def test_words_that_every_vocabulary_has_are_imported_to_their_places(chainrule, tmp_path):
    (tmp_path / "small.txt").write_text("</s> 1 2\n<unk> 3 4\ncat 5 6\n")
    told = chainrule("import", "small.txt", "runs/small", "--json").json
    assert told["vocab"] == 3
    chainrule("export", "runs/small", "again.txt", "--to", "glove")
    assert (tmp_path / "again.txt").read_text().split("\n")[0].split()[0] == "</s>"


def test_a_network_begins_with_them(chainrule, vectors, book):
    answer = chainrule("train", book, "--kind", "lstm", "text.tokenizer=words", "model.embedding=8", "model.hidden=8",
                       f"model.vectors={vectors}", "model.vectors_frozen=true", "train.steps=2", "--out", "runs/lstm")
    assert answer.code == 0, answer.err
    assert "tokens (" in answer.err
    assert "frozen" in answer.err


def test_word_vectors_do_not_generate_text(complaint, vectors):
    assert "does not predict the next token" in complaint("sample", vectors)
    assert "does not predict the next token" in complaint("score", vectors, "questions.txt")


def test_mistakes_are_one_line(complaint, vectors, trained):
    assert "line 2 is not two words and a score" in complaint("eval", vectors, "book.txt")
    assert "one at a time" in complaint("eval", vectors, "pairs.tsv", "questions.txt")
    assert "text.errors cannot be set here" in complaint("eval", vectors, "pairs.tsv", "text.errors=replace")
    assert "has no word vectors" in complaint("export", trained, "out.vec", "--to", "glove")
    assert "an ARPA file holds an n-gram" in complaint("export", vectors, "out.arpa", "--to", "arpa")


def test_the_sessions_of_the_page_run(chainrule, book, tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "models" / "vectors.md").read_text(encoding="utf-8")
    sessions = "".join(re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE)).splitlines()
    (tmp_path / "questions-words.txt").write_text(QUESTIONS)
    (tmp_path / "wordsim353.tsv").write_text(PAIRS)
    lines = [shlex.split(line.removeprefix("$ ")) for line in sessions]
    assert [line[1] for line in lines] == ["train", "train", "export", "eval", "eval", "train"]
    for line in lines:
        answer = chainrule(*line[1:], *(["train.epochs=1"] if line[1] == "train" else []))
        assert answer.code == 0, (line, answer.err)


def test_the_code_of_the_page_runs():
    page = (Path(__file__).parents[3] / "docs" / "models" / "vectors.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(compile(code, "vectors.md", "exec"), {})
