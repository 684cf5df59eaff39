"""The report as a person sees it: opened from disk in a real browser, by pointer and by keyboard."""

import pytest
from viewer.address import address
from viewer.made import ANSWER, POINTS, STRIPS

from chainrule.compare.report import report_page


@pytest.fixture
def open_report(open_file):
    def open_it(answer=ANSWER, points=POINTS, strips=STRIPS, address="", **context):
        return open_file(report_page(answer, points, strips), address, **context)

    return open_it


def texts(page, selector):
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


def test_the_numbers_on_the_page_are_those_of_the_answer(open_report):
    page, rows = open_report(), ANSWER["rows"]
    assert texts(page, "#ladder tbody th") == [row["kind"] for row in rows]
    assert [float(text) for text in texts(page, "#ladder td.bits")] == pytest.approx(
        [row["bits_per_byte"] for row in rows], abs=6e-4
    )
    exact = page.locator("#ladder td.bits").evaluate_all("cells => cells.map(cell => Number(cell.title))")
    assert exact == [row["bits_per_byte"] for row in rows]
    low, _, high = texts(page, "#ladder td.interval")[3].partition(" to ")
    assert [float(low), float(high)] == pytest.approx(rows[3]["bits_per_byte_interval"], abs=6e-4)
    assert texts(page, "#costs tbody tr:nth-child(4) td")[:3] == ["12.3k", "5k", "2.5"]
    assert texts(page, "#samples .text")[3] == "to be or not, says gpt <b>&amp;"


def test_gaps_that_are_not_real_look_otherwise(open_report):
    page = open_report()
    assert texts(page, "#differences td.real")[0] == "0.188"
    assert texts(page, "#differences tbody td:not(.real):not(:empty)") == ["≈ 0.063"]
    page.locator("#differences td.real").first.focus()
    assert "gpt is better than lstm by 0.1875" in page.locator("#differences output").inner_text()


def test_curves_can_be_drawn_against_all_three_and_the_address_remembers(open_report):
    page = open_report()
    for axis, label in [("tokens", "tokens of training"), ("flops", "FLOPs of training"), ("seconds", "seconds of")]:
        page.locator(f"#curves input[value={axis}]").check()
        assert any(label in text for text in page.locator("#curves svg text").all_text_contents())
        assert f"curves.x={axis}" in address(page)
    again = open_report(address="#curves.x=flops")
    assert again.locator("#curves input[value=flops]").is_checked()
    assert again.locator("#curves path.curve").count() == 2
    assert again.locator("#curves path.level.ngram").count() == 1
    ends = [text for text in again.locator("#curves svg text").all_text_contents() if text.startswith("gpt ")]
    assert ends == ["gpt 2.063"]


def test_a_token_of_one_model_may_cost_more_flops_than_of_another(open_report):
    ends = {}
    for axis in ("tokens", "flops"):
        circles = open_report(address=f"#curves.x={axis}").locator("#curves circle")
        places = circles.evaluate_all("all => all.map(one => +one.getAttribute('cx'))")
        ends[axis] = places[1::2]    # each after an evaluation
    assert ends["tokens"][0] == ends["tokens"][1]
    assert ends["flops"][0] < ends["flops"][1]


def test_the_arrow_keys_move_along_the_curves(open_report):
    page = open_report()
    page.locator("#curves svg").focus()
    page.keyboard.press("End")
    last = page.locator("#curves output").inner_text()
    assert last.startswith("2.5 seconds")
    assert f"gpt {POINTS['gpt'][-1]['bits_per_byte']:.3f}" in last
    page.keyboard.press("ArrowLeft")
    assert page.locator("#curves output").inner_text() != last


def test_two_models_side_by_side_show_the_bits_of_every_token(open_report):
    page = open_report()
    assert texts(page, "#surprise h3") == ["gpt", "ngram"]
    page.locator("#surprise select[data-which=other]").select_option("lstm")
    assert texts(page, "#surprise h3") == ["gpt", "lstm"]
    bits = page.locator("#surprise .strip:nth-child(2) .token").evaluate_all("all => all.map(one => +one.dataset.bits)")
    assert bits == [bits for _, bits in STRIPS["lstm"].pieces]
    page.locator("#surprise .strip:nth-child(1) .text").focus()
    page.keyboard.press("ArrowRight")
    assert "“th” gpt 2.250 bits" in page.locator("#surprise output").inner_text()


def test_the_difference_of_unlike_units_is_taken_where_both_end(open_report):
    page = open_report(address="#surprise.one=lstm&surprise.other=gpt&surprise.mode=difference")
    tokens = page.locator("#surprise .token")
    assert tokens.evaluate_all("all => all.map(one => +one.dataset.bits)") == pytest.approx([3.0 - 2.25, 7.0 - 9.5])
    assert [text.replace("↵", "") for text in tokens.all_text_contents()] == ["th", "é\n"]
    colours = tokens.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    for colour, name in zip(colours, ("hot", "cold")):
        tint = page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')")
        assert colour.startswith(f"rgba({', '.join(tint.split())}")
    tokens.nth(1).hover()
    assert "lstm 7.000 bits, gpt 9.500 bits" in page.locator("#surprise output").inner_text()


def test_light_and_dark_follow_the_system_and_the_button(open_report):
    page = open_report(color_scheme="dark")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.locator("#theme").press("Enter")
    assert page.locator("html").get_attribute("data-theme") == "light"
    again = open_report(color_scheme="dark", address="#page.theme=light")
    assert again.locator("html").get_attribute("data-theme") == "light"


@pytest.mark.parametrize("width", [360, 1920])
def test_nothing_runs_out_of_a_phone_or_a_projector(open_report, width):
    page = open_report(viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_kinds_without_curves_or_numbers_are_said_so(open_report):
    none = {"bits_per_byte": None, "bits_per_byte_interval": None, "why": "probability 0"}
    rows = [ANSWER["rows"][0], ANSWER["rows"][1] | none]
    page = open_report({**ANSWER, "rows": rows, "differences": []}, {"unigram": [], "ngram": []})
    assert texts(page, "#ladder td.bits") == ["4.500", "infinite"]
    assert "None of these kinds" in page.locator("#curves").inner_text()
    assert "no differences" in page.locator("#differences").inner_text()
