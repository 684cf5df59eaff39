"""benchmarks/corpora/treebank_words.py: words as a treebank has them, sentence by sentence."""

import json
import lzma
import runpy
from pathlib import Path

import pytest
from programs import program

PROGRAM = program("treebank_words")
ROWS = [("1", "Dogs"), ("2-3", "don't"), ("2", "do"), ("3", "n't"), ("3.1", "not"), ("4", "bark"), ("5", ".")]
TREEBANK = "# text = Dogs don't bark.\n" + "".join("\t".join([*row, *"_" * 8]) + "\n" for row in ROWS) + "\n"


def lines_of(monkeypatch: pytest.MonkeyPatch, out: Path, *words: object) -> list[str]:
    monkeypatch.setattr("sys.argv", ["treebank_words.py", *map(str, words), "--out", str(out)])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    return out.read_text("utf-8").splitlines()


@pytest.mark.parametrize(("text", "sentences"), [
    ("I don't know it's cannot.", ["I do n't know it 's can not ."]),
    ('"Mr. Smith went," she said. He\'s gonna go!!!', ['" Mr. Smith went , " she said .', "He 's gon na go !!!"]),
    ("at 10:30 p.m. in the U.S. for $5.50 (50%)", ["at 10:30 p.m. in the U.S. for $ 5.50 ( 50 % )"]),
    ("a long-term, non-human e-mail... to 713-853-3989", ["a long - term , non-human e-mail ... to 713-853-3989"]),
    ("see http://a.b/c.html or me@a.com :)", ["see http://a.b/c.html or me@a.com :)"]),
    ("One line\nof two.<br /><br />New", ["One line of two .", "New"]),
])  # fmt: skip
def test_text_is_cut_as_a_treebank_cuts_it(tmp_path, monkeypatch, text, sentences):
    (tmp_path / "a.txt").write_text(text, "utf-8")
    assert lines_of(monkeypatch, tmp_path / "out.txt", tmp_path / "a.txt") == sentences


def test_a_treebank_gives_its_own_words_and_others_are_left_out(tmp_path, monkeypatch, capsys):
    (tmp_path / "dev.conllu").write_text(TREEBANK, "utf-8")
    rows = [{"text": "Dogs don't bark."}, {"body": "Cats do."}]
    (tmp_path / "raw.jsonl.xz").write_bytes(lzma.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    files = tmp_path / "dev.conllu", tmp_path / "raw.jsonl.xz"
    assert lines_of(monkeypatch, tmp_path / "out.txt", *files) == ["Dogs do n't bark ."] * 2 + ["Cats do ."]
    assert capsys.readouterr().out == "3 sentences, 13 words\n"
    without = lines_of(monkeypatch, tmp_path / "out.txt", files[1], "--without", files[0])
    assert without == ["Cats do ."]


def test_a_file_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        lines_of(monkeypatch, tmp_path / "out.txt", tmp_path / "nowhere.txt")
    assert "there is no file" in capsys.readouterr().err
