"""Every bad input: one clear line, exit code 2, nothing lost."""

import gzip
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from random import Random

import pytest

TRAIN = ("--kind", "ngram", "model.order=3", "text.tokenizer=characters", "--out", "runs/x")


@pytest.fixture
def refused(complaint, tmp_path):
    """Training on the text is refused, and no run is begun."""

    def call(*words):
        line = complaint("train", *words, *TRAIN)
        assert not (tmp_path / "runs/x").exists()
        return line

    return call


def test_an_empty_file(refused, tmp_path):
    (tmp_path / "empty.txt").touch()
    assert "empty" in refused("empty.txt")


def test_a_file_of_white_space_alone(chainrule, tmp_path):
    (tmp_path / "blank.txt").write_text("\n\n  \n")
    answer = chainrule("train", "blank.txt", "--kind", "bigram", "text.tokenizer=words", "--out", "runs/x")
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1


def test_a_folder_without_text(refused, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "picture.png").write_bytes(b"\x89PNG\0\0")
    assert "holds no text" in refused("folder")


def test_a_missing_path_names_the_nearest(refused, book):
    assert "Did you mean book.txt?" in refused("bok.txt")


def test_binary_data_and_nul_bytes_are_named_with_their_offset(refused, tmp_path):
    (tmp_path / "nul.txt").write_bytes(b"hello\0world")
    assert "NUL byte at offset 5" in refused("nul.txt")
    shutil.copy(sys.executable, tmp_path / "program")
    assert "binary" in refused("program")


def test_invalid_utf_8_is_named_with_its_offset_and_the_cure(refused, chainrule, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait, and so on. " * 20)
    line = refused("latin.txt")
    assert "offset 3" in line
    assert "text.errors=replace" in line
    assert chainrule("train", "latin.txt", *TRAIN, "text.errors=replace").code == 0


def test_a_damaged_archive(refused, tmp_path):
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"hello " * 1000)[:-8])
    assert "damaged" in refused("cut.txt.gz")


def test_a_text_too_short_to_split_or_shorter_than_the_order(chainrule, tmp_path):
    none, some = "no held-out text", "bits per byte"
    for number, (text, says) in enumerate({"a": none, "ab": none, "abc\n": none, "one two three\n": some}.items()):
        (tmp_path / "short.txt").write_text(text)
        answer = chainrule("train", "short.txt", *TRAIN, "model.order=99", "--out", f"runs/{number}")
        assert answer.code == 0, answer.err
        assert says in answer.out
        assert ("valid: 1 document, 1 bytes" in answer.err) == (says == some)
        assert chainrule("sample", f"runs/{number}", "--tokens", "5").code == 0


def test_crlf_is_text_like_any_other(chainrule, tmp_path):
    (tmp_path / "dos.txt").write_bytes(b"the cat saw the dog.\r\nthe dog ran.\r\n" * 20)
    assert chainrule("train", "dos.txt", *TRAIN).code == 0
    assert chainrule("train", "dos.txt", "--kind", "bigram", "text.tokenizer=words", "--out", "runs/w").code == 0


def test_one_endless_line_is_text_like_any_other(chainrule, tmp_path):
    (tmp_path / "line.txt").write_text("the cat saw the dog. " * 150_000)
    answer = chainrule("train", "line.txt", "--kind", "bigram", "text.tokenizer=words", "--out", "runs/x", "--json")
    assert answer.code == 0, answer.err


def test_a_folder_of_the_users_is_not_written_to(refused, book, complaint, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "one.tex").write_text("mine")
    for words in ((), ("--overwrite",)):
        assert "one.tex" in complaint("train", book, "--kind", "bigram", "--out", "thesis", *words)
    assert [file.name for file in (tmp_path / "thesis").iterdir()] == ["one.tex"]


def test_another_run_is_not_written_over(complaint, chainrule, book, trained, tmp_path):
    whole = (tmp_path / trained / "model.safetensors").read_bytes()
    line = complaint("train", book, "--kind", "ngram", "model.order=2", "text.tokenizer=characters", "--out", trained)
    assert "model.order is 4 there and 2 here" in line
    assert "--overwrite" in line
    book.write_text(book.read_text().replace("cat", "owl"))
    line = complaint("train", book, "--kind", "ngram", "model.order=4", "text.tokenizer=characters", "--out", trained)
    assert "on other text" in line
    assert (tmp_path / trained / "model.safetensors").read_bytes() == whole
    assert chainrule("train", book, "--kind", "bigram", "--out", trained, "--overwrite").code == 0


