"""The trellis: its values against the sum over all paths, its sums as written out, and what a person sees."""

import base64
import json
import math
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from viewer.address import address
from viewer.subjects import subject

from chainrule.formats.hand_written import built_in_models, read_hand_written
from chainrule.run import Run
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import trellis
from chainrule.viewer.views.trellis import LIMIT, VIEW, symbol_frequencies, typical_symbols

WORDS = 'the cat said\nthe dog "who'


def unpack(packed):
    kind = {"float32": "<f4", "int32": "<i4"}[packed["dtype"]]
    return np.frombuffer(base64.b64decode(packed["data"]), kind).reshape(packed["shape"])


def drawn_anew(unit="words", states=3, seed=3, **settings):
    """An HMM with random tables: one that has counted is too sure of itself to show mistakes."""
    one = subject("hmm", unit=unit, states=states, **settings)
    one.model.forget(torch.Generator().manual_seed(seed))
    return one


def every_path(model, text):
    """{states: p(text, states)}"""
    π, a, b = model.initial.tolist(), model.transition.tolist(), model.emission.tolist()
    paths = {}
    for path in product(range(len(π)), repeat=len(text)):
        p = π[path[0]] * math.prod(a[s][after] for s, after in pairwise(path))
        paths[path] = p * math.prod(b[s][x] for s, x in zip(path, text))
    return paths


def texts_of(one, text):
    """Ids between boundaries, each text with the boundary that ends it."""
    texts = [[]]
    for token in one.run.tokenizer.encode(text).tolist():
        texts[-1].append(token)
        if token == 0:
            texts.append([])
    return [some for some in texts if some]


def test_all_values_are_sums_over_all_paths():
    one = drawn_anew()
    data = VIEW.make([one], WORDS, {})
    alpha, gamma, delta, winner = (unpack(data[name]) for name in ("alpha", "gamma", "delta", "winner"))
    at, lengths = 0, [len(text) for text in texts_of(one, WORDS)]
    assert data["begins"] == [0, lengths[0]]
    for number, text in enumerate(texts_of(one, WORDS)):
        every = every_path(one.model, text)
        total, best = sum(every.values()), max(every, key=every.get)
        assert data["log_p"][number] == pytest.approx(math.log(total))
        assert data["path"][at : at + len(text)] == list(best)
        for t in range(len(text)):
            so_far = every_path(one.model, text[: t + 1])
            for s in range(3):
                ends = {path: p for path, p in so_far.items() if path[-1] == s}
                assert alpha[at + t, s] == pytest.approx(sum(ends.values()) / sum(so_far.values()), abs=1e-6)
                through = sum(p for path, p in every.items() if path[t] == s)
                assert gamma[at + t, s] == pytest.approx(through / total, abs=1e-6)
                likeliest = max(ends, key=ends.get)
                assert delta[at + t, s] * math.exp(data["height"][at + t]) == pytest.approx(ends[likeliest], rel=1e-6)
                assert winner[at + t, s] == (likeliest[-2] if t else -1)
        at += len(text)


@pytest.mark.parametrize("most", [64, 3])
def test_sums_as_they_are_written_out_give_the_values(most, monkeypatch):
    monkeypatch.setattr(trellis, "STATES", most)
    one = drawn_anew(states=6)
    data = VIEW.make([one], WORDS, {})
    arrays = {name: unpack(data[name]).astype(float) for name in (
        "alpha", "beta", "gamma", "arriving", "emits", "initial", "transition")}
    alpha, beta, a, scale = arrays["alpha"], arrays["beta"], arrays["transition"], data["scale"]
    assert arrays["gamma"] == pytest.approx(alpha * beta, abs=1e-6)
    for t in range(len(data["tokens"])):
        arriving = arrays["arriving"][t]
        assert alpha[t] == pytest.approx(arrays["emits"][t] * arriving / scale[t], abs=1e-6)
        if t in data["begins"]:
            assert arriving == pytest.approx(arrays["initial"])
        elif most == 64:
            assert arriving == pytest.approx(alpha[t - 1] @ a, abs=1e-6)
            assert beta[t - 1] == pytest.approx(a @ (arrays["emits"][t] * beta[t]) / scale[t], rel=1e-5)
        else:
            assert (arriving > alpha[t - 1] @ a).all()       # others add to it that are not shown


def test_the_model_is_shown_as_it_is():
    one = drawn_anew()
    data = VIEW.make([one], WORDS, {})
    assert unpack(data["initial"]) == pytest.approx(one.model.initial.numpy(), abs=1e-6)
    assert unpack(data["transition"]) == pytest.approx(one.model.transition.numpy(), abs=1e-6)
    tokens = [one.run.tokenizer.show(token) for token in range(len(one.run.tokenizer))]
    for state, (names, values) in enumerate(zip(data["symbols"], unpack(data["emission"]))):
        assert list(values) == sorted(values, reverse=True)
        assert values[0] == pytest.approx(float(one.model.emission[state].max()))
        emitted = {name: float(p) for name, p in zip(tokens, one.model.emission[state])}
        assert [emitted[name] for name in names] == pytest.approx(list(values), abs=1e-6)


