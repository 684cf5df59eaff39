"""Surprise at any text, by any models: the bits on the page are those that `chainrule score` says."""

import math

import pytest
import torch
from viewer.subjects import subject

from chainrule.viewer.page import script_json
from chainrule.viewer.views.surprise import LETTERS, VIEW

TEXT = 'the dog said "me?"\n'


@pytest.fixture(scope="module")
def several():
    return [subject("ngram"), subject("gpt", unit="bpe"), subject("lstm")]


def bits_by_step(one, text):
    """Of every token, by the model's own probabilities."""
    tokens = torch.tensor([[0, *one.run.tokenizer.encode(text).tolist()]])
    with torch.no_grad():
        logits, _ = one.model.step(tokens[:, :-1], one.model.start(1))
    return (-logits[0].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0] / math.log(2)).tolist()


def test_every_token_has_the_bits_that_it_costs_the_model(several):
    data = VIEW.make(several, TEXT, {})
    assert [strip["kind"] for strip in data["strips"]] == ["ngram", "gpt", "lstm"]
    assert data["first"] == ["ngram", "gpt", "lstm"]
    for one, strip in zip(several, data["strips"]):
        assert "".join(text for text, _ in strip["pieces"]) == TEXT
        assert [bits for _, bits in strip["pieces"]] == pytest.approx(bits_by_step(one, TEXT), abs=1e-5)


@pytest.mark.parametrize("text", ["", "🙂", "\0", "é" * 100_000])
def test_any_text_can_be_shown(several, text):
    data = VIEW.make(several, text, {})
    script_json(data)
    assert data["left_out"] == max(0, len(text) - LETTERS)
    assert all("".join(text for text, _ in strip["pieces"]) == text[-LETTERS:] for strip in data["strips"])


def test_what_is_impossible_for_a_model_is_null():
    one = subject("hmm")
    tokenizer = one.run.tokenizer
    with torch.no_grad():
        emissions = next(one for one in one.model.state_dict().values() if one.shape[-1] == len(tokenizer))
        emissions[..., tokenizer.encode("z")[0]] = -math.inf
    assert VIEW.make([one], "z", {})["strips"][0]["pieces"][0][1] is None


def test_one_model_alone_is_shown_once(open_view, several):
    page, _ = open_view(VIEW, several[:1], TEXT)
    assert page.locator(".strip h3").all_inner_texts() == ["ngram"]
    found = page.locator(".token").evaluate_all("all => all.map(one => +one.dataset.bits)")
    assert found == pytest.approx(bits_by_step(several[0], TEXT), rel=1e-6, abs=1e-6)


def test_the_difference_of_two_is_taken_where_tokens_of_both_end(open_view, several):
    page, _ = open_view(VIEW, several, TEXT, address="#surprise.mode=difference&surprise.one=lstm&surprise.other=gpt")
    found = page.locator(".token").evaluate_all("all => all.map(one => +one.dataset.bits)")
    total = sum(bits_by_step(several[2], TEXT)) - sum(bits_by_step(several[1], TEXT))
    assert sum(found) == pytest.approx(total, abs=1e-3)
    assert len(found) == len(several[1].run.tokenizer.encode(TEXT))


def test_words_that_do_not_reproduce_the_text_are_not_compared_with_letters(open_view, several):
    words = subject("ngram", unit="words", name="words")
    page, _ = open_view(VIEW, [several[0], words], 'the  dog said "me', address="#surprise.mode=difference")
    assert "There is no place in the text" in page.locator(".strips").inner_text()
    page.locator("select[data-which=one]").select_option("words")
    assert page.locator(".token").count() == 4    # a model with itself


def test_an_empty_text_is_reported_and_keys_do_no_harm(open_view, several):
    page, _ = open_view(VIEW, several, "")
    assert page.get_by_text("The text is empty.").count() == 3
    page.locator("input[value=difference]").press("ArrowRight")


def test_the_totals_say_which_model_predicts_the_text_best(open_view, several):
    page, data = open_view(VIEW, several, TEXT)
    assert page.locator(".strip h3").all_inner_texts() == ["ngram", "gpt", "lstm"]    # all that were chosen
    assert page.locator("select").first.is_hidden()
    totals = {one.name: sum(bits_by_step(one, TEXT)) for one in several}
    for one, strip in zip(several, data["strips"]):
        tokens = len(one.run.tokenizer.encode(TEXT))
        expected = totals[one.name] / len(TEXT.encode()), 2 ** (totals[one.name] / tokens), tokens
        found = [strip["totals"][name] for name in ("bits_per_byte", "perplexity", "tokens")]
        assert found == pytest.approx(expected, rel=1e-4)
    best, second = sorted(totals, key=totals.__getitem__)[:2]
    line = page.locator(".surprise-best").inner_text()
    gap = totals[second] - totals[best]
    assert line == f"{best} predicts this text best, with {totals[best]:.1f} bits: {gap:.1f} fewer than {second}."
    assert page.locator(".surprise-totals .best th").all_inner_texts() == [best]


def test_one_run_offers_no_second(open_view, several):
    page, _ = open_view(VIEW, several[:1], TEXT)
    assert page.locator("select, input[type=radio]").count() == 0
    assert page.locator(".surprise-totals tbody tr").count() == 1
    assert page.locator(".surprise-best").inner_text() == ""


def test_bits_of_words_that_lose_the_text_are_not_compared_with_those_of_letters(open_view, several):
    words = subject("ngram", unit="words", name="words")
    page, _ = open_view(VIEW, [several[0], words, several[2]], TEXT)
    line = page.locator(".surprise-best").inner_text()
    assert "The tokens of words do not give the text back, so its bits cannot be compared." in line
    assert page.locator("tr[data-model=words] td").nth(1).inner_text() == "–"
    page, _ = open_view(VIEW, [words, subject("hmm", unit="words")], TEXT)
    assert "predicts this text best" in page.locator(".surprise-best").inner_text()    # the same tokens
