"""Alignment: the map is the model's attention, the tree that of the beam search, and every number is exact."""

import base64
import json

import numpy as np
import pytest
import torch
from viewer.live import save_run, served
from viewer.subjects import subject
from viewer.tasks import task_subject

from chainrule.errors import UserError
from chainrule.inference.beam import Beam, beam_search
from chainrule.model import BOUNDARY, watch
from chainrule.viewer.page import Panel, make_page
from chainrule.viewer.views import alignment
from chainrule.viewer.views.alignment import VIEW

LINE = "the cat said"


@pytest.fixture(scope="module")
def seq2seq():
    return task_subject("seq2seq", "translate")


@pytest.fixture(scope="module")
def transformer():
    return task_subject("transformer", "translate")


def unpacked(packed):
    return np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])


def source_of(subject, text=LINE):
    return torch.tensor([[*subject.run.tokenizer.encode(text).tolist(), BOUNDARY]])


def attended(subject, tokens, text=LINE):
    """(L, H, T, S) of a text read at once, and the log p of it and its end."""
    where = subject.taps("alignment") or [tap for tap in subject.taps("pattern") if ".cross." in tap]
    with torch.no_grad(), watch(subject.model, *where) as seen:
        state = subject.model.start(1, source_of(subject, text))
        logits, _ = subject.model.step(torch.tensor([[BOUNDARY, *tokens]]), state)
    maps = [seen[tap][0] if seen[tap][0].dim() == 4 else seen[tap][0][:, None] for tap in where]
    targets = torch.tensor([[*tokens, BOUNDARY]])
    log_prob = logits.log_softmax(-1).gather(-1, targets[..., None]).sum()
    return torch.cat(maps).numpy(), float(log_prob)


def best(subject, width=4, alpha=0.6, text=LINE):
    beam = Beam(width, alpha, best=width, limit=alignment.TEXT)
    return beam_search(subject.model, beam, source=source_of(subject, text))[0].texts


@pytest.mark.parametrize("kind", ["seq2seq", "transformer"])
def test_the_best_text_is_the_beams_and_its_map_its_attention(kind, request):
    made = request.getfixturevalue(kind)
    data, wanted = VIEW.make([made], LINE, {}), best(made)
    tokens = wanted[0].tokens
    first = data["texts"][0]
    assert first["shown"] == made.show([*tokens, BOUNDARY])
    assert first["text"] == made.run.tokenizer.decode(tokens)
    assert first["score"] == pytest.approx(wanted[0].score, abs=1e-5)
    maps, log_prob = attended(made, tokens)
    assert first["log_prob"] == pytest.approx(log_prob, abs=1e-4)
    np.testing.assert_allclose(unpacked(first["means"]), maps.mean(1), atol=1e-6)
    np.testing.assert_allclose(unpacked(first["means"]).sum(-1), 1, atol=1e-5)
    assert data["source"] == made.show(source_of(made)[0].tolist())
    assert data["layers"] == (1 if kind == "seq2seq" else 2)
    if kind == "transformer":
        np.testing.assert_allclose(unpacked(first["heads"]), maps, atol=1e-6)
    else:
        assert first["heads"] is None


@pytest.mark.parametrize("score", ["dot", "bilinear", "additive"])
def test_alpha_is_the_formula_written_out(score):
    """softmax(e) over the source, from the vectors that the model keeps of it."""
    made = task_subject("seq2seq", "translate", layers=1, attention=score)
    tokens = best(made)[0].tokens
    model = made.model
    with torch.no_grad():
        state = model.start(1, source_of(made))
        hidden, _ = model.below(model.embedding(torch.tensor([[BOUNDARY, *tokens]])), state["below"])
        source = state["source"]
        e = model.attention.scores(hidden, source.get("keys", source["values"]))
        wanted = (e.exp() / e.exp().sum(-1, keepdim=True))[0]
    np.testing.assert_allclose(unpacked(VIEW.make([made], LINE, {})["texts"][0]["means"])[0], wanted, atol=1e-6)


def test_each_text_of_the_tree_has_the_log_p_of_its_path(seq2seq):
    data = VIEW.make([seq2seq], LINE, {"width": "3"})
    assert 1 <= len(data["texts"]) <= alignment.TEXTS
    assert [one["score"] for one in data["texts"]] == sorted((one["score"] for one in data["texts"]), reverse=True)
    for one in data["texts"]:
        step, place, own, shown = one["step"], one["place"], 0.0, []
        assert data["tree"][step][place]["end"]
        while step >= 0:
            node = data["tree"][step][place]
            own, shown = own + node["own"], [node["shown"], *shown]
            step, place = step - 1, node["parent"]
        assert own == pytest.approx(one["log_prob"], abs=1e-4)
        assert shown == one["shown"]
    assert all(len(row) <= 3 for row in data["tree"])


