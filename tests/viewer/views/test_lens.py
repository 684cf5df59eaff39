"""Layer by layer: every guess, probability and rank is what the model's own parts say."""

import base64
import json

import numpy as np
import pytest
import torch
from viewer.subjects import TEXT, subject
from viewer.tasks import task_subject

from chainrule.model import BOUNDARY
from chainrule.viewer.views import lens
from chainrule.viewer.views.lens import VIEW

LINE = 'the dog said "you"'
STYLES = {
    "pre-norm": {},
    "post-norm": {"norm_first": False, "norm": "layer", "norm_scale": True},
    "capped": {"logit_softcap": 5.0, "tied": True, "norm": "layer", "norm_scale": True},
}


@pytest.fixture(scope="module")
def gpt():
    return subject("gpt", layers=3)


def unpacked(packed):
    dtype = {"float32": "<f4", "int32": "<i4"}[packed["dtype"]]
    return np.frombuffer(base64.b64decode(packed["data"]), dtype).reshape(packed["shape"])


def tokens_of(subject, text):
    return [BOUNDARY, *subject.run.tokenizer.encode(text).tolist()]


@torch.no_grad()
def by_fewer_blocks(subject, tokens):
    """(L, T, V) probabilities: the model itself, with the blocks above each layer taken away."""
    model, answers = subject.model, []
    blocks = list(model.stack.blocks)
    try:
        for kept in range(1, len(blocks) + 1):
            model.stack.blocks = torch.nn.ModuleList(blocks[:kept])
            hidden = model.run(torch.tensor([tokens]))[0]
            answers.append(model.logits(hidden)[0].double().softmax(-1).numpy())
    finally:
        model.stack.blocks = torch.nn.ModuleList(blocks)
    return np.stack(answers)


@pytest.mark.parametrize("style", STYLES)
def test_each_layer_says_what_the_model_would_without_those_above(style):
    made = subject("gpt", layers=3, **STYLES[style])
    data, tokens = VIEW.make([made], LINE, {}), tokens_of(made, LINE)
    wanted = by_fewer_blocks(made, tokens)
    truth = wanted[:, np.arange(len(tokens) - 1), tokens[1:]]
    np.testing.assert_allclose(unpacked(data["truths"]), truth, atol=1e-6)
    np.testing.assert_array_equal(unpacked(data["ranks"]), 1 + (wanted[:, :-1] > truth[..., None]).sum(-1))
    np.testing.assert_allclose(unpacked(data["probabilities"]), -np.sort(-wanted)[..., :10], atol=1e-6)
    chosen = np.take_along_axis(wanted, unpacked(data["guesses"]).astype(np.int64), -1)
    np.testing.assert_allclose(chosen, unpacked(data["probabilities"]), atol=1e-6)
    assert data["truth"] == tokens[1:]


def test_the_last_layer_is_the_models_own_answer(gpt):
    data, tokens = VIEW.make([gpt], LINE, {}), tokens_of(gpt, LINE)
    with torch.no_grad():
        logits, _ = gpt.model.step(torch.tensor([tokens]), gpt.model.start(1))
    best = logits[0].softmax(-1).topk(10)
    np.testing.assert_allclose(unpacked(data["probabilities"])[-1], best.values, atol=1e-6)
    np.testing.assert_array_equal(unpacked(data["guesses"])[-1], best.indices)


def test_pieces_of_a_long_text_are_read_out_alike(gpt, monkeypatch):
    whole = VIEW.make([gpt], LINE, {})
    monkeypatch.setattr(lens, "LOGITS", 5 * len(gpt.run.tokenizer))
    parts = VIEW.make([gpt], LINE, {})
    for name in ("guesses", "ranks"):
        np.testing.assert_array_equal(unpacked(parts[name]), unpacked(whole[name]))
    np.testing.assert_allclose(unpacked(parts["probabilities"]), unpacked(whole["probabilities"]), atol=1e-6)
    np.testing.assert_allclose(unpacked(parts["truths"]), unpacked(whole["truths"]), atol=1e-6)


def test_the_names_of_all_guesses_are_there(gpt):
    data = VIEW.make([gpt], LINE, {})
    ids = {*unpacked(data["guesses"]).flatten().tolist(), *data["truth"]}
    assert set(map(int, data["names"])) == ids
    assert all(name == gpt.run.tokenizer.show(int(id)) for id, name in data["names"].items())


