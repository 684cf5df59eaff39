"""Cost against length on a page: what was measured is what is shown, and the power of T is fitted to it."""

import json
import math
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from viewer.subjects import subject

from chainrule.flops import multiplied_weights
from chainrule.viewer.views import cost
from chainrule.viewer.views.cost import VIEW, Cost, count_costs, lengths, polynomial

LAW = {"learn": (1e-4, 1), "write": (3e-4, 1), "reread": (1e-5, 2)}


@pytest.fixture
def known(monkeypatch):
    """Costs that follow a law; and how often was measured."""
    asked = []

    def measure_costs(model, way, texts, repeats):
        if texts != [1]:
            asked.append((way, *texts))
        scale, power = LAW[way]
        return [Cost(length, scale * length**power, 1000 * length) for length in texts]

    monkeypatch.setattr(cost, "measure_costs", measure_costs)
    return asked


@pytest.fixture
def two():
    return [subject("rnn"), subject("gpt")]


def test_every_way_is_measured_up_to_what_a_model_holds(known, two):
    data = VIEW.make(two, "", {})
    rnn, gpt = data["models"]
    assert [cost["tokens"] for cost in rnn["ways"]["learn"]] == [16, 32, 64, 128, 256]
    assert [cost["tokens"] for cost in gpt["ways"]["reread"]] == [4, 8, 16, 32, 64]
    for model in data["models"]:
        for way, (_, power) in LAW.items():
            assert model["slopes"][way] == {"seconds": pytest.approx(power), "bytes": pytest.approx(1)}
    json.dumps(data, allow_nan=False)


def test_lengths_are_those_that_can_be_read():
    assert lengths(1) == [1]
    assert lengths(3) == [1, 3]
    assert lengths(100) == [6, 12, 25, 50, 100]
    assert lengths(100_000) == lengths(None)


def test_a_model_is_measured_once_unless_it_is_asked_again(known, two):
    first = VIEW.make(two, "", {})
    once = len(known)
    assert once == 2 * 3 * 5
    assert VIEW.make(two, "", {"what": "bytes"}) == first
    assert len(known) == once
    VIEW.make(two[:1], "", {"again": "yes"})
    assert len(known) == once + 3 * 5


def test_longer_texts_are_left_out_where_time_runs_out(monkeypatch, known, two):
    clock = count(0, 10)
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    ways = VIEW.make(two[:1], "", {"again": "yes"})["models"][0]["ways"]
    assert [len(costs) for costs in ways.values()] == [2, 2, 2]


def test_what_counts_has_nothing_to_go_down(known):
    (model,) = VIEW.make([subject("ngram")], "", {})["models"]
    assert model["ways"].keys() == {"write", "reread"}
    assert model["counted"] == {}


def test_one_length_has_no_slope(known):
    (model,) = VIEW.make([subject("gpt", context=1)], "", {})["models"]
    assert model["slopes"]["write"] == {"seconds": None, "bytes": None}


def test_real_models_are_measured(monkeypatch):
    """Memory is exact: what an Elman net carries does not grow, and what it keeps for the way back does."""
    monkeypatch.setattr(cost, "SECONDS", 60)
    monkeypatch.setattr(cost, "LONGEST", 128)
    data = VIEW.make([subject("rnn"), subject("gpt", context=32)], "", {})
    rnn, gpt = (model["slopes"] for model in data["models"])
    assert abs(rnn["write"]["bytes"]) < 0.1
    kept = np.diff([cost["bytes"] for cost in data["models"][0]["ways"]["learn"]])
    assert kept[1:] / kept[:-1] == pytest.approx(2, abs=0.01)    # lengths double
    assert 0.7 < rnn["learn"]["bytes"] < 1                       # beside what does not grow
    assert gpt["learn"]["bytes"] > 0.5
    for model in data["models"]:
        for costs in model["ways"].values():
            assert all(cost["seconds"] > 0 and cost["bytes"] > 0 for cost in costs)
    assert "CPU" in data["device"]


# In a browser

def cells(page, name):
    return page.locator(f"#cost [data-{name}]").evaluate_all(f"all => all.map(one => +one.dataset.{name})")


def drawn(page, mode):
    """The name, lengths and costs of each line of the chart in that mode."""
    read = "(line) => [line.name, [...line.x], [...line.y]]"
    return page.evaluate(f"document.querySelector('.cost-chart').data.filter((l) => l.mode === '{mode}').map({read})")


def test_the_first_chart_shows_what_is_counted(open_view, known, two):
    """A recurrent network is linear and serial, a Transformer quadratic and parallel: the claim of the lectures."""
    page, data = open_view(VIEW, two)
    lines = drawn(page, "lines")
    assert [name for name, _, _ in lines] == ["rnn, learn", "gpt, learn"]
    for (_, x, y), model in zip(lines, data["models"]):
        assert x == cost.COUNTED
        assert y == pytest.approx(model["counted"]["learn"]["flops"])
    rnn, gpt = cells(page, "power")
    assert rnn == pytest.approx(1)
    assert gpt > 1.8
    serial = page.locator("#cost [data-serial]").evaluate_all("all => all.map((one) => one.dataset.serial)")
    assert serial == ["T", "1"]
    assert "T²" in page.locator("#cost .cost-terms").last.inner_text()


