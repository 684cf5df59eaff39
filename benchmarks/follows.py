"""Pairs out of plain articles, as RTE has them: does the second sentence follow from the first text?

    python benchmarks/follows.py wiki.jsonl --out pairs.tsv [--seed 1]

A text is one to three sentences of an article. What follows from it is a part of one of its sentences, from the
beginning or between commas. What does not follow is such a part of another sentence of the article; or one of this
text in which a name, a number or a word is put in another's place. Both come about equally often, and both look alike.
"""

import argparse
import random
import re
from collections.abc import Iterator
from pathlib import Path

from chainrule.text.documents import json_texts
from chainrule.text.sources import Source, read_text

SENTENCE = re.compile(r"(?<=[a-z0-9)\"][.!?])\s+(?=[A-Z\"])")
JOINT = "(?:and|but|which|who|where|while|although|because)"
PART = re.compile(rf"[,;:]\s+|\s+[(–—-]+\s*|\)\s*|\s+(?={JOINT}\s)")
LEAD = re.compile(rf"^{JOINT}\s+")
CONTENT = re.compile(r"[A-Za-z]{5,}|[0-9]+")
LOST = 0.15                   # share of words
LEAST, MOST = 5, 18           # words in what follows
WORDS = 15, 90                # in the text


def paragraphs(article: str) -> Iterator[list[str]]:
    for paragraph in article.split("\n"):
        sentences = [sentence.strip() for sentence in SENTENCE.split(paragraph)]
        if len(kept := [sentence for sentence in sentences if 5 <= len(sentence.split()) <= 60]) >= 2:
            yield kept


def parts(sentence: str) -> list[str]:
    """What can stand alone, as a sentence."""
    found = [LEAD.sub("", part.strip(" .,;:!?\"'()")) for part in PART.split(sentence)]
    found += [f"{found[0]} {other}" for other in found[1:]]
    return [part[0].upper() + part[1:] + "." for part in found if LEAST <= len(part.split()) <= MOST]


def shorter(told: str, chance: random.Random) -> str:
    """Without some of its words, so that not only what is quoted follows."""
    first, *words = told.split(" ")
    return " ".join([first, *(word for word in words[:-1] if chance.random() > LOST), *words[-1:]])


def with_another(told: str, words: list[str], chance: random.Random) -> str | None:
    """One content word replaced by one of the same sort that is not in it: a name, a number or another word."""
    places = list(CONTENT.finditer(told, max(told.find(" "), 0)))
    chance.shuffle(places)
    for place in places:
        old = place.group()
        fit = [word for word in words if _sort(word) == _sort(old) and word.lower() not in told.lower()]
        if fit:
            return told[: place.start()] + chance.choice(fit) + told[place.end() :]
    return None


def _sort(word: str) -> str:
    return "number" if word.isdigit() else "name" if word[0].isupper() else f"word {word[-2:]}"


def texts(sentences: list[str], chance: random.Random) -> Iterator[list[str]]:
    """One to three sentences at a time, from first to last; without texts that are too short or too long."""
    first = 0
    while first < len(sentences):
        some = sentences[first : first + chance.choice((1, 1, 2, 3))]
        first += len(some)
        if WORDS[0] <= sum(len(sentence.split()) for sentence in some) <= WORDS[1]:
            yield some


def pairs(article: str, chance: random.Random) -> Iterator[tuple[str, str, str]]:
    found = list(paragraphs(article))
    every = [sentence for sentences in found for sentence in sentences]
    if len(every) < 6:
        return
    for some in (some for sentences in found for some in texts(sentences, chance)):
        text = " ".join(some)
        inside = [part for sentence in some for part in parts(sentence) if part != text]
        if not inside:
            continue
        told = chance.choice(inside)
        if chance.random() < 0.5:
            yield text, told, "entailment"
        elif (wrong := wrong_for(told, some, every, chance)) is not None:
            yield text, wrong, "not_entailment"


def wrong_for(told: str, some: list[str], every: list[str], chance: random.Random) -> str | None:
    """What does not follow from some sentences: a part of others of the article, or `told` with another word."""
    if chance.random() < 0.5:
        others = [part for one in chance.sample(every, 4) if one not in some for part in parts(one)]
        return chance.choice(others) if others else None
    words = CONTENT.findall(" ".join(some if chance.random() < 0.5 else chance.sample(every, 4)))
    return with_another(told, words, chance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("articles", type=Path, help="JSON lines, as benchmarks/wiki_text.py writes them; may be packed")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if not given.articles.is_file():
        parser.error(f"there is no file {given.articles}; articles are wanted, as benchmarks/wiki_text.py writes them.")
    chance, count = random.Random(given.seed), 0
    with given.out.open("w", encoding="utf-8") as out:
        out.write("sentence1\tsentence2\tlabel\n")
        for article in json_texts(given.articles, read_text(Source(given.articles))):
            for row in pairs(article, chance):
                text, told, label = (" ".join(field.split()) for field in row)
                out.write(f"{text}\t{shorter(told, chance)}\t{label}\n")
                count += 1
    print(f"{count:,} pairs")


if __name__ == "__main__":
    main()
