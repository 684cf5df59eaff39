"""Vectors on a page: the map is the plane of greatest variance, and neighbours are those of inference/vectors.py."""

import base64
import json

import numpy as np
import pytest
import torch
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
    with pytest.raises(UserError, match=line):
        VIEW.make([words()], "", {"ask": "yes", **options})


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
    assert "vectors.a=WATER" in page.url
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


def test_the_map_is_drawn_and_a_click_asks_for_a_word(open_view):
    page, data = open_view(VIEW, [words()], address="#vectors.a=tree")
    assert page.locator("#vectors .scatterlayer .trace").count() >= 3
    read = "(of) => [...document.querySelector('.vectors-map').data[0][of]]"
    x, y, text = page.evaluate(f"['x', 'y', 'customdata'].map({read})")
    assert text == data["words"]
    places = np.stack([x, y], 1)
    assert places == pytest.approx(unpacked(data["map"]), abs=1e-6)
    page.evaluate("document.querySelector('.vectors-map').emit('plotly_click', { points: [{ customdata: 'fire' }] })")
    assert "vectors.a=fire" in page.url
    same(table(page), nearest(judged(words()), "fire", COUNT))


def test_a_word_that_is_not_there_is_said_so(open_view):
    page, _ = open_view(VIEW, [words()], address="#vectors.a=emperor")
    assert "“emperor” is not among the 22 tokens" in page.locator("#vectors").inner_text()


def test_a_live_page_asks_the_server(open_view, monkeypatch):
    monkeypatch.setattr("chainrule.viewer.views.vectors.NUMBERS", 40)
    one = words()
    page, _ = open_view(VIEW, [one])
    page.expose_function("askPython", lambda options: VIEW.make([one], "", options))
    page.evaluate("""async () => {
        const { render } = await import("chainrule/vectors");
        const { remember } = await import("chainrule/state");
        const [{ data }] = JSON.parse(document.getElementById("panels").textContent);
        const place = document.querySelector("#vectors .view");
        place.replaceChildren();
        await render(place, data, remember("vectors"), { ask: (options) => window.askPython(options) });
    }""")
    same(table(page), nearest(judged(one), "king", COUNT))


@pytest.mark.parametrize("width", [360, 1920])
def test_nothing_runs_out_of_a_phone_or_a_projector(open_view, width):
    page, _ = open_view(VIEW, [subject("gpt", text=TEXT)], viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
