"""The file of views: which panels it has, and how large it may be."""

import pytest
from viewer.subjects import subject

from chainrule.errors import UserError
from chainrule.viewer import notebook as files
from chainrule.viewer.notebook import MAX_BYTES, make_file, panels_of, within_limit
from chainrule.viewer.page import Panel
from chainrule.viewer.views import View, every_view


def view(several=False, make=None, fits=lambda subject: subject.name != "hmm"):
    make = make or (lambda subjects, text, options: {"columns": [one.name for one in subjects], "rows": [], **options})
    return View("table", "A table", "a note", fits, make, several)


@pytest.fixture(scope="module")
def three():
    return [subject("ngram"), subject("hmm"), subject("rnn")]


def test_a_view_of_several_is_one_panel_and_any_other_is_one_for_each_that_fits(three):
    (panel,) = panels_of(view(several=True), three, "", {})
    assert (panel.name, panel.title, panel.data["columns"]) == ("table", "A table", ["ngram", "rnn"])
    panels = panels_of(view(), three, "", {"option": "chosen"})
    assert [panel.name for panel in panels] == ["table", "table-2"]
    assert [panel.title for panel in panels] == ["A table: ngram", "A table: rnn"]
    assert [panel.data["columns"] for panel in panels] == [["ngram"], ["rnn"]]
    assert panels[0].data["option"] == "chosen"
    assert panels_of(view(), three[1:2], "", {}) == []


def test_a_view_that_does_not_fit_is_said_so(three):
    with pytest.raises(UserError, match="hmm: the view table does not fit"):
        make_file(three[1:2], "", view())


def test_a_view_asked_for_by_name_fails_and_one_among_all_says_why_in_its_place(three, monkeypatch):
    def make(subjects, text, options):
        raise UserError("not with this text")

    with pytest.raises(UserError, match="not with this text"):
        make_file(three, "", view(make=make))
    monkeypatch.setattr(files, "every_view", lambda: {"table": view(make=make)})
    assert make_file(three, "").count("not with this text") == 2
    monkeypatch.setattr(files, "every_view", dict)
    with pytest.raises(UserError, match="no view fits"):
        make_file(three, "")


def test_a_panel_too_large_for_the_file_is_named_and_left_out():
    large, small = "x" * 4_000_000, "x" * 1_000
    kept = within_limit([Panel("a", "a", "A", large), Panel("b", "b", "B", large), Panel("c", "c", "C", small)])
    assert [panel.data is None for panel in kept] == [False, True, False]
    assert "below 8 MB: ask for the view b alone" in kept[1].error


@pytest.fixture
def fast_views(monkeypatch):
    """All but the one that takes its time, which shows few numbers."""
    fast = {name: one for name, one in every_view().items() if name != "cost"}
    monkeypatch.setattr(files, "every_view", lambda: fast)


@pytest.mark.usefixtures("fast_views")
def test_a_file_of_all_views_is_under_8_megabytes(three):
    page = make_file([*three, subject("gpt"), subject("lstm")], "the cat said " * 500)
    assert len(page.encode()) < MAX_BYTES


@pytest.mark.usefixtures("fast_views")
def test_all_views_of_a_file_are_drawn(open_file, three):
    page = open_file(make_file([*three, subject("gpt")], 'the cat said "who?'))
    assert page.locator("section .view > div").count() >= 1
    assert page.locator("[role=alert]").count() == 0


def test_sections_of_a_view_for_several_runs_share_no_id(open_file):
    page = open_file(make_file([subject("rnn"), subject("gpt")], "the cat", every_view()["vectors"]))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    offered = page.locator("section input[list]").evaluate_all(
        "all => all.map((one) => one.list.closest('section') === one.closest('section'))")
    assert len(offered) >= 2
    assert all(offered)


def test_radio_buttons_of_different_sections_are_groups_of_their_own(open_file):
    hmms = [subject("hmm"), subject("hmm", name="other")]
    page = open_file(make_file(hmms, "the cat", every_view()["trellis"]))
    checked = "all => all.map(one => [...one.querySelectorAll('input:checked')].map(input => input.value))"
    groups = page.locator("section fieldset")
    assert groups.evaluate_all(checked) == [["gamma"], ["gamma"]]
    groups.nth(1).locator("input[value=alpha]").check()
    assert groups.evaluate_all(checked) == [["gamma"], ["alpha"]]
