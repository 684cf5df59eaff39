"""HTML in names of runs, labels, tokens, texts, prompts and names of raters: every page shows it, none executes it."""

import json
from dataclasses import replace
from urllib.parse import quote

import pytest
from prefer.made import make_session, prefer_page
from serve.serving import serving
from viewer.live import save_run, served
from viewer.made import ANSWER, POINTS, STRIPS
from viewer.subjects import subject
from viewer.tasks import task_subject

import chainrule
from chainrule.compare.report import report_page
from chainrule.inference.text_score import ExcerptBits
from chainrule.viewer import notebook
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import every_view
from chainrule.viewer.views.preferences import training_page

NAME = "<img src=x onerror=hacked=1>"                      # which a folder may be called
TOKEN = "<svg/onload=hacked=1>"                            # one word
TEXT = f"the {TOKEN} saw </script><script>hacked=1</script> the cat"
WORDS = f"{TEXT}\na {TOKEN} ran and {TOKEN} saw the cat\n" * 8
MEASURED = "cost"                                          # which takes its time with each run
TOUCHED = """() => [...document.querySelectorAll('main *:not(.js-plotly-plot *)')].slice(0, 1500).forEach(one =>
  ['pointerover', 'pointerenter', 'mouseover', 'mousemove', 'focusin'].forEach(event =>
    one.dispatchEvent(new MouseEvent(event, {bubbles: event !== 'pointerenter'}))))"""
EXECUTED = """() => [window.hacked ?? null, document.querySelectorAll('img[src=x], svg[onload], [onerror]').length,
                    [...document.scripts].filter(one => one.textContent.trim() === 'hacked=1').length]"""


def harmless(page, *shown):
    """Nothing is executed, and what was given is there as it is."""
    page.evaluate(TOUCHED)
    assert page.evaluate(EXECUTED) == [None, 0, 0]
    said = page.evaluate("document.body.innerText + [...document.querySelectorAll('input, textarea, svg text, title, "
                         "[aria-label]')].map(one => `${one.value} ${one.textContent} ${one.ariaLabel}`).join(' ')")
    for text in shown:
        assert text in said, text


def named(one, place):
    name = f"{NAME}{place}"
    return Subject(name, replace(one.run, path=one.run.path.with_name(name)))


@pytest.fixture(scope="module")
def subjects():
    classifier = task_subject("gpt", "classify", "words", WORDS)
    classifier = Subject(classifier.name, replace(classifier.run, labels=(NAME, TOKEN)))
    every = [subject("gpt", WORDS, unit="words"), subject("ngram", WORDS, unit="words"),
             subject("hmm", WORDS, unit="words"), subject("rnn", WORDS, unit="words", hidden=3, embedding=2),
             task_subject("seq2seq", "translate", "words", WORDS), classifier]
    return [named(one, place) for place, one in enumerate(every)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, subjects):
    folder = tmp_path_factory.mktemp("runs")
    return {one.name: save_run(folder / one.name, one) for one in subjects}


def test_every_view_of_the_live_page(open_url, runs):
    with served(runs, TEXT) as url:
        page = open_url(f"{url}#page.runs={quote(','.join(runs))}&page.text={quote(TEXT)}")
        harmless(page, NAME)
        for view in every_view():
            if view == MEASURED or not page.locator(f"#views a[data-view={view}]").count():
                continue
            page.locator(f"#views a[data-view={view}]").click()
            page.wait_for_selector("html[data-drawn]")
            harmless(page)


def test_a_file_of_all_views_and_a_notebook(open_file, subjects, monkeypatch):
    monkeypatch.setattr(notebook, "every_view", lambda: {name: view for name, view in every_view().items()
                                                         if name != MEASURED})
    harmless(open_file(notebook.make_file(subjects, TEXT)), NAME, TOKEN)
    cell = chainrule.look(subjects[1].run, TEXT, "die")._repr_html_()
    page = open_file(f"<!doctype html><html data-drawn><body>{cell}</body></html>")
    page.wait_for_selector("iframe")
    page.frame_locator("iframe").locator("html[data-drawn]").wait_for()
    for frame in page.frames:
        assert frame.evaluate(EXECUTED) == [None, 0, 0]


def test_the_report_of_a_comparison(open_file):
    rows = [{**row, "prompt": TEXT, "sample": f"{TEXT} {NAME}", "settings": [f"text.tokenizer={NAME}"], "idea": NAME,
             "run": f"runs/{NAME}", "why": TEXT} for row in ANSWER["rows"]]
    answer = ANSWER | {"texts": [NAME], "valid": [TOKEN], "notes": [TEXT], "rows": rows, "out": f"runs/{NAME}"}
    strips = {kind: ExcerptBits(strip.begin, [(TOKEN, 2.0), (NAME, 3.0), ("</script><script>hacked=1</script>", 1.0)])
              for kind, strip in STRIPS.items()}
    harmless(open_file(report_page(answer, POINTS, strips)), NAME, TEXT)


def test_the_curves_of_a_training(open_file):
    records = [{"event": "step", "step": step, "kl": 0.1 * step, "reward": 0.5, "note": NAME} for step in range(9)]
    harmless(open_file(training_page(NAME, records, ended=True)), NAME)


def test_the_page_of_pairs(open_url, runs, tmp_path):
    session = make_session(runs[f"{NAME}1"], tmp_path / f"{NAME}.jsonl", prompts=(TEXT, f"{TOKEN} saw"), pairs=4)
    with prefer_page(session) as one:
        for rater in (NAME, f"{TOKEN} the second"):
            page = open_url(one.url)
            page.locator("#rater").fill(rater)
            page.locator("#rater").press("Enter")
            page.wait_for_selector(".prefer-answer")
            harmless(page, rater)
            page.locator("h1").click()
            page.keyboard.press("ArrowLeft")
            page.wait_for_function("document.getElementById('saved').textContent === 'all saved'")
        page.wait_for_function("document.getElementById('figures').textContent.includes(': 1')")
        harmless(page, NAME, TOKEN, f"{NAME}1")
        assert {json.loads(line)["rater"] for line in session.clicks.pairs.read_text().splitlines()} == {
            NAME, f"{TOKEN} the second"}


def test_a_chat_on_the_page_of_a_server(open_url, runs):
    gpt = {f"{NAME}0": runs[f"{NAME}0"]}
    with serving(gpt) as server:
        page = open_url(f"{server.url}#page.view=chat")
        harmless(page, NAME)
        box = page.get_by_label("Your message")
        box.fill(TEXT)
        box.press("Enter")
        page.wait_for_function("document.querySelector('.chat-log')?.getAttribute('aria-busy') === 'false' "
                               "&& document.querySelector('.chat-assistant .chat-text:not(:empty)')")
        harmless(page, TEXT)
