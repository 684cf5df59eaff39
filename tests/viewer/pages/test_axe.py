"""axe-core finds nothing on any page, in either theme: WCAG 2.2, levels A and AA, and best practices."""

import sys
from pathlib import Path

import pytest
from prefer.made import make_session, prefer_page, save_words
from preferences.log.test_diagnosis import CASES, log
from serve.serving import serving
from viewer.live import save_run, saved_runs, served
from viewer.made import ANSWER, POINTS, STRIPS
from viewer.subjects import TEXT, subject
from viewer.tasks import log_linear_subject, task_subject

from chainrule.compare.report import report_page
from chainrule.viewer import notebook
from chainrule.viewer.coverage import tiny_subject
from chainrule.viewer.views import every_view
from chainrule.viewer.views.preferences import training_page

AXE = Path(sys.prefix) / "js" / "node_modules" / "axe-core" / "axe.min.js"    # where `make test` puts it
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()                 # a function
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN = """async ([runOnly, off]) => {
  const rules = Object.fromEntries(off.map((rule) => [rule, { enabled: false }]));
  const { violations } = await axe.run(document, { runOnly, rules, resultTypes: ["violations"] });
  return violations.flatMap(({ id, help, nodes }) =>
    nodes.slice(0, 3).map(({ html }) => `${id}: ${help}: ${html.slice(0, 150)}`));
}"""
PROJECTOR, PHONE = {"width": 1280, "height": 720}, {"width": 390, "height": 844}
# On a phone the list of views scrolls, and its links are to other states of the page (#page.view=die). axe takes every
# link that begins with # and is scrolled away for one that skips to a part of the page, and asks for that part.
ON_A_PHONE = ["skip-link"]
MEASURED = "cost"    # which takes its time with each run

pytestmark = pytest.mark.skipif(not AXE.exists(), reason="there is no axe-core here: make javascript")


def findings(page, where="", off=()):
    """What axe finds, and the contrast of text of which it cannot tell, as lines."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    return [f"{where}: {line}" for line in page.evaluate(RUN, [TAGS, list(off)]) + page.evaluate(CONTRAST)]


def in_both_themes(page, where=""):
    found = []
    for _ in range(2):
        theme = page.evaluate("document.documentElement.dataset.theme")
        found += findings(page, f"{where}, {theme}")
        page.locator("#theme").click()
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    tasks = [task_subject("gpt", "classify"), tiny_subject("encoder", "tag"), tiny_subject("encoder", "mask"),
             log_linear_subject()]
    return saved_runs(folder) | {one.name: save_run(folder / one.name, one) for one in tasks}


def test_every_view_of_the_live_page(open_url, runs):
    with served(runs, TEXT[:120]) as url:
        page, found = open_url(f"{url}#page.runs=lstm", viewport=PROJECTOR), list[str]()
        assert page.locator("#views a.live-unfit").all_inner_texts() == []    # a view that no run fits would be empty
        for name in every_view():
            page.locator(f"#views a[data-view={name}]").click()
            page.wait_for_selector("html[data-drawn]")
            found += in_both_themes(page, name)
            page.set_viewport_size(PHONE)
            found += findings(page, f"{name}, on a phone", off=ON_A_PHONE)
            page.set_viewport_size(PROJECTOR)
        page.keyboard.press("f")
        page.locator("#views").wait_for(state="hidden")
        found += findings(page, "the picture alone")
        page.goto("about:blank")    # or a measurement of the cost that is under way would end in an error
    assert not found, "\n".join(found)


def test_a_text_that_was_written_and_a_chat_on_the_page_of_serve(open_url, runs):
    with serving({"gpt": runs["gpt"]}) as server:
        page = open_url(f"{server.url}#page.view=write")
        page.get_by_role("button", name="write on").click()
        page.locator(".write-text .token").nth(5).wait_for()
        page.wait_for_selector(".write-columns[aria-busy=false]")
        found = in_both_themes(page, "write")
        page.locator("#views a[data-view=chat]").click()
        page.get_by_label("Your message").fill("the cat")
        page.get_by_label("Your message").press("Enter")
        page.wait_for_function("document.querySelector('.chat-log')?.getAttribute('aria-busy') === 'false' "
                               "&& document.querySelector('.chat-assistant .chat-text:not(:empty)')")
        found += in_both_themes(page, "chat")
    assert not found, "\n".join(found)


def test_a_file_with_several_runs_of_a_view(open_file, monkeypatch):
    views = {name: view for name, view in every_view().items() if name != MEASURED}
    monkeypatch.setattr(notebook, "every_view", lambda: views)
    models = [subject("hmm"), subject("hmm", name="other"), subject("rnn"), task_subject("seq2seq", "translate")]
    page = open_file(notebook.make_file(models, "the cat"))
    found = in_both_themes(page)
    assert not found, "\n".join(found)


def test_the_report_of_a_comparison(open_file):
    page = open_file(report_page(ANSWER | {"text_entropy": 1.5, "entropy": 1.5}, POINTS, STRIPS), viewport=PROJECTOR)
    found = in_both_themes(page)
    page.set_viewport_size(PHONE)
    found += findings(page, "on a phone")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("ended", [False, True])
def test_the_curves_of_a_training(open_file, ended):
    page = open_file(training_page("tuned", log(CASES["reward hacking"][0]), ended=ended))
    found = in_both_themes(page)
    assert not found, "\n".join(found)


def test_the_page_of_pairs(open_url, tmp_path):
    with prefer_page(make_session(save_words(tmp_path), tmp_path / "pairs.jsonl", pairs=4)) as served:
        page = open_url(served.url)
        found = in_both_themes(page, "before there is a name")
        page.locator("#rater").fill("ann")
        page.locator("#rater").press("Enter")
        page.wait_for_selector(".prefer-answer")
        page.locator("#typing summary").click()
        page.locator("#figures summary").click()
        found += in_both_themes(page, "rating")
        page.set_viewport_size(PHONE)
        found += findings(page, "on a phone")
    assert not found, "\n".join(found)


PLANTED = {
    "label": "<input>",
    "color-contrast": "<p style='color: #999; background: #fff'>pale words</p>",
    "contrast 2.85": "<svg><rect width=9 height=9 fill=white /><text y=20 fill='#999'>a</text></svg>",
    "heading-order": "<h5>too deep</h5>",
    "target-size": "<p style='display: flex'>" + 2 * "<button style='all: unset; font-size: 9px'>x</button>" + "</p>",
    "nested-interactive": "<div role='button' tabindex=0>one <a href='#'>in another</a></div>",
    "scrollable-region-focusable": "<div style='width: 9px; overflow: auto'>out of sight</div>",
}


def test_what_is_planted_is_found(open_file):
    page = open_file(training_page("tuned", log(CASES["reward hacking"][0]), ended=True), "#page.theme=light")
    for rule, made in PLANTED.items():
        page.evaluate("made => document.querySelector('main').insertAdjacentHTML('beforeend', made)", made)
        found = findings(page)
        assert any(line.startswith(f": {rule}") for line in found), f"{rule}: {found}"
        page.evaluate("document.querySelector('main').lastElementChild.remove()")
    assert findings(page) == []
