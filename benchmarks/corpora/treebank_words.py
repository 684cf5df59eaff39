"""Running text as lines of words, cut as English treebanks cut them: text for word vectors that a tagger is to read.

    python benchmarks/corpora/treebank_words.py train.conllu imdb.jsonl.xz books.txt.xz --out words.txt
                                                [--without dev.conllu]

A line is a sentence, with a space between its words. *don't* is two words, *do n't*; so are *it 's* and *can not*; a
compound is cut at its hyphens (*long - term*), which a prefix keeps (*non-human*), and a number too. Of a treebank
(.conllu) the words are as they are there, without their tags. `--without` leaves out the sentences of other treebanks,
so that vectors have not read what a tagger is tested on.
"""

import argparse
import json
import lzma
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PREFIXES = "anti|co|e|ex|mid|multi|non|over|post|pre|pro|re|semi|sub|un"
ABBREVIATIONS = "Mr|Mrs|Ms|Dr|St|Jr|Sr|Inc|Ltd|Co|Corp|No|vs|etc|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec"
WORD = re.compile(
    r"https?://\S+|www\.\S+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"          # addresses
    r"|[:;=]-?[)(DP](?!\w)"                                         # faces
    r"|\.{2,}|-{2,}|[!?]+|[*=_~#]{2,}"
    r"|(?:[A-Za-z]\.){2,}"                                          # U.S., a.m.
    rf"|\b(?:{ABBREVIATIONS})\.|\b[A-Z]\.(?=\s+[A-Z])"
    r"|\d+(?:[.,:/-]\d+)*(?:st|nd|rd|th|s)?\b"
    rf"|(?:{PREFIXES})-\w+"
    r"|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b"
    r"|[^\W_]+?(?=n['’]t\b)|[^\W_]+(?:\.[a-z]{2,4}\b)?|\S",
    re.IGNORECASE,
)
ENDS = re.compile(r"(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(]*[A-Z0-9])")
TWO = [(re.compile(rf"\b({one})({other})\b", re.IGNORECASE), r"\1 \2")
       for one, other in (("can", "not"), ("gon", "na"), ("wan", "na"), ("got", "ta"))]
BLANK = re.compile(r"\n\s*\n|<br\s*/?>")
LONGEST = 200       # words of a sentence; what is longer is a table


def sentences(text: str) -> Iterator[list[str]]:
    """The words of each sentence of a text whose paragraphs are set apart by empty lines."""
    for paragraph in BLANK.split(text):
        joined = " ".join(paragraph.split())
        for pattern, instead in TWO:
            joined = pattern.sub(instead, joined)
        for sentence in _cut(joined):
            if words := WORD.findall(sentence):
                yield words


def _cut(paragraph: str) -> Iterator[str]:
    """After a full stop and the quotes that close with it, unless the stop is that of an abbreviation."""
    begin = 0
    for end in ENDS.finditer(paragraph):
        last = paragraph[begin : end.start()].rsplit(" ", 1)[-1]
        if re.fullmatch(rf"[\"'“‘(]*(?:(?:{ABBREVIATIONS})|[A-Z])\.", last):
            continue
        yield paragraph[begin : end.end()]
        begin = end.end()
    yield paragraph[begin:]


def treebank(text: str) -> Iterator[list[str]]:
    """The words of each sentence of CoNLL-U."""
    for block in text.split("\n\n"):
        rows = (line.split("\t") for line in block.split("\n") if line and not line.startswith("#"))
        if words := [row[1].replace(" ", "") for row in rows if row[0].isdecimal()]:
            yield words


def read(path: Path) -> Iterator[list[str]]:
    """The sentences of a treebank, of the texts of JSON lines, or of plain text; all may be packed as .xz."""
    packed = path.read_bytes()
    text = (lzma.decompress(packed) if path.suffix == ".xz" else packed).decode("utf-8", "replace")
    text = text.replace("\r\n", "\n")
    if ".conllu" in path.name:
        yield from treebank(text)
    elif ".jsonl" in path.name:
        for line in text.split("\n"):
            if line.strip():
                yield from sentences(_text(json.loads(line)))
    else:
        yield from sentences(text)


def _text(row: dict[str, str]) -> str:
    """What a row says: its text, or the body of a mail."""
    return row["text"] if "text" in row else row["body"]


def lines(paths: Iterable[Path], without: Iterable[Path] = ()) -> Iterator[str]:
    left_out = {" ".join(words) for path in without for words in read(path)}
    for path in paths:
        for words in read(path):
            line = " ".join(words)
            if len(words) <= LONGEST and line not in left_out:
                yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--without", type=Path, nargs="+", default=[], help="treebanks whose sentences are left out")
    given = parser.parse_args()
    if missing := [str(path) for path in (*given.file, *given.without) if not path.is_file()]:
        parser.error(f"there is no file {missing[0]}; texts are wanted, as train.conllu, mails.jsonl.xz or books.txt.")
    count = size = 0
    with given.out.open("w", encoding="utf-8") as out:
        for line in lines(given.file, given.without):
            out.write(line + "\n")
            count, size = count + 1, size + line.count(" ") + 1
    print(f"{count:,} sentences, {size:,} words")


if __name__ == "__main__":
    main()
