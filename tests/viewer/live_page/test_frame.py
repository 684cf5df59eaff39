"""The frame of the live page: the picture first, one colour for a model, and nothing cut on a projector or a phone."""

import pytest
from viewer.address import address
from viewer.live import save_run, saved_runs, served
from viewer.subjects import TEXT
from viewer.tasks import log_linear_subject, task_subject

from chainrule.viewer.hues import HUES, OF_KIND, css_string, hues_of
from chainrule.viewer.views import GROUPS, NAMES, every_view

PROJECTOR, PHONE = {"width": 1280, "height": 720}, {"width": 390, "height": 844}
HIGHEST = 130    # pixels above a picture, at most
MEASURED = "cost"    # which takes its time with each run


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    tasks = [task_subject("gpt", "classify"), task_subject("encoder", "tag"), log_linear_subject()]
    runs = saved_runs(folder) | {one.name: save_run(folder / one.name, one) for one in tasks}
    with served(runs, text=TEXT[:300]) as address:
        yield address


def opened(page, view):
    page.locator(f"#views a[data-view={view}]").click()
    page.wait_for_selector("html[data-drawn]")
    return page


CUT = """() => [document.documentElement, ...document.querySelectorAll('.top, .dials')]
  .filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => `${one.className || 'the page'} is ${one.scrollWidth} wide`)"""


def test_the_picture_of_every_view_begins_at_the_top_of_a_projector_and_nothing_is_cut(open_url, url):
    page = open_url(f"{url}#page.runs=lstm", viewport=PROJECTOR)
    found = list[str]()
    unfit = page.locator("#views a.live-unfit").evaluate_all("all => all.map(one => one.dataset.view)")
    assert set(unfit) <= {"hidden_word", "word_features"}
    for name, view in every_view().items():
        if name in unfit:
            continue
        if name == MEASURED:
            page.goto(f"{url}#page.runs=ngram")
            page.reload()
            page.wait_for_selector("html[data-drawn]")
        opened(page, name)
        top = page.locator(".picture").first.evaluate("one => one.getBoundingClientRect().top + scrollY")
        found += [f"{name}: the picture begins at {top:.0f}"] if top > HIGHEST else []
        for size in (PHONE, PROJECTOR):
            page.set_viewport_size(size)
            found += [f"{name}, at {size['width']}: {line}" for line in page.evaluate(CUT)]
        found += [f"{name}: the text box"] if page.locator("#written").is_visible() != view.reads else []
    assert not found, "\n".join(found)


def test_views_stand_in_the_rail_in_groups_as_the_lectures_come(open_url, url):
    page = open_url(url, viewport=PROJECTOR)
    lines = page.locator("#views > *").all_inner_texts()
    titles = {group: [every_view()[name].title for name in names] for group, names in GROUPS.items()}
    assert lines == [line for group, own in titles.items() for line in (group, *own)]
    assert set(NAMES) == set(every_view())
    assert all(view.group for view in every_view().values())


def test_on_a_phone_the_list_of_views_shows_the_one_that_is_open(open_url, url):
    page = open_url(f"{url}#page.runs=lstm&page.view=gradient", viewport=PHONE)
    box = page.locator("#views a[aria-current]").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]


def test_a_model_has_one_colour_in_its_chip_and_in_every_view(open_url, url):
    page = open_url(f"{url}#page.runs=lstm,gpt&page.view=die", viewport=PROJECTOR)
    colour = "one => getComputedStyle(one).getPropertyValue('--model')"
    bar = "one => getComputedStyle(one, '::after').backgroundColor"
    chips = [page.locator(f".chip[data-model={name}]").evaluate(colour) for name in ("lstm", "gpt")]
    assert chips == ["#b34e00", "#0069a6"]
    assert page.locator("section[data-model=lstm] .die-bar").first.evaluate(bar) == "rgb(179, 78, 0)"
    opened(page, "in_context")
    curve = page.locator("path[data-model=lstm]").first
    assert curve.evaluate("one => getComputedStyle(one).stroke") == "rgb(179, 78, 0)"


