"""One change of a file: of its bytes, its lines, its fields, its JSON, or the numbers in it."""

import json
import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXTS = (".txt", ".tsv", ".csv", ".conllu", ".toml", ".arpa", ".glove", ".word2vec")
ODD = ("", "0", "-1", "nan", "inf", "-inf", "1e50", "-1e50", "1e999", "-99", "9" * 25, "\\end\\", "\t", "\t\t\t", '"',
       '""', "'", "{", "[", "\\", "\u2028", "\u00a0", "\ufeff", "<unk>", "</s>", "<s>", "é" * 300, "x" * 5000,
       "ngram 1=99999999999", "\\2-grams:", "true", "[[", "=", "#", "a = 1", "\r", "-0.5", "50", "0.0001")  # fmt: skip


def change_file(path: Path, rng: random.Random, folder: Path) -> None:
    if path.suffix == ".json" and rng.random() < 0.75:
        text = json.dumps(change_json(json.loads(path.read_text(encoding="utf-8")), rng))
        path.write_text(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"), encoding="utf-8")
    elif path.suffix == ".jsonl" and rng.random() < 0.6:
        _change_line(path, rng)
    elif path.suffix == ".safetensors" and rng.random() < 0.5:
        _change_safetensors(path, rng)
    elif path.suffix in TEXTS and rng.random() < 0.6:
        _change_fields(path, rng)
    else:
        change_bytes(path, rng, folder)


def _change_fields(path: Path, rng: random.Random) -> None:
    """One field of a line replaced, removed, doubled, or exchanged with another; or a line so."""
    lines = path.read_text(encoding="utf-8").split("\n")
    place = rng.randrange(len(lines))
    separators = [sign for sign in ("\t", ",", "=", " ") if sign in lines[place]]
    if separators and rng.random() < 0.7:
        separator = rng.choice(separators)
        parts = lines[place].split(separator)
        parts[rng.randrange(len(parts))] = rng.choice(ODD)
        lines[place] = separator.join(parts)
    else:
        _change_list(lines, rng, lambda: rng.choice(ODD))
    path.write_text("\n".join(lines), encoding="utf-8", newline="")


def _change_list(items: list[Any], rng: random.Random, odd: Callable[[], Any]) -> None:
    place, other = rng.randrange(len(items)), rng.randrange(len(items))
    how = rng.randrange(5)
    if how == 0:
        del items[place]
    elif how == 1:
        items.insert(place, items[other])
    elif how == 2:
        items[place], items[other] = items[other], items[place]
    elif how == 3:
        items[place] = odd()
    else:
        del items[place:]


def _change_line(path: Path, rng: random.Random) -> None:
    """A line of JSON lines, changed as JSON or as a line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines:
        return
    place = rng.randrange(len(lines))
    if rng.random() < 0.7:
        lines[place] = json.dumps(change_json(json.loads(lines[place]), rng))
    else:
        _change_list(lines, rng, lambda: rng.choice(ODD))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")


def change_bytes(path: Path, rng: random.Random, folder: Path | None = None) -> None:
    data = bytearray(path.read_bytes())
    how = rng.randrange(8)
    if how <= 2 and data:                                       # bits flipped
        for _ in range(rng.choice((1, 1, 1, 8, 64))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == 3:
        del data[rng.randrange(len(data) + 1):]
    elif how == 4 and data:                                     # a piece doubled, removed or replaced by noise
        begin = rng.randrange(len(data))
        end = min(len(data), begin + rng.choice((1, 7, 64, 1000)))
        data[begin:end] = rng.choice((b"", bytes(data[begin:end]) * 2, rng.randbytes(end - begin), b"\0" * 64,
                                      b"\xff" * 8, b"9" * 30))
    elif how == 5:
        data += rng.choice((b"\n", b"\0", b"garbage", rng.randbytes(100), bytes(data[:200])))
    elif how == 6:
        data = bytearray(rng.choice((b"", b"\n", b"\0" * 8, b"{}", b"[]", b"null", b"\xff\xfe", b"PK\x03\x04")))
    elif folder is not None:                                    # another file in its place
        others = sorted(other for other in path.parent.iterdir() if other.is_file() and other != path)
        data = bytearray(rng.choice(others).read_bytes() if others else b"")
    path.unlink()                                               # it may be a link to the unchanged one
    path.write_bytes(data)


def _change_safetensors(path: Path, rng: random.Random) -> None:
    """The header changed as JSON, or numbers replaced by nan and infinity."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, rest = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    if rng.random() < 0.6:
        header = change_json(header, rng)
    elif len(rest) >= 4:
        place = rng.randrange(len(rest) // 4) * 4
        rest[place : place + 4] = struct.pack("<f", rng.choice((math.nan, math.inf, -math.inf, 3e38, -1e30)))
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + rest)


def change_json(value: Any, rng: random.Random) -> Any:
    """One place of a JSON value changed: removed, added, exchanged, or replaced by a value of a wrong type or size."""
    if isinstance(value, dict | list) and value and rng.random() < 0.75:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(keys)
        how = rng.randrange(8)
        if how <= 4:
            value[key] = change_json(value[key], rng)
        elif how == 5:
            del value[key]
        elif how == 6 and isinstance(value, dict):
            value[rng.choice(("unknown", "", "a.b", f"{key}x"))] = _odd_value(rng)
        else:
            other = rng.choice(keys)
            value[key], value[other] = value[other], value[key]
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice((value + 1, -value, value * 10**6, value / 3, 10**20, 10**400, 0, 1e308, str(value)))
    return _odd_value(rng)


def _odd_value(rng: random.Random) -> Any:
    return rng.choice((None, True, False, 0, -1, 1.5, 10**20, -(10**20), 10**400, math.nan, math.inf, "", "x",
                       "x" * 3000, "9" * 30, [], [[]], {}, {"x": 1}, [None], ["x"], [1, 2, 3], [[[[[[]]]]]], "\0",
                       "../../etc", "<|endoftext|>"))  # fmt: skip
