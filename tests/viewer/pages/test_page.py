"""Pages are one file: their data, their style and their modules inside, and nothing to be fetched."""

import base64
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from viewer.made import ANSWER, POINTS, STRIPS

from chainrule.compare.report import ranking, report_page
from chainrule.viewer.compression import LARGE, round_mantissas
from chainrule.viewer.page import WEB, Panel, closure, make_page, pack_array, read_web_file, script_json


def script(page, kind):
    return json.loads(re.search(rf'<script type="{kind}"[^>]*>(.*?)</script>', page, re.DOTALL)[1])


def data_of(page, view):
    panel = next(one for one in script(page, "application/json") if one["name"] == view)
    if "data" in panel:
        return panel["data"]
    text, _, arrays = zlib.decompress(base64.b64decode(panel["deflated"])).partition(b"\0")
    assert not arrays
    return json.loads(text)


def test_a_page_holds_the_modules_of_its_views_and_what_they_import_and_no_others():
    page = make_page("t", "l", [Panel("costs", "table", "Costs", {"columns": [], "rows": []})])
    modules = json.loads(zlib.decompress(base64.b64decode(re.search(r'id="modules">(.*?)<', page)[1])))
    names = {"page", "panel", "input", "state", "theme", "table", "draw", "arrays"}
    assert modules.keys() == {f"chainrule/{name}" for name in names}
    for name, code in modules.items():
        lines = read_web_file(f"{name.removeprefix('chainrule/')}.js").splitlines()
        assert set(code.splitlines()) >= {line for line in lines if not re.search(r"/\*\*|^ *\*", line)}
        assert "/**" not in code


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
    assert [path.name for path in Path(__file__).parents[2].rglob("test_*.py") if old.search(path.read_text())] == []


def test_rounded_numbers_keep_their_first_digits_and_those_that_stand_out_are_exact():
    values = np.random.default_rng(1).standard_cauchy(20_000).astype(np.float32)
    rounded = round_mantissas(values, 14)
    assert np.abs(rounded / values - 1).max() <= 2.0**-14
    assert (rounded.view(np.uint32) & 0x3FF).max() == 0
    exact = np.array([0, 1, -1, 0.5, np.inf, -np.inf, 1023], np.float32)
    assert round_mantissas(exact, 14).tolist() == exact.tolist()
    assert np.isnan(round_mantissas(np.array([np.nan], np.float32), 14))


@pytest.mark.parametrize("count", [2_000, 40_000])
def test_numbers_of_every_type_come_out_of_a_file_as_they_went_in(open_file, count):
    """Those of a large panel are rounded."""
    random = np.random.default_rng(2)
    arrays = {"float32": random.standard_normal((count // 4, 4)), "int32": random.integers(-9, 10**6, 50),
              "uint8": random.integers(0, 256, 51), "uint16": random.integers(0, 60_000, 52)}
    data = {"sample": "a text", "arrays": [
        pack_array(values, name, digits=14 if name == "float32" else None) for name, values in arrays.items()]}
    page = open_file(make_page("t", "", [Panel("v", "samples", "V", [data])]))
    found = page.evaluate("""async () => {
        const { byNumber, unpack } = await import("chainrule/arrays");
        const [{ deflated }] = JSON.parse(document.getElementById("panels").textContent);
        const bytes = new Uint8Array(await inflate(deflated).arrayBuffer()), end = bytes.indexOf(0);
        const [{ arrays }] = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
        return arrays.map((one) => unpack(byNumber(one, bytes.subarray(end + 1))))
            .map(({ shape, values }) => [shape, [...values]]);
    }""")
    assert page.locator("#v .text").text_content() == "a text"
    large = len(script_json(data)) >= LARGE
    assert large == (count == 40_000)
    for (shape, values), (name, wanted) in zip(found, arrays.items(), strict=True):
        assert tuple(shape) == wanted.shape
        exact = np.asarray(wanted, name).ravel()
        assert values == (round_mantissas(exact, 14) if large and name == "float32" else exact).tolist()


def test_a_large_panel_takes_half_of_the_characters_of_its_json():
    """Activations, as the neurons view has them, and decimal numbers."""
    random = np.random.default_rng(3)
    data = {"sample": "", "values": pack_array(np.tanh(random.standard_normal(30_000)), digits=14),
            "decimals": random.random(2_000).tolist()}
    page, empty = (make_page("t", "", [Panel("v", "samples", "V", one)]) for one in ([data], []))
    assert len(page) - len(empty) < 0.52 * len(script_json(data))


def test_heat_has_one_cap():
    """--warmth of page.css, which is chosen for the contrast of the text on it: what modules give is a share of it."""
    files = [path for path in Path(str(WEB)).rglob("*") if path.suffix in (".js", ".css")]
    lines = [line for path in files for line in path.read_text().splitlines()]
    shares = [line for line in lines if re.search(r"rgb\(var\(--(hot|tint)", line) and re.search(r"--heat|\$\{", line)]
    assert len(shares) >= 6
    assert [line for line in shares if "var(--warmth)" not in line] == []
    given = [line for line in lines if re.search(r"--heat(:|\", )", line)]
    assert len(given) >= 6
    assert [line for line in given if re.search(r"0\.\d+ \*|\* 0\.\d", line)] == []


def test_what_is_most_surprising_has_the_full_heat(open_file):
    page = open_file(report_page(ANSWER, POINTS, STRIPS))
    found = page.locator("#surprise .token").evaluate_all(
        "all => all.map((one) => [+one.style.getPropertyValue('--heat'), getComputedStyle(one).backgroundColor])")
    heat, colour = max(found)
    assert heat == 1
    assert colour.endswith("0.85)")
