"""Whatever is requested, and whatever happens to its files, the server answers with one clear line and goes on."""

import os
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from viewer.live import save_run, served
from viewer.subjects import subject

from chainrule.serve import app as apps
from chainrule.serve.app import Queue, TrustedHosts, host_name
from chainrule.viewer import page as pages
from chainrule.viewer.views import View, every_view


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {kind: save_run(folder / kind, subject(kind)) for kind in ("ngram", "gpt", "lstm")}


@pytest.fixture(scope="module")
def url(runs):
    with served(runs) as address:
        yield address


@pytest.fixture(scope="module")
def client(url):
    with httpx.Client(base_url=url, timeout=60) as one:
        yield one


def ask(client, runs=("gpt",), text="the", view="die", **more):
    return client.post(f"/api/views/{view}", json={"runs": list(runs), "text": text, **more})


def complaint(answer, status):
    """The one line of an answer that is an error."""
    assert answer.status_code == status, answer.text[:500]
    (line,) = answer.json()["error"].splitlines()
    assert answer.json().keys() == {"error"}
    return line


@pytest.mark.parametrize("text", ["", "🙂", "\0", "\r\n\t", "the cat " * 12_500, "é" * 100_000, "‮\ufeff\u2028"],
                         ids=["empty", "emoji", "NUL", "white", "100,000", "100,000 é", "odd"])
def test_any_text_is_answered_by_every_view_that_shows_one(client, text):
    for name, view in every_view().items():
        if view.reads and name != "cost":
            answer = ask(client, ["ngram", "gpt", "lstm"], text, name)
            assert answer.status_code == 200 or "does not fit" in complaint(answer, 400), (name, answer.text[:300])
    assert ask(client).status_code == 200


def test_half_a_surrogate_pair_is_refused(client):
    assert "text: Input should be a valid string" in complaint(client.post(
        "/api/views/die", content=b'{"runs": ["gpt"], "text": "\\ud83d"}', headers={"content-type": "application/json"}
    ), 400)


def test_two_hundred_requests_at_once_are_all_answered(url):
    begin, every = threading.Barrier(200), httpx.Limits(max_connections=None)

    def one(number):
        begin.wait()
        answer = ask(client, ["gpt", "ngram"][number % 2 : number % 2 + 1], f"the {number}")
        return answer.status_code, answer.json()["data"]["models"]

    with httpx.Client(base_url=url, timeout=120, limits=every) as client, ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(one, range(200)))
    assert answers == [(200, [["gpt"], ["ngram"]][number % 2]) for number in range(200)]


def test_an_answer_is_not_held_back(client):
    """A socket that waits to send more in one packet would take 40 ms for each."""
    with client.stream("GET", "/modules/draw.js") as answer:
        own = answer.extensions["network_stream"].get_extra_info("client_addr")
        assert [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0 for one in open_sockets()
                if peer_of(one) == own] == [True]
        answer.read()


def open_sockets():
    """Copies of the TCP connections of this process, in which the server runs too."""
    for number in [int(path.name) for path in Path("/dev/fd").iterdir() if path.is_socket()]:
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
            if one.family == socket.AF_INET and one.type == socket.SOCK_STREAM:
                yield one


def peer_of(connection):
    try:
        return connection.getpeername()
    except OSError:    # it only listens
        return None


def test_questions_about_the_same_model_are_answered_one_at_a_time(runs, monkeypatch):
    busy, most = [], []

    def make(subjects, text, options):
        busy.append(text)
        most.append(len(busy))
        threading.Event().wait(0.02)
        busy.remove(text)
        return {}

    view = View("die", "", "", lambda subject: True, make, several=True)
    monkeypatch.setattr(apps, "find_view", lambda name: view)
    with served(runs) as url, httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(10) as pool:
        several = [["gpt"], ["lstm", "gpt"], ["gpt", "lstm"], ["ngram", "gpt"], ["gpt"]] * 2
        answers = list(pool.map(lambda pair: ask(client, pair[1], str(pair[0])).status_code, enumerate(several)))
    assert answers == [200] * 10
    assert max(most) == 1


def test_more_requests_than_can_wait_are_refused(runs, monkeypatch):
    hold = threading.Event()
    view = View("die", "", "", lambda subject: True, lambda *given: hold.wait(20) and {})
    monkeypatch.setattr(apps, "find_view", lambda name: view)
    monkeypatch.setattr(apps, "Queue", lambda: Queue(limit=3))
    with served(runs) as url, httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, client) for _ in range(8)]
        threading.Event().wait(0.5)
        hold.set()
        answers = [one.result() for one in asked]
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [503] * 5
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert complaint(refused, 503) == "3 requests are waiting already. Try again in a moment."


def test_a_model_deleted_damaged_or_trained_again_under_it_is_noticed(tmp_path):
    one = save_run(tmp_path / "one", subject("ngram"))
    other = save_run(tmp_path / "other", subject("gpt"))
    with served({"one": one, "other": other}) as url, httpx.Client(base_url=url, timeout=60) as client:
        before = ask(client, ["one"]).json()
        weights = (one / "model.safetensors").read_bytes()
        (one / "model.safetensors").unlink()
        for _ in range(2):
            assert "model.safetensors is missing" in complaint(ask(client, ["one"]), 400)
        assert ask(client, ["other"]).status_code == 200
        (one / "model.safetensors").write_bytes(weights[:100])
        assert "is damaged: it has 100 bytes" in complaint(ask(client, ["one"]), 400)
        assert "is damaged" in client.get("/api/runs").json()[0]["error"]
        (one / "model.safetensors").write_bytes(weights)
        assert ask(client, ["one"]).json() == before
        save_run(one, subject("ngram", order=1))
        assert ask(client, ["one"]).json() != before
        (one / "recipe.json").write_text("{")
        assert "recipe.json is damaged" in complaint(ask(client, ["one"]), 400)
        shutil.rmtree(one)
        assert "there is no run at" in complaint(ask(client, ["one", "other"]), 400)
        assert ask(client, ["other"]).status_code == 200


