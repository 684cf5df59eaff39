"""Pages are one file: their data, their style and their modules inside, and nothing to be fetched."""

import base64
import json
import re
from pathlib import Path

import pytest
from viewer.made import ANSWER, POINTS, STRIPS

from chainrule.compare.report import ranking, report_page
from chainrule.viewer.page import Panel, closure, make_page, read_web_file, script_json


def script(page, kind):
    return json.loads(re.search(rf'<script type="{kind}"[^>]*>(.*?)</script>', page, re.DOTALL)[1])


def data_of(page, view):
    return next(one["data"] for one in script(page, "application/json") if one["name"] == view)


def test_a_page_holds_the_modules_of_its_views_and_what_they_import_and_no_others():
    page = make_page("t", "l", [Panel("costs", "table", "Costs", {"columns": [], "rows": []})])
    imports = script(page, "importmap")["imports"]
    names = {"page", "panel", "input", "state", "theme", "table", "draw"}
    assert {name.removeprefix("chainrule/") for name in imports} == names
    for name, url in imports.items():
        kind, _, code = url.partition(";base64,")
        assert kind == "data:text/javascript;charset=utf-8"
        assert base64.b64decode(code).decode() == read_web_file(f"{name.removeprefix('chainrule/')}.js")


def test_every_module_that_is_imported_exists():
    every = closure(["page", "ladder", "differences", "curves", "surprise", "samples", "table"])
    assert {"draw", "state"} < set(every)


def test_nothing_on_a_page_is_fetched():
    page = report_page(ANSWER, POINTS, STRIPS)
    assert re.findall(r'(?:src|href)="(?!#|data:)', page) == []
    assert "@import" not in page
    views = [one["module"] for one in script(page, "application/json")]
    code = "".join(read_web_file(f"{name}.js") for name in closure(["page", *views]))
    assert not re.search(r"fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org/2000/svg)", page.split("<script")[0] + code)


def test_text_cannot_break_out_of_a_page():
    nasty = "</script><script>alert(1)</script><!--"
    page = make_page(nasty, nasty, [Panel("v", "samples", nasty, [{"sample": nasty}], nasty)])
    assert page.count("<script") == 3
    assert "<script>alert" not in page
    assert data_of(page, "v") == [{"sample": nasty}]
    assert "<" not in script_json(nasty)


def test_the_page_says_what_the_answer_says():
    page = report_page(ANSWER, POINTS, STRIPS)
    ladder = data_of(page, "ladder")
    assert [(row["kind"], row["bits_per_byte"]) for row in ladder["rows"]] == [
        (row["kind"], row["bits_per_byte"]) for row in ANSWER["rows"]
    ]
    differences = data_of(page, "differences")
    assert differences == {"kinds": ["gpt", "ngram", "lstm", "unigram"], "pairs": ANSWER["differences"]}
    costs = data_of(page, "costs")
    assert costs["rows"][3] == ["gpt", 12345, 5000, 2.5, 2000, 90000, 2e9, 4096, 512.0]
    assert "The best: gpt." in page
    assert [row[2] for row in data_of(page, "method")["rows"]] == [row["signature"] for row in ANSWER["rows"]]


def test_what_learns_bit_by_bit_is_a_curve_and_what_only_counts_a_level():
    curves = data_of(report_page(ANSWER, POINTS, STRIPS), "curves")
    assert [curve["kind"] for curve in curves["curves"]] == ["lstm", "gpt"]
    assert curves["curves"][1]["points"] == POINTS["gpt"]
    assert curves["curves"][1]["end"] == {"tokens": 5000, "seconds": 2.5, "bits_per_byte": 2.0625, "held_out": True}
    assert [level["name"] for level in curves["levels"]] == ["unigram", "ngram"]
    assert len({curve["color"] for curve in curves["curves"]}) == 2


def test_a_language_of_known_entropy_is_a_level_too():
    page = report_page({**ANSWER, "entropy": 1.5, "text_entropy": 1.4}, POINTS, STRIPS)
    assert data_of(page, "curves")["levels"][-1] == {"name": "the language itself", "bits_per_byte": 1.4}
    assert data_of(page, "ladder")["truth"] == 1.4
    assert "1.5000 bits per byte" in page


def test_the_best_two_are_shown_at_first_and_the_impossible_is_null():
    surprise = data_of(report_page(ANSWER, POINTS, STRIPS), "surprise")
    assert surprise["first"] == ["gpt", "ngram"]
    assert surprise["strips"][1]["pieces"][2] == ["é", None]


@pytest.mark.parametrize("kinds", [["ngram"], ["unigram", "ngram"]])
def test_few_kinds_make_a_page_too(kinds):
    few = {**ANSWER, "rows": [row for row in ANSWER["rows"] if row["kind"] in kinds], "differences": [], "by": "flops"}
    page = report_page(few, {kind: [] for kind in kinds}, {kind: STRIPS[kind] for kind in kinds})
    assert len(data_of(page, "surprise")["first"]) == 2
    assert data_of(page, "curves")["curves"] == []
    assert "4.8e+11 FLOPs" in page


def test_a_kind_without_a_number_has_no_rank():
    rows = [*ANSWER["rows"][:1], {**ANSWER["rows"][1], "bits_per_byte": None, "why": "infinite"}]
    assert ranking({"rows": rows}) == ["unigram"]


def test_no_test_reads_an_address_that_may_be_old():
    """The address that playwright keeps of a page is sometimes that from before the last click."""
    old = re.compile(r"\bpage\.url\b(?!\\)")
    assert [path.name for path in Path(__file__).parents[1].rglob("test_*.py") if old.search(path.read_text())] == []
