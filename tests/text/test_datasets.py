"""Corpora with a name: found, made, or downloaded and checked; offline, one clear line."""

import gzip
import hashlib
import os
import re
import zipfile
from pathlib import Path

import pytest

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.text import datasets
from chainrule.text.corpus import prepare
from chainrule.text.datasets import DATASETS, PublicDataset, PublicFile, catalogue, get, public_datasets
from chainrule.text.generated import EXAMPLE_SETS
from chainrule.text.latex import LatexText
from chainrule.text.sources import Source, read_text
from chainrule.text.splits import gather, held_out_part
from chainrule.text.synthetic import LANGUAGES

TEXT = b"some words of text\n"


@pytest.fixture(autouse=True)
def no_data(monkeypatch, request):
    if "data" not in request.keywords:
        monkeypatch.delenv("CHAINRULE_DATA", raising=False)


@pytest.fixture
def short_languages(monkeypatch):
    monkeypatch.setattr(datasets, "LANGUAGE_SIZES", {"train": 400, "valid": 100, "test": 100})


def public(address, sha256=None, name="text.txt"):
    file = PublicFile(name, len(TEXT), sha256 or hashlib.sha256(TEXT).hexdigest(), "train", address)
    return PublicDataset("toy", "a toy", "toy", (file,))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zip"])
def test_a_download_is_unpacked_and_kept(suffix, tmp_path):
    packed = tmp_path / f"text.txt{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("text.txt", TEXT)
    else:
        packed.write_bytes(gzip.compress(TEXT) if suffix else TEXT)
    made = public(packed.as_uri())
    assert made.where(tmp_path / "cache") == "download"
    (source,) = made.splits(tmp_path / "cache")["train"]
    assert source.path.read_bytes() == TEXT
    packed.unlink()
    assert made.splits(tmp_path / "cache")["train"] == (source,)
    assert made.where(tmp_path / "cache") == str(source.path.parent)


