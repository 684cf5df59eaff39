"""In context: p(answer) by examples and the loss of a repeated sequence, against written-out sums; and on the page."""

import json
import math

import numpy as np
import pytest
import torch
from viewer.charts import dots, drawn_lines
from viewer.subjects import subject

from chainrule.inference.analysis.head_scores import repeated_rows, score_heads
from chainrule.model import BOUNDARY
from chainrule.viewer.views import in_context
from chainrule.viewer.views.in_context import VIEW, answer_probabilities, read_examples

TEXT = "the cat: me\nthe dog: you\nthe who: too\n"


@pytest.fixture(scope="module")
def gpt():
    return subject("gpt")


@torch.no_grad()
def log_probs(one, ids):
    """(T,) of each token, read at once from the boundary."""
    tokens = torch.tensor([[BOUNDARY, *ids]])
    logits, _ = one.model.step(tokens[:, :-1], one.model.start(1))
    return logits[0].double().log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]


@pytest.mark.parametrize(("text", "found"), [
    ("sea: mer\nsun:  soleil\n", [("sea: ", "mer"), ("sun:  ", "soleil")]),
    ("2 plus 3 is 5\n\n4 plus 1 is 5", [("2 plus 3 is ", "5"), ("4 plus 1 is ", "5")]),
    ("a=b\nc=d e", [("a=", "b"), ("c=", "d e")]),
    ("a -> b: c\nd -> e", [("a -> ", "b: c"), ("d -> ", "e")]),
    ("one\ntwo words", [("two ", "words")]),
    ("one\n", []),
    ("", []),
])
def test_a_line_is_a_question_and_its_answer(text, found):
    assert read_examples(text) == found


@pytest.mark.parametrize("kind", ["ngram", "lstm", "gpt"])
def test_an_answer_is_all_its_tokens_after_the_lines_before_it(kind):
    one = subject(kind)
    found = answer_probabilities(one, read_examples(TEXT))
    text = TEXT[:-1]
    every = log_probs(one, one.run.tokenizer.encode(text).tolist())            # characters: a token each
    for p, answer in zip(found, ("me", "you", "too"), strict=True):
        begin = text.index(f": {answer}") + 1                                   # with the space before it
        assert p == pytest.approx(math.exp(every[begin : begin + 1 + len(answer)].sum()), rel=1e-4)


def test_the_curve_is_the_mean_over_orders(gpt):
    found = VIEW.make([gpt], TEXT, {})["models"][0]["examples"]
    assert found["orders"] == 6                                                 # 3 lines have no more
    assert found["typed"] == pytest.approx(answer_probabilities(gpt, read_examples(TEXT)).tolist())
    assert all(low <= mean <= high for low, mean, high in zip(found["low"], found["mean"], found["high"]))
    again = VIEW.make([gpt], TEXT, {})["models"][0]["examples"]
    assert again == found
    json.dumps(found, allow_nan=False)


def test_lines_that_do_not_fit_are_left_out(gpt):
    lines = "".join(f"the cat said: {who}\n" for who in ("me", "you", "who", "too") * 20)
    data = VIEW.make([gpt], lines, {})
    assert data["left_out"] == 80 - in_context.LINES
    kept = data["models"][0]["examples"]["lines"]
    assert 0 < len(kept) < 5                                                    # a context of 64 characters
    assert kept[-1] == {"question": "the cat said: ", "answer": "too"}


@pytest.mark.parametrize("kind", ["ngram", "hmm", "lstm", "gpt"])
def test_the_loss_of_both_copies_by_position(kind):
    one = subject(kind)
    found = VIEW.make([one], TEXT, {})["models"][0]["induction"]
    rows = repeated_rows(one.run.tokenizer, one.model.context)
    wanted = -np.mean([log_probs(one, row[1:].tolist()).numpy() for row in rows], 0) / math.log(2)
    assert found["first"] + found["second"] == pytest.approx(wanted.tolist(), rel=1e-4)
    assert (found["heads"] is None) == (kind != "gpt")                          # others have the loss only
    json.dumps(found, allow_nan=False)


