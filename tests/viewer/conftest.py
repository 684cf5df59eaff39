"""Pages in a real browser: none may log an error, and none may make a request to another machine."""

import shutil

import pytest

from chainrule.viewer.page import Panel, make_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--no-sandbox", "--disable-background-networking"]
OURS = ("file:", "data:", "http://127.0.0.1:")


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture
def complaints():
    """What pages wrote to their console, and their requests to other machines; a test may expect some."""
    return []


@pytest.fixture
def open_url(browser, complaints):
    """A page in the browser that is drawn."""
    pages = []

    def open_it(url, **context):
        page = browser.new_context(**context).new_page()
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith(OURS) or complaints.append(asked.url))
        page.goto(url)
        page.wait_for_selector("html[data-drawn]")
        return page

    yield open_it
    for page in pages:
        page.context.close()
    assert complaints == []


@pytest.fixture
def open_file(open_url, tmp_path):
    """A page that lies on disk."""

    def open_it(text, address="", **context):
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        return open_url(path.as_uri() + address, **context)

    return open_it


@pytest.fixture
def open_view(open_file):
    """One view of subjects, as a file shows it: the page, and the data that are drawn there."""

    def open_it(view, subjects, text="", options=None, address="", **context):
        data = view.make(subjects, text, options or {})
        page = make_page("a page", "", [Panel(view.name, view.name, view.title, data, view.note)])
        return open_file(page, address, **context), data

    return open_it
