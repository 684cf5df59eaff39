"""Views of a log-linear classifier: every number is that of the model, summed by hand; and what a reader sees of it."""

import json

import pytest
import torch
from viewer.task_views.test_task_views import unpack
from viewer.tasks import SAID, log_linear_subject

from chainrule.model import Batch
from chainrule.viewer.coverage import tiny_subject
from chainrule.viewer.task_views.ngram_features import against_others
from chainrule.viewer.views import every_view, find_view

THREE = {**SAID, "none": ("it is a film", "a play", "and a book", "it is a book")}


def make(name, one, text="", **options):
    return find_view(name).make([one], text, options)


def log_odds(one, text, number):
    """log p(class) minus the mean of the other classes' logits, of the model itself."""
    ids = [0, *one.run.tokenizer.encode(text).tolist(), len(one.run.tokenizer) - 1]
    logits = one.model(Batch(torch.tensor([ids]), torch.tensor([0])))[0]
    others = [place for place in range(len(logits)) if place != number]
    return float(logits[number] - logits[others].mean())


@pytest.mark.parametrize("said", [SAID, THREE], ids=["two", "three"])
@pytest.mark.parametrize("text", ["a fine film", "fine fine film and a fine film", "zebra", ""])
def test_contributions_come_to_the_decision(said, text):
    one = log_linear_subject(said)
    data = make("contributions", one, text)
    shares, logs = unpack(data["shares"]), unpack(data["orders"])
    for number in range(len(said)):
        wanted = log_odds(one, text, number)
        assert data["bias"][number] + data["sum"][number] == pytest.approx(wanted, abs=1e-4)
        assert data["bias"][number] + float(shares[:, number].sum()) == pytest.approx(wanted, abs=1e-4)
        assert data["bias"][number] + sum(ngram["weights"][number] for ngram in data["ngrams"]) == pytest.approx(
            wanted, abs=1e-4)
    ids = [0, *one.run.tokenizer.encode(text).tolist(), len(one.run.tokenizer) - 1]
    whole = one.model(Batch(torch.tensor([ids]), torch.tensor([0]))).log_softmax(1)[0]
    assert logs[-1].tolist() == pytest.approx(whole.tolist(), abs=1e-4)
    assert logs[0].tolist() == pytest.approx(one.model.bias.log_softmax(0).tolist(), abs=1e-4)
    assert len(logs) == 3


def test_a_token_gets_its_share_of_each_ngram_that_it_is_in():
    one = log_linear_subject()
    data = make("contributions", one, "dull film dull film")
    ngrams = {ngram["name"]: ngram for ngram in data["ngrams"]}
    assert ngrams["dull film"]["places"] == [[1, 2], [3, 4]]
    assert ngrams["‹"]["places"] == [[0, 0]]
    wanted = sum(ngram["weights"][0] * sum(begin <= 2 <= end for begin, end in ngram["places"])
                 / sum(end - begin + 1 for begin, end in ngram["places"]) for ngram in data["ngrams"])
    assert float(unpack(data["shares"])[2, 0]) == pytest.approx(wanted, abs=1e-4)
    assert ngrams["dull film"]["counts"] == [2, 0]                       # bad, good: each text was read twice


def test_the_true_class_and_a_long_text_are_told():
    one = log_linear_subject()
    assert make("contributions", one, "a fine film\tgood")["truth"] == "good"
    data = make("contributions", one, "fine " * 200)
    assert len(data["text"]) == 96
    assert data["input"]["note"]


@pytest.mark.parametrize("said", [SAID, THREE], ids=["two", "three"])
def test_the_heaviest_ngrams_are_those_of_the_model(said):
    one = log_linear_subject(said)
    data, theta = make("class_ngrams", one), one.model.weights
    for number in range(len(said)):
        others = [place for place in range(len(said)) if place != number]
        wanted = theta[:, number] - theta[:, others].mean(1)
        assert torch.allclose(against_others(theta)[:, number], wanted, atol=1e-5)
        for side, sign in enumerate((1, -1)):
            places = data["lists"][0][number][side]
            shown = [sign * data["rows"][place]["weights"][number] for place in places]
            assert shown == sorted(shown, reverse=True)
            assert shown == pytest.approx((sign * wanted).sort(descending=True).values[: len(shown)].tolist(), abs=1e-5)
        for place in data["lists"][2][number][0]:
            assert data["rows"][place]["order"] == 2
    assert data["count"] == len(theta)