@pytest.mark.parametrize("verb", ["sample", "score", "eval", "export"])
def test_a_damaged_run_is_named_by_every_verb(complaint, book, trained, tmp_path, verb):
    rest = {"sample": [], "score": [book], "eval": [book], "export": ["x.arpa", "--to", "arpa"]}[verb]
    model = tmp_path / trained / "model.safetensors"
    whole = model.read_bytes()
    model.write_bytes(whole[: len(whole) // 2])
    assert "model.safetensors is damaged" in complaint(verb, trained, *rest)
    model.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "has been changed" in complaint(verb, trained, *rest)
    assert "there is no run" in complaint(verb, "runs/nowhere", *rest)
    assert "is not a run" in complaint(verb, "runs", *rest)
    recipe = tmp_path / trained / "recipe.json"
    recipe.write_text(json.dumps(json.loads(recipe.read_text()) | {"format": 99}))
    assert "Upgrade" in complaint(verb, trained, *rest)


def test_nothing_to_score_and_nothing_to_evaluate(complaint, trained, tmp_path):
    (tmp_path / "empty.txt").touch()
    assert "empty" in complaint("score", trained, "empty.txt")
    assert "empty" in complaint("eval", trained, "empty.txt")
    assert "no file" in complaint("score", trained, "nowhere.txt")


def test_an_arpa_with_wrong_counts(complaint, chainrule, book, tmp_path):
    chainrule("train", book, "--kind", "bigram", "text.tokenizer=words", "--out", "runs/w")
    chainrule("export", "runs/w", "w.arpa", "--to", "arpa")
    text = (tmp_path / "w.arpa").read_text()
    (number,) = (line for line in text.splitlines() if line.startswith("ngram 2="))
    for wrong in (1, -1):
        (tmp_path / "bad.arpa").write_text(text.replace(number, f"ngram 2={int(number[8:]) + wrong}"))
        assert "bad.arpa, line" in complaint("import", "bad.arpa", "runs/i")
    (tmp_path / "bad.arpa").write_text(text[: len(text) // 2])
    assert "bad.arpa" in complaint("import", "bad.arpa", "runs/i")
    assert "bad.txt" in complaint("import", "bad.txt", "runs/i")
    assert not (tmp_path / "runs/i").exists()


def test_cuda_where_there_is_none(complaint, book, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no CUDA device" in complaint("train", book, "--device", "cuda")


def test_a_recipe_that_is_no_toml(complaint, book, tmp_path):
    (tmp_path / "r.toml").write_text("order 5")
    assert "is not TOML" in complaint("train", book, "--recipe", "r.toml")
    (tmp_path / "r.toml").write_text("[model]\nordr = 5\n")
    assert "Did you mean model.order?" in complaint("train", book, "--recipe", "r.toml")


def test_a_full_disk_leaves_the_earlier_run_whole(trained, book, tmp_path):
    """A limit on the size of files stands in for the disk; it hits the tensors first."""
    before = {file.name: file.read_bytes() for file in (tmp_path / trained).iterdir()}
    book.write_text("".join(Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=30_000)))
    words = ["train", "book.txt", "--kind", "ngram", "text.tokenizer=characters", "--out", trained, "--overwrite"]
    answer = subprocess.run(
        [sys.executable, "-m", "chainrule", *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert answer.returncode == 2, answer.stderr
    assert "no space to write" in answer.stderr.splitlines()[-1]
    assert "Traceback" not in answer.stderr
    assert {file.name: file.read_bytes() for file in (tmp_path / trained).iterdir()} == before


@pytest.mark.parametrize("words", [
    ("sample", "{}"), ("train", "{}", "--kind", "bigram"), ("predict", "runs/four", "{}"),
    ("train", "book.txt", "--kind", "bigram", "--out", "{}"),
    ("train", "book.txt", "--kind", "bigram", "--recipe", "{}"),
])
def test_a_name_too_long_and_links_in_a_circle_are_one_line(complaint, trained, tmp_path, words):
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    for name in ("x" * 300, "one"):
        line = complaint(*(word.format(name) for word in words))
        assert len(line) < 250


@pytest.mark.parametrize(("name", "words"), [
    ("deep.toml", ("train", "book.txt", "--recipe", "deep.toml")), ("runs/four/recipe.json", ("sample", "runs/four")),
    ("runs/four/tokenizer.json", ("sample", "runs/four")),
])
def test_a_file_nested_without_end_is_one_line(complaint, trained, tmp_path, name, words):
    (tmp_path / name).write_text(f"a = {'[' * 5000}{']' * 5000}" if name.endswith("toml") else "[" * 5000 + "]" * 5000)
    assert re.search("nested too deeply|is damaged", complaint(*words))


def test_a_terminal_without_the_character_gets_its_number():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "chainrule", "settings"], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"\\u2013" in done.stdout or b"\\u1d40" in done.stdout


def test_a_closed_stream_is_no_traceback():
    done = subprocess.run(f"{sys.executable} -m chainrule data <&- >&-", shell=True, capture_output=True)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
