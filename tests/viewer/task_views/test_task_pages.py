"""Views of tasks in a browser: what a reader sees is what the data says, and a source has a box of its own."""

import math

import pytest
from viewer.live import save_run, served
from viewer.task_views.test_task_views import tagger, unpack
from viewer.tasks import task_subject

from chainrule.viewer.coverage import tiny_subject
from chainrule.viewer.views import find_view

__all__ = ["tagger"]


def test_a_tagger_shows_its_path_and_the_true_tags(tagger, open_view):
    page, data = open_view(find_view("trellis"), [tagger], "the/DET frog/VERB saw/VERB")
    assert page.locator(".trellis-truth").count() == 3
    assert page.locator(".trellis-wrong").count() == sum(a != b for a, b in zip(data["truth"], data["path"]))
    assert "3 words, 3 tags" in page.locator("#trellis").inner_text()
    page.locator("#trellis input[value=alpha]").check()
    page.locator(".trellis-grid .scroll").press("ArrowLeft")
    assert page.locator(".trellis-terms tbody tr").count() >= 1
    total = float(page.locator(".trellis-total").inner_text().replace("−", "-"))
    row = data["path"][2]
    assert total == pytest.approx(float(unpack(data["alpha"])[1, row]), abs=1e-3)


def test_influence_and_the_levels_of_a_word_can_be_read(tagger, open_view):
    page, data = open_view(find_view("influence"), [tagger], "the frog saw")
    assert page.locator("#influence canvas").count() == 1
    page, data = open_view(find_view("word_features"), [tagger], "the frog saw")
    page.locator("[data-word='1']").click()
    assert page.locator("[data-word='1']").get_attribute("aria-pressed") == "true"
    assert page.locator(".features-unseen").count() == sum(count == 0 for count in unpack(data["counts"])[1].tolist())
    cells = page.locator("tr[data-level='8'] .features-p")
    shown = [float(p) for p in cells.evaluate_all("all => all.map(one => one.dataset.p)")]
    assert shown == pytest.approx(sorted(unpack(data["probabilities"])[1, -1].tolist(), reverse=True), abs=1e-6)


def test_a_token_says_its_vote_and_a_class_can_be_chosen(open_view):
    one = task_subject("gpt", "classify")
    page, data = open_view(find_view("votes"), [one], "the cat")
    whole, without = unpack(data["whole"]), unpack(data["without"])
    best = int(whole.argmax())
    votes = [float(vote) for vote in page.locator(".token").evaluate_all("all => all.map(one => one.dataset.vote)")]
    assert votes == pytest.approx((whole[best] - without[:, best]).tolist(), abs=1e-5)
    other = 1 - best
    page.locator(f".votes-class[data-class={data['classes'][other]}]").click()
    votes = [float(vote) for vote in page.locator(".token").evaluate_all("all => all.map(one => one.dataset.vote)")]
    assert votes == pytest.approx((whole[other] - without[:, other]).tolist(), abs=1e-5)
    shown = float(page.locator(".votes-class").first.get_attribute("data-p"))
    assert shown == pytest.approx(math.exp(whole[best]), abs=1e-5)


def test_a_hidden_word_shows_what_could_stand_in_its_place(open_view):
    one = tiny_subject("encoder", "mask")
    page, data = open_view(find_view("hidden_word"), [one], "the cow eats")
    page.locator(".hidden-word").first.click()
    assert page.locator(".hidden-best li").count() == len(data["guesses"][0])
    assert int(page.locator("[data-rank]").get_attribute("data-rank")) == data["ranks"][0]
    page.keyboard.press("ArrowRight")
    assert page.locator(".hidden-word[aria-pressed=true]").get_attribute("data-word") == "1"


def test_a_source_has_a_box_of_its_own_and_a_click_writes_the_target(open_url, tmp_path):
    one = task_subject("seq2seq", "translate")
    with served({"run": save_run(tmp_path / "run", one)}, text="the cat") as url:
        page = open_url(f"{url}#page.view=die")
        page.wait_for_selector("html[data-drawn]")
        assert page.locator("[data-part=source]").input_value() == "the cat"
        page.locator(".die-face:not(.die-mute)").first.click()
        page.wait_for_function("document.querySelector('[data-part=target]')?.value.length === 1")
        assert page.locator("#text").input_value().startswith("the cat\t")
        page.locator("[data-part=source]").fill("the dog")
        page.wait_for_function("document.querySelector('#text').value.startsWith('the dog\\t')")
