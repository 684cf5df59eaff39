"""The pictures of the views: each is shown in the docs, can be taken again, and is small."""

import importlib
import re
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from chainrule.text.pictures import PNG, decode_png

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
PAGES = [path.read_text("utf-8") for path in ROOT.glob("docs/*/*.md")]
SHOWN = {name for page in PAGES for name in re.findall(r"\]\(\.\./figures/([\w-]*views/[\w-]+)\.png\)", page)}


@pytest.fixture(scope="module")
def website():
    sys.path.insert(0, str(ROOT / "website"))
    try:
        yield {name: importlib.import_module(name) for name in ("pictures", "picture_runs", "small_png")}
    finally:
        sys.path.remove(str(ROOT / "website"))


def test_every_picture_is_shown_and_can_be_taken_again(website):
    names = {f"{path.parent.name}/{path.stem}" for path in FIGURES.glob("*/*.png")}
    pictures = website["pictures"].PICTURES
    assert names == SHOWN == {f"{picture.folder}/{name}" for name, picture in pictures.items()}


def test_the_runs_of_every_picture_can_be_trained(website):
    runs = website["picture_runs"].RUNS
    assert {run for picture in website["pictures"].PICTURES.values() for run in picture.runs} <= set(runs)
    assert {run for needed in website["picture_runs"].FIRST.values() for run in needed} <= set(runs)


def test_few_colours_stay_as_they_are_and_many_become_near_ones(website):
    few = np.zeros((4, 5, 3), np.uint8)
    few[1, 2], few[3] = (200, 10, 0), (7, 7, 7)
    red, green = np.meshgrid(np.arange(0, 256, 4), np.arange(0, 256, 4))
    many = np.stack([red, green, 0 * red], -1).astype(np.uint8)
    assert (decode_png(website["small_png"].shrink(true_colour(few, website["small_png"]))) == few).all()
    found = decode_png(website["small_png"].shrink(true_colour(many, website["small_png"])))
    assert len(np.unique(found.reshape(-1, 3), axis=0)) <= 256
    assert np.abs(found.astype(int) - many).max() <= 24


def true_colour(pixels, small_png):
    """As a PNG without a palette."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], 1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return PNG + b"".join(small_png.chunk(name, data) for name, data in chunks)
