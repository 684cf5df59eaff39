"""Entities as spans of BIO tags: read by conlleval's rules, compared as sets of spans."""

import random
from typing import Any

import pytest

from chainrule.tasks.entities import measure_entities, name_spans, spans


@pytest.mark.parametrize(("tags", "expected"), [
    ("B-P I-P O O B-L I-L", {("P", 0, 2), ("L", 4, 6)}),
    ("B-P B-P I-P", {("P", 0, 1), ("P", 1, 3)}),                       # two that touch
    ("I-P I-P O", {("P", 0, 2)}),                                      # IOB: I may begin a span
    ("B-P I-L I-L", {("P", 0, 1), ("L", 1, 3)}),                       # another type is another span
    ("O O", set()),
    ("S-P B-L I-L E-L S-P", {("P", 0, 1), ("L", 1, 4), ("P", 4, 5)}),  # BIOES
    ("B-L E-L I-L", {("L", 0, 2), ("L", 2, 3)}),
    ("O I-P", {("P", 1, 2)}),
    ("B-a-b I-a-b", {("a-b", 0, 2)}),
    ("", set()),
])  # fmt: skip
def test_spans_by_hand(tags: str, expected: set[Any]) -> None:
    assert spans(tags.split()) == expected


def written_out(tags: list[str]) -> set[Any]:
    """BIO without mistakes, read by another way: each B and the I of its type that follow."""
    found = set()
    for place, tag in enumerate(tags):
        if tag.startswith("B-"):
            end = place + 1
            while end < len(tags) and tags[end] == f"I-{tag[2:]}":
                end += 1
            found.add((tag[2:], place, end))
    return found


def valid_tags(length: int, generator: random.Random) -> list[str]:
    tags: list[str] = []
    for _ in range(length):
        follow = [f"I-{tags[-1][2:]}"] * 2 if tags and tags[-1] != "O" else []
        tags.append(generator.choice(["O", "B-P", "B-L", *follow]))
    return tags


def test_f1_is_that_of_the_sets_of_spans() -> None:
    generator = random.Random(1)
    truth = [valid_tags(generator.randrange(1, 12), generator) for _ in range(60)]
    predicted = [valid_tags(len(tags), generator) if number % 2 else tags for number, tags in enumerate(truth)]
    true, found = ({(number, *span) for number, tags in enumerate(each) for span in written_out(tags)}
                   for each in (truth, predicted))
    correct = len(true & found)
    result = measure_entities(truth, predicted)
    assert result["entity_precision"] == pytest.approx(correct / len(found))
    assert result["entity_recall"] == pytest.approx(correct / len(true))
    assert result["entity_f1"] == pytest.approx(2 * correct / (len(true) + len(found)))
    assert result["entities"] == len(true)
    low, high = result["entity_f1_interval"]
    assert low < result["entity_f1"] < high
    of_type = {kind: sum(span[1] == kind for span in true & found) for kind in "PL"}
    assert result["entity_types"]["P"]["precision"] == pytest.approx(of_type["P"] / sum(s[1] == "P" for s in found))


def test_f1_is_seqevals_where_it_is_installed() -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    generator = random.Random(2)
    tags = ["O", "B-P", "I-P", "B-L", "I-L", "E-P", "S-L"]
    truth = [generator.choices(tags, k=9) for _ in range(50)]
    predicted = [[tag if generator.random() < 0.7 else generator.choice(tags) for tag in row] for row in truth]
    assert measure_entities(truth, predicted)["entity_f1"] == pytest.approx(seqeval.f1_score(truth, predicted))


def test_without_entities_the_f1_is_zero_not_an_error() -> None:
    result = measure_entities([["O", "O"], ["O"]], [["O", "O"], ["O"]])
    assert (result["entity_f1"], result["entities"], result["entity_types"]) == (0.0, 0, {})


@pytest.mark.parametrize(("names", "expected"), [
    (["O", "B-P", "I-P"], True), (["I-P", "O"], True), (["NOUN", "VERB"], False), (["O"], False),
    (["B-P", "NOUN"], False), ([], False), (["B", "I", "O"], False),
])  # fmt: skip
def test_tags_that_mark_spans_are_known_by_their_names(names: list[str], expected: bool) -> None:
    assert name_spans(names) is expected
