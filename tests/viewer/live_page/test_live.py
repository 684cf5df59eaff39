"""The live page in a real browser: runs, a text and a view are chosen, and all of it is in the address."""

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from serve.serving import serving
from viewer.address import address
from viewer.live import saved_runs, served

from chainrule.inference.score import token_bits
from chainrule.run import load
from chainrule.viewer.views import every_view

MEASURED = "cost"    # which takes its time with each run
HOLD_FRAMES = "() => { window.held = []; window.requestAnimationFrame = (paint) => window.held.push(paint); }"
HELD = "window.held.length || document.documentElement.dataset.drawn"    # a frame, or that none is waited for
PAINT = """() => { window.held.splice(0).forEach((paint) => paint());
                  return new Promise((done) => setTimeout(done)); }"""    # and lets run what was put off before


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return saved_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def url(runs):
    with served(runs) as address:
        yield address


def chosen(page):
    """What the address says."""
    choices = parse_qs(urlsplit(address(page)).fragment, keep_blank_values=True)
    return {name: value[0] for name, value in choices.items()}


def drawn(page):
    page.wait_for_selector("html[data-drawn]")
    return page


def tab(page, view):
    page.locator(f"#views a[data-view={view}]").click()
    return drawn(page)


def test_every_view_is_drawn_for_a_run_that_it_fits_and_none_complains(open_url, url):
    page = open_url(f"{url}#page.runs=ngram,hmm,lstm,gpt,tiny,seq2seq-translate,word2vec")
    for name, view in every_view().items():
        if name == MEASURED:
            for other in ("hmm", "lstm", "gpt", "tiny", "seq2seq-translate", "word2vec"):
                page.locator(f"#runs input[value={other}]").uncheck()
        tab(page, name)
        assert page.locator("#title").inner_text() == view.title
        assert page.locator("#views a[aria-current]").inner_text() == view.title
        assert page.locator("[role=alert]").all_inner_texts() == []
        assert page.locator(f"#{name} .view").inner_text() != ""


def test_only_what_was_asked_for_last_is_said_to_be_drawn_and_only_once_it_is_painted(open_url, url):
    page, questions = open_url(f"{url}#page.runs=lstm&page.view=surprise"), []
    says_drawn = page.locator("html[data-drawn]")
    page.evaluate(HOLD_FRAMES)
    page.locator("#views a[data-view=die]").click()
    page.wait_for_function(HELD)
    assert says_drawn.count() == 0                  # of the die, which is not painted
    page.route("**/api/views/surprise", lambda question: questions.append(question))
    page.locator("#views a[data-view=surprise]").click()
    page.wait_for_selector("#surprise")
    page.evaluate(PAINT)
    assert says_drawn.count() == 0                  # the die is painted, but it is not what was asked for last
    while not questions:
        page.wait_for_timeout(10)
    questions[0].continue_()
    page.wait_for_function(HELD)
    page.evaluate(PAINT)
    page.wait_for_selector("html[data-drawn]")


def test_what_is_typed_is_shown_and_late_answers_are_dropped(open_url, url, runs):
    page = open_url(f"{url}#page.runs=lstm&page.view=surprise")
    page.locator("#text").fill("")
    page.locator("#text").press_sequentially('the dog said "you')
    page.wait_for_function("document.querySelector('.strip .text')?.textContent === 'the dog said \"you'")
    run = load(runs["lstm"])
    bits = page.locator(".token").evaluate_all("all => all.map(one => +one.dataset.bits)")
    assert bits == pytest.approx([cost for _, cost in token_bits(run.model, run.tokenizer, 'the dog said "you')][:-1])
    assert chosen(page)["page.text"] == 'the dog said "you'


