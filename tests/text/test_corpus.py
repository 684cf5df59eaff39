"""A corpus is split, tokenized and stored once, says what it chose, and is made again when anything changed."""

import gzip
import hashlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.text import corpus as module
from chainrule.text import sources, splits
from chainrule.text.corpus import prepare, read_split
from chainrule.text.sources import Source
from chainrule.text.splits import before_line, hold_out_documents
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer

BYTES = Text(tokenizer="bytes")
BOOK = "".join(f"line number {number} of the book\n" for number in range(200))


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(BOOK)
    return path


def write(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return [str(folder / f"{name}.txt") for name in texts]


def text_of(corpus, split):
    return corpus.tokenizer.decode(corpus.splits[split].tokens)


def test_the_last_tenth_of_a_single_text_is_held_out(book, cache):
    made = prepare([str(book)], BYTES, cache=cache)
    train, valid = text_of(made, "train"), text_of(made, "valid")
    assert train + valid == BOOK
    assert valid.startswith("line number 18")
    assert train.endswith("\n")
    assert made.notes == (f"validation: the last 10.2 % of the text, {len(valid):,} bytes",)
    assert made.splits["train"].bytes == len(train.encode())
    assert made.splits["valid"].sha256 == hashlib.sha256(valid.encode()).hexdigest()


def test_a_stream_has_a_boundary_around_every_document(tmp_path, cache):
    paths = write(tmp_path, a="one\n", b="two\n<|endoftext|>\nthree\n")
    made = prepare(paths, Text(tokenizer="bytes", held_out=0), cache=cache).splits["train"]
    encoded = [[byte + 1 for byte in text.encode()] for text in ("one\n", "two\n", "three\n")]
    assert made.tokens.tolist() == [0, *encoded[0], 0, *encoded[1], 0, *encoded[2], 0]
    assert made.documents == 3
    assert made.bytes == len("one\ntwo\nthree\n")
    assert made.sha256 == hashlib.sha256(b"one\n\0two\n\0three\n").hexdigest()


def test_lines_of_words_are_texts_in_the_stream(tmp_path, cache):
    paths = write(tmp_path, a="x y\n\ny\n", b="x\r\nx y")
    made = prepare(paths, Text(tokenizer="words", held_out=0), cache=cache)
    assert made.splits["train"].tokens.tolist() == [0, 2, 3, 0, 0, 3, 0, 2, 0, 2, 3, 0]
    assert made.notes == ("validation: none, since text.held_out=0",)


def test_whole_documents_are_held_out(tmp_path, cache):
    paths = write(tmp_path, **{f"doc{number:02}": f"this is document {number:02}\n" for number in range(25)})
    made = prepare(paths, BYTES, cache=cache)
    assert (made.splits["train"].documents, made.splits["valid"].documents) == (22, 3)
    assert not set(text_of(made, "train").splitlines()) & set(text_of(made, "valid").splitlines())
    assert "every 10th document" in made.notes[0]


def test_a_line_of_json_is_held_out_whole_however_few_there_are(tmp_path, cache):
    path = tmp_path / "few.jsonl"
    texts = ["one of a few texts", "another, longer text than the first one", "short"]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    made = prepare([str(path)], Text(tokenizer="characters", held_out=0.01), cache=cache)
    held = [made.tokenizer.decode(made.splits["valid"].tokens[1:].tolist())]
    assert held == ["short"]                                       # which is nearest to the share
    assert made.notes[0].startswith("validation: document number 3, 8.06 % of the text in 3 documents")
    path.write_text(json.dumps({"text": texts[0]}) + "\n")
    (note,) = prepare([str(path)], Text(tokenizer="characters", held_out=0.01), cache=cache).notes
    assert note == "validation: none, since the text is too short to hold out a part"


def test_the_share_held_out_is_near_what_was_asked(tmp_path, cache):
    sizes = [1, 1, 1, 50, 1, 1, 1, 1, 9, 1] * 2
    paths = write(tmp_path, **{f"doc{number:02}": "word " * size for number, size in enumerate(sizes)})
    made = prepare(paths, BYTES, cache=cache)
    share = made.splits["valid"].bytes / (made.splits["valid"].bytes + made.splits["train"].bytes)
    assert 0.05 < share < 0.2


def test_few_documents_give_the_end_of_the_last(tmp_path, cache):
    paths = write(tmp_path, a=BOOK, b=BOOK[:500])
    made = prepare(paths, BYTES, cache=cache)
    assert text_of(made, "train") + text_of(made, "valid") == BOOK + BOOK[:500]
    assert made.splits["train"].documents == 1
    assert made.splits["valid"].documents == 2


def test_given_splits_are_taken_as_they_are(tmp_path, book, cache):
    valid, test = write(tmp_path, v="valid text", t="test text")
    made = prepare([str(book)], BYTES, valid=[valid], test=[test], cache=cache)
    assert [text_of(made, split) for split in ("train", "valid", "test")] == [BOOK, "valid text", "test text"]
    assert made.notes == (f"validation: {valid}", f"test: {test}")


def test_a_text_too_short_to_split_is_kept_whole(tmp_path, cache):
    made = prepare(write(tmp_path, a="x"), BYTES, cache=cache)
    assert set(made.splits) == {"train"}
    assert "too short" in made.notes[0]


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0])
def test_a_share_that_is_none_is_refused(share, book, cache):
    with pytest.raises(UserError, match="held_out"):
        prepare([str(book)], Text(tokenizer="bytes", held_out=share), cache=cache)


