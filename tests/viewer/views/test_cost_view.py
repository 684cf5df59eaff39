"""Cost against length on a page: lines are counted, dots are what was measured, at the same lengths for all models."""

import json
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from viewer.address import address
from viewer.charts import dots, drawn_lines, label_boxes, overlaps
from viewer.live import save_run, served
from viewer.subjects import subject

from chainrule.flops import activation_bytes, multiplied_weights
from chainrule.plan import work_of
from chainrule.viewer.cost_counts import training_bytes
from chainrule.viewer.views import LIVE, cost
from chainrule.viewer.views.cost import COUNTED, LENGTHS, VIEW, Cost, count_costs, polynomial

LAW = {"learn": (1e-4, 1), "write": (3e-4, 1), "reread": (1e-5, 2)}


@pytest.fixture
def known(monkeypatch):
    """Costs that follow a law; and what was measured."""
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


def test_all_models_are_measured_at_the_same_lengths_up_to_their_context(known, two):
    rnn, gpt = VIEW.make(two, "", {})["models"]
    for way in LAW:
        assert [cost["tokens"] for cost in rnn["ways"][way]] == [4, 16, 64, 256]
        assert [cost["tokens"] for cost in gpt["ways"][way]] == [4, 16, 64]          # its context
    json.dumps(VIEW.make(two, "", {}), allow_nan=False)


def test_a_model_is_measured_once_unless_it_is_asked_again(known, two):
    first = VIEW.make(two, "", {})
    once = len(known)
    assert once == 3 * 4 + 3 * 3
    assert VIEW.make(two, "", {"what": "bytes"}) == first
    assert len(known) == once
    VIEW.make(two[:1], "", {"again": "yes"})
    assert len(known) == once + 3 * 4


def test_a_live_page_has_what_is_counted_at_once_and_measures_piece_by_piece(known, two, monkeypatch):
    monkeypatch.setattr(cost, "PIECE", 0.0)
    data = VIEW.make(two, "", {LIVE: "true"})
    assert (known, data["waiting"], data["pieces"]) == ([], 21, 21)
    assert data["models"][1]["counted"]["learn"]["flops"]
    left = []
    while data["waiting"]:
        data = VIEW.make(two, "", {LIVE: "true", "measure": "yes"})
        left.append(data["waiting"])
    assert left == list(range(20, -1, -1))
    assert known[:3] == [("learn", 4), ("write", 4), ("reread", 4)]                  # short texts of all models first
    assert known[3:6] == known[:3]


def test_longer_texts_are_left_out_where_time_runs_out(monkeypatch, known, two):
    clock = count(0, 10)
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    ways = VIEW.make(two[:1], "", {"again": "yes"})["models"][0]["ways"]
    assert [len(costs) for costs in ways.values()] == [2, 2, 2]


def test_what_counts_has_nothing_to_go_down(known):
    (model,) = VIEW.make([subject("ngram")], "", {})["models"]
    assert model["ways"].keys() == {"write", "reread"}
    assert model["counted"] == {}


def test_real_models_are_measured(monkeypatch):
    """Memory is exact: what an Elman net carries does not grow, and what it keeps for the way back does."""
    monkeypatch.setattr(cost, "SECONDS", 60)
    monkeypatch.setattr(cost, "LENGTHS", (16, 32, 64, 128))
    data = VIEW.make([subject("rnn"), subject("gpt", context=32)], "", {})
    written, kept = ([cost["bytes"] for cost in data["models"][0]["ways"][way]] for way in ("write", "learn"))
    assert len(set(written)) == 1
    assert np.diff(kept)[1:] / np.diff(kept)[:-1] == pytest.approx(2, abs=0.01)      # lengths double
    for model in data["models"]:
        for costs in model["ways"].values():
            assert len(costs) == (4 if model["name"] == "rnn" else 2)
            assert all(cost["seconds"] > 0 and cost["bytes"] > 0 for cost in costs)
    assert "CPU" in data["device"]


def test_counted_bytes_are_those_of_the_plan():
    for kind in ("rnn", "gpt"):
        one, counted = subject(kind), count_costs(subject(kind).model)
        work = work_of(one.run.recipe, len(one.run.tokenizer), 64)
        at = COUNTED.index(64)
        assert counted["learn"]["bytes"][at] == pytest.approx(64 * (work.activations + work.logits))
        assert counted["write"]["bytes"][at] == (64 * 2 * work.cache if kind == "gpt" else 12 * 4)
        assert counted["reread"]["bytes"] == counted["write"]["bytes"]
    gpt = subject("gpt").model
    assert training_bytes(gpt, 10) == 10 * (activation_bytes(gpt.settings) + 8 * len(gpt.embeddings))


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
    cache = gpt["write"]["bytes"]
    assert cache == [cache[0] * 2**n for n in range(len(COUNTED))]
    assert len(set(rnn["write"]["bytes"])) == 1


def test_what_is_no_polynomial_says_so():
    assert polynomial([1, 2, 4, 8], [5.0, 20.0, 80.0, 320.0], 2) == [0.0, 5.0]
    assert polynomial([1, 2, 4, 8], [1.0, 2.0, 4.0, 7.0], 2) is None


# In a browser

def cells(page, name):
    return page.locator(f"#cost [data-{name}]").evaluate_all(f"all => all.map(one => +one.dataset.{name})")


def lines_of(page):
    return {name: line for name, line in drawn_lines(page, "#cost", x="log").items() if "," in name}    # without T, T²


