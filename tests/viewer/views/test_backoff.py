"""The back-off ladder: every number on it, from the counts up, and what a person sees of it."""

import json
import math
from collections import Counter

import pytest
import torch
from models.ngram.test_ngram import SlowKneserNey
from viewer.address import address
from viewer.subjects import TEXT, subject

from chainrule.model import watch
from chainrule.viewer.subject import Subject
from chainrule.viewer.views.backoff import LIMIT, VIEW

WORDS = 'the cat said "you\nthe dog and the who'
WAYS = [
    {}, {"order": 1}, {"order": 5}, {"estimator": "mle"}, {"estimator": "add-k", "k": 0.5},
    {"estimator": "add-k", "order": 1, "k": 2.0}, {"prune": 1e-3}, {"cutoffs": (0, 0, 4)},
]


def made(text=WORDS, unit="words", **settings):
    one = subject("ngram", unit=unit, **settings)
    return one, VIEW.make([one], text, {})


def model_says(one: Subject, text):
    tokens = one.read(text, 10**6).tokens
    logits, _ = one.model.step(tokens[:, :-1], one.model.start(1))
    return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[0, :, 0].double().exp().tolist()


def by_hand(entry, below, data):
    """p(w | h), from what a entry shows and the probability of the entry below it."""
    n, total, k, vocab = entry.get("count"), entry.get("total"), data["k"], data["vocab"]
    if entry["by"] == "discounted":
        D, N = entry["discounts"], entry["kinds"]
        gamma = sum(D[j] * N[j - 1] for j in (1, 2, 3)) / total
        assert entry["weight"] == pytest.approx(gamma, abs=1e-6)
        return (n - D[min(n, 3)]) / total + gamma * below
    return {
        "counted": lambda: n / total,
        "added": lambda: (n + k) / (total + k * vocab),
        "uniform": lambda: 1 / vocab,
        "below": lambda: below,
        "weighted": lambda: entry["weight"] * below,
        "table": lambda: entry["p"],
    }[entry["by"]]()


@pytest.mark.parametrize("given", WAYS, ids=str)
def test_every_rung_can_be_recomputed_and_the_highest_is_the_models_answer(given):
    one, data = made(**given)
    assert [token["p"] for token in data["tokens"]] == pytest.approx(model_says(one, WORDS), abs=1e-6)
    for token in data["tokens"]:
        below = 1 / data["vocab"]
        for entry in reversed(token["orders"]):
            assert entry["p"] == pytest.approx(by_hand(entry, below, data), abs=1e-6)
            below = entry["p"]
        assert token["orders"][0]["p"] == token["p"]
        assert sum(entry["share"] for entry in token["orders"]) + token["floor"] == pytest.approx(token["p"], abs=1e-6)
        assert token["bits"] == (pytest.approx(-math.log2(token["p"])) if token["p"] else None)


def test_counts_and_discounts_are_those_of_the_text():
    one, data = made(order=3)
    encode = one.run.tokenizer.encode
    stream = [0, *encode(TEXT).tolist(), 0]
    slow = SlowKneserNey(stream, 3, data["vocab"])
    read = [0, *encode(WORDS).tolist()]
    for place, token in enumerate(data["tokens"], 1):
        begun = max(at for at in range(place) if read[at] == 0)
        history = ("<s>", *read[begun + 1 : place])
        assert [entry["order"] for entry in token["orders"]] == list(range(min(3, len(history) + 1), 0, -1))
        assert token["p"] == pytest.approx(slow.prob(read[place], history), abs=1e-6)
        for entry in token["orders"]:
            context = history[len(history) - entry["order"] + 1 :]
            followers = Counter({gram: n for gram, n in slow.counts[entry["order"]].items() if gram[:-1] == context})
            assert entry["count"] == followers[(*context, read[place])]
            assert entry["total"] == followers.total()
            assert entry["discounts"] == pytest.approx(slow.discounts[entry["order"]])


@pytest.mark.parametrize("given", WAYS, ids=str)
def test_the_order_that_answered_is_the_one_that_the_tap_tells(given):
    one, data = made(**given)
    tokens = one.read(WORDS, LIMIT).tokens
    with watch(one.model, "answered") as seen:
        one.model.score(tokens[:, :-1], tokens[:, 1:], one.model.start(1))
    assert [max(1, token["answered"]) for token in data["tokens"]] == seen["answered"][0][0].tolist()


def test_a_word_never_seen_stands_on_the_floor():
    _, data = made("zebra", unit="characters")
    assert data["tokens"][0]["answered"] == 0
    assert data["tokens"][0]["floor"] == pytest.approx(data["tokens"][0]["p"])