def test_counted_flops_are_a_polynomial_of_the_length():
    rnn, gpt = (count_costs(subject(kind).model) for kind in ("rnn", "gpt"))
    linear, square = rnn["learn"]["terms"]
    assert square == 0
    model = subject("rnn").model
    assert linear == 6 * multiplied_weights(model)
    settings = subject("gpt").model.settings
    pair = 4 * settings.layers * settings.heads * settings.head_size
    linear, square = gpt["learn"]["terms"]
    assert square == pytest.approx(3 * pair / 2)                            # half of all pairs are seen
    assert linear == pytest.approx(6 * multiplied_weights(subject("gpt").model) + 3 * pair / 2)
    assert gpt["reread"]["terms"][2] == pytest.approx(pair / 6)             # the sum of t² is T³ / 3
    assert [count / 16 for count in gpt["write"]["state"]] == [gpt["write"]["state"][0] / 16 * 2**n for n in range(11)]
    assert len(set(rnn["write"]["state"])) == 1


def test_what_is_no_polynomial_says_so():
    assert polynomial([1, 2, 4, 8], [5.0, 20.0, 80.0, 320.0], 2) == [0.0, 5.0]
    assert polynomial([1, 2, 4, 8], [1.0, 2.0, 4.0, 7.0], 2) is None


def test_the_dots_are_what_was_measured_and_the_powers_their_slopes(open_view, known, two):
    page, _ = open_view(VIEW, two, address="#cost.of=write&cost.what=seconds")
    dots = drawn(page, "markers")
    assert [name for name, _, _ in dots] == ["rnn, write", "rnn, reread", "gpt, write", "gpt, reread"]
    for (_, x, y), (_, at, line) in zip(dots, drawn(page, "lines")):
        assert line[at.index(x[-1])] == pytest.approx(y[-1], rel=1e-6)      # the speed of the longest text
    for name, x, y in dots:
        scale, power = LAW[name.partition(", ")[2]]
        assert y == pytest.approx([scale * length**power for length in x], rel=1e-6)
        assert math.log(y[-1] / y[0]) / math.log(x[-1] / x[0]) == pytest.approx(power)
    assert cells(page, "power") == pytest.approx([1, 2, 1, 2], abs=1e-6)
    assert cells(page, "cost") == pytest.approx([3e-4 * 256, 1e-5 * 256**2, 3e-4 * 64, 1e-5 * 64**2], rel=1e-6)
    axes = page.evaluate("['xaxis', 'yaxis'].map((axis) => document.querySelector('.cost-chart').layout[axis].type)")
    assert axes == ["log", "log"]


def test_other_costs_are_chosen_by_keyboard_and_the_address_remembers(open_view, known, two):
    page, _ = open_view(VIEW, two)
    page.locator("#cost input[value=write]").check()
    page.locator("#cost input[value=write]").focus()
    page.keyboard.press("ArrowLeft")
    assert "cost.of=learn" in page.url
    page.locator("#cost input[value=bytes]").check()
    assert cells(page, "cost") == [256_000, 64_000]
    again, _ = open_view(VIEW, two, address="#cost.of=learn&cost.what=bytes")
    assert cells(again, "cost") == [256_000, 64_000]
    assert "256kB for 256" in again.locator("#cost").inner_text()
    odd, _ = open_view(VIEW, two, address="#cost.of=nothing&cost.what=dollars")
    assert len(cells(odd, "cost")) == 2


def test_a_live_page_measures_again_when_asked(open_view, known, two):
    page, _ = open_view(VIEW, two, address="#cost.of=write&cost.what=seconds")
    before = len(known)
    page.expose_function("askPython", lambda options: VIEW.make(two, "", options))
    page.evaluate("""async () => {
        const { render } = await import("chainrule/cost");
        const { remember } = await import("chainrule/state");
        const [{ data }] = JSON.parse(document.getElementById("panels").textContent);
        const place = document.querySelector("#cost .view");
        place.replaceChildren();
        await render(place, data, remember("cost"), { ask: (options) => window.askPython(options) });
    }""")
    LAW["write"] = (7e-4, 1)
    try:
        page.locator("#cost button", has_text="measure again").press("Enter")
        now = "+document.querySelector('#cost [data-cost]').dataset.cost"
        page.wait_for_function(f"Math.abs({now} - 256 * 7e-4) < 1e-9")
    finally:
        LAW["write"] = (3e-4, 1)
    assert len(known) == 2 * before


@pytest.mark.parametrize("width", [360, 1920])
def test_nothing_runs_out_of_a_phone_or_a_projector(open_view, known, two, width):
    page, _ = open_view(VIEW, two, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
