"""Panels of a page: style of their own, charts in its colours, and one that fails leaves the others alone."""

import re
import shutil
from pathlib import Path

import pytest
from viewer.subjects import subject

from chainrule.viewer import page as pages
from chainrule.viewer.page import Panel, make_page
from chainrule.viewer.views import find_view

MODULES = {
    "throws.js": 'export function render() { throw new Error("no such part"); }',
    "late.js": 'export async function render() { await null; throw new Error("too late"); }',
    "says.js": 'export function render(element, data, state, live) { element.append(`${data.word} ${live}`); }',
    "says.css": ".says { color: red }",
    "drawing.js": """
        import { makeChart } from "chainrule/chart";
        export function render(element) {
          const chart = makeChart();
          element.append(chart.element);
          const line = { name: "one", color: "rgb(var(--hot) / 0.5)", points: [[1, 1], [2, 3], [3, 2]] };
          const [x, y] = [{ title: "across", low: 1, high: 3 }, { title: "up", low: 1, high: 3, log: true }];
          chart.show({ title: "a chart", x, y, lines: [line], say: (x) => [`at ${x}`] });
        }""",
}


@pytest.fixture
def web(tmp_path, monkeypatch):
    """The modules of the package, and a few more."""
    folder = tmp_path / "web"
    shutil.copytree(Path(str(pages.WEB)), folder)
    for name, code in MODULES.items():
        (folder / name).write_text(code)
    monkeypatch.setattr(pages, "WEB", folder)


def panel(module, data=None, **more):
    return Panel(module, module, module.title(), data, **more)


@pytest.mark.usefixtures("web")
def test_a_view_that_fails_shows_its_error_and_the_others_are_drawn(open_file, complaints):
    panels = [panel("throws"), panel("late"), panel("says", {"word": "here"}), panel("table", error="this one cannot")]
    page = open_file(make_page("t", "", panels))
    assert "no such part" in page.locator("#throws [role=alert]").inner_text()
    assert "too late" in page.locator("#late [role=alert]").inner_text()
    assert page.locator("#says .view").inner_text() == "here null"
    assert page.locator("#table [role=alert]").inner_text() == "this one cannot"
    assert len(complaints) == 2
    complaints.clear()


@pytest.mark.usefixtures("web")
def test_large_data_are_compressed_in_the_page_and_drawn_as_they_are(open_file):
    word = "<b>große Worte</b> " * 10_000
    text = make_page("t", "", [panel("says", {"word": word})])
    assert len(text) < 60_000
    shown = open_file(text, bypass_csp=False).locator("#says .panel").evaluate("one => one.textContent")
    assert shown == f"{word} null"


@pytest.mark.usefixtures("web")
@pytest.mark.parametrize(("left_out", "said"), [(0, 0), (1234, 1)])
def test_what_is_left_out_of_a_text_is_said(open_file, left_out, said):
    page = open_file(make_page("t", "", [panel("says", {"word": "here", "left_out": left_out})]))
    assert page.get_by_text("The first 1,234 tokens of the text are left out.").count() == said


@pytest.mark.usefixtures("web")
def test_a_module_may_have_a_style_of_its_own():
    assert ".says { color: red }" in make_page("t", "", [panel("says", {})])
    assert ".says" not in make_page("t", "", [panel("throws")])


@pytest.mark.usefixtures("web")
def test_a_chart_has_the_colours_of_the_page_in_light_and_in_dark_and_on_paper(open_file):
    page = open_file(make_page("t", "", [panel("drawing")]), color_scheme="light")
    line, ink = page.locator("#drawing path[data-line=one]"), page.locator("#drawing .tick").first
    stroke, fill = "one => getComputedStyle(one).stroke", "one => getComputedStyle(one).fill"
    assert line.evaluate(stroke) == "rgba(213, 94, 0, 0.5)"
    before = ink.evaluate(fill)
    page.locator("#theme").click()
    assert line.evaluate(stroke) == "rgba(240, 128, 64, 0.5)"
    assert ink.evaluate(fill) != before
    page.emulate_media(media="print")
    assert line.is_visible()
    assert not page.locator("#drawing .readout").is_visible()


@pytest.mark.usefixtures("web")
def test_a_chart_has_titles_and_is_read_by_keyboard(open_file):
    page = open_file(make_page("t", "", [panel("drawing")]))
    assert page.locator("#drawing figcaption").inner_text() == "a chart"
    assert page.locator("#drawing .axis-title").all_text_contents() == ["across", "up"]
    drawing = page.locator("#drawing svg[role=img]")
    assert "a chart: up against across" in drawing.get_attribute("aria-label")
    drawing.focus()
    for key, at in (("Home", 1), ("ArrowRight", 2), ("End", 3), ("ArrowRight", 3), ("ArrowLeft", 2)):
        page.keyboard.press(key)
        assert page.locator("#drawing output").inner_text() == f"at {at}"
        assert page.evaluate("document.activeElement.tagName") == "svg"


def test_no_module_can_open_another_address_and_no_page_allows_one():
    """A chart must not be able to leave the page: no window, no message, no request but to its own server."""
    for name in pages.module_names():
        code = pages.read_web_file(f"{name}.js")
        assert not re.search(r"window\.open|postMessage|sendBeacon|Socket|XMLHttp|\beval\(|new Function", code), name
        assert set(re.findall(r"https?://[^\"`]+", code)) <= {"http://www.w3.org/2000/svg"}, name
    page = make_page("t", "", [panel("gradient", {"models": []})])
    assert "default-src 'unsafe-inline' data: blob:" in page
    assert len(page) < 200_000


@pytest.mark.parametrize("view", ["gradient", "vectors", "cost"])
def test_a_chart_has_no_button_but_its_own_and_asks_no_other_machine(open_view, view):
    """`open_view` fails on any request to another machine; here all that can be pressed is pressed."""
    page, _ = open_view(find_view(view), [subject("lstm", layers=1)], "the cat", bypass_csp=False)
    page.evaluate("window.opened = 0; window.open = () => { window.opened += 1; }; 0")
    page.locator(f"#{view} svg.plot-drawing").hover()
    for button in page.locator(f"#{view} figure button, #{view} figure a").all():
        assert button.get_attribute("aria-label") in ("zoom in", "zoom out")
        button.click()
    assert page.evaluate("window.opened") == 0
    assert not page.locator("[class*=modebar], [class*=plotly]").count()
