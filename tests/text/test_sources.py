"""Text is read as it is, from wherever it comes, and what is no text is refused in one line."""

import gzip
import io
import lzma
import os
import sys
from threading import Thread

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.text import sources
from chainrule.text import splits as cutting
from chainrule.text.sources import Source, find_sources, read_text
from chainrule.text.splits import at_line_ends, documents

PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda text: zstandard.compress(text[:5]) + zstandard.compress(text[5:]),    # two frames
}
TEXT = "first line\nnaïve 日本\r\nlast"


def refused(call, *words):
    with pytest.raises(UserError) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said
    for word in words:
        assert word in said


def text_of(path, begin=0, end=None, errors="strict"):
    return "".join(read_text(Source(path, begin, end), errors))


def texts_of(*paths, separator="<|endoftext|>"):
    found = {}
    for number, piece in documents([Source(path) for path in paths], Text(separator=separator)):
        found[number] = found.get(number, "") + piece
    assert list(found) == list(range(len(found)))
    return list(found.values())


@pytest.mark.parametrize("suffix", PACK)
def test_packed_or_not_the_text_is_the_same(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", 3)
    monkeypatch.setattr(sources, "PACKED_BLOCK", 3)
    path = tmp_path / f"text.txt{suffix}"
    path.write_bytes(PACK[suffix](TEXT.encode()))
    assert text_of(path) == TEXT
    raw = TEXT.encode()
    for begin, end in ((0, 4), (3, 9), (11, None), (2, 3)):
        assert text_of(path, begin, end) == raw[begin:end].decode()


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("harm", ["cut short", "something else", "overwritten"])
def test_a_damaged_file_is_refused(suffix, harm, tmp_path):
    path = tmp_path / f"text.txt{suffix}"
    packed = PACK[suffix]((TEXT * 90).encode())
    overwritten = packed[:20] + b"!!!!" + packed[24:]
    path.write_bytes({"cut short": packed[:-5], "something else": b"\x12" * 40, "overwritten": overwritten}[harm])
    refused(lambda: text_of(path), "damaged", str(path))


def test_a_byte_order_mark_is_dropped(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbfa\xef\xbb\xbfb")
    assert text_of(path) == "a\ufeffb"


@pytest.mark.parametrize("block", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("raw", "offset"), [(b"abc\xffdef", 3), ("éé".encode() + b"\xe6\x97", 4), (b"\x80", 0), (b"ab\xe6a", 2)]
)
def test_invalid_utf8_is_named_with_its_offset(block, raw, offset, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", block)
    path = tmp_path / "text.txt"
    path.write_bytes(raw)
    refused(lambda: text_of(path), str(path), f"offset {offset} ", "text.errors=replace")
    assert text_of(path, errors="replace") == raw.decode("utf-8", "replace")


@pytest.mark.parametrize("block", [1, 4, 100])
def test_binary_data_is_refused_with_the_offset(block, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", block)
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x11PNG\r\n\0\0")
    refused(lambda: text_of(path, errors="replace"), "offset 6", "reads text")
    path.write_bytes("text".encode("utf-16"))
    if block > 1:
        refused(lambda: text_of(path), "UTF-16", "iconv")


def test_a_folder_gives_its_texts_in_order(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.txt").write_text("2")
    (tmp_path / "a.txt").write_text("1")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"3"))
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "x.bin").write_bytes(b"a\0b")
    found = find_sources(str(tmp_path), tmp_path)
    assert [source.path.name for source in found] == ["a.txt", "two.txt", "c.txt.gz"]


def test_globs(tmp_path):
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(name)
    (tmp_path / "d.txt").mkdir()
    assert [source.path.name for source in find_sources(f"{tmp_path}/*.txt", tmp_path)] == ["a.txt", "b.txt"]
    (tmp_path / "[x].txt").write_text("a name with magic in it")
    assert [source.path.name for source in find_sources(f"{tmp_path}/[x].txt", tmp_path)] == ["[x].txt"]


def test_what_is_not_there_is_named_with_what_is_near(tmp_path):
    (tmp_path / "book.txt").write_text("a")
    (tmp_path / "empty").mkdir()
    refused(lambda: find_sources(f"{tmp_path}/bok.txt", tmp_path), "bok.txt", "Did you mean", "book.txt")
    refused(lambda: find_sources("tinyshakespear", tmp_path, ["tinyshakespeare"]), "Did you mean tinyshakespeare?")
    refused(lambda: find_sources(f"{tmp_path}/none/x.txt", tmp_path), "no file or folder")
    long = "a whole text " * 400
    refused(lambda: find_sources(long, tmp_path), "no file or folder a whole text", "…: File name too long")
    refused(lambda: find_sources("~nobody-of-that-name/x.txt", tmp_path), "no file or folder ~nobody", "home directory")
    refused(lambda: find_sources(f"{tmp_path}/*.none", tmp_path), "no file matches")
    refused(lambda: find_sources(f"{tmp_path}/empty", tmp_path), "holds no text")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    refused(lambda: text_of(tmp_path), str(tmp_path), "cannot be read")


def test_stdin_is_kept_under_the_name_of_what_it_says(tmp_path, monkeypatch):
    def said(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        return find_sources("-", tmp_path)[0].path

    first, again, other = said(b"hello"), said(b"hello"), said(b"hullo")
    assert first == again != other
    assert text_of(first) == "hello"
    refused(lambda: said(b""), "stdin is empty")
    assert sorted(tmp_path.iterdir()) == sorted([first, other])


def test_a_pipe_is_read_once_and_kept(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = Thread(target=(tmp_path / "pipe").write_text, args=("hello",))
    writer.start()
    (source,) = find_sources(str(tmp_path / "pipe"), tmp_path / "kept")
    writer.join()
    assert text_of(source.path) == text_of(source.path) == "hello"


def test_separators_cut_documents(tmp_path):
    (tmp_path / "a").write_text("one\n<|endoftext|>\ntwo\n<|endoftext|>\n<|endoftext|>\n")
    (tmp_path / "b").write_bytes(b"<|endoftext|>\r\nthree <|endoftext|>\r\n<|endoftext|>\r\nfour\n<|endoftext|>")
    assert texts_of(tmp_path / "a", tmp_path / "b") == ["one\n", "two\n", "three <|endoftext|>\r\n", "four\n"]
    assert texts_of(tmp_path / "a", separator="") == [(tmp_path / "a").read_text()]
    assert texts_of(tmp_path / "a", separator="two") == ["one\n<|endoftext|>\n", "<|endoftext|>\n<|endoftext|>\n"]


LINES = st.sampled_from(["a", "--", "--b", "b--", " --", "--\r", "", "word word word", "word word --"])


@given(lines=st.lists(LINES, min_size=1), block=st.integers(1, 9))
def test_documents_do_not_depend_on_the_blocks(lines, block, tmp_path_factory):
    path = tmp_path_factory.mktemp("blocks") / "text"
    path.write_bytes(("start\n" + "\n".join(lines)).encode())
    wanted, current = [], "start\n"
    for place, line in enumerate(lines):
        if line in ("--", "--\r"):
            wanted, current = [*wanted, current], ""
        else:
            current += line + ("\n" if place < len(lines) - 1 else "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK", block)
        patch.setattr(cutting, "LONG_LINE", 8)
        assert texts_of(path, separator="--") == [text for text in [*wanted, current] if text]


@pytest.mark.parametrize("content", ["", "<|endoftext|>\n", "\ufeff"])
def test_an_empty_file_is_refused(content, tmp_path):
    (tmp_path / "empty.txt").write_text(content)
    refused(lambda: texts_of(tmp_path / "empty.txt"), "empty.txt is empty")


def test_pieces_end_with_a_line_or_a_word(monkeypatch):
    monkeypatch.setattr(cutting, "LONG_LINE", 10)
    chunks = ["ab\ncd", "ef\n", "long line ", "without end", "x" * 20, "\nz"]
    pieces = list(at_line_ends(chunks))
    assert "".join(pieces) == "".join(chunks)
    assert pieces[:3] == ["ab\n", "cdef\n", "long line "]


def test_a_fingerprint_changes_with_the_file(tmp_path):
    path = tmp_path / "a"
    path.write_text("one")
    before = Source(path).fingerprint()
    assert Source(path).fingerprint() == before
    path.write_text("two")
    assert Source(path).fingerprint() != before


def test_a_line_of_json_is_a_document(tmp_path):
    rows = '{"id": 1, "Text": "two\\nlines"}\n\n{"id": 2, "text": ""}\n{"text": "<|endoftext|>", "label": "é"}'
    for suffix, pack in PACK.items():
        path = tmp_path / f"rows.jsonl{suffix}"
        path.write_bytes(pack(rows.encode()))
        assert texts_of(path) == ["two\nlines", "<|endoftext|>"]
    other = tmp_path / "rows.txt"
    other.write_text(rows)
    assert texts_of(other, path) == [rows, "two\nlines", "<|endoftext|>"]


def test_json_lines_without_a_text_are_refused_with_what_they_have(tmp_path):
    path = tmp_path / "rows.ndjson"
    for row, words in (('{"id": 1, "label": "x"}', ["has id, label", "text"]), ('{"text": 5}', ["no text"]),
                       ("{}", ["has no fields"]), ("[1]", ["not an object"]), ('{"text"', ["not JSON"]),
                       (r'{"text": "a \ud800 b"}', ["half of a surrogate pair", "U+FFFD"]),
                       ("[" * 200_000, ["not JSON"])):
        path.write_text('{"text": "good"}\n' + row)
        refused(lambda: texts_of(path), "line 2", *words)