def test_an_answer_that_comes_after_the_next_question_is_not_shown(open_url, url):
    page = open_url(f"{url}#page.runs=lstm&page.view=surprise")
    slow = []

    def late(route):
        if "first" in json.loads(route.request.post_data)["text"]:
            slow.append(route)    # answered only after the next
        else:
            route.continue_()

    page.route("**/api/views/surprise", late)
    page.locator("#text").fill("first")
    page.wait_for_timeout(400)
    page.locator("#text").fill("second")
    page.wait_for_function("document.querySelector('.strip .text')?.textContent === 'second'")
    strips = [{"kind": "lstm", "begin": 0, "pieces": [["first", 1]]}]
    slow[0].fulfill(json={"data": {"strips": strips, "first": ["lstm", "lstm"]}})
    page.wait_for_timeout(100)
    assert page.locator(".strip .text").inner_text() == "second"


def test_a_link_shows_the_same(open_url, url):
    page = open_url(url)
    page.locator("#runs input[value=ngram]").check()
    page.locator("#runs input[value=lstm]").check()
    page.locator("#runs input[value=word2vec]").uncheck()
    page.locator("#text").fill("a bird\n& ümlaut 🙂")
    tab(page, "surprise")
    page.locator("#surprise input[value=difference]").check()
    again = open_url(address(page))
    assert again.locator("#text").input_value() == "a bird\n& ümlaut 🙂"
    assert again.locator("#surprise input[value=difference]").is_checked()
    assert again.locator("#runs input:checked").evaluate_all("all => all.map(one => one.value)") == [
        "ngram", "lstm", "seq2seq-translate"
    ]
    assert again.locator("#surprise .view").inner_text() == page.locator("#surprise .view").inner_text()


def test_the_back_button_comes_back_to_the_view_and_the_runs_before(open_url, url):
    page = open_url(f"{url}#page.runs=ngram,lstm&page.view=die")
    tab(page, "surprise")
    page.locator("#runs input[value=lstm]").uncheck()
    drawn(page)
    assert page.locator(".strip h3").all_inner_texts() == ["ngram"]
    page.go_back()
    page.wait_for_function("document.querySelectorAll('.strip h3').length === 2")
    assert page.locator("#runs input[value=lstm]").is_checked()
    page.go_back()
    page.wait_for_function("document.getElementById('title').textContent === 'The weighted die'")
    page.go_forward()
    page.wait_for_function("document.getElementById('title').textContent === 'Surprise'")


def test_a_view_that_is_clicked_takes_the_runs_that_fit_it_and_the_back_button_returns(open_url, url):
    page = open_url(f"{url}#page.runs=lstm&page.view=die")
    tab(page, "backoff")
    assert page.locator("#runs input:checked").evaluate_all("all => all.map(one => one.value)") == ["ngram"]
    assert page.locator("#backoff .picture").is_visible()
    page.go_back()
    page.wait_for_function("document.getElementById('title').textContent === 'The weighted die'")
    assert page.locator("#runs input:checked").evaluate_all("all => all.map(one => one.value)") == ["lstm"]
    linked = open_url(f"{url}#page.runs=lstm&page.view=trellis")    # where nothing was clicked, a button takes them
    needs = "This view needs a hidden Markov model (hmm) or a tagger."
    assert linked.locator("#trellis .error").inner_text().startswith(needs)
    linked.get_by_role("button", name="use hmm").click()
    linked.wait_for_selector("#trellis .picture")


def test_a_view_that_fits_no_run_says_what_it_needs(open_url, runs):
    with served({"lstm": runs["lstm"]}) as address:
        page = open_url(address)
        link = page.locator("#views a[data-view=backoff]")
        assert "live-unfit" in link.get_attribute("class")
        assert link.get_attribute("title") == "This view needs an n-gram language model."
        assert "live-unfit" not in (page.locator("#views a[data-view=die]").get_attribute("class") or "")
        tab(page, "backoff")
        assert page.locator("#backoff .view").inner_text() == "This view needs an n-gram language model."


