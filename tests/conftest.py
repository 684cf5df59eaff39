"""What all tests take for granted."""

import contextlib
import gc
import json
import os
import shutil
import signal
import warnings

import pytest
import torch

# As if no CPU had AMX, so that training has the same precision wherever the tests run.
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"

# A process that a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What collecting makes stays until the end: the garbage collector need not look through it, then or in any test.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


# A slow example on a busy machine is no error. To explain a failure hypothesis would trace every example in Python.
# Tests on a GPU run where hypothesis need not be installed.
with contextlib.suppress(ModuleNotFoundError):
    from hypothesis import Phase, settings

    settings.register_profile("patient", deadline=None, phases=[phase for phase in Phase if phase is not Phase.explain])
    settings.load_profile("patient")

# On a CPU without bfloat16 products torch warns once in each process. Warnings are errors here, so the first test that
# multiplies would fail: the warning is spent before any test.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.nn.functional.linear(*torch.ones(2, 64, 64, dtype=torch.bfloat16))


@pytest.fixture
def no_kept_steps():
    """No captured step is kept from other tests, or for them."""
    from chainrule.inference.captured import kept_steps

    kept_steps.forget_all()
    yield
    kept_steps.forget_all()


# Pages in a real browser: none may log an error, and none may make a request to another machine.

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--no-sandbox", "--disable-background-networking"]
OURS = ("file:", "data:", "http://127.0.0.1:")


@pytest.fixture(scope="module")    # its thread has an event loop while it lives, so asyncio.run cannot start another
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


@pytest.fixture(scope="module")
def context_of(browser):
    """The browser's context with these options, one for all tests of a file.

    In a new context a page has a process of its own, which takes a second to begin and more to compile the scripts.
    """
    contexts = {}

    def context_of(**options):
        key = json.dumps(options, sort_keys=True)
        if key not in contexts:
            contexts[key] = browser.new_context(**options)
            contexts[key].new_page()    # stays open, and with it the process
        return contexts[key]

    yield context_of
    for context in contexts.values():
        context.close()


@pytest.fixture
def open_url(context_of, complaints):
    """A page in the browser that is drawn. It finds nothing that pages of other tests have stored."""
    pages = []

    def open_it(url, **options):
        # wait_for_function evaluates strings, which the policy of a page forbids
        page = context_of(**{"bypass_csp": True} | options).new_page()
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith(OURS) or complaints.append(asked.url))
        page.goto(url)
        page.wait_for_selector("html[data-drawn]")
        return page

    yield open_it
    for page in pages:
        page.close()
    for context in {page.context for page in pages}:
        tools = context.new_cdp_session(context.pages[0])
        tools.send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
        tools.detach()
    assert complaints == []
