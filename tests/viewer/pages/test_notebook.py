"""chainrule.look from Python: a page that a notebook frames and that can be saved."""

import os
import subprocess
import sys

import pytest
from viewer.live import save_run
from viewer.subjects import subject

import chainrule
from chainrule.errors import UserError
from chainrule.viewer.notebook import Page, find_runs
from chainrule.viewer.page import Panel, make_page


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for kind in ("ngram", "gpt"):
        save_run(folder / kind, subject(kind))
    return folder


def test_look_is_a_function_that_is_imported_when_it_is_first_used():
    code = "import sys, chainrule; assert 'torch' not in sys.modules"
    code += "; from chainrule import look; import types; assert isinstance(look, types.FunctionType)"
    code += "; from chainrule.viewer.notebook import look as same; assert chainrule.look is look is same"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_its_path_and_a_folder_of_runs_can_be_shown(folder):
    run = chainrule.load(folder / "gpt")
    assert "Views of gpt<" in chainrule.look(run, "the", view="die").html
    assert "Views of gpt<" in chainrule.look(folder / "gpt", "the", view="die").html
    assert "Views of gpt, ngram<" in chainrule.look(str(folder), "the", "die").html
    assert "Views of gpt, gpt (2), ngram<" in chainrule.look([run, run, folder / "ngram"], "the", "die").html


def test_a_model_alone_needs_its_tokenizer(folder):
    run = chainrule.load(folder / "gpt")
    assert "Views of gpt<" in chainrule.look(run.model, "the", view="die", tokenizer=run.tokenizer).html
    with pytest.raises(UserError, match="GPT cannot be shown: give a run"):
        chainrule.look(run.model, "the")
    with pytest.raises(UserError, match="Strange is no kind of chainrule"):
        chainrule.look(type("Strange", (chainrule.Model,), {})(), tokenizer=run.tokenizer)
    with pytest.raises(UserError, match="int cannot be shown"):
        chainrule.look([3])


def test_options_are_those_of_a_view(folder):
    with pytest.raises(UserError, match="layer: options belong to one view"):
        chainrule.look(folder, "the", layer=3)
    with pytest.raises(UserError, match=r"there is no view dye\. Did you mean die\?"):
        chainrule.look(folder, "the", view="dye")


def test_a_page_is_saved_whole(folder, tmp_path):
    page = chainrule.look(folder, "the", view="die")
    assert page.save(tmp_path / "new" / "page.html").read_text() == page.html
    assert repr(page).startswith("<a page of 0.")


def test_a_notebook_draws_it_in_a_frame_of_its_own(open_file, folder):
    """And there, where a page has no address, choices are kept all the same."""
    frame = chainrule.look(folder, "the c", view="die")._repr_html_()
    page = open_file(f"<!doctype html><html data-drawn><link rel=icon href=data:,><p>a notebook</p>{frame}</html>")
    inside = page.frame_locator("iframe")
    inside.locator("html[data-drawn]").wait_for(state="attached")
    dial = inside.locator("input[name=temperature]")
    dial.evaluate("one => { one.value = 0; one.dispatchEvent(new Event('input')); }")
    inside.locator("#theme").click()
    assert inside.locator("[data-model=gpt] .die-cut").count() == 19
    inside.locator("[data-model=ngram] .die-face").first.click()
    assert inside.locator(".die-taken").inner_text() == "a"
    assert inside.locator("nav a").count() == 0    # one view needs no list
    assert inside.locator("h1").inner_text() == "Views of gpt, ngram"


def test_in_jupyterlab_a_page_is_as_dark_as_the_notebook_until_the_reader_chooses(open_file):
    frame = Page(make_page("one", "", [Panel("one", "samples", "one", [{"sample": "text"}])]))._repr_html_()
    page = open_file('<!doctype html><html data-drawn><link rel=icon href=data:,>'
                     f'<body data-jp-theme-light="false">{frame}</body></html>')
    inside = page.frame_locator("iframe")
    inside.locator("html[data-drawn][data-theme=dark]").wait_for(state="attached")
    page.evaluate("document.body.dataset.jpThemeLight = 'true'")
    inside.locator("html[data-theme=light]").wait_for(state="attached")
    inside.locator("#theme").click()
    page.evaluate("document.body.dataset.jpThemeLight = 'false'; document.body.dataset.jpThemeLight = 'true'")
    inside.locator("html[data-theme=dark]").wait_for(state="attached")


def test_links_within_a_page_in_a_frame_leave_the_notebook_where_it_is(open_file):
    panels = [Panel(name, "samples", name, [{"sample": "text\n" * 80}], group="predict") for name in ("one", "other")]
    frame = Page(make_page("two", "", panels))._repr_html_()
    page = open_file(f"<!doctype html><html data-drawn><link rel=icon href=data:,><p>a notebook</p>{frame}</html>")
    inside = page.frame_locator("iframe")
    inside.locator("html[data-drawn]").wait_for(state="attached")
    inside.locator("nav a").last.click()
    inside.locator("#other h2").click()    # which must be in sight
    assert page.locator("p").inner_text() == "a notebook"


def test_runs_are_named_by_the_end_of_their_path(tmp_path):
    one = save_run(tmp_path / "a" / "gpt", subject("ngram"))
    other = save_run(tmp_path / "b" / "gpt", subject("ngram"))
    third = save_run(tmp_path / "b" / "lstm", subject("ngram"))
    assert find_runs([one, other, third]) == {"a/gpt": one, "b/gpt": other, "lstm": third}
    assert find_runs([one, one]) == {"gpt": one}
    assert list(find_runs([tmp_path / "b"])) == ["gpt", "lstm"]
    with pytest.raises(UserError, match=r"is not a run: it has no recipe\.json"):
        find_runs([tmp_path])
    assert list(find_runs([one, one.parent / ".." / "a" / "gpt"])) == ["gpt"]


def test_runs_of_a_comparison_come_as_it_lists_them_and_others_by_name_whatever_the_times_of_files(tmp_path):
    """As after `cp -r`, unzip or a git checkout."""
    for age, name in enumerate(("zebra", "gpt", "ngram", "apple")):
        save_run(tmp_path / name, subject("ngram"))
        os.utime(tmp_path / name / "recipe.json", (1e9 - age, 1e9 - age))
    assert list(find_runs([tmp_path])) == ["apple", "gpt", "ngram", "zebra"]
    (tmp_path / "comparison.json").write_text('{"kinds": {"ngram": {}, "hmm": {}, "gpt": {}}}')
    assert list(find_runs([tmp_path])) == ["ngram", "gpt", "apple", "zebra"]
    (tmp_path / "comparison.json").write_text("[")
    assert list(find_runs([tmp_path])) == ["apple", "gpt", "ngram", "zebra"]