def test_without_a_run_the_page_asks_for_one(open_url, url):
    """The only run that was ticked is unticked: no others are ticked in its place."""
    page = open_url(f"{url}#page.runs=lstm&page.view=die")
    page.locator("#runs input[value=lstm]").uncheck()
    drawn(page)
    assert page.locator("#runs input:checked").count() == 0
    assert page.locator("#die .view").inner_text().startswith("Choose a model.")
    again = open_url(address(page))
    assert again.locator("#runs input:checked").count() == 0


def test_of_several_runs_that_fit_a_view_of_one_the_reader_chooses(open_url, url):
    page = open_url(f"{url}#page.runs=rnn,lstm&page.view=neurons")
    assert page.locator("#which input:checked").input_value() == "rnn"
    page.locator("#which input[value=lstm]").check()
    drawn(page)
    assert chosen(page)["neurons.run"] == "lstm"
    assert page.locator("#which input:checked").input_value() == "lstm"
    page.go_back()
    page.wait_for_function("document.querySelector('#which input:checked').value === 'rnn'")


def test_a_refusal_is_one_line_that_goes_when_the_text_is_shorter(open_url, url, complaints):
    page = open_url(f"{url}#page.runs=lstm&page.view=surprise")
    page.locator("#text").fill("x" * 500_001)
    page.wait_for_selector("#problem [role=alert]")
    assert "the text has 500,001 characters" in page.locator("#problem").inner_text()
    page.locator("#text").fill("short")
    page.wait_for_selector("#problem:empty", state="attached")
    assert all("413" in line for line in complaints)    # as the browser notes it
    complaints.clear()


def test_a_server_that_has_gone_is_reported(open_url, runs, complaints):
    with served(runs) as address:
        page = open_url(f"{address}#page.runs=ngram&page.view=surprise")
    page.locator("#text").fill("hello")
    page.wait_for_selector("#problem [role=alert]")
    assert "Is chainrule look still running?" in page.locator("#problem").inner_text()
    complaints.clear()


def test_a_run_that_cannot_be_loaded_is_shown_so_and_the_others_are_there(open_url, runs, tmp_path):
    with served({"gone": tmp_path / "gone", "ngram": runs["ngram"]}) as address:
        page = open_url(address)
    assert page.locator("#runs input[value=gone]").is_disabled()
    assert "there is no run at" in page.locator("#problem").inner_text()
    assert page.locator("#die .die-face").count() > 5


def test_keys_alone_are_enough(open_url, url):
    page = open_url(f"{url}#page.runs=ngram&page.view=die")
    page.locator("#views a[data-view=surprise]").focus()
    page.keyboard.press("Enter")
    drawn(page)
    assert page.locator("#title").inner_text() == "Surprise"
    assert page.evaluate("document.activeElement.dataset.view") == "surprise"
    page.locator("#runs input[value=lstm]").press("Space")
    page.wait_for_function("document.querySelectorAll('.strip h3').length === 2")


@pytest.mark.parametrize("width", [360, 1920])
def test_nothing_runs_out_of_a_phone_or_a_projector(open_url, url, width):
    page = open_url(f"{url}#page.runs=ngram,gpt", viewport={"width": width, "height": 700})
    for view in ("die", "surprise"):
        tab(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_view_that_was_asked_for_is_the_first(open_url, runs):
    with served(runs, first="attention") as url:
        page = open_url(f"{url}#page.runs=gpt")
        assert page.locator("#title").inner_text() == "Attention"
        assert re.search("page.view", address(page)) is None


def test_the_page_of_serve_asks_for_its_key_and_then_draws(open_url, runs, complaints):
    with serving({name: runs[name] for name in ("ngram", "gpt")}, key="s3cret") as one:
        page = open_url(one.url, http_credentials={"username": "anybody", "password": "s3cret"})
        for name in ("die", "attention", "surprise"):
            tab(page, name)
            assert page.locator("[role=alert]").all_inner_texts() == []
            assert page.locator(f"#{name} .view").inner_text() != ""