def test_of_many_states_the_strongest_are_shown_and_all_of_the_best_path():
    one = drawn_anew(states=90)
    data = VIEW.make([one], WORDS, {})
    assert len(data["shown"]) == trellis.STATES
    assert set(data["path"]) <= set(data["shown"])
    gamma = torch.zeros(90, dtype=torch.float64)
    for text in texts_of(one, WORDS):
        gamma += one.model.posteriors(torch.tensor([text]))[0].sum(0)
    hidden = sorted(set(range(90)) - set(data["shown"]))
    visible = sorted(set(data["shown"]) - set(data["path"]))
    assert gamma[hidden].max() <= gamma[visible].min()


@pytest.mark.parametrize("unit", ["characters", "words"])
@pytest.mark.parametrize("text", ["", "\n\n", "a\n\n\nb", "🦎", "a\0b", "the " * 25_000], ids=lambda it: ascii(it)[:9])
def test_any_text_has_its_trellis(text, unit):
    one = subject("hmm", unit=unit)
    data = VIEW.make([one], text, {})
    json.dumps(data, allow_nan=False)
    assert data["left_out"] == one.read(text, LIMIT).left_out
    assert len(data.get("tokens", [])) <= LIMIT - 1


def test_an_impossible_text_is_said_to_be(open_view):
    one = subject("hmm", smoothing=0.0)
    one.model.emission[:, one.run.tokenizer.encode("z")[0]] = 0
    page, data = open_view(VIEW, [one], "the z", address="#trellis.mode=delta")
    assert data["log_p"] == [None]
    assert data["path"] == [-1] * 5
    assert "impossible" in page.locator(".trellis-facts").inner_text()
    for mode in ("alpha", "gamma", "delta"):
        page.locator(f"#trellis input[value={mode}]").check()
        assert "NaN" not in page.locator("#trellis").inner_text()


def test_it_is_for_what_has_a_trellis():
    assert VIEW.fits(subject("hmm"))
    assert not VIEW.fits(subject("ngram"))


# As a person sees it


def value(page, selector):
    return [float(text) for text in page.locator(selector).evaluate_all("all => all.map(one => one.dataset.value)")]


def test_the_chosen_cell_shows_its_sum(open_view):
    one = drawn_anew()
    page, _ = open_view(VIEW, [one], WORDS, address="#trellis.at=2.1&trellis.mode=alpha")
    text = texts_of(one, WORDS)[0][:3]
    every = every_path(one.model, text)
    wanted = sum(p for path, p in every.items() if path[-1] == 1) / sum(every.values())
    assert value(page, ".trellis-detail h3 .result") == pytest.approx([wanted], abs=1e-6)
    before = every_path(one.model, text[:2])
    moves = one.model.transition[:, 1].tolist()
    terms = sorted((sum(p for path, p in before.items() if path[-1] == s) / sum(before.values()) * moves[s]
                    for s in range(3)), reverse=True)
    assert value(page, ".trellis-terms .product span") == pytest.approx(terms, abs=1e-6)
    assert value(page, ".trellis-total span") == pytest.approx([sum(terms)], abs=1e-6)
    b, total, scale, answer = value(page, ".trellis-detail .trellis-sum [data-value]")
    assert b * total / scale == pytest.approx(answer, abs=1e-6)
    assert b == pytest.approx(float(one.model.emission[1, text[2]]), abs=1e-6)


def test_viterbi_shows_the_greatest_and_who_it_came_from(open_view):
    one = drawn_anew()
    page, _ = open_view(VIEW, [one], WORDS, address="#trellis.at=2.1&trellis.mode=delta")
    every = every_path(one.model, texts_of(one, WORDS)[0][:3])
    best = max((path for path in every if path[-1] == 1), key=every.get)
    assert value(page, ".trellis-detail h3 .result") == pytest.approx([every[best]], rel=1e-6)
    assert page.locator(".trellis-winner").inner_text() == str(best[-2])
    assert page.locator(".trellis-terms tr.best th").inner_text() == str(best[-2])


def test_a_click_and_the_arrow_keys_choose_cells_and_the_address_remembers(open_view):
    one = drawn_anew()
    page, data = open_view(VIEW, [one], WORDS)
    gamma = unpack(data["gamma"])
    box = page.locator(".trellis-cells").bounding_box()
    page.mouse.click(box["x"] + 1.5 * box["width"] / len(data["tokens"]), box["y"] + 30 + 24 * 2 + 12)
    assert value(page, ".trellis-detail h3 .result") == pytest.approx([gamma[1, 2]])
    assert "trellis.at=1.2" in address(page)
    page.locator(".trellis-grid .scroll").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert value(page, ".trellis-detail h3 .result") == pytest.approx([gamma[2, 1]])
    page.keyboard.press("End")
    assert "so β is 1" in page.locator(".trellis-detail").inner_text()
    page.keyboard.press("Home")
    page.locator("#trellis input[value=alpha]").check()
    assert "begins here, with π" in page.locator(".trellis-detail").inner_text()
    assert "trellis.mode=alpha" in address(page)


