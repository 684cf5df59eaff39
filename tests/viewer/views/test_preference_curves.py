"""The view of preference curves: a chart for each group that the log has, the sentences, and a page while it runs."""

import json
import math
import re
from itertools import pairwise

import pytest
from preferences.log.test_diagnosis import CASES, GOOD_PAIRS, GOOD_REWARDS, log
from viewer.subjects import subject

from chainrule.preferences.curves import GROUPS
from chainrule.run import LOG
from chainrule.viewer.subject import Subject
from chainrule.viewer.views.preferences import AGAIN, POINTS, REFRESH, VIEW, draw_charts, thin_curve, training_page


@pytest.fixture
def tuned(tmp_path):
    """A model whose log has curves."""

    def make(records, name="tuned"):
        made, folder = subject("rnn"), tmp_path / name
        folder.mkdir()
        (folder / LOG).write_text("".join(json.dumps(record) + "\n" for record in records))
        object.__setattr__(made.run, "path", folder)
        return Subject(name, made.run)

    return make


def test_it_fits_runs_with_such_curves_only(tuned):
    plain = [{"event": "step", "step": 1, "nats_per_token": 2.0, "lr": 0.1}]
    assert VIEW.fits(tuned(log(GOOD_PAIRS)))
    assert not VIEW.fits(tuned(plain, "plain"))
    assert not VIEW.fits(subject("rnn"))


def test_each_group_of_the_log_has_a_chart(tuned):
    data = VIEW.make([tuned(log(GOOD_PAIRS)), tuned(log(GOOD_REWARDS), "other")], "", {})
    pairs, rewards = ([chart["title"] for chart in model["charts"]] for model in data["models"])
    assert len(pairs) == 4
    assert len(rewards) == 5
    assert {*pairs, *rewards} == set(GROUPS)


def test_the_curve_in_the_picture_has_the_values_of_the_log():
    records = [{"event": "step", "step": step, "kl": float(step)} for step in range(1, 5)]
    (chart,) = [chart for chart in draw_charts(records) if "KL" in chart["title"]]
    line = re.search(r'<polyline points="([^"]+)"', chart["svg"])[1]
    places = [tuple(map(float, point.split(","))) for point in line.split()]
    steps = [after[0] - before[0] for before, after in pairwise(places)]
    heights = [before[1] - after[1] for before, after in pairwise(places)]
    assert max(steps) - min(steps) <= 0.2      # the same distance between steps, up to rounding, and they rise
    assert max(heights) - min(heights) <= 0.2
    assert min(*steps, *heights) > 0


def test_numbers_below_zero_have_a_minus_and_zero_has_none():
    records = [{"event": "step", "step": step, "kl": 0.1 * step - 0.3} for step in range(1, 6)]
    (chart,) = [chart for chart in draw_charts(records) if "KL" in chart["title"]]
    assert re.findall(r'text-anchor="end">([^<]+)<', chart["svg"]) == ["−0.2", "−0.1", "0.0", "0.1", "0.2"]


def test_held_out_curves_are_beside_those_of_training():
    held_out = [{"event": "evaluation", "step": step, "rewards/accuracies": 0.7} for step in (1, 60)]
    records = [*log(GOOD_PAIRS), *held_out]
    charts = {chart["title"]: chart["svg"] for chart in draw_charts(records)}
    assert ["held out" in svg for title, svg in charts.items()] == ["accuracy" in title for title in charts]


def test_of_many_records_a_point_is_a_mean_between_the_lowest_and_the_highest():
    points = thin_curve([(step, float(step % 2)) for step in range(4 * POINTS)])
    assert len(points) == POINTS
    assert {(score.value, score.low, score.high) for _, score in points} == {(0.5, 0.0, 1.0)}


def test_the_page_shows_charts_and_what_is_wrong(open_file, tuned):
    data = log(CASES["reward hacking"][0])
    page = open_file(training_page("tuned", data, ended=True))
    assert "this is how reward hacking looks" in page.locator(".finding").inner_text()
    assert page.locator("figure svg polyline").count() == 5
    assert all(box["width"] > 300 for box in (one.bounding_box() for one in page.locator("figure svg").all()))
    good = open_file(training_page("tuned", log(GOOD_REWARDS), ended=True))
    assert good.get_by_text("No curve looks wrong.").count() == 1


def test_a_page_reads_itself_again_until_training_has_ended_or_the_reader_stops_it(open_file):
    assert AGAIN not in training_page("tuned", log(GOOD_REWARDS), ended=True)
    text = training_page("tuned", log(GOOD_REWARDS), ended=False)
    timer, interval = "setInterval(", f", {1000 * REFRESH})"
    assert timer in text
    assert interval in text
    page = open_file(text.replace(timer, "window.tick = (").replace(interval, ")"))
    page.locator("#again").uncheck()
    page.evaluate("window.mark = true, tick()")
    page.locator("#again").check()
    assert page.evaluate("window.mark")
    with page.expect_event("load"):
        page.evaluate("tick()")
    assert page.evaluate("window.mark ?? null") is None


def test_numbers_that_are_not_finite_do_not_stop_the_drawing():
    records = log(GOOD_REWARDS, records=9)
    records[2]["kl"] = None
    records[3]["reward"] = math.inf
    assert "nan" not in json.dumps(draw_charts(records)).lower()
