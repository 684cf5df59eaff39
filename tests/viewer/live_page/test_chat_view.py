"""The chat of the live page in a real browser: an answer streams; undo, another answer, stop, save; keys alone."""

import json

import pytest
from viewer.live import served
from viewer.subjects import subject

from chainrule.chat.conversation import Conversation
from chainrule.inference.sampling import Sampling
from chainrule.run import load, save
from chainrule.viewer.views import find_view


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "gpt"
    one = subject("gpt")
    save(folder, one.run.model, one.run.tokenizer, one.run.recipe)
    return folder


@pytest.fixture(scope="module")
def url(path):
    with served({"gpt": path}) as address:
        yield f"{address}#page.view=chat"


def ready(page):
    page.wait_for_function("document.querySelector('.chat-log')?.getAttribute('aria-busy') === 'false'")


def say(page, text):
    box = page.get_by_label("Your message")
    box.fill(text)
    box.press("Enter")
    page.wait_for_function("document.querySelector('.chat-log')?.getAttribute('aria-busy') === 'false' "
                           "&& document.querySelector('.chat-assistant .chat-text:not(:empty)')")


def log(page):
    return page.locator(".chat-text").all_inner_texts()


def test_a_conversation_with_undo_another_answer_and_save(open_url, url, path):
    page = open_url(url)
    assert "no chat template" in page.locator("main").inner_text()
    say(page, "the cat")
    said, answer = log(page)
    own = Conversation(load(path), Sampling(temperature=0.7, seed=1))
    assert said == "the cat"
    assert answer.split() == "".join(own.say("the cat")).split()    # the page draws what the terminal draws
    page.get_by_role("button", name="another answer").click()
    ready(page)
    assert len(log(page)) == 2
    assert log(page)[1] != answer
    say(page, "a dog")
    assert len(log(page)) == 4
    page.get_by_role("button", name="undo").click()
    assert len(log(page)) == 2
    assert page.get_by_label("Your message").input_value() == "a dog"    # to be changed and sent again
    with page.expect_download() as found:
        page.get_by_role("button", name="save").click()
    saved = json.loads(found.value.path().read_text())
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant"]
    assert saved["messages"][1]["content"].split() == log(page)[1].split()
    page.get_by_role("button", name="new conversation").click()
    assert log(page) == []


def test_temperature_zero_repeats_itself_and_another_view_ends_no_conversation(open_url, url):
    page = open_url(url)
    page.get_by_label("temperature").fill("0")
    say(page, "the cat")
    first = log(page)
    page.get_by_role("button", name="another answer").click()
    ready(page)
    assert log(page) == first
    page.locator("#views a[data-view=surprise]").click()
    page.wait_for_selector("html[data-drawn]")
    page.locator("#views a[data-view=chat]").click()
    page.wait_for_selector(".chat-text")
    assert log(page) == first


def test_it_can_be_used_without_a_mouse_and_is_named_for_screen_readers(open_url, url):
    page = open_url(url)
    page.get_by_label("Your message").focus()
    page.keyboard.type("the")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("cat")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('.chat-assistant .chat-text:not(:empty)')")
    ready(page)
    assert log(page)[0] == "the\ncat"
    names = [page.evaluate("document.activeElement.textContent || document.activeElement.ariaLabel")]
    for _ in range(4):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.textContent"))
    assert names == ["Your message", "send", "undo", "another answer", "new conversation"]
    assert page.get_by_role("log", name="Conversation").count() == 1
    page.keyboard.press("Enter")
    assert log(page) == []
    assert page.get_by_role("status").last.inner_text() == "A new conversation."


def test_a_mistake_is_one_line_and_the_message_is_given_back(open_url, url):
    page = open_url(url)
    box = page.get_by_label("Your message")
    box.fill("the cat " * 400)
    box.press("Enter")
    page.wait_for_function("document.querySelector('.chat-status').textContent.includes('Say it in fewer words')")
    assert log(page) == []
    assert box.input_value().startswith("the cat the cat")


def test_an_answer_can_be_stopped(open_url, url):
    page = open_url(url)
    held = []
    page.route("**/api/chat", lambda route: held.append(route))    # an answer that does not come
    page.get_by_label("Your message").fill("the cat")
    page.get_by_label("Your message").press("Enter")
    page.get_by_role("button", name="stop").click()
    page.wait_for_function("document.querySelector('.chat-status').textContent === 'Stopped.'")
    assert page.get_by_role("button", name="stop").is_disabled()
    assert len(held) == 1


def test_a_file_says_that_it_needs_a_live_page(open_view):
    page, _ = open_view(find_view("chat"), [subject("gpt")])
    assert "--view chat opens a live page" in page.locator(".view").inner_text()