@pytest.mark.parametrize(("given", "status", "line"), [
    ({"content": b"x" * (3 << 20) + b"x"}, 413, "more than 3 MB"),
    ({"json": {"runs": ["gpt"], "text": "x" * 500_001}}, 413, "the text has 500,001 characters"),
    ({"content": b"{"}, 400, "JSON decode error"),
    ({"content": b"[" * 200_000}, 400, "error parsing the body"),
    ({"content": b"\xff"}, 400, "error parsing the body"),
    ({"json": []}, 422, "The body is JSON such as"),
    ({"json": {"text": "x"}}, 422, "runs: Field required"),
    ({"json": {"runs": [], "text": "x"}}, 422, "runs: List should have at least 1 item"),
    ({"json": {"runs": [3], "text": "x"}}, 422, "runs: Input should be a valid string"),
    ({"json": {"runs": ["gpt"], "text": 3}}, 422, "text: Input should be a valid string"),
    ({"json": {"runs": ["gpt"], "options": {"a": 3}}}, 422, "options: Input should be a valid string"),
    ({"json": {"runs": ["gtp"], "text": ""}}, 400, "there is no run gtp here. Did you mean gpt?"),
    ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415, "content-type"),
    ({"content": b"{", "headers": {"content-type": "Application/JSON"}}, 400, "JSON decode error"),
])
def test_an_invalid_request_is_refused_in_one_line(client, given, status, line):
    headers = {"content-type": "application/json"} if "content" in given else {}
    assert line in complaint(client.post("/api/views/die", **{"headers": headers} | given), status)
    assert ask(client).status_code == 200


def test_no_lock_is_kept_for_runs_that_do_not_exist(runs, monkeypatch):
    made = []
    monkeypatch.setattr(apps, "Queue", lambda: made.append(Queue()) or made[0])
    with served(runs) as address, httpx.Client(base_url=address) as client:
        for number in range(5):
            assert ask(client, [f"none-{number}"]).status_code == 400
        assert ask(client).status_code == 200
    assert [*made[0]._locks] == ["gpt"]


@pytest.mark.parametrize("options", [{"group": "9" * 5000}, {"unit": "²"}, {"unit": "-1"}], ids=["long", "odd", "less"])
def test_options_that_are_no_numbers_are_refused(client, options):
    assert "is no number of a" in complaint(ask(client, view="neurons", options=options), 400)


def test_unknown_views_and_paths_are_named(client):
    assert "there is no view dye. Did you mean die?" in complaint(ask(client, view="dye"), 400)
    assert "backoff does not fit gpt" in complaint(ask(client, view="backoff"), 400)
    assert "GET /unknown: Not Found." in complaint(client.get("/unknown"), 404)
    assert "there is no module" in complaint(client.get("/modules/secret.js"), 404)
    assert client.get("/modules/..%2Fpage.py.js").status_code == 404
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert client.get(path).status_code == 404


def test_a_bug_in_a_view_is_reported_and_the_next_request_answered(runs, monkeypatch, capfd):
    monkeypatch.setattr(apps, "find_view", lambda name: View("die", "", "", lambda subject: True, make))

    def make(subjects, text, options):
        raise MemoryError if text == "large" else ZeroDivisionError("by zero")

    with served(runs) as url, httpx.Client(base_url=url) as client:
        assert "a bug: ZeroDivisionError: by zero" in complaint(ask(client), 500)
        assert complaint(ask(client, text="large"), 507).startswith("out of memory")
        assert client.get("/").status_code == 200
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(("named", "served_at", "status"), [
    ("127.0.0.1:80", "127.0.0.1", 200), ("localhost", "127.0.0.1", 200), ("[::1]:9", "127.0.0.1", 200),
    ("evil.example", "127.0.0.1", 421), ("127.0.0.1.evil.example", "127.0.0.1", 421), ("10.0.0.7", "127.0.0.1", 421),
    ("[", "127.0.0.1", 421), ("10.0.0.7:8000", "0.0.0.0", 200), ("evil.example", "0.0.0.0", 421),
    ("lab.example", "lab.example", 200), ("LAB.example:1", "lab.example", 200),
])
def test_only_requests_to_its_own_name_are_answered(url, named, served_at, status):
    name = host_name({"headers": [(b"host", named.encode())]})
    assert TrustedHosts(None, served_at, None).trusts(name) == (status == 200)
    if served_at == "127.0.0.1":
        answer = httpx.get(url, headers={"host": named})
        assert answer.status_code == status
        assert status == 200 or "open it by the address that it printed" in complaint(answer, 421)


def test_no_other_site_can_read_or_embed_the_page(client):
    for path in ("/", "/api/runs", "/modules/draw.js", "/modules/attention.js", "/modules/lines.js"):
        headers = client.get(path, headers={"origin": "http://evil.example"}).headers
        assert "access-control-allow-origin" not in headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
    assert client.get("/modules/draw.js").text == pages.read_web_file("draw.js")
