"""The page of `chainrule prefer` in a real browser, and what its server refuses."""

import errno
import json

import httpx
import pytest
from prefer.made import make_session, prefer_page, save_network, save_words

from chainrule.prefer.clicks import LineFile

SAVED = "document.getElementById('saved').textContent === 'all saved'"


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return save_words(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def served(words, tmp_path):
    with prefer_page(make_session(words, tmp_path / "pairs.jsonl", pairs=12)) as one:
        yield one


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def pairs_of(served):
    return lines(served.session.clicks.pairs)


def begin(page, rater="ann"):
    page.locator("#rater").fill(rater)
    page.locator("#rater").press("Enter")
    page.wait_for_selector(".prefer-answer")
    return page


def shown(page):
    return page.locator(".prefer-text").all_inner_texts()


def press(page, key):
    """The key, on a pair that is there; and what the pair was."""
    page.wait_for_selector(".prefer-answer")
    before = shown(page)
    page.keyboard.press(key)
    page.wait_for_function("before => JSON.stringify([...document.querySelectorAll('.prefer-text')].map("
                           "one => one.innerText)) !== before", arg=json.dumps(before, separators=(",", ":"),
                                                                              ensure_ascii=False))
    return before


def test_clicks_and_keys_are_in_the_file_as_they_were_made(open_url, served):
    page = begin(open_url(served.url))
    left, right = press(page, "ArrowLeft")
    other_left, other_right = shown(page)
    page.locator(".prefer-answer[data-side=right] button").click()
    page.wait_for_function(SAVED)
    one, other = pairs_of(served)
    assert (one["chosen"].strip(), one["rejected"].strip(), one["position"]) == (left.strip(), right.strip(), "left")
    assert (other["chosen"].strip(), other["rejected"].strip()) == (other_right.strip(), other_left.strip())
    assert other["position"] == "right"
    press(page, "=")
    press(page, "s")
    page.wait_for_function(SAVED)
    assert [event["event"] for event in lines(served.session.clicks.journal)] == ["choice", "choice", "tie", "skip"]
    assert len(pairs_of(served)) == 2
    assert "4 of 12 pairs rated" in page.locator("#progress").inner_text()
    assert "1 of 2" in page.locator("#figures").inner_text()


def test_undo_withdraws_the_click_and_shows_its_pair_again(open_url, served):
    page = begin(open_url(served.url))
    press(page, "ArrowLeft")
    again = press(page, "ArrowRight")
    press(page, "u")
    page.wait_for_function(SAVED)
    assert shown(page) == again
    assert len(pairs_of(served)) == 1
    press(page, "ArrowLeft")
    page.wait_for_function(SAVED)
    assert [pair["position"] for pair in pairs_of(served)] == ["left", "left"]
    assert len(lines(served.session.clicks.journal)) == 4


def test_a_reload_keeps_the_rater_and_goes_on_where_it_was(open_url, served):
    page = begin(open_url(served.url))
    press(page, "ArrowLeft")
    page.wait_for_function(SAVED)
    here = shown(page)
    page.reload()
    page.wait_for_selector(".prefer-answer")
    assert page.locator("#rater").input_value() == "ann"
    assert shown(page) == here


def test_two_raters_see_the_same_pairs_and_their_agreement_is_shown(open_url, served):
    ann, bob = begin(open_url(served.url)), begin(open_url(served.url), "bob")
    for _ in range(4):
        assert sorted(press(ann, "ArrowLeft")) == sorted(press(bob, "ArrowLeft"))
    bob.wait_for_function(SAVED)
    bob.wait_for_function("document.getElementById('figures').textContent.includes('on 4 shared pairs')")
    assert "ann: 4, bob: 4" in bob.locator("#figures").inner_text()
    assert "Cohen's kappa" in bob.locator("#figures").inner_text()
    assert {pair["rater"] for pair in pairs_of(served)} == {"ann", "bob"}


def test_on_a_full_disk_the_click_is_kept_said_and_saved_later_even_after_a_reload(
    open_url, served, monkeypatch, complaints
):
    page = begin(open_url(served.url))

    def full(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LineFile, "write", full)
    press(page, "ArrowLeft")
    page.wait_for_selector("#problem [role=alert]")
    assert "not saved: No space left on device. Free some space" in page.locator("#problem").inner_text()
    assert page.locator("#saved").inner_text() == "1 not saved yet"
    page.reload()
    page.wait_for_selector("#problem [role=alert]")
    assert pairs_of(served) == []
    monkeypatch.undo()
    page.wait_for_function(SAVED)
    assert len(pairs_of(served)) == 1
    assert all("507" in line for line in complaints)    # as the browser notes it
    complaints.clear()


def test_html_in_prompts_and_answers_is_text(open_url, served):
    page = begin(open_url(served.url))
    page.locator("#typing summary").click()
    page.locator("#text").fill("<img src=x onerror=alert(1)> the")
    page.locator("#typed button").click()
    page.wait_for_function("document.getElementById('prompt').textContent.includes('<img')")
    assert page.locator("#prompt img").count() == 0
    assert page.locator(".prefer-answer").count() == 2


def test_without_prompts_the_rater_types_them(open_url, words, tmp_path):
    with prefer_page(make_session(words, tmp_path / "p.jsonl", prompts=())) as one:
        page = open_url(one.url)
        page.locator("#rater").fill("ann")
        page.locator("#rater").press("Enter")
        page.wait_for_function("document.getElementById('which').textContent.includes('There are no prompts yet')")
        page.locator("#text").fill("the dog saw")
        page.locator("#typed button").click()
        page.wait_for_selector(".prefer-answer")
        page.locator("h1").click()
        page.keyboard.press("ArrowRight")
        page.wait_for_function(SAVED)
        page.wait_for_function("document.getElementById('which').textContent.includes('All pairs are rated')")
        assert [pair["prompt"] for pair in lines(tmp_path / "p.jsonl")] == ["the dog saw"]
        page.locator("#more").click()
        page.wait_for_selector(".prefer-answer")


def test_keys_do_not_choose_while_one_types_and_focus_is_visible(open_url, served):
    page = begin(open_url(served.url))
    page.locator("#settings").press_sequentially("s=u")
    page.locator("#settings").press("ArrowLeft")
    assert served.session.clicks.events == []
    page.locator("#settings").fill("")
    page.locator(".prefer-answer button").first.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_function(SAVED)
    assert len(pairs_of(served)) == 1


def test_messages_are_announced(open_url, served):
    assert begin(open_url(served.url)).locator("#saved").get_attribute("role") == "status"


@pytest.mark.parametrize("width", [360, 1600])
def test_the_page_fits_a_phone_and_a_projector(open_url, served, width):
    page = begin(open_url(served.url, viewport={"width": width, "height": 700}))
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_tune_now_ends_with_a_blind_comparison_and_the_new_model_answers(open_url, tmp_path, complaints):
    session = make_session(save_network(tmp_path), tmp_path / "pairs.jsonl", pairs=4, tokens=4)
    with prefer_page(session, {"train.steps": 2, "train.evaluate": 1}) as one:
        page = begin(open_url(one.url))
        page.locator("#start").click()
        page.wait_for_function("document.getElementById('problem').textContent.includes('tuning needs 2 or more')")
        for _ in range(3):
            press(page, "ArrowLeft")
        page.wait_for_function(SAVED)
        page.locator("#start").click()
        page.locator("#cancel").wait_for()
        press(page, "u")                                      # the page is alive while it trains
        press(page, "ArrowLeft")
        page.wait_for_function("/tuned by dpo|failed/.test(document.getElementById('tuned').textContent)",
                               timeout=120_000)
        assert "tuned by dpo on 3 pairs" in page.locator("#tuned").inner_text()
        assert page.locator("#curves svg").count() >= 4
        page.locator("#compare").click()
        page.wait_for_function("document.getElementById('question').textContent.startsWith('Old or new')")
        page.wait_for_selector(".prefer-answer, #tuned .note")
        page.locator("#adopt").click()
        page.wait_for_function("document.getElementById('progress').textContent.includes('pairs-tuned-1')")
        assert (tmp_path / "pairs-tuned-1" / "recipe.json").is_file()
        page.wait_for_selector(".prefer-answer")
        assert complaints == ["Failed to load resource: the server responded with a status of 400 (Bad Request)"]
        complaints.clear()    # the tuning without pairs, as the browser notes it


def test_another_host_another_site_and_other_bodies_are_refused(served):
    body = {"rater": "ann", "id": "12345678", "pair": "none", "choice": "left"}
    with httpx.Client(base_url=served.url) as http:
        def ask(status, path="/api/click", **given):
            answer = http.post(path, **given)
            assert answer.status_code == status, answer.text
            return answer.json()["error"]

        assert "its own name" in ask(421, json=body, headers={"host": "evil.example"})
        assert http.get("/", headers={"host": "evil.example:80"}).status_code == 421
        assert "another site" in ask(403, json=body, headers={"origin": "http://evil.example"})
        assert "another site" in ask(403, json=body, headers={"origin": "null"})
        assert "content-type" in ask(415, content=json.dumps(body), headers={"content-type": "text/plain"})
        assert "another session" in ask(400, json=body)
        assert "choice" in ask(422, json=body | {"choice": "up"})
        assert "rater" in ask(422, json=body | {"rater": " "})
        assert "id" in ask(422, json=body | {"id": "../x"})
        assert "there is no tuned model" in ask(400, "/api/policy", json={"rater": "ann"})
        assert "there is no tuned model" in ask(400, "/api/pairs", json={"rater": "ann", "mode": "compare"})
        assert "is not a setting" in ask(400, "/api/tune", json={"rater": "ann", "settings": "fast"})
        assert "the prompt is empty" in ask(400, "/api/prompt", json={"rater": "ann", "id": "12345678", "prompt": " "})
        assert http.get("/modules/../app.js").status_code == 404
        assert http.post("/api/undo", json={"rater": "ann", "id": "12345678"}).json() == {"pair": None}
    assert served.session.clicks.events == []


def test_a_click_that_is_sent_twice_counts_once_and_a_pair_is_not_shown_to_two_without_overlap(words, tmp_path):
    with prefer_page(make_session(words, tmp_path / "p.jsonl", pairs=6, overlap=0.0)) as one, \
            httpx.Client(base_url=one.url) as http:
        def post(path, **body):
            return http.post(path, json=body).json()

        pair = post("/api/pairs", rater="ann")["pairs"][0]
        for _ in range(2):
            state = post("/api/click", rater="ann", id="12345678", pair=pair["id"], choice="left")
        assert (state["mine"], state["choices"]) == (1, 1)
        ann = {one["id"] for one in post("/api/pairs", rater="ann")["pairs"]}
        bob = {one["id"] for one in post("/api/pairs", rater="bob")["pairs"]}
        assert ann.isdisjoint(bob)
        assert pair["id"] not in ann | bob