def test_a_point_of_the_fit_is_the_ratio_and_the_weight_of_its_ngram():
    one = log_linear_subject()
    data = make("ratios", one)
    weights, ratios = unpack(data["weights"]), unpack(data["ratios"])
    names = [ngram["name"] for ngram in data["ngrams"]]
    feature = next(place for place in range(len(one.model.weights))
                   if one.show(one.model.ngram(place)) == ["dull", "film"])
    place = names.index("dull film")
    assert weights[place].tolist() == pytest.approx(one.model.weights[feature].tolist())
    assert ratios[place].tolist() == pytest.approx(one.model.log_count_ratios[feature].tolist())
    r, theta = one.model.log_count_ratios[:, 1].double(), one.model.weights[:, 1].double()
    assert data["trusted"][1] == pytest.approx(float((r @ theta) / (r @ r)))


def test_a_model_without_ngrams_has_views_that_say_so():
    one = tiny_subject("loglinear", "classify")
    for name in ("contributions", "class_ngrams", "ratios"):
        data = make(name, one, "the cow")
        json.dumps(data, allow_nan=False)
        assert data["count"] == 0


def test_only_a_log_linear_classifier_has_them():
    for name in ("contributions", "class_ngrams", "ratios"):
        assert not every_view()[name].fits(tiny_subject("bigram", "classify"))
        assert every_view()[name].fits(tiny_subject("loglinear", "classify"))


def numbers(page, selector, name):
    """What elements keep as data."""
    return [float(value) for value in page.locator(selector).evaluate_all(f"all => all.map(one => one.dataset.{name})")]


def test_a_token_says_its_share_and_a_class_can_be_chosen(open_view):
    page, data = open_view(find_view("contributions"), [log_linear_subject()], "a fine film")
    for label, number in (("good", 1), ("bad", 0)):
        page.locator(f"#contributions input[value={label}]").check()
        shares = numbers(page, ".token", "share")
        assert shares == pytest.approx(unpack(data["shares"])[:, number].tolist(), abs=1e-5)
        assert numbers(page, "[data-sum]", "sum") == pytest.approx([sum(shares) + data["bias"][number]], abs=1e-4)
    assert page.locator(".contributions-orders tbody tr").count() == 3
    page.locator("tr[data-ngram='fine film']").hover()
    assert page.locator(".token.chosen").all_inner_texts() == ["fine", "film"]
    page.locator("#contributions p.text").press("ArrowRight")
    assert "“‹”" in page.locator("#contributions .readout").inner_text()
    page.locator("#contributions p.text").press("ArrowRight")
    assert f"“{data['tokens'][1]}”" in page.locator("#contributions .readout").inner_text()


def test_the_heaviest_ngrams_can_be_read_by_class_and_order(open_view):
    page, data = open_view(find_view("class_ngrams"), [log_linear_subject()], "")
    page.locator("#class_ngrams input[value=good]").check()
    page.locator("#class_ngrams input[value='2']").check()
    shown = numbers(page, ".ngrams-for tr[data-weight]", "weight")
    assert shown == [data["rows"][place]["weights"][1] for place in data["lists"][2][1][0]]
    assert page.locator(".ngrams-against tbody tr").count() == len(data["lists"][2][1][1])


def test_a_point_says_its_ngram(open_view):
    page, data = open_view(find_view("ratios"), [log_linear_subject()], "")
    page.locator("#ratios input[value=good]").check()
    assert f"{len(data['ngrams'])} of {data['count']} n-grams" in page.locator("#ratios").inner_text()
    page.locator("#ratios svg.map-drawing").press("ArrowRight")
    said = page.locator("#ratios .plot .readout").inner_text()
    assert said[1 : said.index("”")] in [ngram["name"] for ngram in data["ngrams"]]
    assert "texts of good and" in said


@pytest.mark.parametrize("name", ["contributions", "class_ngrams", "ratios"])
def test_an_untrained_model_is_drawn(open_view, name):
    page, _ = open_view(find_view(name), [tiny_subject("loglinear", "classify")], "the cow")
    assert any(said in page.locator(f"#{name}").inner_text() for said in ("no n-gram yet", "the bias alone decides"))
