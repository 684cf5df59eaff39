"""The command line, called in this process: `chainrule("train", …)` answers with its exit code, stdout and stderr."""

import json
from dataclasses import dataclass

import pytest

from chainrule.cli import main

ANIMALS = [(one, other) for one in ("cat", "dog", "cow") for other in ("bird", "mouse", "fox")]
BOOK = "".join(f"the {one} saw the {other}, and the {other} ran.\n" for one, other in ANIMALS) * 4
FOUR = ("--kind", "ngram", "model.order=4", "text.tokenizer=characters", "--out", "runs/four")


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self):
        """The only line of stdout."""
        (line,) = self.out.splitlines()
        return json.loads(line)


@pytest.fixture
def chainrule(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))

    def call(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return call


@pytest.fixture
def complaint(chainrule):
    """The one line that a mistake is answered with."""

    def call(*words):
        answer = chainrule(*words)
        assert answer.code == 2, answer
        assert answer.out == ""
        assert len(answer.err.splitlines()) == 1, answer.err
        line = answer.err.rstrip("\n")
        assert line.startswith("chainrule: ")
        return line

    return call


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(BOOK)
    return path


@pytest.fixture
def trained(chainrule, book):
    """A small character model of the book."""
    answer = chainrule("train", book, *FOUR)
    assert answer.code == 0, answer.err
    return "runs/four"