def test_width_and_alpha_are_the_beams(seq2seq):
    data = VIEW.make([seq2seq], LINE, {"width": "1", "alpha": "0"})
    assert data["beam"] == {"width": 1, "alpha": 0.0}
    assert all(len(row) == 1 for row in data["tree"])
    assert data["texts"][0]["score"] == data["texts"][0]["log_prob"]
    assert data["texts"][0]["shown"] == seq2seq.show([*best(seq2seq, 1, 0.0)[0].tokens, BOUNDARY])


def test_maps_stay_within_what_a_page_should_hold(transformer, monkeypatch):
    whole = VIEW.make([transformer], LINE, {})
    assert len(whole["texts"]) > 2
    sizes = [4 * int(np.prod(one["means"]["shape"])) for one in whole["texts"]]
    monkeypatch.setattr(alignment, "MEANS", sizes[0] + sizes[1])
    monkeypatch.setattr(alignment, "HEADS", 2 * sizes[0])
    data = VIEW.make([transformer], LINE, {})
    assert len(data["texts"]) == 2
    assert [one["heads"] is None for one in data["texts"]] == [False, True]
    monkeypatch.setattr(alignment, "MEANS", 0)
    assert len(VIEW.make([transformer], LINE, {})["texts"]) == 1


@pytest.mark.parametrize("text", ["", "\0", "👩‍🚀", "the cat " * 12_500, "the cat\n\nthe dog\n"],
                         ids=["nothing", "NUL", "emoji", "long", "lines"])
@pytest.mark.parametrize("kind", ["seq2seq", "transformer"])
def test_any_text_is_survived(kind, text, request):
    made = request.getfixturevalue(kind)
    data = VIEW.make([made], text, {"width": "2"})
    json.dumps(data, allow_nan=False)
    size = len(data["source"])
    limit = min(alignment.SOURCE, getattr(made.model, "context", None) or alignment.SOURCE)
    assert 1 <= size <= limit
    assert data["cut"] == (len(text.strip()) + 1 - limit if len(text) > 999 else 0)
    assert data["lines"] == (1 if "dog" in text else 0)
    assert data["texts"][0]["means"]["shape"][-1] == size


@pytest.mark.parametrize("options", [{"width": "0"}, {"width": "x"}, {"width": "99"}, {"alpha": "-1"}], ids=str)
def test_a_wrong_option_is_one_line(seq2seq, options):
    with pytest.raises(UserError) as said:
        VIEW.make([seq2seq], LINE, options)
    assert "\n" not in str(said.value)


def test_it_fits_what_looks_at_a_source(seq2seq, transformer):
    assert VIEW.fits(seq2seq)
    assert VIEW.fits(transformer)
    assert not VIEW.fits(task_subject("seq2seq", "translate", attention="none"))
    assert not VIEW.fits(subject("gpt"))
    assert not VIEW.fits(task_subject("encoder", "mask"))


# In a browser


def weight_shown(page):
    return float(page.locator("#alignment output [data-weight]").get_attribute("data-weight"))


def test_the_map_shows_the_attention(seq2seq, open_view):
    number, tokens = next((place, one.tokens) for place, one in enumerate(best(seq2seq)) if one.tokens)
    page, _ = open_view(VIEW, [seq2seq], LINE, address=f"#alignment.text={number}")
    maps, _ = attended(seq2seq, tokens)
    page.locator("#alignment .heat canvas").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert weight_shown(page) == pytest.approx(float(maps[0, 0, 1, 3]), abs=1e-6)
    assert "attended to “·”" in page.locator("#alignment output").inner_text()
    page.keyboard.press("End")
    assert weight_shown(page) == pytest.approx(float(maps[0, 0, 1, -1]), abs=1e-6)


def test_the_tree_is_drawn_with_its_log_ps_and_the_chosen_path_is_bold(seq2seq, open_view):
    page, data = open_view(VIEW, [seq2seq], LINE)
    nodes = page.locator("#alignment .tree-node")
    assert nodes.count() == sum(map(len, data["tree"]))
    shown = nodes.evaluate_all("all => all.map(one => +one.dataset.logProb)")
    assert shown == [node["log_prob"] for row in data["tree"] for node in row]
    for number, text in enumerate(data["texts"]):
        page.locator("#alignment .alignment-texts button").nth(number).click()
        bold = page.locator("#alignment .tree-node.bold title").all_text_contents()
        assert [title.rpartition(": log p")[0] for title in bold] == text["shown"]
        assert page.locator("#alignment .tree-edge.bold").count() == len(bold)
    assert any(node["parent"] for row in data["tree"] for node in row)


