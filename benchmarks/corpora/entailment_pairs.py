"""Entailment pairs (as RTE has them) from plain articles: does the second sentence follow from the first text?

    python benchmarks/corpora/entailment_pairs.py wiki.jsonl --out pairs.tsv [--seed 1]

A text is one to three sentences of an article. A sentence that follows is a part of one of them: its beginning, or a
part between commas. A sentence that does not follow is such a part of another sentence of the article, or a part of
this text in which a name, a number or a word is replaced. Both labels are about equally frequent.
"""

import argparse
import random
import re
from collections.abc import Iterator
from pathlib import Path

from chainrule.text.sources import Source, read_text
from chainrule.text.splits import json_texts

SENTENCE = re.compile(r"(?<=[a-z0-9)\"][.!?])\s+(?=[A-Z\"])")
JOINT = "(?:and|but|which|who|where|while|although|because)"
PART = re.compile(rf"[,;:]\s+|\s+[(–—-]+\s*|\)\s*|\s+(?={JOINT}\s)")
LEAD = re.compile(rf"^{JOINT}\s+")
CONTENT = re.compile(r"[A-Za-z]{5,}|[0-9]+")
DROPPED = 0.15                # share of words
LEAST, MOST = 5, 18           # words in the second sentence
WORDS = 15, 90                # words in the text


def paragraphs(article: str) -> Iterator[list[str]]:
    for paragraph in article.split("\n"):
        sentences = [sentence.strip() for sentence in SENTENCE.split(paragraph)]
        if len(kept := [sentence for sentence in sentences if 5 <= len(sentence.split()) <= 60]) >= 2:
            yield kept


def parts(sentence: str) -> list[str]:
    """The parts that can stand alone as a sentence."""
    found = [LEAD.sub("", part.strip(" .,;:!?\"'()")) for part in PART.split(sentence)]
    found += [f"{found[0]} {other}" for other in found[1:]]
    return [part[0].upper() + part[1:] + "." for part in found if LEAST <= len(part.split()) <= MOST]


def shorter(sentence: str, rng: random.Random) -> str:
    """Without some of its words, so that not only literal quotations follow."""
    first, *words = sentence.split(" ")
    return " ".join([first, *(word for word in words[:-1] if rng.random() > DROPPED), *words[-1:]])


def with_another(sentence: str, words: list[str], rng: random.Random) -> str | None:
    """One content word replaced by one of the same sort that is not in it: a name, a number or another word."""
    places = list(CONTENT.finditer(sentence, max(sentence.find(" "), 0)))
    rng.shuffle(places)
    for place in places:
        old = place.group()
        fit = [word for word in words if _sort(word) == _sort(old) and word.lower() not in sentence.lower()]
        if fit:
            return sentence[: place.start()] + rng.choice(fit) + sentence[place.end() :]
    return None


def _sort(word: str) -> str:
    return "number" if word.isdigit() else "name" if word[0].isupper() else f"word {word[-2:]}"


def texts(sentences: list[str], rng: random.Random) -> Iterator[list[str]]:
    """One to three sentences at a time, from first to last; texts that are too short or too long are left out."""
    first = 0
    while first < len(sentences):
        some = sentences[first : first + rng.choice((1, 1, 2, 3))]
        first += len(some)
        if WORDS[0] <= sum(len(sentence.split()) for sentence in some) <= WORDS[1]:
            yield some


def pairs(article: str, rng: random.Random) -> Iterator[tuple[str, str, str]]:
    found = list(paragraphs(article))
    every = [sentence for sentences in found for sentence in sentences]
    if len(every) < 6:
        return
    for some in (some for sentences in found for some in texts(sentences, rng)):
        text = " ".join(some)
        inside = [part for sentence in some for part in parts(sentence) if part != text]
        if not inside:
            continue
        sentence = rng.choice(inside)
        if rng.random() < 0.5:
            yield text, sentence, "entailment"
        elif (wrong := wrong_for(sentence, some, every, rng)) is not None:
            yield text, wrong, "not_entailment"


def wrong_for(sentence: str, some: list[str], every: list[str], rng: random.Random) -> str | None:
    """A sentence that does not follow: a part of other sentences, or `sentence` with a word replaced."""
    if rng.random() < 0.5:
        others = [part for one in rng.sample(every, 4) if one not in some for part in parts(one)]
        return rng.choice(others) if others else None
    words = CONTENT.findall(" ".join(some if rng.random() < 0.5 else rng.sample(every, 4)))
    return with_another(sentence, words, rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("articles", type=Path, help="JSON lines of benchmarks/corpora/wiki_text.py; may be compressed")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if not given.articles.is_file():
        parser.error(f"there is no file {given.articles}; benchmarks/corpora/wiki_text.py writes such articles.")
    rng, count = random.Random(given.seed), 0
    with given.out.open("w", encoding="utf-8") as out:
        out.write("sentence1\tsentence2\tlabel\n")
        for article in json_texts(given.articles, read_text(Source(given.articles))):
            for row in pairs(article, rng):
                text, sentence, label = (" ".join(field.split()) for field in row)
                out.write(f"{text}\t{shorter(sentence, rng)}\t{label}\n")
                count += 1
    print(f"{count:,} pairs")


if __name__ == "__main__":
    main()