def test_heads_have_the_scores_of_the_attention_view(gpt):
    found = VIEW.make([gpt], TEXT, {})["models"][0]["induction"]
    model = gpt.model
    heads = score_heads(model, gpt.run.tokenizer, lambda rows: model.step(rows, model.start(len(rows))),
                        gpt.taps("pattern"), [BOUNDARY, 1, 2, 3], model.context)
    assert [score for layer in found["heads"] for score in layer] == pytest.approx(
        [head.scores["induction"] for head in heads])


def test_the_last_layer_has_the_loss_of_the_model(gpt):
    found = VIEW.make([gpt], TEXT, {})["models"][0]["induction"]
    assert len(found["layers"]) == 2
    assert found["layers"][-1] == pytest.approx(np.mean(found["second"]), rel=1e-4)


def test_a_text_without_examples_says_how_to_write_some(open_view, gpt):
    page, _ = open_view(VIEW, [gpt], "one")
    assert page.locator("text=No line of the text has a question and an answer").count() == 1


def test_a_context_without_room_for_two_copies():
    one = subject("gpt", context=4)
    data = VIEW.make([one], TEXT, {})["models"][0]
    assert data["induction"] is None
    assert data["examples"] is None


def test_on_the_page_keys_go_along_the_curves_and_between_heads(open_view, gpt):
    page, data = open_view(VIEW, [gpt, subject("lstm")], TEXT)
    first, second = (page.locator(f".in-context-{name}") for name in ("shots", "induction"))
    first.locator("svg").focus()
    for key in ("Home", "ArrowRight"):
        page.keyboard.press(key)
    said = first.locator("output [data-model=gpt]")
    assert float(said.get_attribute("data-mean")) == data["models"][0]["examples"]["mean"][1]
    second.locator("svg").focus()
    page.keyboard.press("End")
    bits = second.locator("output [data-model=lstm]").get_attribute("data-second")
    assert float(bits) == data["models"][1]["induction"]["second"][-1]
    page.locator(".in-context-heads [data-layer='0'][data-head='0']").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    score = page.evaluate("document.activeElement.dataset.score")
    assert float(score) == data["models"][0]["induction"]["heads"][1][1]
    assert page.locator("text=lstm (lstm) has no attention heads").count() == 1


def test_on_the_page_the_curves_are_those_of_the_shared_chart(open_view, gpt):
    page, data = open_view(VIEW, [gpt], TEXT)
    examples, induction = data["models"][0]["examples"], data["models"][0]["induction"]
    shots = drawn_lines(page, ".in-context-shots", y="linear")["gpt"]
    assert shots == [pytest.approx(point, abs=0.01) for point in enumerate(examples["mean"])]
    assert dots(page, ".in-context-shots")["gpt, as typed"] == list(enumerate(examples["typed"]))
    assert page.locator(".in-context-shots polygon[data-band]").count() == 1
    again = drawn_lines(page, ".in-context-induction", y="linear")["gpt, again"]
    assert again == [pytest.approx(point, abs=0.1) for point in enumerate(induction["second"], 1)]


def test_on_the_page_touch_points_and_bits_are_a_choice(open_view, gpt):
    page, data = open_view(VIEW, [gpt], TEXT, has_touch=True, viewport={"width": 390, "height": 800})
    drawn = page.locator(".in-context-shots svg")
    box = drawn.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 0.95, box["y"] + box["height"] / 2)
    typed = page.locator(".in-context-shots output [data-model]").get_attribute("data-typed")
    assert float(typed) == data["models"][0]["examples"]["typed"][-1]
    page.locator("label", has_text="bits").click()
    assert page.locator(".in-context-shots svg >> text=bits of the answer").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