@pytest.mark.parametrize("text", ["", "\0", "👩‍🚀", "the cat\n" * 12_500], ids=["nothing", "NUL", "emoji", "long"])
def test_any_text_is_survived(gpt, text):
    data = VIEW.make([gpt], text, {})
    json.dumps(data, allow_nan=False)
    assert data["guesses"]["shape"] == [3, len(data["tokens"]), 10]
    assert data["ranks"]["shape"] == [3, len(data["tokens"]) - 1]
    assert len(data["tokens"]) <= 64


def test_it_fits_models_whose_hidden_vectors_can_be_read_out():
    assert VIEW.fits(subject("gpt"))
    assert not VIEW.fits(subject("lstm"))
    assert not VIEW.fits(subject("ngram"))
    assert not VIEW.fits(task_subject("encoder", "mask"))
    assert VIEW.fits(task_subject("transformer", "translate"))


# In a browser


def test_a_cell_shows_its_guess_and_a_click_its_ten(gpt, open_view):
    page, _ = open_view(VIEW, [gpt], LINE)
    tokens, wanted = tokens_of(gpt, LINE), by_fewer_blocks(gpt, tokens_of(gpt, LINE))
    for token, layer in [(0, 1), (5, 2), (len(tokens) - 2, 3)]:
        here = wanted[layer - 1, token]
        cell = page.locator(f"#lens [data-token='{token}'][data-layer='{layer}']")
        assert float(cell.get_attribute("data-probability")) == pytest.approx(here.max(), abs=1e-6)
        assert int(cell.get_attribute("data-rank")) == 1 + int((here > here[tokens[token + 1]]).sum())
        assert cell.locator("span").inner_text() == gpt.run.tokenizer.show(int(here.argmax()))
        cell.click()
        best = page.locator("#lens .lens-best li").evaluate_all("all => all.map(one => +one.dataset.probability)")
        assert best == pytest.approx((-np.sort(-here))[:10].tolist(), abs=1e-6)
        came = page.locator("#lens .lens-came")
        assert float(came.get_attribute("data-probability")) == pytest.approx(here[tokens[token + 1]], abs=1e-6)
        assert f"lens.token={token}&lens.layer={layer}" in page.evaluate("location.hash")
    assert page.locator("#lens td.chosen").count() == 1
    bits = page.locator("#lens .lens-bits td[data-bits]").evaluate_all("all => all.map(one => +one.dataset.bits)")
    truth = wanted[:, np.arange(len(tokens) - 1), tokens[1:]]
    assert bits == pytest.approx((-np.log2(truth)).mean(1).tolist(), abs=1e-5)


def test_the_keyboard_goes_from_cell_to_cell(gpt, open_view):
    page, data = open_view(VIEW, [gpt], LINE, address="#lens.token=3&lens.layer=1")
    assert page.locator("#lens .lens-closer h3").inner_text() == f"After layer 1, following “{data['tokens'][3]}”"
    page.locator("#lens .lens-table").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    assert page.locator("#lens .lens-closer h3").inner_text() == f"After layer 2, following “{data['tokens'][2]}”"
    page.keyboard.press("End")
    assert "The text ends here" in page.locator("#lens .lens-closer").inner_text()


def test_the_colour_can_follow_the_truth(gpt, open_view):
    page, _ = open_view(VIEW, [gpt], LINE)
    heat = "one => +one.style.getPropertyValue('--heat')"
    cell = page.locator("#lens [data-token='4'][data-layer='3']")
    for colour in ("guess", "truth", "rank"):
        page.locator(f"#lens input[value={colour}]").check()
        rank, size = int(cell.get_attribute("data-rank")), len(gpt.run.tokenizer)
        share = {"guess": float(cell.get_attribute("data-probability")),
                 "truth": float(cell.get_attribute("data-truth")), "rank": 1 - np.log(rank) / np.log(size)}[colour]
        assert cell.evaluate(heat) == pytest.approx(share, abs=6e-4)
    assert "lens.colour=rank" in page.evaluate("location.hash")


@pytest.mark.parametrize("text", ["", TEXT], ids=["nothing", "much"])
def test_a_phone_is_wide_enough(gpt, open_view, text):
    page, _ = open_view(VIEW, [gpt], text, viewport={"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("#lens td.chosen").count() == 1
