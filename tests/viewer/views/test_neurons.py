"""Neurons over text: what is coloured is what the model computed, and the units named for a feature are the right."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from viewer.address import address
from viewer.subjects import TEXT, subject

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, taps, watch
from chainrule.run import Run
from chainrule.tasks import build_for, recipe_for
from chainrule.viewer import compression
from chainrule.viewer.subject import Subject
from chainrule.viewer.views.neurons import FEATURES, LIMIT, NUMBERS, VIEW, correlations, read_groups, token_features

NET = {"rnn": 12, "gru": 3 * 12, "lstm": 2 * 6 * 12, "feedforward": 16, "gpt": 2 * (16 + 64), "hmm": 4}


def feature(name, text):
    return list(FEATURES[name].values(text))


def ids(one, text):
    return torch.tensor([[BOUNDARY, *one.run.tokenizer.encode(text).tolist()]])


def unpacked(packed):
    return np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])


def test_features_are_what_they_are_called():
    text = '"a(b[\n  c"]) d'
    assert feature("quotes", text) == [1] * 9 + [0] * 5
    assert feature("brackets", text) == [0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 1, 0, 0, 0]
    assert feature("line", text) == [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert feature("indentation", text) == [0] * 6 + [1, 2, 2, 2, 2, 2, 2, 2]
    assert feature("word", "to be1or") == [1, 2, 0, 1, 2, 0, 1, 2]
    assert feature("upper", "aÄ7") == [0, 1, 0]
    assert feature("digit", "aÄ7") == [0, 0, 1]


def test_a_forgotten_quote_and_a_bracket_too_many_do_no_lasting_harm():
    assert feature("quotes", 'a "b\n\nc') == [0, 0, 1, 1, 1, 0, 0]
    assert feature("quotes", "“a” «b»") == [1, 1, 0, 0, 1, 1, 0]
    assert feature("brackets", ")(") == [0, 1]


def test_a_token_has_the_feature_of_its_last_character():
    found = token_features(["", 'say "', "it", "", '" no'])
    assert found["quotes"].tolist() == [0, 1, 1, 1, 0]
    assert found["line"].tolist() == [0, 5, 7, 7, 11]


def test_correlations_are_pearsons():
    generator = np.random.default_rng(1)
    values, features = generator.normal(size=(50, 4)), generator.normal(size=(50, 3))
    values[:, 2] = 0.1
    expected = np.corrcoef(np.delete(values, 2, 1).T, features.T)[3:, :3]
    found = correlations(values, features)
    assert np.delete(found, 2, 1) == pytest.approx(expected, abs=1e-12)
    assert (found[:, 2] == 0).all()


def test_what_is_no_number_follows_nothing():
    values = np.array([[1.0, np.nan], [2.0, 1.0], [4.0, 2.0]])
    assert correlations(values, np.array([[0.0], [1.0], [3.0]]))[0].tolist() == pytest.approx([1, 0])


@pytest.mark.parametrize("kind", NET)
def test_every_unit_of_every_kind_is_there_with_its_value(kind):
    one = subject(kind)
    data = VIEW.make([one], TEXT[:60], {})
    assert data["units"] == NET[kind] == sum(group["units"] for group in data["groups"])
    assert len(data["sent"]) == data["units"]
    units = [name for name in taps(one.model) if not name.endswith(("pattern", "moment"))]
    with torch.no_grad(), watch(one.model, *units) as seen:
        one.model.step(ids(one, TEXT[:60]), one.model.start(1))
    expected = torch.cat([part[0].flatten(1) for parts in seen.values() for part in parts], 1).float().numpy()
    assert np.sort(unpacked(data["values"]).T, 1) == pytest.approx(np.sort(expected, 1), abs=1e-6)


def test_the_parts_of_an_lstm_are_told_apart():
    """h = o ∗ tanh(C), and C = f ∗ C + i ∗ C̃, of the values as they are named."""
    one = subject("lstm")
    groups = {(group.name, group.layer): group.values for group in read_groups(one, ids(one, TEXT[:40]))}
    for layer in (1, 2):
        i, f, new, o = (groups[name, layer] for name in ("input gate", "forget gate", "candidate", "output gate"))
        cell, hidden = groups["cell", layer], groups["hidden", layer]
        assert torch.allclose(hidden, o * cell.tanh(), atol=1e-6)
        assert torch.allclose(cell[1:], f[1:] * cell[:-1] + i[1:] * new[1:], atol=1e-6)


def test_the_units_named_for_a_feature_are_those_that_follow_it_best():
    one = subject("lstm")
    text = TEXT[:150]
    data = VIEW.make([one], text, {})
    depth, reach = [], 0
    for character in text:
        reach += (character == "(") - (character == ")")
        depth.append(reach)
    rates = []
    for place, group in enumerate(read_groups(one, ids(one, text))):
        for unit in range(group.units):
            values = group.values[1:, unit].double().numpy()
            rates.append((abs(np.corrcoef(values, depth)[0, 1]), place, unit))
    best = max(rates)
    brackets = next(part for part in data["features"] if part["name"] == "brackets")
    assert (brackets["best"][0]["group"], brackets["best"][0]["unit"]) == best[1:]
    assert abs(brackets["best"][0]["r"]) == pytest.approx(best[0], abs=1e-9)
    assert unpacked(brackets["values"])[1:].tolist() == depth
    assert data["n"] == len(text)
    every = [abs(one["r"]) for one in brackets["best"]]
    assert every == sorted(every, reverse=True)
    assert len(every) == 5


def test_a_unit_planted_to_follow_is_found():
    """Of an Elman net whose unit 5 copies whether a character is upper case."""
    one = subject("rnn", text="abAB" * 9)
    held = one.model.stack.layers[0].rnn
    with torch.no_grad():
        for letter in "ABab":
            (token,) = one.run.tokenizer.encode(letter).tolist()
            one.model.embedding.weight[token] = 0
            one.model.embedding.weight[token, 0] = 3.0 if letter.isupper() else -3.0
        held.weight_hh_l0[5] = 0
        held.weight_ih_l0[5] = torch.eye(held.weight_ih_l0.shape[1])[0]
    data = VIEW.make([one], "aabABBaAbbaBA", {})
    upper = next(part for part in data["features"] if part["name"] == "upper")
    assert upper["best"][0] == {"group": 0, "unit": 5, "r": pytest.approx(1, abs=1e-3)}


@pytest.mark.parametrize("text", ["", "x", "\0", "🙂 ü", "\n\n\n", '"', "e" * 100_000])
@pytest.mark.parametrize("unit", ["characters", "bytes", "bpe", "words"])
def test_any_text_is_survived(text, unit):
    data = VIEW.make([subject("gru", unit=unit)], text, {})
    json.dumps(data, allow_nan=False)
    tokens = len(data["tokens"])
    assert tokens <= LIMIT
    assert unpacked(data["values"]).shape[1] == tokens == data["n"] + 1
    assert unpacked(data["values"]).size <= max(NUMBERS, tokens)
    assert (data["left_out"] > 0) == (len(text) == 100_000 and unit != "words")
    assert (data["random"] is None) == (tokens == 1)


def test_the_text_can_be_read_as_it_was_written():
    text = 'the "cat\n\tü🙂'
    for unit in ("characters", "bytes"):
        tokens = VIEW.make([subject("rnn", unit=unit)], text, {})["tokens"]
        assert "".join(token for token in tokens[1:] if not token.startswith("\\x")) == text


def test_an_encoder_is_shown_as_well_as_a_language_model():
    small = {"model.layers": 1, "model.width": 8, "model.heads": 2, "model.context": 32}
    recipe = recipe_for("encoder", {**small, "text.tokenizer": "characters"}, task="mask")
    tokenizer = subject("rnn").run.tokenizer
    model = build_for(recipe, len(tokenizer), ()).eval()
    one = Subject("encoder", Run(Path("encoder"), recipe, tokenizer, model, {}))
    assert VIEW.fits(one)
    data = VIEW.make([one], "the cat", {})
    assert [group["name"] for group in data["groups"]] == ["hidden", "neurons"]
    assert not VIEW.fits(subject("ngram"))


def test_only_as_much_is_sent_as_a_page_can_hold(monkeypatch):
    monkeypatch.setattr("chainrule.viewer.views.neurons.NUMBERS", 21 * 30)
    one = subject("lstm")
    data = VIEW.make([one], TEXT[:20], {"group": "1", "unit": "7"})
    assert len(data["sent"]) == 30 < data["units"]
    assert data["sent"][0] == [1, 7]
    best = [[unit["group"], unit["unit"]] for feature in data["features"] for unit in feature["best"]]
    assert all(one in data["sent"] for one in best)


@pytest.mark.parametrize("options", [{"unit": "-1"}, {"group": "x"}, {"unit": ""}])
def test_what_is_no_number_is_refused(options):
    with pytest.raises(UserError, match="is no number of a"):
        VIEW.make([subject("lstm")], "the", options)


@pytest.mark.parametrize("options", [{"group": "12"}, {"group": "1", "unit": "12"}])
def test_a_unit_of_another_model_gives_way_to_the_first(options):
    assert VIEW.make([subject("lstm")], "the", options)["sent"][0] in ([0, 0], [1, 0])


# In a browser

def values_on(page):
    return page.locator("#neurons .token").evaluate_all("all => all.map(one => +one.dataset.value)")


def truth(one, text, group, unit):
    return read_groups(one, ids(one, text))[group].values[:, unit].tolist()


def test_the_text_is_coloured_by_the_unit_that_was_chosen(open_view):
    one, text = subject("lstm"), TEXT[:50]
    page, _ = open_view(VIEW, [one], text, address="#neurons.group=1&neurons.unit=3&neurons.feature=1")
    expected = truth(one, text, 1, 3)
    assert values_on(page) == pytest.approx(expected, abs=1e-6)
    tokens = page.locator("#neurons .token")
    colours = tokens.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    tints = {name: page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')").split()
             for name in ("hot", "cold")}
    for value, colour in zip(expected, colours):
        if abs(value) > 0.1 * max(map(abs, expected)):
            assert colour.startswith(f"rgba({', '.join(tints['hot' if value > 0 else 'cold'])}")
    strongest = int(np.argmax(np.abs(expected)))
    assert colours[strongest].endswith("0.85)")
    shown = "".join(tokens.all_text_contents()[1:])
    assert shown.replace("↵", "") == text


def test_the_keyboard_goes_from_unit_to_unit_and_from_token_to_token(open_view):
    one, text = subject("lstm"), TEXT[:50]
    page, _ = open_view(VIEW, [one], text, address="#neurons.group=0&neurons.unit=11&neurons.feature=4")
    page.locator("#neurons .neurons-text").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    readout = page.locator("#neurons output")
    told = float(readout.locator("[data-value]").get_attribute("data-value"))
    assert told == pytest.approx(truth(one, text, 0, 11)[1], abs=1e-6)
    assert "letters of the word so far 1" in readout.inner_text()
    page.keyboard.press("n")
    assert "neurons.unit=0" in address(page)
    assert values_on(page) == pytest.approx(truth(one, text, 0, 0), abs=1e-6)
    page.locator("#neurons [data-step='-1']").press("Enter")
    assert "neurons.unit=11" in address(page)
    page.locator("#neurons input[type=number]").fill("4")
    page.keyboard.press("Enter")
    assert values_on(page) == pytest.approx(truth(one, text, 0, 4), abs=1e-6)
    page.locator("#neurons select[data-which=tap]").select_option("forget gate")
    page.locator("#neurons select[data-which=layer]").select_option("2")
    groups = [(group.name, group.layer) for group in read_groups(one, ids(one, text))]
    assert values_on(page) == pytest.approx(truth(one, text, groups.index(("forget gate", 2)), 4), abs=1e-6)


def test_a_click_shows_the_unit_that_follows_a_feature(open_view, monkeypatch):
    monkeypatch.setattr(compression, "LARGE", 10**6)    # so that no number is rounded
    one, text = subject("lstm"), TEXT[:100]
    page, data = open_view(VIEW, [one], text)
    for place, name in enumerate(["quotes", "brackets"]):
        button = page.locator(f"#neurons button[data-feature={name}]").nth(1)
        unit = data["features"][place]["best"][1]
        assert float(button.get_attribute("data-r")) == pytest.approx(unit["r"], abs=1e-9)
        button.click()
        values = values_on(page)
        assert values == pytest.approx(truth(one, text, unit["group"], unit["unit"]), abs=1e-6)
        assert np.corrcoef(values[1:], feature(name, text))[0, 1] == pytest.approx(unit["r"], abs=1e-6)
        assert page.locator("#neurons button[aria-pressed=true]").count() == 1
        lines = page.locator("#neurons .token").evaluate_all(
            "all => all.map(one => +one.style.getPropertyValue('--feature'))"
        )
        assert np.corrcoef(lines[1:], feature(name, text))[0, 1] == pytest.approx(1, abs=1e-3)
    assert f"over {len(text)} tokens" in page.locator("#neurons").inner_text()


def test_a_file_says_what_it_does_not_hold(open_view, monkeypatch):
    monkeypatch.setattr("chainrule.viewer.views.neurons.NUMBERS", 21 * 30)
    page, _ = open_view(VIEW, [subject("lstm")], TEXT[:20], address="#neurons.group=11&neurons.unit=11")
    assert "holds the values of 30 of 144 units" in page.locator("#neurons").inner_text()
    assert len(values_on(page)) == 21
    for _ in range(3):
        page.locator("#neurons [data-step='1']").click()
    assert len(values_on(page)) == 21


def test_a_live_page_asks_for_units_it_does_not_have(open_view, monkeypatch):
    monkeypatch.setattr("chainrule.viewer.views.neurons.NUMBERS", 21 * 30)
    one, text, asked = subject("lstm"), TEXT[:20], []
    page, data = open_view(VIEW, [one], text)

    def ask(options):
        asked.append(options)
        return VIEW.make([one], text, options)

    page.expose_function("askPython", ask)
    page.evaluate("""async (data) => {
        const { render } = await import("chainrule/neurons");
        const { remember } = await import("chainrule/state");
        const place = document.querySelector("#neurons .view");
        place.replaceChildren();
        render(place, data, remember("neurons"), { ask: (options) => window.askPython(options) });
    }""", data)
    page.locator("#neurons select[data-which=tap]").select_option("output gate")
    page.wait_for_function("document.querySelector('#neurons output b').textContent.includes('output gate')")
    group = asked[-1]["group"]
    unit = int(asked[-1]["unit"])
    assert values_on(page) == pytest.approx(truth(one, text, int(group), unit), abs=1e-6)


@pytest.mark.parametrize("text", ["", "🙂\0<b>&amp;"])
def test_odd_texts_are_drawn(open_view, text):
    page, data = open_view(VIEW, [subject("gru")], text)
    assert page.locator("#neurons .token").count() == len(data["tokens"])


@pytest.mark.parametrize("width", [360, 1920])
def test_nothing_runs_out_of_a_phone_or_a_projector(open_view, width):
    page, _ = open_view(VIEW, [subject("lstm")], TEXT, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_focus_stays_on_every_control(open_view):
    page, _ = open_view(VIEW, [subject("lstm")], TEXT[:60], address="#neurons.group=0&neurons.unit=2&neurons.feature=0")
    shown = page.locator("#neurons output b")
    page.locator("#neurons [data-step='1']").focus()
    for unit in (3, 4):
        page.keyboard.press("Enter")
        assert f"unit {unit}" in shown.inner_text()
    assert page.evaluate("document.activeElement.dataset.step") == "1"
    page.locator("#neurons select[data-which=feature]").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.which") == "feature"
    page.locator("#neurons .neurons-found button").nth(4).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('.neurons-found') !== null")
    page.locator("#neurons .neurons-text").focus()
    page.keyboard.press("n")
    page.keyboard.press("ArrowRight")
    assert page.locator("#neurons .token.chosen").count() == 1
