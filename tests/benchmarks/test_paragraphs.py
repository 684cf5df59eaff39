"""benchmarks/corpora/paragraphs.py: which paragraphs are prose, and what the program writes."""

import json
import lzma
import runpy
from pathlib import Path

import pytest
from programs import program

PROGRAM = program("paragraphs")
PROSE = "The old man walked to the sea, and he looked at it\nfor a long time before he went back to his house."
SPOKEN = '"Will you remember that they are for your mother, and tell her that I am well?" he asked; and she said "yes."'


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr("sys.argv", ["paragraphs.py", *map(str, words)])
    runpy.run_path(str(PROGRAM), run_name="__main__")


def texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()]


def test_prose_is_kept_with_its_lines_joined_and_all_else_is_left_out(tmp_path, monkeypatch, capsys):
    heading, verse = "CHAPTER THE FIRST, IN WHICH A VERY OLD MAN WALKS TO THE SEA AND BACK.", "The sea,\nthe sea,\n" * 6
    table = "one cell | another cell | a third cell that is long enough to be a whole paragraph of its own."
    (tmp_path / "book.txt").write_text("\n\n".join([heading, PROSE, verse, table, "Too short.", SPOKEN]), "utf-8")
    run(monkeypatch, tmp_path / "book.txt", "--out", tmp_path / "out.jsonl")
    assert texts(tmp_path / "out.jsonl") == [PROSE.replace("\n", " "), SPOKEN]
    assert capsys.readouterr().out.startswith("2 paragraphs, ")


def test_json_lines_and_packed_files_are_read_and_limits_are_kept(tmp_path, monkeypatch):
    lines = "".join(json.dumps({"text": PROSE.replace("old", word)}) + "\n" for word in ("young", "tall", "kind"))
    (tmp_path / "wiki.jsonl").write_text(lines)
    (tmp_path / "books.txt.xz").write_bytes(lzma.compress(f"{SPOKEN}\u2028\n\n{PROSE}\n".encode()))
    run(monkeypatch, tmp_path / "wiki.jsonl", "--out", tmp_path / "out.jsonl", "--every", 2)
    assert [text.split()[1] for text in texts(tmp_path / "out.jsonl")] == ["young", "kind"]
    both = tmp_path / "wiki.jsonl", tmp_path / "books.txt.xz"
    run(monkeypatch, *both, "--out", tmp_path / "out.jsonl", "--bytes", len(PROSE) + 2)    # of each file
    assert [text.split()[1] for text in texts(tmp_path / "out.jsonl")] == ["young"]
    run(monkeypatch, tmp_path / "books.txt.xz", "--out", tmp_path / "out.jsonl")
    assert texts(tmp_path / "out.jsonl") == [SPOKEN, PROSE.replace("\n", " ")]


@pytest.mark.parametrize(("words", "line"), [(["none.txt"], "there is no file none.txt"),
                                             ([str(PROGRAM), "--every", "0"], "it must be 1 or more")])
def test_wrong_words_are_refused_in_a_line(tmp_path, monkeypatch, capsys, words, line):
    with pytest.raises(SystemExit):
        run(monkeypatch, *words, "--out", tmp_path / "out.jsonl")
    assert line in capsys.readouterr().err
