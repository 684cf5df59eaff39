"""The small texts of the lessons, made by rules: `python website/toy_texts.py` writes docs/lessons/texts."""

import json
import random
from itertools import product
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "lessons" / "texts"

COWS = ["corn"] * 4 + ["grass"] * 3 + ["hay"] * 2 + ["if", "which"]
ENDS = {"corn": ["in the barn", "every day", "at night", "with joy"], "grass": ["on the hill", "all summer", "slowly"],
        "hay": ["in winter", "from the floor"], "if": ["they are hungry"], "which": ["farmers see it"]}


def cows() -> str:
    """Eleven sentences, in which `cows eat` is followed by corn 4, grass 3, hay 2, if 1 and which 1 times."""
    return "".join(f"cows eat {word} {ENDS[word][COWS[:index].count(word)]}\n" for index, word in enumerate(COWS))


PEOPLE = {  # word: his or her, and whether royal, and whether young
    "king": ("his", True, False), "queen": ("her", True, False), "man": ("his", False, False),
    "woman": ("her", False, False), "prince": ("his", True, True), "princess": ("her", True, True),
    "boy": ("his", False, True), "girl": ("her", False, True),
}
PLACES = {True: ["palace", "castle", "throne"], False: ["house", "farm", "market"]}
THINGS = {True: ["crown", "jewels", "robe"], False: ["coat", "basket", "hat"]}
DEEDS = {True: ["played in", "grew up in"], False: ["ruled over", "worked in"]}
LOOKS = {"his": ["beard", "razor"], "her": ["necklace", "dress"]}


def royal(lines: int = 1200) -> str:
    """Sentences in which royal people are in palaces, others in houses, and everybody has his or her own things."""
    draw = random.Random(1)
    return "".join(f"{_sentence(draw)}\n" for _ in range(lines))


def _sentence(draw: random.Random) -> str:
    person = draw.choice(list(PEOPLE))
    own, noble, young = PEOPLE[person]
    return draw.choice([
        f"the {person} {draw.choice(DEEDS[young])} the {draw.choice(PLACES[noble])}",
        f"the {person} carried {own} {draw.choice(THINGS[noble])}",
        f"the {person} with {own} {draw.choice(LOOKS[own])} saw {own} {draw.choice(THINGS[noble])}",
        f"the {person} washed {own} {draw.choice(LOOKS[own])}",
    ])


NOUNS = {"cat": ("chat", "m"), "dog": ("chien", "m"), "horse": ("cheval", "m"),
         "cow": ("vache", "f"), "goat": ("chèvre", "f"), "hen": ("poule", "f")}
AFTER = {"white": ("blanc", "blanche"), "black": ("noir", "noire")}     # chat noir
BEFORE = {"small": ("petit", "petite"), "big": ("grand", "grande")}     # petit chat
VERBS = {"sees": "voit", "follows": "suit", "likes": "aime"}


def pairs(lines: int = 1200) -> str:
    """English and French sentences; a colour stands after its noun in French, other adjectives before it."""
    draw = random.Random(1)
    rows = (f"{english}\t{french}\n" for english, french in (_pair(draw) for _ in range(lines)))
    return "source\ttarget\n" + "".join(dict.fromkeys(rows))


def _pair(draw: random.Random) -> tuple[str, str]:
    subject, object = _phrase(draw), _phrase(draw)
    verb = draw.choice(list(VERBS))
    return f"{subject[0]} {verb} {object[0]}", f"{subject[1]} {VERBS[verb]} {object[1]}"


def _phrase(draw: random.Random) -> tuple[str, str]:
    noun = draw.choice(list(NOUNS))
    french, gender = NOUNS[noun]
    adjective = draw.choice([*AFTER, *BEFORE])
    form = {**AFTER, **BEFORE}[adjective][gender == "f"]
    words = [french, form] if adjective in AFTER else [form, french]
    return f"the {adjective} {noun}", " ".join(["la" if gender == "f" else "le", *words])


GOOD = ["fine", "lovely", "clever", "funny", "bright", "moving", "charming", "warm", "brilliant", "tender"]
BAD = ["dull", "awful", "boring", "stale", "empty", "clumsy", "silly", "cold", "dreadful", "tired"]
SHOWS = ["film", "play", "book", "song", "show"]
REACTIONS = {True: ["smiled", "clapped", "stayed"], False: ["left", "slept", "complained"]}


def talk(lines: int = 1500) -> str:
    """Sentences without labels, in which what people did follows from what the film was like."""
    draw = random.Random(1)
    return "".join(f"{_remark(draw)}\n" for _ in range(lines))


def _remark(draw: random.Random) -> str:
    good = draw.random() < 0.5
    return f"the {draw.choice(SHOWS)} was {draw.choice(GOOD if good else BAD)} so we {draw.choice(REACTIONS[good])}"


def moods(known: bool) -> str:
    """Labelled sentences: with the first three adjectives of each kind, or with all others."""
    chosen = slice(0, 3) if known else slice(3, None)
    rows = [f"the {show} was {word}\t{label}" for label, words in (("good", GOOD), ("bad", BAD))
            for word, show in product(words[chosen], SHOWS)]
    random.Random(1).shuffle(rows)
    return "text\tlabel\n" + "".join(f"{row}\n" for row in rows)


def chats(count: int = 120) -> str:
    """Chats as JSON lines: a remark, and what people did, in one word. Half of the adjectives of talk.txt occur."""
    draw, lines = random.Random(1), []
    for _ in range(count):
        good = draw.random() < 0.5
        remark = f"the {draw.choice(SHOWS)} was {draw.choice((GOOD if good else BAD)[:5])}"
        turns = [("user", remark), ("assistant", draw.choice(REACTIONS[good]))]
        lines.append(json.dumps({"messages": [{"role": role, "content": content} for role, content in turns]}))
    return "".join(f"{line}\n" for line in lines)


TEXTS = {
    "cows.txt": cows, "royal.txt": royal, "pairs.tsv": pairs, "talk.txt": talk,
    "chats.jsonl": chats,
    "moods.tsv": lambda: moods(True), "new-moods.tsv": lambda: moods(False),
}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in TEXTS.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
