"""Attention: what is drawn are the model's own patterns, of every head, for any text."""

import base64
import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from viewer.address import address
from viewer.live import save_run, served
from viewer.subjects import TEXT, subject
from viewer.tasks import task_subject

from chainrule.errors import UserError
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.model import BOUNDARY, watch
from chainrule.viewer.views import attention
from chainrule.viewer.views.attention import VIEW, lower_triangle, small_map

LINE = 'the cat said "who"'
LINE_AT_CHOSEN = """() => {
  const canvas = document.querySelector("#attention .lines canvas"), box = canvas.getBoundingClientRect();
  const token = document.querySelector("#attention .lines-rows .chosen").getBoundingClientRect();
  const y = (token.top + token.bottom) / 2 - box.top, sharp = canvas.height / box.height;
  return canvas.getContext("2d").getImageData(1, Math.round(y * sharp), 1, 1).data[3];
}"""


@pytest.fixture(scope="module")
def gpt():
    return subject("gpt")


def unpacked(packed):
    dtype = {"float32": "<f4", "uint8": "u1"}[packed["dtype"]]
    return np.frombuffer(base64.b64decode(packed["data"]), dtype).reshape(packed["shape"])


def whole(packed, size):
    """A head as a square."""
    values = unpacked(packed)
    if values.ndim == 2:
        return values
    square = np.zeros((size, size), np.float32)
    square[np.tril_indices(size)] = values
    return square


def patterns(subject, tokens):
    """(L, H, T, T) by reading the tokens at once."""
    with torch.no_grad(), watch(subject.model, *subject.taps("pattern")) as seen:
        subject.model.step(torch.tensor([tokens]), subject.model.start(1))
    return np.stack([parts[0][0].numpy() for parts in seen.values()])


def tokens_of(subject, text):
    return [BOUNDARY, *subject.run.tokenizer.encode(text).tolist()]