def test_an_n_gram_that_has_learned_nothing_is_uniform():
    one = subject("ngram")
    one.model.forget(torch.Generator())
    data = VIEW.make([one], "cat", {})
    assert [token["p"] for token in data["tokens"]] == pytest.approx([1 / data["vocab"]] * 3)


@pytest.mark.parametrize("unit", ["characters", "words"])
@pytest.mark.parametrize("text", ["", "\n\n", "🦎", "a\0b", "the cat " * 12_500], ids=lambda text: ascii(text)[:9])
def test_any_text_has_its_ladders(text, unit):
    one, data = made(text, unit)
    json.dumps(data, allow_nan=False)
    read = one.read(text, LIMIT)
    assert len(data["tokens"]) == read.tokens.shape[1] - 1
    assert data["left_out"] == read.left_out
    assert (data["left_out"] > 0) == (len(text) > 1000)


def test_it_fits_models_with_orders():
    assert VIEW.fits(subject("ngram"))
    assert not VIEW.fits(subject("rnn"))


# As a person sees it


def exact(page, selector, name="p"):
    return page.locator(selector).evaluate_all(f"all => all.map(one => +one.dataset.{name})")


def test_the_ladder_on_the_page_is_the_models(open_view):
    one = subject("ngram", unit="words")
    page, data = open_view(VIEW, [one], WORDS)
    wanted = model_says(one, WORDS)
    assert exact(page, ".backoff-text .token") == pytest.approx(wanted, abs=1e-6)
    page.locator(".backoff-text .token").nth(1).click()
    assert exact(page, ".backoff-answer") == pytest.approx([wanted[1]], abs=1e-6)
    orders = data["tokens"][1]["orders"]
    assert exact(page, ".backoff-orders .result", "value") == [entry["p"] for entry in orders] + [1 / data["vocab"]]
    first = orders[0]
    line = page.locator(".backoff-row").first.inner_text().replace("\n", " ")
    assert f"seen {first['count']} of {first['total']} times" in line
    shown = f"{first['count']} − {first['discounts'][min(first['count'], 3)]:.5g} {first['total']}"
    assert shown in line
    assert page.locator(".backoff-row.answered").get_attribute("data-order") == str(data["tokens"][1]["answered"])


def test_arrow_keys_choose_a_token_and_the_address_remembers(open_view):
    one = subject("ngram", unit="words")
    page, data = open_view(VIEW, [one], WORDS, address="#backoff.at=2")
    assert page.locator(".token.chosen").inner_text() == data["shown"][3]
    page.locator(".backoff-text").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".token.chosen").inner_text() == data["shown"][2]
    assert "backoff.at=1" in address(page)
    page.keyboard.press("End")
    assert exact(page, ".backoff-answer") == [data["tokens"][-1]["p"]]


@pytest.mark.parametrize("given", [WAYS[3], WAYS[4], WAYS[6]], ids=str)
def test_every_estimator_is_written_out(open_view, given):
    page, data = open_view(VIEW, [subject("ngram", unit="words", **given)], WORDS)
    for place, token in enumerate(data["tokens"]):
        page.locator(".backoff-text .token").nth(place).click()
        assert exact(page, ".backoff-orders .result", "value")[:-1] == [entry["p"] for entry in token["orders"]]
        assert "undefined" not in page.locator(".backoff-ladder").inner_text()
        assert "NaN" not in page.locator(".backoff-ladder").inner_text()
    assert ("impossible" in page.locator(".backoff-legend").inner_text()) == any(t["p"] == 0 for t in data["tokens"])


@pytest.mark.parametrize("text", ["", "a\0🦎 " * 40])
def test_a_phone_shows_it_whole(open_view, text):
    page, _ = open_view(VIEW, [subject("ngram")], text, viewport={"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert "There is no token yet" in page.locator("#backoff").inner_text() if not text else True


@pytest.mark.parametrize(("unit", "says", "never"), [
    ("characters", "characters", "words"), ("bytes", "bytes", "words"), ("words", "words", "characters"),
    ("bpe", "tokens", "words"),
])
def test_the_ladder_speaks_of_the_units_of_the_tokenizer(open_view, unit, says, never):
    page, _ = open_view(VIEW, [subject("ngram", unit=unit)], "the cat")
    text = page.locator("#backoff").inner_text()
    assert f"how many {says} followed h" in text
    assert f"{says} equally probable" in text
    assert f"without its first {says.removesuffix('s')}." in text
    assert never not in text
