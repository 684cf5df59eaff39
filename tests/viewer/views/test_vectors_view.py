"""Vectors on a page: the map is the plane of greatest variance, and neighbours are those of inference/vectors.py."""

import base64
import json

import numpy as np
import pytest
import torch
from viewer.address import address
from viewer.charts import label_boxes, overlaps
from viewer.subjects import TEXT, subject

from chainrule.errors import UserError
from chainrule.inference.vectors import Vectors, analogy, nearest
from chainrule.viewer.views.vectors import COUNT, VIEW, find_token, known_vectors, plane

WORDS = "king man woman queen he she his her house tree water fire stone bread wine the a of and to in"


def unpacked(packed):
    return np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])


def words(text=WORDS, size=8):
    one = subject("word2vec", text=" ".join([text] * 6), unit="words", embedding=size)
    one.model.vectors.copy_(torch.randn(one.model.vectors.shape, generator=torch.Generator().manual_seed(3)))
    return one


def judged(one):
    """All words by the name and the vector they have in the model, without the view."""
    tokenizer, matrix = one.run.tokenizer, one.model.embeddings.detach().numpy()
    ids = list(range(1, len(tokenizer)))    # the boundary is no word
    return Vectors([tokenizer.token(token) for token in ids], matrix[ids])


def cosine(one, other):
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_the_map_is_the_plane_of_greatest_variance():
    data = VIEW.make([words()], "", {})
    vectors = judged(words())
    units = np.array([vectors[word] / np.linalg.norm(vectors[word]) for word in data["words"]])
    assert set(data["words"]) == {"<unk>", *WORDS.split()}
    left, values, _ = np.linalg.svd(units - units.mean(0), full_matrices=False)
    expected = (left * values)[:, :2]
    found = unpacked(data["map"])
    for axis in range(2):
        assert np.abs(found[:, axis]) == pytest.approx(np.abs(expected[:, axis]), abs=1e-5)
    assert data["shares"] == pytest.approx((values**2 / (values**2).sum())[:2], abs=1e-5)


def test_vectors_of_one_number_lie_on_a_line():
    places, shares = plane(torch.tensor([[1.0], [-1.0], [1.0]], dtype=torch.double))
    assert places[:, 1].tolist() == [0, 0, 0]
    assert shares == pytest.approx([1, 0])


def test_only_tokens_that_a_text_can_become_are_shown():
    one = subject("rnn", text="abba cab")
    assert [one.run.tokenizer.show(token) for token in one.run.tokenizer.spelled()] == known_vectors(one).words
    assert sorted(known_vectors(one).words) == ["a", "b", "c", "·"]


@pytest.mark.parametrize("kind", ["rnn", "gpt", "feedforward", "lstm"])
def test_every_network_has_vectors_and_they_are_its_own(kind):
    one = subject(kind)
    assert VIEW.fits(one)
    data = VIEW.make([one], "", {})
    vectors = unpacked(data["vectors"])
    for word, vector in zip(data["words"], vectors, strict=True):
        (token,) = one.run.tokenizer.encode(word.replace("·", " ").replace("↵", "\n")).tolist()
        assert vector == pytest.approx(one.model.embeddings[token].tolist(), abs=1e-6)


def test_what_counts_has_none():
    assert not VIEW.fits(subject("ngram"))


def test_pieces_of_words_are_found_without_their_space():
    one = subject("gpt", unit="bpe")
    vectors = known_vectors(one)
    assert "·said" in vectors.words
    assert find_token(vectors, "said") == "·said"
    assert find_token(vectors, "SAID") == "·said"
    assert find_token(vectors, "·said") == "·said"
    assert find_token(vectors, "nowhere") is None


def test_the_server_answers_of_all_words(monkeypatch):
    monkeypatch.setattr("chainrule.viewer.views.vectors.NUMBERS", 40)
    one, truth = words(), judged(words())
    assert unpacked(VIEW.make([one], "", {})["vectors"]).shape == (5, 8)
    found = VIEW.make([one], "", {"ask": "yes", "mode": "near", "a": "king", "b": "man", "c": "tree"})["found"]
    assert found == nearest(truth, "king", COUNT)
    others = [cosine(truth["king"], truth[word]) for word in truth.words if word != "king"]
    assert found[0][1] == pytest.approx(max(others), abs=1e-6)
    for exclude in ("yes", "no"):
        asked = {"ask": "yes", "mode": "analogy", "a": "king", "b": "man", "c": "woman", "exclude": exclude}
        assert VIEW.make([one], "", asked)["found"] == analogy(truth, "king", "man", "woman", COUNT, exclude == "yes")