def test_kinds_keep_their_colours_and_two_of_a_kind_differ():
    assert hues_of({"b": "gpt", "a": "lstm"}) == {"b": OF_KIND["gpt"], "a": OF_KIND["lstm"]}
    some = hues_of({str(number): "gpt" for number in range(HUES)})
    assert sorted(some.values()) == list(range(HUES))
    assert hues_of({"new": "unheard-of", "gpt": "gpt"})["gpt"] == OF_KIND["gpt"]
    assert css_string('a"]{}</style>') == r"a\22 \5d \7b \7d \3c \2f style\3e "


def test_the_text_is_one_line_that_shows_its_end_and_grows_over_the_page_while_it_is_edited(open_url, url):
    page = open_url(f"{url}#page.runs=ngram&page.view=die", viewport=PROJECTOR)
    area, height = page.locator("#text"), "one => one.offsetHeight"
    low, top = area.evaluate(height), page.locator(".picture").bounding_box()["y"]
    assert low < 45
    assert area.evaluate("one => one.scrollTop + one.clientHeight >= one.scrollHeight - 2")
    area.focus()
    assert area.evaluate(height) > 2 * low
    assert page.locator(".picture").bounding_box()["y"] == top
    page.keyboard.press("Escape")
    assert area.evaluate(height) == low


def test_f_shows_the_picture_alone_and_skipping_leads_to_it(open_url, url):
    page = open_url(f"{url}#page.runs=ngram&page.view=die", viewport=PROJECTOR)
    page.locator("#text").press("f")    # which is a letter there
    assert page.locator("#views").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("f")
    page.locator("#views").wait_for(state="hidden")
    assert page.locator(".picture").bounding_box()["y"] < 60
    page.keyboard.press("f")
    page.locator("#views").wait_for(state="visible")
    page.evaluate("document.activeElement.blur()")
    page.locator("#skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert "page.view=die" in address(page)


def test_bars_of_dice_side_by_side_line_up_and_four_stand_in_a_row(open_url, url):
    """The facts above the bars wrap in one column: the text is too long for the context of the GPT alone."""
    page = open_url(f"{url}#page.runs=ngram,rnn,lstm,gpt&page.view=die", viewport=PROJECTOR)
    facts = page.locator(".die-facts").evaluate_all("all => all.map(one => one.offsetHeight)")
    assert len(set(facts)) > 1
    first = page.locator(".die-models > .strip").evaluate_all(
        "all => all.map(one => one.querySelector('.die-face').getBoundingClientRect().top)")
    assert len(first) == 4
    assert len(set(first)) == 1


def test_paper_is_light_keeps_its_colours_and_has_no_controls(open_url, url):
    page = open_url(f"{url}#page.runs=ngram,lstm&page.view=surprise&page.theme=dark", viewport=PROJECTOR)
    style = "one => getComputedStyle(one)"
    page.emulate_media(media="print")
    page.wait_for_selector("html[data-theme=light]")
    assert page.locator("body").evaluate(f"{style}.color") == "rgb(27, 27, 31)"
    assert page.locator(".token").first.evaluate(f"{style}.printColorAdjust") == "exact"
    assert page.locator("tr, .readout").first.evaluate(f"{style}.breakInside") == "avoid"
    controls = page.locator("#views, #theme, #full, #runs, #written, main input, main select").evaluate_all(
        "all => all.filter((one) => one.offsetWidth).map((one) => one.outerHTML.slice(0, 80))")
    assert controls == []
    assert page.locator(".token").first.is_visible()
    page.emulate_media(media="screen")
    page.wait_for_selector("html[data-theme=dark]")
    opened(page, "die")
    page.emulate_media(media="print")
    assert page.locator(".die-face").first.is_visible()    # a button, and the picture itself
    assert not page.locator(".die-roll").first.is_visible()
