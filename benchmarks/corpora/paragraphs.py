"""Paragraphs of prose as documents of their own, a JSON object a line: text for models of single sentences.

    python benchmarks/corpora/paragraphs.py books.txt.xz wiki.jsonl --out paragraphs.jsonl [--bytes 40000000]
                                            [--every 2]

Exams such as BLiMP ask for the probability of one sentence between two boundaries. A model that read whole books has
seen a boundary once in a book; one that read paragraphs knows how they begin and end. The lines of a paragraph are
joined. What is no prose is left out: headings, lists, tables, verse, lines of capitals. `--every 2` takes every second
paragraph that is left, so that a limit in bytes holds more authors.
"""

import argparse
import json
import lzma
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

BREAK = re.compile(r"\n\s*\n")
ENDS = re.compile(r"[.!?][\"'”’)]*$")
WORD = re.compile(r"[a-z]{2,}")
LEAST, MOST = 60, 3000     # characters of a paragraph
LETTERS = 0.7              # of the characters must be in words of small letters


def paragraphs(text: str) -> Iterator[str]:
    """Those that look like prose: they end as sentences do, and most of their characters are words in small letters."""
    for block in BREAK.split(text):
        joined = " ".join(block.split())
        sentences = ENDS.search(joined) and "|" not in joined
        if LEAST <= len(joined) <= MOST and sentences and _letters(joined) >= LETTERS * len(joined):
            yield joined


def _letters(text: str) -> int:
    return sum(map(len, WORD.findall(text)))


def documents(path: Path) -> Iterator[str]:
    """The texts of a file of JSON lines, or the file itself; both may be packed as .xz."""
    packed = path.read_bytes()
    text = (lzma.decompress(packed) if path.suffix == ".xz" else packed).decode("utf-8", "replace")
    if ".jsonl" in path.name:
        return (json.loads(line)["text"] for line in text.split("\n") if line.strip())
    return iter([text.replace("\r\n", "\n")])


def limited(texts: Iterable[str], most: int | None) -> Iterator[str]:
    """The first of them, up to so many bytes."""
    size = 0
    for text in texts:
        size += len(text.encode())
        if most is not None and size > most:
            return
        yield text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bytes", type=int, help="of paragraphs, from each file")
    parser.add_argument("--every", type=int, default=1, help="take every N-th paragraph")
    given = parser.parse_args()
    if missing := [str(path) for path in given.file if not path.is_file()]:
        parser.error(f"there is no file {missing[0]}; texts are wanted, as books.txt, books.txt.xz or wiki.jsonl.")
    if given.every < 1:
        parser.error(f"--every {given.every} is not valid: it must be 1 or more.")
    count = size = 0
    with given.out.open("w", encoding="utf-8") as out:
        for path in given.file:
            every = (one for text in documents(path) for one in paragraphs(text))
            for paragraph in limited(islice(every, 0, None, given.every), given.bytes):
                out.write(json.dumps({"text": paragraph}, ensure_ascii=False) + "\n")
                count, size = count + 1, size + len(paragraph.encode())
    print(f"{count:,} paragraphs, {size:,} bytes")


if __name__ == "__main__":
    main()