@pytest.mark.parametrize(("options", "line"), [
    ({"a": "emperor"}, "'emperor' is not among the 22 tokens"),
    ({"a": ""}, "'' is not among"),
    ({"mode": "analogy", "a": "king", "b": "man"}, "'' is not among"),
    ({}, "'' is not among"),
])
def test_what_cannot_be_asked_is_said_so(options, line):
    assert line in VIEW.make([words()], "", {"ask": "yes", **options})["missing"]


def test_vectors_that_are_no_numbers_are_refused():
    one = words()
    one.model.vectors[3, 2] = float("nan")
    with pytest.raises(UserError, match="not all finite"):
        VIEW.make([one], "", {})


def test_words_never_met_are_left_out():
    one = words()
    (token,) = one.run.tokenizer.encode("queen").tolist()
    one.model.vectors[token] = 0
    data = VIEW.make([one], "", {})
    assert "queen" not in data["words"]
    json.dumps(data, allow_nan=False)


# In a browser

def table(page):
    rows = page.locator("#vectors tbody tr")
    names = rows.locator("th").all_inner_texts()
    return list(zip(names, rows.locator("[data-cosine]").evaluate_all("all => all.map(one => +one.dataset.cosine)")))


def same(found, expected):
    assert [word for word, _ in found] == [word for word, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-6)


def test_a_page_from_disk_computes_neighbours_as_python_does(open_view):
    truth = judged(words())
    page, _ = open_view(VIEW, [words()], address="#vectors.a=king")
    same(table(page), nearest(truth, "king", COUNT))
    page.locator("#vectors input[data-which=a]").fill("WATER")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#vectors tbody th').innerText !== ''")
    same(table(page), nearest(truth, "water", COUNT))
    assert "vectors.a=WATER" in address(page)
    nearest_word = page.locator("#vectors tbody button").first.inner_text()
    page.locator("#vectors tbody button").first.press("Enter")
    same(table(page), nearest(truth, nearest_word, COUNT))


@pytest.mark.parametrize("exclude", ["yes", "no"])
def test_a_page_from_disk_adds_and_subtracts_as_python_does(open_view, exclude):
    truth = judged(words())
    page, _ = open_view(VIEW, [words()])
    page.locator("#vectors input[value=analogy]").check()
    if exclude == "no":
        page.locator("#vectors input[type=checkbox]").uncheck()
    same(table(page), analogy(truth, "king", "man", "woman", COUNT, exclude == "yes"))
    page.locator("#vectors input[data-which=b]").fill("she")
    page.keyboard.press("Tab")
    same(table(page), analogy(truth, "king", "she", "woman", COUNT, exclude == "yes"))
    assert "king − she + woman" in page.locator("#vectors").inner_text()


def place_of(page, data, word):
    """Where a word is in the window, computed from its coordinates and the ticks of the map."""
    drawing = page.locator("#vectors svg.plot-drawing")
    ticks = drawing.locator("text[data-axis]").evaluate_all(
        "all => all.map((one) => [one.dataset.axis, +one.dataset.value, +one.dataset.at])")
    spot = unpacked(data["map"])[data["words"].index(word)]
    box, width = drawing.bounding_box(), drawing.evaluate("one => one.viewBox.baseVal.width")
    pixels = []
    for axis, value in zip("xy", spot):
        values, places = zip(*((tick, at) for name, tick, at in ticks if name == axis))
        slope, offset = np.polyfit(values, places, 1)
        pixels.append((slope * value + offset) * box["width"] / width)
    return box["x"] + pixels[0], box["y"] + pixels[1]


def test_a_click_on_a_point_of_the_map_chooses_its_word(open_view):
    page, data = open_view(VIEW, [words()], address="#vectors.a=tree", viewport={"width": 1280, "height": 1400})
    page.mouse.click(*place_of(page, data, "fire"))
    assert "vectors.a=fire" in address(page)
    same(table(page), nearest(judged(words()), "fire", COUNT))
    assert page.locator("#vectors [data-marked=fire]").count() == 1
    page.keyboard.press("Enter")                                        # the point is still under the cursor
    page.locator("#vectors svg.plot-drawing").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#vectors [data-over]").count() == 1
    chosen = page.locator("#vectors [data-over]").get_attribute("data-over")
    page.keyboard.press("Enter")
    same(table(page), nearest(judged(words()), chosen, COUNT))