def test_the_first_chart_shows_what_is_counted(open_view, known, two):
    """A recurrent network is linear and serial, a Transformer quadratic and parallel: the claim of the lectures."""
    page, data = open_view(VIEW, two)
    lines = lines_of(page)
    assert list(lines) == ["rnn, learn", "gpt, learn"]
    for line, model in zip(lines.values(), data["models"]):
        x, y = zip(*line)
        assert x == pytest.approx(COUNTED, rel=1e-3)
        assert y == pytest.approx(model["counted"]["learn"]["flops"], rel=1e-3)
    assert dots(page, "#cost") == {}
    rnn, gpt = cells(page, "power")
    assert rnn == pytest.approx(1)
    assert gpt > 1.8
    serial = page.locator("#cost [data-serial]").evaluate_all("all => all.map((one) => one.dataset.serial)")
    assert serial == ["T", "1"]
    assert "T²" in page.locator("#cost .cost-terms").last.inner_text()


@pytest.mark.parametrize("place", [0, 1])
def test_straight_lines_show_what_linear_and_quadratic_are(open_view, known, two, place):
    page, _ = open_view(VIEW, two[place : place + 1])
    lines = drawn_lines(page, "#cost", x="log")
    for name, power in (("T", 1), ("T²", 2)):
        (first, low), (last, high) = lines[name]
        assert high / low == pytest.approx((last / first) ** power, rel=1e-2)


def test_the_dots_are_what_was_measured_and_the_lines_what_is_counted(open_view, known, two):
    page, data = open_view(VIEW, two, address="#cost.of=write&cost.what=seconds")
    shown, lines = dots(page, "#cost"), lines_of(page)
    assert list(shown) == list(lines) == ["rnn, write", "rnn, reread", "gpt, write", "gpt, reread"]
    for name, measured in shown.items():
        scale, power = LAW[name.partition(", ")[2]]
        assert measured == [(length, scale * length**power) for length in LENGTHS if length <= measured[-1][0]]
        (x, y), last = measured[-1], min(lines[name], key=lambda point: abs(point[0] - measured[-1][0]))
        assert last == (pytest.approx(x, rel=1e-3), pytest.approx(y, rel=1e-3))      # the speed of the longest text
    assert lines["gpt, reread"][0][1] < lines["gpt, write"][0][1] * 2
    power = [model["counted"][way]["power"] for model in data["models"] for way in ("write", "reread")]
    assert cells(page, "power") == pytest.approx(power)                              # counted, not fitted to the dots
    assert cells(page, "measured") == pytest.approx([3e-4 * 64, 1e-5 * 64**2] * 2)   # at the same T, 64
    assert "measured, T = 64" in page.locator("#cost thead").inner_text()
    page.locator("#cost svg.plot-drawing").focus()
    page.keyboard.press("End")
    assert "beyond its context" in page.locator("#cost tbody").inner_text()


def test_the_ticks_can_be_read_however_small_the_range_is(open_view, known, two):
    for what, width in (("seconds", 1280), ("seconds", 360), ("bytes", 1280)):
        page, _ = open_view(VIEW, two, address=f"#cost.what={what}", viewport={"width": width, "height": 800})
        boxes = label_boxes(page, "#cost")
        assert len(boxes) > 8
        assert overlaps(boxes) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_other_costs_are_chosen_by_keyboard_and_the_address_remembers(open_view, known, two):
    page, _ = open_view(VIEW, two)
    page.locator("#cost input[value=write]").check()
    page.locator("#cost input[value=write]").focus()
    page.keyboard.press("ArrowLeft")
    assert "cost.of=learn" in address(page)
    page.locator("#cost input[value=bytes]").check()
    assert cells(page, "measured") == [64_000, 64_000]
    again, _ = open_view(VIEW, two, address="#cost.of=learn&cost.what=bytes&cost.at=16")
    assert cells(again, "measured") == [16_000, 16_000]
    assert "16kB" in again.locator("#cost").inner_text()
    odd, _ = open_view(VIEW, two, address="#cost.of=nothing&cost.what=dollars")
    assert len(cells(odd, "counted")) == 2


def test_the_live_page_says_how_far_measuring_is_in_the_place_of_the_chart(open_url, known, two, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "PIECE", 0.0)
    with served({"rnn": save_run(tmp_path / "rnn", two[0])}) as url:
        page = open_url(f"{url}#page.view=cost&cost.what=seconds")
        page.wait_for_function("document.querySelectorAll('#cost circle[data-dot]').length === 4")
        page.wait_for_function("document.querySelector('.plot-wait').innerText === ''")    # dots come before the end
        page.evaluate("""() => {
            const line = document.querySelector('.plot-wait');
            window.lines = [];
            new MutationObserver(() => window.lines.push(line.innerText)).observe(line, { childList: true });
        }""")
        page.locator("#cost button", has_text="measure again").press("Enter")
        page.wait_for_function("window.lines.length > 0 && window.lines.at(-1) === ''")    # it has begun, and ended
        page.wait_for_function("document.querySelectorAll('#cost circle[data-dot]').length === 4")
        assert "measuring: 1 of 12 done" in page.evaluate("window.lines")
    assert len(known) > 12


def test_a_live_page_draws_its_chart_without_evaluating_strings(open_url, known, two, tmp_path):
    """`open_url` fails on what the page's policy refuses, which the browser logs."""
    with served({"rnn": save_run(tmp_path / "rnn", two[0])}) as url:
        page = open_url(f"{url}#page.view=cost", bypass_csp=False)
        page.wait_for_selector("#cost path[data-line='rnn, learn']", state="attached")
        page.locator("#cost input[value=seconds]").check()
        page.wait_for_selector("#cost circle[data-x='256']", state="attached")
