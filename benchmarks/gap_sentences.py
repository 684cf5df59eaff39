"""Pairs to pretrain summaries by, out of plain text: a document, and the sentence that says most of the rest (PEGASUS).

    python benchmarks/gap_sentences.py TEXT... --out pairs.jsonl [--words 300] [--kept 0.5]

Of each document, or of each stretch of `--words` words of a long one, the sentence is chosen that shares most words
with the others (ROUGE-1). It is the target; the source is the rest, and as often as `--kept` says the whole, so that
copying is learned too. `chainrule train pairs.jsonl --task translate --kind transformer` learns from them.
"""

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from chainrule.recipe import Text
from chainrule.text.sources import documents, find

SENTENCE = re.compile(r".+?(?:[.!?]+\s+|\n\s*\n|\Z)", re.DOTALL)
WORD = re.compile(r"[^\W_]+")
FEWEST, MOST = 3, 24      # words of a sentence that may be chosen; a longer one is cut


def stretches(text: str, words: int) -> Iterator[list[str]]:
    """The sentences of a text, so many words at a time."""
    here, count = [], 0
    for sentence in SENTENCE.findall(text):
        here.append(sentence)
        count += len(sentence.split())
        if count >= words:
            yield here
            here, count = [], 0
    yield here


def principal(sentences: list[str]) -> int | None:
    """The place of the sentence that shares most words with the others; None: there is no choice."""
    counted = [Counter(WORD.findall(sentence.lower())) for sentence in sentences]
    every = sum(counted, Counter())
    sizes = [sum(words.values()) for words in counted]
    shared = [sum(min(count, every[word] - count) for word, count in words.items()) for words in counted]
    overlap = [2 * common / sum(sizes) if size >= FEWEST else 0.0 for common, size in zip(shared, sizes, strict=True)]
    return max(range(len(sentences)), key=overlap.__getitem__) if len(sentences) > 1 and max(overlap) > 0 else None


def pairs(texts: Iterable[str], words: int, kept: float, chance: random.Random) -> Iterator[dict[str, str]]:
    for text in texts:
        for sentences in stretches(text, words):
            if (place := principal(sentences)) is not None:
                rest = sentences if chance.random() < kept else sentences[:place] + sentences[place + 1 :]
                target = " ".join(sentences[place].split()[:MOST])
                yield {"source": "".join(rest).strip(), "target": target}


def whole_documents(words: list[str]) -> Iterator[str]:
    sources = [source for word in words for source in find(word, Path())]
    for _, pieces in groupby(documents(sources, Text()), key=lambda numbered: numbered[0]):
        yield "".join(piece for _, piece in pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--words", type=int, default=300, help="words in a source, about")
    parser.add_argument("--kept", type=float, default=0.5, help="share of sources that keep the sentence")
    args = parser.parse_args()
    with args.out.open("w", encoding="utf-8") as out:
        for pair in pairs(whole_documents(args.texts), args.words, args.kept, random.Random(1)):
            out.write(json.dumps(pair, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