def test_every_head_has_the_weights_of_the_model(gpt):
    data = VIEW.make([gpt], LINE, {"tokens": "0"})
    (part,) = data["parts"]
    wanted = patterns(gpt, tokens_of(gpt, LINE))
    assert (part["layers"], part["heads"], part["size"]) == (2, 2, 8)
    assert [(one["layer"], one["head"]) for one in part["exact"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for one in part["exact"]:
        there = wanted[one["layer"] - 1, one["head"] - 1]
        np.testing.assert_allclose(whole(one["weights"], len(there)), there, atol=1e-6)
    np.testing.assert_allclose((unpacked(part["maps"]) / 255) ** 2, wanted, atol=0.004)


def test_a_pattern_is_the_formula_written_out(gpt):
    """softmax(Q Kᵀ / √d_k + M) of the first layer, from its weights."""
    model, tokens = gpt.model, torch.tensor([tokens_of(gpt, LINE)])
    block, places = model.stack.blocks[0], torch.arange(tokens.shape[1])[None]
    with torch.no_grad():
        x = block.attention_norm(model.embedding(tokens, places))
        q, k, _ = (part.unflatten(-1, (-1, 8)) for part in block.attention.project(x).split(16, -1))
        q, k = block.attention.norms[0](q), block.attention.norms[1](k)
        q, k = rotated(q), rotated(k)
        scores = torch.einsum("btha,bsha->bhts", q, k) / math.sqrt(8)
        wanted = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf).softmax(-1)[0]
    made = VIEW.make([gpt], LINE, {"tokens": "0"})["parts"][0]["exact"]
    for head in range(2):
        np.testing.assert_allclose(whole(made[head]["weights"], tokens.shape[1]), wanted[head], atol=1e-6)


def rotated(x):
    from chainrule.layers.positions import apply_rope, rope_tables

    return apply_rope(x, rope_tables(torch.arange(x.shape[1])[None], x.shape[-1], 10_000.0, x.dtype))


def test_generated_tokens_are_drawn_and_a_seed_repeats_them(gpt):
    data = VIEW.make([gpt], LINE, {"tokens": "7", "seed": "3"})
    text = data["texts"]["text"]
    assert text["written"] == 1 + len(LINE)
    assert len(text["shown"]) <= text["written"] + 7
    assert data["asked"] == {"tokens": 7, "seed": 3}
    again = VIEW.make([gpt], LINE, {"tokens": "7", "seed": "3"})
    assert again == data
    assert VIEW.make([gpt], LINE, {"tokens": "7", "seed": "4"})["texts"] != data["texts"]
    prompt = tokens_of(gpt, LINE)
    more = [int(column) for column in sample(gpt.model, [np.array(prompt[1:])], 7, Sampling(seed=3))]
    tokens = prompt + more
    assert text["shown"] == gpt.show(tokens)
    np.testing.assert_allclose(
        whole(data["parts"][0]["exact"][-1]["weights"], len(tokens)), patterns(gpt, tokens)[1, 1], atol=1e-6
    )


def test_the_chosen_head_is_exact_and_others_as_there_is_room(gpt, monkeypatch):
    size = 1 + len(LINE)
    monkeypatch.setattr(attention, "EXACT", 2 * 4 * size * (size + 1) // 2)
    made = VIEW.make([gpt], LINE, {"tokens": "0", "layer": "2", "head": "2"})
    assert made["chosen"] == {"part": "text", "layer": 2, "head": 2}
    assert [(one["layer"], one["head"]) for one in made["parts"][0]["exact"]] == [(1, 1), (1, 2), (2, 2)]
    beyond = VIEW.make([gpt], LINE, {"layer": "9", "head": "0"})
    assert beyond["chosen"] == {"part": "text", "layer": 2, "head": 1}


def test_small_maps_keep_the_largest_weight_of_a_neighbourhood():
    pattern = torch.zeros(1, 200, 200)
    pattern[0, 150, 37] = 1.0
    made = small_map(pattern)
    assert made.shape == (1, 64, 64)
    assert int(made.max()) == 255
    row, column = divmod(int(made.flatten().argmax()), 64)
    assert abs(row / 64 - 150 / 200) < 0.02
    assert abs(column / 64 - 37 / 200) < 0.02
    assert lower_triangle(torch.ones(3, 3)).shape == (3, 3)
    assert lower_triangle(torch.ones(3, 3).tril()).shape == (6,)
    assert lower_triangle(torch.zeros(3, 4)).shape == (3, 4)


@pytest.mark.parametrize("text", ["", "\0", "👩‍🚀 é", "the cat\n" * 12_500], ids=["nothing", "NUL", "emoji", "long"])
def test_any_text_is_survived(gpt, text):
    data = VIEW.make([gpt], text, {})
    json.dumps(data, allow_nan=False)
    shown = data["texts"]["text"]["shown"]
    assert 1 <= len(shown) <= 64
    assert sum(size for size, _ in data["texts"]["text"]["words"]) == len(shown)
    assert data["left_out"] == (0 if len(text) < 99 else len(text) - (64 - 12 - 1))


@pytest.mark.parametrize("options", [{"tokens": "many"}, {"seed": "-1"}, {"layer": "x"}, {"part": "cross"}], ids=str)
def test_a_wrong_option_is_one_line(gpt, options):
    with pytest.raises(UserError) as said:
        VIEW.make([gpt], LINE, options)
    assert "\n" not in str(said.value)


def test_it_fits_what_has_patterns_and_can_read_a_text():
    fit = [subject("gpt"), task_subject("encoder", "mask"), task_subject("encoder", "tag"),
           task_subject("gpt", "classify"), task_subject("transformer", "translate")]
    assert all(VIEW.fits(one) for one in fit)
    assert not VIEW.fits(subject("lstm"))
    assert not VIEW.fits(task_subject("seq2seq", "translate"))


@pytest.mark.parametrize(("kind", "task"), [("encoder", "mask"), ("encoder", "tag"), ("gpt", "classify")])
def test_encoders_under_a_head_are_shown(kind, task):
    made = task_subject(kind, task)
    data = VIEW.make([made], "the cat said", {})
    body = getattr(made.model, "body", made.model)
    tokens = data["texts"]["text"]["shown"]
    assert (tokens[-1] == "<|extract|>") is (task == "classify")
    ids = tokens_of(made, "the cat said") + ([made.run.tokenizer.id("<|extract|>")] if task == "classify" else [])
    with torch.no_grad(), watch(made.model, *made.taps("pattern")) as seen:
        body.encode(torch.tensor([ids]))
    wanted = next(iter(seen.values()))[0][0, 1]
    np.testing.assert_allclose(whole(data["parts"][0]["exact"][1]["weights"], len(ids)), wanted, atol=1e-6)
    assert data["texts"]["text"]["written"] is None
    long = VIEW.make([made], "the cat " * 50, {})["texts"]["text"]["shown"]
    assert len(long) == 48
    assert (long[-1] == "<|extract|>") is (task == "classify")


def test_an_encoder_and_decoder_show_three_kinds_of_attention():
    made = task_subject("transformer", "translate")
    data = VIEW.make([made], "the cat", {})
    sizes = {part["name"]: (len(data["texts"][part["queries"]]["shown"]), len(data["texts"][part["keys"]]["shown"]))
             for part in data["parts"]}
    source = 1 + len(made.run.tokenizer.encode("the cat"))
    assert list(sizes) == ["source", "text", "cross"]
    assert sizes["source"] == (source, source)
    assert sizes["cross"] == (sizes["text"][0], source)
    for part in data["parts"]:
        for one in part["exact"]:
            weights = whole(one["weights"], sizes[part["name"]][0])
            assert weights.shape == sizes[part["name"]]
            np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
    assert VIEW.make([made], "the cat", {"part": "source"})["chosen"]["part"] == "source"


def test_a_decoder_shows_its_source_and_what_it_wrote_in_one_row():
    made = task_subject("gpt", "translate")
    data = VIEW.make([made], "the cat", {})
    shown, ids = data["texts"]["text"], made.run.tokenizer.encode("the cat").tolist()
    assert shown["shown"][: shown["written"]] == made.show([0, *ids])
    assert shown["shown"][shown["written"]] == made.show([0])[0]
    [part] = data["parts"]
    weights = whole(part["exact"][0]["weights"], len(shown["shown"]))
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
    assert VIEW.make([made], "the cat " * 50, {})["cut"] > 0


# In a browser


def weights_shown(page, side):
    items = page.locator(f"#attention .lines-{side} li")
    return items.evaluate_all("all => all.map(one => one.dataset.weight === undefined ? null : +one.dataset.weight)")


def test_the_numbers_beside_a_token_are_the_models(gpt, open_view):
    page, _ = open_view(VIEW, [gpt], LINE, {"tokens": "0"}, "#attention.layer=2&attention.head=1")
    wanted = patterns(gpt, tokens_of(gpt, LINE))[1, 0]
    page.locator("#attention .lines-rows li").nth(6).hover()
    shown = weights_shown(page, "columns")
    assert shown[:7] == pytest.approx(wanted[6, :7].tolist(), abs=1e-6)
    assert shown[7:] == [None] * (len(wanted) - 7)
    assert page.locator("#attention .lines-columns li small").nth(3).inner_text() == f"{wanted[6, 3]:.3f}"
    page.locator("#attention .lines-columns li").nth(2).hover()
    assert weights_shown(page, "rows")[2:] == pytest.approx(wanted[2:, 2].tolist(), abs=1e-6)
    assert "“h” is attended to most by" in page.locator("#attention output.readout").inner_text()


def test_the_keyboard_goes_from_head_to_head_and_from_token_to_token(gpt, open_view):
    page, _ = open_view(VIEW, [gpt], LINE, {"tokens": "0"})
    wanted = patterns(gpt, tokens_of(gpt, LINE))
    page.locator("#attention .overview canvas").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert "attention.layer=2" in page.evaluate("location.hash")
    assert "attention.head=2" in page.evaluate("location.hash")
    assert page.locator("#attention select[data-which=head]").input_value() == "2"
    page.locator("#attention .lines-rows").focus()
    page.keyboard.press("End")
    assert weights_shown(page, "columns") == pytest.approx(wanted[1, 1, -1].tolist(), abs=1e-6)
    page.keyboard.press("Escape")
    assert set(weights_shown(page, "columns")) == {None}
    page.locator("#attention .heat canvas").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    exact = page.locator("#attention output.readout [data-weight]").get_attribute("data-weight")
    assert float(exact) == pytest.approx(float(wanted[1, 1, 2, 2]), abs=1e-6)
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert "a later token" in page.locator("#attention output.readout").inner_text()


def test_a_click_chooses_a_head_and_a_file_says_which_it_has(gpt, open_view, monkeypatch):
    monkeypatch.setattr(attention, "EXACT", 0)
    page, _ = open_view(VIEW, [gpt], LINE, {"tokens": "0"})
    assert page.locator("#attention .lines").is_visible()
    maps = page.locator("#attention .overview canvas")
    box = maps.bounding_box()
    maps.click(position={"x": box["width"] - 20, "y": box["height"] - 20})
    assert "attention.layer=2&attention.head=2" in page.evaluate("location.hash")
    assert not page.locator("#attention .lines").is_visible()
    assert "has only the small map" in page.locator("#attention").inner_text()


def test_pieces_become_words_on_demand(gpt, open_view):
    page, data = open_view(VIEW, [gpt], "the cat", {"tokens": "0"})
    page.locator("#attention input[data-which=words]").check()
    words = page.locator("#attention .lines-rows li span").all_inner_texts()
    assert words == ["<|endoftext|>", "the", "·", "cat"]
    page.locator("#attention .lines-rows li").nth(3).hover()
    pattern = patterns(gpt, tokens_of(gpt, "the cat"))[0, 0]
    wanted = [pattern[5:, columns].sum(1).mean() for columns in (slice(0, 1), slice(1, 4), slice(4, 5), slice(5, 8))]
    assert weights_shown(page, "columns") == pytest.approx([float(value) for value in wanted], abs=1e-6)
    page.locator("#attention .lines-rows li").nth(1).hover()
    assert weights_shown(page, "columns")[2:] == [None, None]
    assert "attention.words=whole" in page.evaluate("location.hash")
    assert data["texts"]["text"]["words"][1] == (3, "the")


def test_the_models_own_tokens_are_marked(gpt, open_view):
    page, data = open_view(VIEW, [gpt], LINE, {"tokens": "5"})
    own = page.locator("#attention .lines-rows li.own").count()
    assert own == len(data["texts"]["text"]["shown"]) - data["texts"]["text"]["written"] > 0
    assert "Green tokens were generated by the model" in page.locator("#attention").inner_text()


def test_a_thousand_tokens_are_drawn_and_scrolled(open_view):
    long = subject("gpt", layers=1, context=1024)
    page, data = open_view(VIEW, [long], TEXT * 4, {"tokens": "8"}, viewport={"width": 360, "height": 700})
    assert len(data["texts"]["text"]["shown"]) > 1010
    assert len(data["parts"][0]["exact"]) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator("#attention .lines-rows").focus()
    page.keyboard.press("End")
    assert page.locator("#attention .lines").evaluate("one => one.scrollTop") > 5000
    assert len(page.locator("#attention .lines-columns li[data-weight]").all()) == len(data["texts"]["text"]["shown"])
    assert page.locator("#attention .lines canvas").evaluate("one => one.height") < 3000
    assert page.evaluate(LINE_AT_CHOSEN) > 20


def test_three_kinds_of_attention_can_be_chosen(open_view):
    made = task_subject("transformer", "translate")
    page, data = open_view(VIEW, [made], "the cat", {})
    for name, queries, keys in [("source", "source", "source"), ("text", "text", "text"), ("cross", "text", "source")]:
        page.locator(f"#attention input[value={name}]").check()
        for side, text in [("rows", queries), ("columns", keys)]:
            shown = page.locator(f"#attention .lines-{side} li span").all_inner_texts()
            assert shown == data["texts"][text]["shown"]


def test_colours_follow_light_and_dark(gpt, open_view):
    page, _ = open_view(VIEW, [gpt], LINE, {"tokens": "0"}, color_scheme="light")
    pixels = "one => one.toDataURL()"
    before = page.locator("#attention .overview canvas").evaluate(pixels)
    page.locator("#theme").click()
    assert page.locator("#attention .overview canvas").evaluate(pixels) != before


def test_another_head_of_a_live_page_is_asked_for(gpt, open_url, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "EXACT", 0)
    with served({"gpt": save_run(tmp_path / "gpt", gpt)}, LINE) as address:
        page = open_url(f"{address}#page.view=attention&attention.tokens=0&attention.layer=2")
        page.locator("#attention .overview canvas").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.querySelector('output.readout').textContent.startsWith('layer 2, head 2')")
        page.locator("#attention .lines-rows").focus()
        page.keyboard.press("End")
        wanted = patterns(gpt, tokens_of(gpt, LINE))[1, 1, -1]
        assert weights_shown(page, "columns") == pytest.approx(wanted.tolist(), abs=1e-6)
        more = page.locator("#attention input[data-which=tokens]")
        more.fill("4")
        more.press("Enter")
        page.wait_for_selector("#attention .lines-rows li.own")
        assert page.evaluate("document.activeElement.dataset.which") == "tokens"
        assert 1 <= page.locator("#attention .lines-rows li.own").count() <= 4
        assert "attention.tokens=4" in page.evaluate("location.hash")


# Heads with names


def test_heads_have_the_scores_of_their_patterns(gpt):
    data = VIEW.make([gpt], LINE, {"tokens": "0"})
    wanted = patterns(gpt, tokens_of(gpt, LINE))
    assert [(one["layer"], one["head"]) for one in data["scores"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for one in data["scores"]:
        weights = wanted[one["layer"] - 1, one["head"] - 1]
        assert one["scores"]["previous"] == pytest.approx(np.diagonal(weights, -1).mean(), abs=1e-5)
        assert one["scores"]["first"] == pytest.approx(weights[1:, 0].mean(), abs=1e-5)
    assert VIEW.make([task_subject("transformer", "translate")], LINE, {})["scores"] == []
    assert len(VIEW.table([gpt], LINE, {}).lines) == 5
    with pytest.raises(UserError, match="heads are named for models that read one text"):
        VIEW.table([task_subject("transformer", "translate")], LINE, {})


def test_a_named_head_is_listed_and_a_click_on_its_row_chooses_it(open_view, gpt, monkeypatch):
    monkeypatch.setattr("chainrule.inference.analysis.head_scores.NAMED", 0.01)
    page, data = open_view(VIEW, [gpt], LINE, {"tokens": "0"})
    page.locator("#attention .attention-scores summary").click()
    row = page.locator("#attention tr[data-head='2.1']")
    last = data["scores"][2]
    assert row.locator("td").last.inner_text() == last["name"]
    assert row.locator("td").nth(2).inner_text() == f"{last['scores']['previous']:.3f}"
    row.locator("button").click()
    assert f"layer 2, head 1: {last['name']}" in page.locator("#attention .readout").inner_text()
    assert "attention.layer=2" in address(page)


def chosen(page):
    return page.locator("#attention .lines .chosen").all_inner_texts()


def center(page, row, column):
    """Of a cell of the large map, on the page."""
    found = page.evaluate("""async ([row, column]) => {
      const canvas = document.querySelector("#attention .heat canvas"), box = canvas.getBoundingClientRect();
      const size = document.querySelectorAll("#attention .lines-rows li").length;
      const cell = Math.min(30, Math.floor((canvas.clientWidth - 12) / size));
      return [box.right - 1 - (size - column - 0.5) * cell, box.bottom - 1 - (size - row - 0.5) * cell];
    }""", [row, column])
    return tuple(found)


def test_a_tap_chooses_a_token_and_a_cell_and_they_stay(gpt, open_view):
    page, _ = open_view(VIEW, [gpt], "the cat", {"tokens": "0"}, has_touch=True, viewport={"width": 390, "height": 844})
    page.locator("#attention .lines-rows li").nth(3).tap()
    assert len(chosen(page)) == 1
    assert page.locator("#attention .lines-rows li").nth(3).get_attribute("class") == "chosen"
    assert "“e” attends most to" in page.locator("#attention output.readout").inner_text()
    page.locator("#attention .lines-rows li").nth(3).tap()    # frees it again
    page.locator("#attention .heat canvas").scroll_into_view_if_needed()
    page.touchscreen.tap(*center(page, 5, 2))
    assert "“c” attends to “h”" in page.locator("#attention output.readout").inner_text()


def test_a_click_pins_a_token_over_heads_until_escape(gpt, open_view):
    page, _ = open_view(VIEW, [gpt], "the cat", {"tokens": "0"})
    rows = page.locator("#attention .lines-rows li")
    rows.nth(3).click()
    rows.nth(5).hover()
    page.mouse.move(1, 1)
    readout = page.locator("#attention output.readout")
    assert "pinned" in readout.inner_text()
    assert rows.nth(3).get_attribute("class") == "chosen"
    before = readout.inner_text()
    page.locator("#attention select[data-which=head]").select_option("2")
    assert rows.nth(3).get_attribute("class") == "chosen"
    assert readout.inner_text() != before                      # the same token, in another head
    page.keyboard.press("Escape")
    assert chosen(page) == []
    rows.nth(5).hover()
    assert rows.nth(5).get_attribute("class") == "chosen"
    page.mouse.move(1, 1)
    assert chosen(page) == []


NAMES_ON_MAP = """() => {
  const found = [], own = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const { a, b, e } = this.getTransform();
    const [column, bold] = [this.textAlign !== "right", this.font.startsWith("bold")];
    found.push({ text, turned: Math.abs(b) > 0.5, column, x: e + a * x, bold });
    return own.call(this, text, x, y);
  };
  document.querySelector("#attention .heat canvas").dispatchEvent(new KeyboardEvent("keydown", { key: "End" }));
  CanvasRenderingContext2D.prototype.fillText = own;
  return found;
}"""


def test_a_page_says_that_it_is_drawn_when_its_map_is_painted(gpt, open_view, context_of):
    early = f"const names = {NAMES_ON_MAP};" + """new MutationObserver((_, watching) => {
      if (!document.querySelector("html[data-drawn]")) return;
      watching.disconnect();
      window.early = names();
    }).observe(document, { attributes: true, subtree: true })"""
    context_of(bypass_csp=True, locale="en-GB").add_init_script(early)
    page, data = open_view(VIEW, [gpt], "the cat", {"tokens": "0"}, locale="en-GB")
    page.wait_for_function("window.early")
    bold = [name["text"] for name in page.evaluate("window.early") if name["bold"] and name["column"]]
    assert bold == [data["texts"]["text"]["shown"][-1]]


@pytest.mark.parametrize("size", [10, 40, 63])
def test_short_names_above_the_map_are_upright_apart_and_those_pointed_at_always_there(gpt, open_view, size):
    text = (TEXT * 2)[:size].replace("\n", " ")
    page, data = open_view(VIEW, [gpt], text, {"tokens": "0"}, viewport={"width": 1000, "height": 800})
    page.locator("#attention .heat canvas").focus()
    for _ in range(4):
        page.keyboard.press("ArrowDown")
    names = page.evaluate(NAMES_ON_MAP)
    columns = [name for name in names if name["column"]]
    shown = data["texts"]["text"]["shown"]
    assert [name["text"] for name in columns if name["bold"]] == [shown[-1]]
    assert [name["text"] for name in names if name["bold"] and not name["column"]] == [shown[3]]
    letters = sorted((name for name in columns if len(name["text"]) == 1), key=lambda name: name["x"])
    assert len(letters) >= min(size, 20) - 1
    assert not any(name["turned"] for name in letters)
    assert all(after["x"] - before["x"] > 7 for before, after in pairwise(letters))    # a letter is 6 to 8 wide