@pytest.mark.parametrize("way", ["click", "keyboard", "list"])
def test_another_finished_text_can_be_chosen(seq2seq, open_view, way):
    page, data = open_view(VIEW, [seq2seq], LINE)
    other = data["texts"][1]
    end = page.locator(f"#alignment .tree-node[data-step='{other['step']}'][data-place='{other['place']}']")
    if way == "click":
        end.click()
    elif way == "keyboard":
        end.focus()
        page.keyboard.press("Enter")
    else:
        page.locator("#alignment .alignment-texts button").nth(1).click()
    assert "alignment.text=1" in page.evaluate("location.hash")
    assert page.locator("#alignment .tree-node.bold").count() == len(other["shown"])
    tokens = best(seq2seq)[1].tokens
    page.locator("#alignment .heat canvas").focus()
    page.keyboard.press("ArrowDown")
    assert weight_shown(page) == pytest.approx(float(attended(seq2seq, tokens)[0][0, 0, 0, 0]), abs=1e-6)


def test_a_transformer_has_a_map_for_each_head(transformer, open_view):
    page, _ = open_view(VIEW, [transformer], LINE)
    maps, _ = attended(transformer, best(transformer)[0].tokens)
    for layer, head in [("2", "0"), ("1", "0"), ("1", "2"), ("2", "1")]:
        page.locator("#alignment select[data-which=layer]").select_option(layer)
        page.locator("#alignment select[data-which=head]").select_option(head)
        page.locator("#alignment .heat canvas").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        there = maps[int(layer) - 1, :, 0, 1]
        wanted = there.mean() if head == "0" else there[int(head) - 1]
        assert weight_shown(page) == pytest.approx(float(wanted), abs=1e-6)
        page.keyboard.press("Escape")


@pytest.mark.parametrize("text", [LINE, "the cat said who " * 8], ids=["short", "long"])
def test_a_phone_is_wide_enough(seq2seq, open_view, text):
    page, _ = open_view(VIEW, [seq2seq], text, viewport={"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_shadow_says_that_there_is_more_of_the_tree(seq2seq, open_view):
    """As where a table is wider than its place: gradients that stay, below others of the paper's colour that move."""
    page, _ = open_view(VIEW, [seq2seq], "the cat said who " * 8, viewport={"width": 1280, "height": 400})
    high, seen, moves = page.locator("#alignment .alignment").evaluate(
        "one => [one.scrollHeight, one.clientHeight, getComputedStyle(one).backgroundAttachment]")
    assert high > seen
    assert moves == "local, local, scroll, scroll"


def wait_for_score(page, wanted):
    """Until the page shows that score for the best text, however long a busy machine takes; else a timeout fails."""
    shown = "+document.querySelector('.alignment-texts small')?.dataset.score"
    page.wait_for_function(f"wanted => Math.abs({shown} - wanted) < 1e-5", arg=wanted)


def test_a_live_page_searches_with_another_beam(seq2seq, open_url, tmp_path):
    with served({"translate": save_run(tmp_path / "translate", seq2seq)}, LINE) as address:
        page = open_url(f"{address}#page.view=alignment")
        wide = page.locator("#alignment input[data-which=width]")
        wide.fill("2")
        wide.press("Enter")
        page.wait_for_function("!document.querySelector('.tree-node[data-place=\"2\"]')")
        assert page.locator(".tree-node[data-place='1']").count() > 0
        assert page.evaluate("document.activeElement.dataset.which") == "width"
        wait_for_score(page, best(seq2seq, 2)[0].score)
        page.locator("#text").fill("the dog")
        wait_for_score(page, best(seq2seq, 2, text="the dog")[0].score)


def test_a_long_tree_scrolls_in_its_place_and_zero_has_no_minus(seq2seq, open_file):
    data = VIEW.make([seq2seq], LINE, {})
    node = {"shown": "a", "end": False, "parent": 0, "log_prob": -0.0001, "own": -0.0001}
    row = data["tree"][0]
    data["tree"] = [[node], *data["tree"], *([[*row]] * 90)]
    for one in data["texts"]:
        one["step"] += 1
    data["texts"][0] |= {"log_prob": -0.0001, "score": -1.5}
    page = open_file(make_page("t", "", [Panel("alignment", "alignment", "Alignment", data)]),
                     viewport={"width": 1280, "height": 720})
    assert page.locator("#alignment .tree").bounding_box()["height"] > 3000
    assert page.evaluate("document.documentElement.scrollHeight") < 2000
    assert f"The tree has {len(data['tree'])} rows" in page.locator("#alignment .alignment-many").inner_text()
    assert page.locator("#alignment output.readout").inner_text().endswith("log p 0.000, score −1.500")
    assert page.locator("#alignment .tree-node .small").first.text_content() == "0.00"
