"""Panels of a page: style of their own, charts by Plotly, and one that fails leaves the others alone."""

import shutil
from pathlib import Path

import pytest

from chainrule.errors import UserError
from chainrule.viewer import page as pages
from chainrule.viewer.page import Panel, inline, make_page

MODULES = {
    "throws.js": 'export function render() { throw new Error("no such part"); }',
    "late.js": 'export async function render() { await null; throw new Error("too late"); }',
    "says.js": 'export function render(element, data, state, live) { element.append(`${data.word} ${live}`); }',
    "says.css": ".says { color: red }",
    "charts.js": """
        import { plot } from "chainrule/plot";
        export function render(element, data) {
          const line = { color: "rgb(var(--hot) / 0.5)" };
          return plot(element, [{ y: [1, 3, 2], line }], { yaxis: { type: "log" } });
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
@pytest.mark.parametrize(("left_out", "said"), [(0, 0), (1234, 1)])
def test_what_is_left_out_of_a_text_is_said(open_file, left_out, said):
    page = open_file(make_page("t", "", [panel("says", {"word": "here", "left_out": left_out})]))
    assert page.get_by_text("The first 1,234 tokens of the text are left out.").count() == said


@pytest.mark.usefixtures("web")
def test_a_module_may_have_a_style_of_its_own():
    assert ".says { color: red }" in make_page("t", "", [panel("says", {})])
    assert ".says" not in make_page("t", "", [panel("throws")])


@pytest.mark.usefixtures("web")
def test_a_chart_wears_the_colours_of_the_page_in_light_and_in_dark(open_file):
    page = open_file(make_page("t", "", [panel("charts")]), color_scheme="light")
    line = page.locator("#charts .js-line")
    assert line.evaluate("one => one.style.stroke") == "rgb(213, 94, 0)"
    assert float(line.evaluate("one => one.style.strokeOpacity")) == 0.5
    assert page.locator("#charts .modebar-btn--logo").count() == 0
    ink = page.locator("#charts .xtick text").first
    before = ink.evaluate("one => one.style.fill")
    page.locator("#theme").click()
    page.wait_for_function("document.querySelector('#charts .js-line').style.stroke === 'rgb(240, 128, 64)'")
    assert ink.evaluate("one => one.style.fill") != before


@pytest.mark.usefixtures("web")
def test_plotly_is_in_a_page_only_where_something_is_plotted(monkeypatch):
    assert len(make_page("t", "", [panel("says", {})])) < 100_000
    assert 4_000_000 < len(make_page("t", "", [panel("charts")])) < 6_000_000
    monkeypatch.setattr(pages, "files", lambda package: Path("nowhere"))
    with pytest.raises(UserError, match=r"pip install 'chainrule\[look\]'"):
        make_page("t", "", [panel("charts")])


def test_a_script_cannot_end_its_element():
    assert inline('a = "</script><!--"') == r'a = "<\/script><\!--"'
