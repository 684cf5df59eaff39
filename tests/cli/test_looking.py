"""`chainrule look`: a page on this machine until Ctrl-C, or one file."""

import base64
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import zlib
from types import SimpleNamespace

import httpx
import pytest

import chainrule
from chainrule.commands import look as command
from chainrule.run import load
from chainrule.serve import server


@pytest.fixture
def page(chainrule, trained, tmp_path):
    def write(*words):
        answer = chainrule("look", trained, "--out", "page.html", *words)
        assert answer.code == 0, answer.err
        return answer, (tmp_path / "page.html").read_text()

    return write


@pytest.fixture
def started(chainrule, trained, tmp_path):
    """The command as a process of its own, and the address that it printed."""
    processes = []

    def start(*words):
        command = [sys.executable, "-m", "chainrule", "look", trained, "--no-browser", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        processes.append(process)
        line = process.stderr.readline()
        return process, line.partition(": ")[2].split()[0]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_a_file_shows_the_text_and_the_views_that_fit(page):
    answer, text = page("--text", "the cow")
    assert answer.out.startswith("page.html shows four: ")
    assert '"the cow' not in text.replace('"prompt": "the cow"', "")    # views have its tokens; *write on* its text
    assert 'id="die"' in text
    assert 'id="backoff"' in text
    assert 'id="attention"' not in text


def test_a_file_of_one_view_says_what_it_is_in_json(page, tmp_path):
    answer, text = page("--view", "die", "--json")
    assert answer.json == {"runs": ["four"], "out": "page.html", "bytes": len(text.encode()), "view": "die"}
    assert text.count("<section") == 1


def test_the_text_may_come_from_a_file_or_from_stdin(page, book, monkeypatch):
    _, text = page("--view", "surprise", "--file", book)
    assert "the dog saw the bird" in "".join(filter(str.isprintable, _pieces(text)))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"a cow")))
    _, text = page("--view", "surprise", "--file", "-")
    assert _pieces(text) == "a cow"
    _, text = page("--view", "surprise")
    assert _pieces(text) == load("runs/four").about["excerpt"]


def _pieces(page):
    (panel,) = json.loads(re.search(r'id="panels">(.*?)</script>', page)[1])
    if "deflated" in panel:
        panel["data"] = json.loads(zlib.decompress(base64.b64decode(panel["deflated"])).rstrip(b"\0"))
    return "".join(text for text, _ in panel["data"]["strips"][0]["pieces"])


def test_of_a_long_file_the_beginning_is_shown(chainrule, trained, tmp_path):
    (tmp_path / "long.txt").write_text("the cow. " * 3000)
    answer = chainrule("look", trained, "--file", "long.txt", "--view", "die", "--out", "page.html")
    assert "of long.txt the first 20,000 characters are shown." in answer.err


def test_a_comparison_stands_for_all_its_runs(chainrule, book, tmp_path):
    for kind in ("unigram", "bigram"):
        answer = chainrule("train", book, "--kind", kind, "text.tokenizer=characters", "--out", f"runs/compared/{kind}")
        assert answer.code == 0, answer.err
    answer = chainrule("look", "runs/compared", "--out", "page.html", "--view", "die", "--json")
    assert answer.json["runs"] == ["bigram", "unigram"]


@pytest.mark.parametrize(("words", "line"), [
    (["nowhere"], "there is no run at nowhere. `chainrule train TEXT --out nowhere` would make one."),
    (["book.txt"], "book.txt is a file; a run is a folder"),
    (["runs/four", "--view", "dye"], "there is no view dye. Did you mean die?"),
    (["runs/four", "--view", "attention", "--out", "x.html"], "four: the view attention does not fit"),
    (["runs/four", "--text", "a", "--file", "book.txt"], "--text and --file both give a text"),
    (["runs/four", "--file", "none.txt"], "there is no file or folder none.txt"),
    (["runs/four", "--out", "runs"], "--out runs is a folder; name the file to write, as in runs/page.html."),
    (["runs/four", "--out", "book.txt/page.html"], "--out book.txt/page.html: book.txt is a file, not a folder."),
    (["runs/four", "--port", "x"], "argument --port: invalid int value"),
    (["runs/four", "--port", "70000"], "port 70000: a port is a number from 0 to 65535."),
    (["runs/four", "--host", "256.1.1.1"], "cannot serve at 256.1.1.1 port 8000"),
    ([], "look: the following arguments are required: run"),
])
@pytest.mark.usefixtures("trained")
def test_a_mistake_is_one_line(complaint, words, line):
    assert line in complaint("look", *words)


def test_a_port_that_is_taken_is_named_and_without_one_the_next_is_found(complaint, trained, started):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"cannot serve at 127.0.0.1 port {port}: it is taken." in complaint("look", trained, "--port", port)
    _, first = started()
    _, second = started()
    assert first != second
    for url in (first, second):
        assert httpx.get(url).status_code == 200


def test_what_is_served_and_what_ctrl_c_ends(started):
    process, url = started("--text", "a cow", "--view", "surprise", "--json")
    assert "a cow" in httpx.get(url).text
    (run,) = httpx.get(f"{url}api/runs", timeout=60).json()
    assert (run["name"], run["kind"], run["task"]) == ("four", "ngram", "lm")
    assert {"die", "surprise", "backoff"} <= set(run["views"])
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert err == ""
    assert f'"url": "{url}"' in out


def test_without_its_packages_the_live_page_says_what_to_install(complaint, trained, monkeypatch):
    monkeypatch.setattr(chainrule, "serve", None, raising=False)    # afterwards it is the package that others imported
    for name in [name for name in sys.modules if name.startswith("chainrule.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert "pip install 'chainrule[look]'" in complaint("look", trained)


@pytest.mark.parametrize(("words", "display", "opened"), [([], ":0", 1), (["--no-browser"], ":0", 0), ([], "", 0)])
def test_a_browser_is_opened_where_there_is_a_screen_for_it(chainrule, trained, monkeypatch, words, display, opened):
    urls = []
    monkeypatch.setattr(command.webbrowser, "open", urls.append)
    monkeypatch.setattr(server, "serve", lambda app, listening: None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setitem(os.environ, "DISPLAY", display)
    answer = chainrule("look", trained, *words)
    assert answer.code == 0
    assert urls == [answer.err.partition(": ")[2].split()[0]][:opened]