@pytest.mark.parametrize("share", [1e-9, 1e-320])
def test_a_share_of_almost_nothing_holds_out_nothing_and_takes_no_memory(share, book):
    train, valid, note = hold_out_documents((Source(book),), Text(held_out=share))
    assert valid is None
    assert "too short" in note
    assert "".join(piece for _, piece in train.pieces(Text())) == book.read_text()


@given(
    text=st.text("ab é\n日", min_size=1, max_size=60),
    share=st.sampled_from([0.1, 0.3, 0.5, 0.9]),
    packed=st.booleans(),
)
def test_a_cut_falls_between_characters_and_loses_none(text, share, packed, tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / ("text.gz" if packed else "text")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    train, valid, _ = hold_out_documents((Source(path),), Text(held_out=share))
    parts = ["".join(piece for _, piece in part.pieces(Text())) for part in (train, valid) if part]
    assert "".join(parts) == text
    assert all(parts)


def test_a_cut_is_at_a_line_else_a_word_else_a_character(tmp_path):
    def cut(text, target, near):
        path = tmp_path / "text"
        path.write_bytes(text.encode())
        return text.encode()[: before_line(Source(path), target, len(text.encode()), near)].decode()

    assert cut("aaaa\nbbbb\ncccc", 6, 4) == "aaaa\n"
    assert cut("aaaa\nbbbb\ncccc", 8, 4) == "aaaa\nbbbb\n"
    assert cut("aaaa\nb b b b b b b", 15, 3) == "aaaa\nb b b b b "
    assert cut("日日日日", 5, 3) == "日日"


def test_the_tokenizer_sees_the_training_text_alone(tmp_path, cache):
    valid = write(tmp_path, v="zebra zebra zebra")
    made = prepare(write(tmp_path, a="a b a b"), Text(tokenizer="words"), valid=valid, cache=cache)
    assert made.tokenizer.id("zebra") is None
    held = prepare(write(tmp_path, c="a b\n" * 900 + "zebra zebra\n" * 10), Text(tokenizer="words"), cache=cache)
    assert held.tokenizer.id("zebra") is None


def test_a_given_tokenizer_is_used(book, cache):
    tokenizer = train_tokenizer(Text(tokenizer="words", min_count=1), ["line book"])
    made = prepare([str(book)], BYTES, tokenizer=tokenizer, cache=cache)
    assert made.tokenizer is tokenizer
    assert set(made.splits["train"].tokens.tolist()) == {0, 1, 2, 3}
    assert prepare([str(book)], BYTES, tokenizer=tokenizer, cache=cache).tokenizer is tokenizer


@pytest.fixture
def work(monkeypatch):
    """How often tokens were written and tokenizers learned."""
    done = {"written": 0, "learned": 0}

    def count(name, what):
        real = getattr(module, name)

        def counting(*args):
            done[what] += 1
            return real(*args)

        monkeypatch.setattr(module, name, counting)

    count("_write", "written")
    count("_learn", "learned")
    return done


def test_nothing_is_done_twice(book, cache, work):
    first = prepare([str(book)], Text(tokenizer="words"), cache=cache)
    second = prepare([str(book)], Text(tokenizer="words"), cache=cache)
    assert work == {"written": 2, "learned": 1}
    assert second.tokenizer.sha256 == first.tokenizer.sha256
    assert second.notes == first.notes
    for split in ("train", "valid"):
        assert second.splits[split].tokens.tolist() == first.splits[split].tokens.tolist()
        assert second.splits[split].sha256 == first.splits[split].sha256


def test_a_text_to_validate_on_is_not_taken_for_one_to_test_on(tmp_path, book, cache):
    [other] = write(tmp_path, other="another text\n" * 9)
    made = [prepare([str(book)], BYTES, **{name: [other]}, cache=cache) for name in ("valid", "test")]
    assert [sorted(corpus.splits) for corpus in made] == [["train", "valid"], ["test", "train", "valid"]]
    assert text_of(made[0], "valid") == text_of(made[1], "test") != text_of(made[1], "valid")


def test_a_part_without_a_document_is_not_held_out(tmp_path, cache):
    [path] = write(tmp_path, a="word " * 17 + "\n<|endoftext|>\n")
    made = prepare([path], BYTES, cache=cache)
    assert text_of(made, "train") == "word " * 17 + "\n"
    assert "too short" in made.notes[0]


def test_a_changed_text_is_read_again(book, cache, work):
    prepare([str(book)], BYTES, cache=cache)
    times = book.stat()
    book.write_text(BOOK.replace("book", "nook"))
    os.utime(book, ns=(times.st_atime_ns, times.st_mtime_ns))       # same size, same time of change
    assert "nook" in text_of(prepare([str(book)], BYTES, cache=cache), "train")
    assert work["learned"] == 2


@pytest.mark.parametrize(
    "other", [{"tokenizer": "characters"}, {"held_out": 0.3}, {"separator": "line number 7 of the book"}]
)
def test_other_settings_make_another_corpus(other, book, cache):
    before, after = (prepare([str(book)], Text(**{"tokenizer": "bytes"} | more), cache=cache) for more in ({}, other))
    assert before.splits["train"].tokens.tolist() != after.splits["train"].tokens.tolist()


def test_another_pretrained_tokenizer_under_the_same_name_is_seen(book, tmp_path, cache):
    path = tmp_path / "t.json"
    wanted = Text(tokenizer=str(path))
    train_tokenizer(BYTES, []).save(path)
    assert prepare([str(book)], wanted, cache=cache).tokenizer.unit == "bytes"
    train_tokenizer(Text(tokenizer="characters"), [BOOK]).save(path)
    assert prepare([str(book)], wanted, cache=cache).tokenizer.unit == "characters"


@pytest.mark.parametrize("content", ["{", "{}", "[]", None])
@pytest.mark.parametrize("harm", ["truncated", "deleted", "tokens", "corpora", "tokenizers"])
def test_a_harmed_cache_is_made_anew(harm, content, book, cache):
    whole = text_of(prepare([str(book)], BYTES, cache=cache), "train")
    for path in cache.rglob("*"):
        if harm == "truncated" and path.suffix == ".bin":
            path.write_bytes(path.read_bytes()[:-1])
        elif harm == "deleted" and path.suffix == ".bin":
            path.unlink()
        elif path.parent.name == harm and path.suffix == ".json":
            path.unlink() if content is None else path.write_text(content)
    assert text_of(prepare([str(book)], BYTES, cache=cache), "train") == whole


@pytest.mark.parametrize("suffix", [".bin", ".json"])
def test_a_flipped_bit_in_the_cache_is_found_and_said(suffix, book, cache, capsys):
    whole = prepare([str(book)], BYTES, cache=cache).splits["train"]
    text, facts = whole.tokens.tolist(), (whole.bytes, whole.documents, whole.sha256)
    for path in (cache / "tokens").glob(f"*{suffix}"):
        content = path.read_bytes()
        if suffix == ".bin":
            path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
        else:
            path.write_bytes(content.replace(b'"bytes": ', b'"bytes": 1'))
    again = prepare([str(book)], BYTES, cache=cache).splits["train"]
    assert again.tokens.tolist() == text
    assert (again.bytes, again.documents, again.sha256) == facts
    assert "is damaged, so the text is tokenized again" in capsys.readouterr().err


def test_a_text_that_changes_while_it_is_read_is_refused(book, cache, monkeypatch):
    real = module._write

    def meddle(*args):
        facts = real(*args)
        book.write_text(BOOK + "more")
        return facts

    monkeypatch.setattr(module, "_write", meddle)
    with pytest.raises(UserError, match="changed while"):
        prepare([str(book)], BYTES, cache=cache)


def test_ids_beyond_sixteen_bits_do_not_wrap(tmp_path, cache):
    words = [f"w{number:05}" for number in range(70_000)]
    paths = write(tmp_path, a=" ".join(words))
    made = prepare(paths, Text(tokenizer="words", min_count=1, held_out=0), cache=cache)
    assert made.splits["train"].tokens.dtype == np.uint32
    assert made.splits["train"].tokens.tolist() == [0, *range(2, 70_002), 0]
    small = prepare(paths, Text(tokenizer="words", min_count=1, held_out=0, vocab=65_536), cache=cache)
    assert small.splits["train"].tokens.dtype == np.uint16
    assert small.splits["train"].tokens.max() == 65_535


def test_the_sidecar_says_what_is_in_the_file(book, cache):
    made = prepare([str(book)], Text(tokenizer="bytes", held_out=0), cache=cache)
    (sidecar,) = (cache / "tokens").glob("*.json")
    facts = json.loads(sidecar.read_text())
    assert facts == {
        "version": module.VERSION, "dtype": "uint16", "tokens": len(BOOK) + 2, "bytes": len(BOOK), "documents": 1,
        "sha256": hashlib.sha256(BOOK.encode()).hexdigest(), "tokenizer": made.tokenizer.sha256,
        "parts": [[len(BOOK) + 1, len(BOOK)]], "seal": facts["seal"],
        "file": hashlib.sha256(made.splits["train"].tokens.tobytes()).hexdigest(),
    }
    assert isinstance(made.splits["train"].tokens, np.memmap)


def test_a_full_disk_leaves_nothing_half_written(book, cache):
    """A limit on the size of files stands for the disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, hard))
    try:
        with pytest.raises(UserError, match="no space"):
            prepare([str(book)], BYTES, cache=cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((cache / "tokens").glob("*"))


def test_read_split_is_one_text(book, cache, tmp_path):
    tokenizer = Tokenizer.from_spec(json.loads(train_tokenizer(BYTES, [])._file))
    made = read_split([str(book)], BYTES, tokenizer, cache)
    assert tokenizer.decode(made.tokens) == BOOK
    assert read_split(str(book), BYTES, tokenizer, cache).sha256 == made.sha256


def test_a_long_line_is_read_in_pieces(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", 1000)
    monkeypatch.setattr(splits, "LONG_LINE", 1000)
    words = " ".join(f"w{number % 50}" for number in range(9000))
    made = prepare(write(tmp_path, a=words), Text(tokenizer="words", held_out=0), cache=cache)
    assert made.tokenizer.decode(made.splits["train"].tokens).strip("\n") == words
    assert len(made.tokenizer) == 52


MEASURED = """
import sys
from pathlib import Path
from chainrule.recipe import Text
from chainrule.text.corpus import prepare

def peak():  # megabytes; ru_maxrss would remember the process that started this one
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024

before = peak()
prepare([sys.argv[1]], Text(tokenizer="words", held_out=0), cache=Path(sys.argv[2]))
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_the_line(tmp_path):
    """Twelve megabytes in one line; taken at once, its words would need more than this."""
    path = tmp_path / "line.txt"
    path.write_text("lorem ipsum dolor " * 700_000)
    command = [sys.executable, "-c", MEASURED, str(path), str(tmp_path / "cache")]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(said.stdout) < 100


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "train", "valid", "test", "vocab"),
    [("ptb", 929_589, 73_760, 82_430, 10_000), ("wikitext-2", 2_088_628, 217_646, 245_569, 33_278)],
)
def test_the_published_counts_of_tokens(name, train, valid, test, vocab, cache):
    if not (Path(os.environ.get("CHAINRULE_DATA") or "absent") / name).is_dir():
        pytest.skip(f"no {name} in $CHAINRULE_DATA")
    made = prepare([name], Text(tokenizer="words", min_count=1), cache=cache)
    targets = {split: len(made.splits[split].tokens) - 1 for split in made.splits}
    assert targets == {"train": train, "valid": valid, "test": test}
    assert len(made.tokenizer) == vocab
    assert read_split([name], Text(), made.tokenizer, cache).sha256 == made.splits["test"].sha256
