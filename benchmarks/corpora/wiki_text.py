"""The articles of a Wikipedia dump as plain text, a JSON object a line: something to read before a task is learned.

    python benchmarks/corpora/wiki_text.py enwik8 --out wiki.jsonl [--least 400]

A dump may be cut off anywhere, as enwik8 is. Redirects, pages of other name spaces and articles of fewer than `--least`
bytes are left out. What is no prose goes: templates, tables, files, references, links to other languages, headings of
what is only listed; a link keeps the words that are shown for it. The title is the first line.
"""

import argparse
import html
import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path

PAGE = re.compile(r"<title>(.*?)</title>.*?<text[^>]*>(.*?)</text>", re.DOTALL)
OTHER = re.compile(r"(?:Wikipedia|Talk|User|Image|File|Template|Category|Portal|Help|MediaWiki)(?: talk)?:")
INNERMOST = re.compile(r"\{\{[^{}]*\}\}|\{\|(?:[^{}]|\{(?!\|)|(?<!\|)\})*?\|\}", re.DOTALL)    # a template or a table
FILE = re.compile(r"\[\[(?:Image|File|Category|[a-z][a-z-]{1,11}):(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]", re.IGNORECASE)
APART = re.compile(r"(?is)<!--.*?-->|<(ref|math|table|gallery|div|pre|timeline)\b[^>]*?(?:/>|>.*?</\1>)")    # no prose
RULES = [
    (APART, " "),
    (re.compile(r"<[^>]*>"), " "),
    (re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]]*)\]\]"), r"\1"),                # a link: what is shown
    (re.compile(r"\[(?:https?|ftp)://\S+ ?([^\]]*)\]"), r"\1"),
    (re.compile(r"'{2,}"), ""),                                                # slanted and bold
    (re.compile(r"^[*#:;|!{}\-]+.*$", re.MULTILINE), ""),                      # lists, indents, what is left of tables
    (re.compile(r"^(=+)\s*(.*?)\s*\1\s*$", re.MULTILINE), r"\n\2\n"),          # headings
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r" ?\n ?"), "\n"),
]
HEADING = re.compile(r"(?:\A|\n)[^\n.!?]{1,60}\n+(?=[^\n.!?]{1,60}(?:\n|\Z)|\Z)")    # with no prose under it
BLANK = re.compile(r"\n{2,}")


def articles(dump: str, least: int = 400) -> Iterator[tuple[str, str]]:
    """The title and the prose of each."""
    for title, markup in PAGE.findall(dump):
        title, markup = html.unescape(title), html.unescape(html.unescape(markup))
        if OTHER.match(title) or markup.lstrip().upper().startswith("#REDIRECT"):
            continue
        text = prose(markup)
        if len(text.encode()) >= least:
            yield title, text


def prose(markup: str) -> str:
    for pattern in (INNERMOST, FILE):
        while (fewer := pattern.sub("", markup)) != markup:
            markup = fewer
    for pattern, instead in RULES:
        markup = pattern.sub(instead, markup)
    while (fewer := HEADING.sub("\n", markup)) != markup:
        markup = fewer
    return BLANK.sub("\n\n", markup).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--least", type=int, default=400, help="bytes of an article")
    given = parser.parse_args()
    if not given.dump.is_file():
        parser.error(f"there is no file {given.dump}; a dump is wanted, as enwik8 or enwik8.xz.")
    packed = given.dump.read_bytes()
    dump = (lzma.decompress(packed) if given.dump.suffix == ".xz" else packed).decode("utf-8", "replace")
    with given.out.open("w", encoding="utf-8") as out:
        count = size = 0
        for title, text in articles(dump, given.least):
            out.write(json.dumps({"text": f"{title}\n\n{text}\n"}, ensure_ascii=False) + "\n")
            count, size = count + 1, size + len(text.encode())
    print(f"{count:,} articles, {size:,} bytes of prose")


if __name__ == "__main__":
    main()