def test_names_on_the_map_do_not_cover_each_other_and_man_leads_to_woman(open_view):
    page, _ = open_view(VIEW, [words(" ".join(f"word{n} {chr(97 + n % 26)}{n}" for n in range(150)) + " " + WORDS)],
                        address="#vectors.mode=analogy")
    boxes = label_boxes(page, "#vectors")
    assert len(boxes) > 40
    assert overlaps(boxes) == []
    assert {"king", "man", "woman"} <= {name for name, *_ in boxes}
    best = page.locator("#vectors tbody th").first.inner_text()
    arrows = page.locator("#vectors [data-arrow]").evaluate_all("all => all.map((one) => one.dataset.arrow)")
    assert arrows == ["man → woman", f"king → {best}"]
    page.locator("#vectors button[aria-label='zoom in']").press("Enter")
    assert overlaps(label_boxes(page, "#vectors")) == []


def test_the_focus_stays_where_it_is(open_view):
    page, _ = open_view(VIEW, [words()])
    focused = "[document.activeElement.tagName, document.activeElement.value ?? '', document.activeElement.innerText]"
    page.locator("#vectors input[value=near]").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused)[:2] == ["INPUT", "analogy"]
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused)[:2] == ["INPUT", "near"]
    page.locator("#vectors tbody button").nth(2).focus()
    for _ in range(2):                                                  # a second word without another Tab
        page.keyboard.press("Enter")
        assert page.evaluate(focused)[0] == "BUTTON"
        assert page.evaluate(focused)[2] == page.locator("#vectors tbody button").nth(2).inner_text()
    page.locator("#vectors input[data-which=a]").fill("water")
    page.keyboard.press("Enter")
    assert page.evaluate(focused)[:2] == ["INPUT", "water"]


def test_an_unknown_word_moves_nothing_and_is_not_kept_by_the_other_mode(open_view):
    page, _ = open_view(VIEW, [words()])
    top = "document.querySelector('#vectors svg').getBoundingClientRect().top + scrollY"
    before = page.evaluate(top), page.evaluate("document.body.scrollHeight")
    page.locator("#vectors input[data-which=a]").fill("emperor")
    page.keyboard.press("Enter")
    assert "“emperor” is not among" in page.locator("#vectors [role=alert]").inner_text()
    assert (page.evaluate(top), page.evaluate("document.body.scrollHeight")) == before
    page.locator("#vectors input[value=analogy]").check()
    assert page.locator("#vectors [role=alert]").count() == 0
    same(table(page), analogy(judged(words()), "king", "man", "woman", COUNT, True))


def test_men_and_women_are_spoken_of_only_where_they_are_words(open_view):
    letters, _ = open_view(VIEW, [subject("gpt", text=TEXT)])
    assert not any(word in letters.locator("#vectors").inner_text() for word in ("man", "queen"))
    many, _ = open_view(VIEW, [words()])
    assert "man → woman is about king → queen" in many.locator("#vectors").inner_text()


def test_a_word_that_is_not_there_is_said_so(open_view):
    page, _ = open_view(VIEW, [words()], address="#vectors.a=emperor")
    assert "“emperor” is not among the 22 tokens" in page.locator("#vectors").inner_text()


def test_a_live_page_asks_the_server(open_view, monkeypatch):
    monkeypatch.setattr("chainrule.viewer.views.vectors.NUMBERS", 40)
    one = words()
    page, data = open_view(VIEW, [one])
    page.expose_function("askPython", lambda options: VIEW.make([one], "", options))
    page.evaluate("""async (data) => {
        const { render } = await import("chainrule/vectors");
        const { remember } = await import("chainrule/state");
        const place = document.querySelector("#vectors .view");
        place.replaceChildren();
        await render(place, data, remember("vectors"), { ask: (options) => window.askPython(options) });
    }""", data)
    same(table(page), nearest(judged(one), "king", COUNT))


@pytest.mark.parametrize("width", [360, 1920])
def test_nothing_runs_out_of_a_phone_or_a_projector(open_view, width):
    page, _ = open_view(VIEW, [subject("gpt", text=TEXT)], viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