def test_every_visible_cell_has_its_value_and_the_path_is_drawn(open_view):
    one = drawn_anew()
    page, data = open_view(VIEW, [one], WORDS, address="#trellis.mode=gamma")
    cells = page.locator(".trellis-cells .cell")
    gamma = unpack(data["gamma"])
    for place, shown in cells.evaluate_all("all => all.map(one => [one.dataset.cell, +one.dataset.value])"):
        time, state = map(int, place.split("."))
        assert shown == pytest.approx(gamma[time, state], abs=1e-6)
    assert page.locator(".trellis-node").count() == len(data["tokens"])
    assert page.locator(".trellis-path").get_attribute("d").count("M") == 2        # two texts


def test_a_large_trellis_is_drawn_at_once(open_view):
    one = subject("hmm", states=64, unit="characters")
    page, data = open_view(VIEW, [one], "the cat said who " * 20, viewport={"width": 360, "height": 700})
    assert (len(data["tokens"]), len(data["shown"])) == (200, 64)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    made, measured = page.evaluate("""() => {
        let made = 0, measured = 0;
        const counted = (on, name, count) => {
            const own = on[name];
            on[name] = function (...given) { count(); return own.apply(this, given); };
        };
        for (const name of ["createElement", "createElementNS"]) counted(Document.prototype, name, () => made++);
        counted(Element.prototype, "getBoundingClientRect", () => measured++);
        counted(window, "getComputedStyle", () => measured++);
        document.querySelector('#trellis input[value=delta]').click();
        return [made, measured];
    }""")
    cells, transitions = 200 * 64, 64 * 64
    assert made < cells + 2 * transitions + 3000     # each cell once; a transition is a square with a title
    assert measured < 10                             # to measure the page between two changes lays it out again
    assert page.locator(".chosen").first.is_visible()


def test_without_a_text_the_model_is_shown(open_view):
    page, _ = open_view(VIEW, [subject("hmm")], "")
    assert "There is no token yet" in page.locator("#trellis").inner_text()
    assert page.locator(".trellis-bars li").count() > 10


def test_a_label_that_is_cut_ends_in_an_ellipsis(open_view):
    page, _ = open_view(VIEW, [subject("hmm")], "")
    label = page.locator(".trellis-bars .trellis-token").first
    label.evaluate("one => { one.textContent = 'antidisestablishmentarianism'; }")
    wide, shown, ends = label.evaluate(
        "one => [one.scrollWidth, one.clientWidth, getComputedStyle(one).textOverflow]")
    assert wide > shown
    assert ends == "ellipsis"


def test_states_with_names_are_shown_by_them(tmp_path):
    made = read_hand_written(built_in_models()["weather"])
    one = Subject("weather", Run(tmp_path, made.recipe, made.tokenizer, made.model, {}, made.labels))
    data = VIEW.make([one], made.excerpt, {})
    assert (data["names"], data["path"]) == (["rainy", "sunny"], [0, 0, 1, 1])
    assert data["symbols"] == [["umbrella", "none"], ["none", "umbrella"]]    # and no symbol that is never emitted
    assert "names" not in VIEW.make([subject("hmm")], "the cat", {})


def test_a_state_is_labelled_by_what_is_typical_of_it_not_by_what_is_frequent():
    emission = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.5, 0.05, 0.0, 0.45]])
    frequencies = torch.tensor([0.5, 0.2, 0.1, 0.2])            # lifts: 1, 1.5, 2, – and 1, 0.25, –, 2.25
    assert typical_symbols(emission, frequencies) == [[2, 1, 0], [3, 0, 1]]


def test_frequencies_of_symbols_are_those_of_a_long_text():
    model = drawn_anew(states=3).model
    share = np.linalg.matrix_power(model.transition.double().numpy(), 500)[0]
    expected = share @ model.emission.double().numpy()
    assert symbol_frequencies(model).numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("width", [390, 1280])
def test_labels_of_states_are_not_cut(open_view, width):
    words = " ".join(f"extraordinarily{number} it a{number}" for number in range(12))
    one = subject("hmm", text=f"{words}\n" * 2, unit="words", states=6)
    page, data = open_view(VIEW, [one], "it a1", viewport={"width": width, "height": 700})
    boxes = page.evaluate("""() => {
      const names = document.querySelector('.trellis-names'), right = names.getBoundingClientRect().right;
      const within = (one) => one.getBoundingClientRect().right <= right + 1;
      return [...names.querySelectorAll('tspan')].map((one) => [one.textContent, within(one)]);
    }""")
    assert len(boxes) == 6
    for (text, fits), labels in zip(boxes, data["labels"]):
        assert fits, text
        assert all(word in labels or word.endswith("…") for word in text.split())
