"""The picture of the bottleneck says what the translations say."""

import random
import sys
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from programs import benchmark

bottleneck = benchmark("bottleneck")

WORDS = ["the", "old", "man", "goes", "to", "a", "sea", "of", "green", "wine"]


def sentences(count=40):
    chance = random.Random(1)
    return [" ".join(chance.choices(WORDS, k=4 + row % 8))
            for row in range(count)]


def test_sentences_of_one_length_share_a_bucket_and_none_is_lost():
    lengths = [3, 9, 3, 5, 5, 5, 5, 8, 2, 30]
    parts = bottleneck.buckets_by_length(lengths, 3)
    assert sorted(place for part in parts for place in part) == list(range(10))
    spans = [{lengths[place] for place in part} for part in parts]
    assert all(max(one) < min(other) for one, other in pairwise(spans))


def test_a_model_that_forgets_long_sentences_is_worse_there_alone():
    wanted = sentences()
    output = [text if len(text.split()) < 8 else "the the the the" for text in wanted]
    buckets = bottleneck.measure(wanted, wanted, {"attention": wanted, "bottleneck": output}, 2)
    short, long = (bucket.scores["bottleneck"].value for bucket in buckets)
    assert short == pytest.approx(100)
    assert long < 5
    assert all(bucket.scores["attention"].value == pytest.approx(100) for bucket in buckets)
    assert sum(bucket.sentences for bucket in buckets) == len(wanted)
    lines = ElementTree.fromstring(bottleneck.picture(buckets)).findall("{*}polyline")
    heights = [[float(point.split(",")[1]) for point in line.get("points").split()] for line in lines]
    assert heights[0][0] == heights[0][1] == heights[1][0] < heights[1][1]            # the lower, the worse


def test_files_of_unequal_lengths_are_refused(tmp_path, monkeypatch, capsys):
    names = ["source", "wanted", "output", "short"]
    for name, count in zip(names, (5, 5, 5, 4)):
        (tmp_path / name).write_text("a\n" * count)
    source, wanted, output, short = (str(tmp_path / name) for name in names)
    monkeypatch.setattr(sys, "argv", ["bottleneck", source, wanted, "--attention", output, "--bottleneck", short])
    with pytest.raises(SystemExit):
        bottleneck.main()
    assert "4 and 5 lines" in capsys.readouterr().err