def test_a_download_that_is_not_what_is_known_is_refused(tmp_path):
    (tmp_path / "text.txt").write_bytes(TEXT + b"more")
    with pytest.raises(UserError, match="is not the expected text"):
        public((tmp_path / "text.txt").as_uri()).splits(tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.*"))


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/text.txt", "file:///no/such/text.txt.gz"])
def test_offline_is_one_clear_line(address, tmp_path):
    with pytest.raises(UserError, match="could not be downloaded") as caught:
        public(address).splits(tmp_path)
    assert "\n" not in str(caught.value)
    assert "Set CHAINRULE_DATA to a folder that holds toy/text.txt" in str(caught.value)


def test_a_corpus_without_an_address_says_where_it_is_wanted(tmp_path):
    with pytest.raises(UserError, match="no public address"):
        public(None).splits(tmp_path)
    assert public(None).where(tmp_path) == "absent: put it in $CHAINRULE_DATA/toy"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_given_folder_is_looked_in_first(suffix, tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_DATA", str(tmp_path))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / f"text.txt{suffix}").write_bytes(gzip.compress(TEXT) if suffix else TEXT)
    (source,) = public("http://127.0.0.1:9/text.txt").splits(tmp_path / "cache")["train"]
    assert source.path.parent == tmp_path / "toy"
    assert "".join(read_text(source)).encode() == TEXT


def test_the_catalogue_names_every_corpus(tmp_path):
    entries = {entry.name: entry for entry in catalogue(tmp_path)}
    wanted = "tinyshakespeare ptb wikitext-2 enwik8 multi30k ewt names gutenberg imdb sst-2 rte aeslc blimp lambada"
    assert set(entries) == {*wanted.split(), "python-docs", "python-source", "c-headers", "latex", *LANGUAGES,
                            *EXAMPLE_SETS}
    assert all(entry.idea and entry.bytes > 0 and entry.where for entry in entries.values())
    assert entries["ptb"].where == "download"
    assert "1.9375 bits" in entries["die"].idea


def test_every_entry_of_the_data_file_is_complete():
    for corpus in public_datasets():
        assert corpus.idea
        assert all(len(file.sha256) == 64 and file.bytes > 0 for file in corpus.files)
        exam = corpus.name in ("blimp", "lambada")
        assert any(("test" if exam else "train") in file.parts(Path(file.name)) for file in corpus.files)


def test_the_splits_of_one_file_are_ranges_of_bytes_that_cover_it():
    ranged = [file for corpus in public_datasets() for file in corpus.files if not isinstance(file.split, str)]
    assert {file.name for file in ranged} == {"input.txt", "enwik8"}
    for file in ranged:
        parts = list(file.parts(Path(file.name)).values())
        assert [part.begin for part in parts] == [0, *(part.end for part in parts[:-1])]
        assert parts[-1].end is None
        assert parts[-1].begin < file.bytes


@pytest.mark.usefixtures("short_languages")
def test_a_language_is_a_corpus_with_three_texts(tmp_path):
    made = prepare(["rhythm"], Text(tokenizer="bytes"), cache=tmp_path)
    said = {split: made.tokenizer.decode(part.tokens) for split, part in made.splits.items()}
    assert [len(said[split]) for split in ("train", "valid", "test")] == [400, 100, 100]
    assert said["valid"] != said["test"]
    assert said["train"] == LANGUAGES["rhythm"].text(400, seed=1)
    assert get("rhythm", tmp_path) == get("rhythm", tmp_path)


def test_a_damaged_text_of_the_cache_is_made_again(short_languages, tmp_path, capsys):
    (source,) = get("latex", tmp_path)["valid"]
    whole = source.path.read_bytes()
    source.path.write_bytes(whole.replace(b"e", b"a", 1))
    assert get("latex", tmp_path)["valid"] == (source,)
    assert source.path.read_bytes() == whole
    assert "is damaged: its sha256 differs" in capsys.readouterr().err


def test_the_interpreters_own_texts(tmp_path):
    docs = get("python-docs", tmp_path)["train"]
    assert len(docs) > 50
    assert "".join(read_text(docs[0]))
    files = get("python-source", tmp_path)["train"]
    assert {"this.py", "argparse.py"} <= {source.path.name for source in files}
    assert not any("site-packages" in source.path.parts or "test" in source.path.parts for source in files)
    assert "made here" in {entry.where for entry in catalogue(tmp_path)}


def test_source_that_is_not_utf8_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "good.py").write_text("pass")
    (tmp_path / "old.py").write_bytes(b"# \xe9")
    monkeypatch.setattr(datasets.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    assert [source.path.name for source in get("python-source", tmp_path)["train"]] == ["good.py"]


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(UserError, match="Did you mean wikitext-2"):
        get("wikitext2", tmp_path)
    with pytest.raises(UserError, match="Did you mean wikitext-2"):
        prepare(["wikitext2"], Text(), cache=tmp_path)
    with pytest.raises(UserError, match="not plain text"):
        prepare(["multi30k"], Text(), cache=tmp_path)


@pytest.mark.usefixtures("short_languages")
def test_splits_by_name(tmp_path):
    made = get("die", tmp_path)
    assert gather(["die:test"], ["die"], [], tmp_path) == {"train": made["test"], "valid": made["valid"]}
    assert gather(["die"], [], [], tmp_path) == made
    assert held_out_part("die", tmp_path) == made["test"]
    with pytest.raises(UserError, match="has no split"):
        gather(["die:all"], [], [], tmp_path)


@pytest.mark.usefixtures("short_languages")
def test_a_file_comes_before_a_corpus_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("die").write_text("my own die")
    assert gather(["die"], [], [], tmp_path) == {"train": (Source(Path("die")),)}


@pytest.mark.data
@pytest.mark.parametrize("name", [corpus.name for corpus in public_datasets()])
def test_the_known_files_are_the_ones_that_lie_there(name, tmp_path):
    """What is trained on begins as text; small files have the sha256 that is known."""
    if not os.environ.get("CHAINRULE_DATA"):
        pytest.skip("no $CHAINRULE_DATA")
    corpus = DATASETS[name]
    if corpus.where(tmp_path) == "download" or corpus.where(tmp_path).startswith("absent"):
        pytest.skip(f"no {name} in $CHAINRULE_DATA")
    for source in corpus.splits(tmp_path).get("train", ()):
        assert next(read_text(source))
    for file in corpus.files:
        path = corpus._find(file, tmp_path)
        if path.name == file.name and file.bytes < 4_000_000:
            assert hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256


@pytest.mark.parametrize("name", [name for name in EXAMPLE_SETS if name != "shapes"])    # which takes seconds
def test_generated_examples_are_made_once_and_are_as_large_as_is_said(name, tmp_path):
    splits = get(name, tmp_path)
    files = [source.path for sources in splits.values() for source in sources]
    assert set(splits) == {"train", "valid", "test"}
    assert sum(path.stat().st_size for path in files) == EXAMPLE_SETS[name].total
    stamps = [path.stat().st_mtime_ns for path in files]
    get(name, tmp_path)
    assert [path.stat().st_mtime_ns for path in files] == stamps


def test_c_headers_are_on_every_machine(tmp_path):
    files = get("c-headers", tmp_path)["train"]
    assert {"ndarraytypes.h", "npy_math.h"} <= {source.path.name for source in files}
    text = "".join(read_text(next(source for source in files if source.path.name == "npy_math.h")))
    assert "#include" in text
    assert "static" in text or "double" in text


def environments_left_open(text):
    """The environments of a LaTeX text, none of which should be left."""
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    return opened


def test_latex_closes_what_it_opens_and_refers_to_what_exists(short_languages, tmp_path):
    (source,) = get("latex", tmp_path)["train"]
    text = "".join(read_text(source))
    assert environments_left_open(text) == []
    assert text.count("$") % 2 == 0
    assert text.count("{") == text.count("}")
    assert set(re.findall(r"\\ref\{(.*?)\}", text)) <= set(re.findall(r"\\label\{(.*?)\}", text))
    longer = LatexText(1).text(20_000)
    assert environments_left_open(longer) == []
    assert set(re.findall(r"\\ref\{(.*?)\}", longer)) <= set(re.findall(r"\\label\{(.*?)\}", longer))
    assert LatexText(1).text(5_000) == LatexText(1).text(5_000) != LatexText(2).text(5_000)
