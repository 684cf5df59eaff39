"""Clients that are slow on purpose are left, others are answered; pages of other sites and odd headers are refused."""

import json
import socket
import time
from urllib.parse import urlsplit

import pytest
from programs import benchmark
from serve.serving import save_runs, serving
from viewer.live import served

from chainrule.serve import slow_clients

abuse = benchmark("page_abuse")
HEAD = b"POST /api/views/die HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
BODY = json.dumps({"runs": ["gpt"], "text": "the cat"}).encode()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return save_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def url(runs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slow_clients, "SECONDS", 0.5)
        with served(runs) as address:
            yield address.rstrip("/")


def connect(url):
    where = urlsplit(url)
    return socket.create_connection((where.hostname, where.port), timeout=10)


def closed(connection, byte=b""):
    """Waits until the server hangs up; the client sends a byte now and then. False: it does not."""
    connection.settimeout(0.1)
    for _ in range(80):    # 8 s, and fewer bytes than a whole body has
        try:
            connection.send(byte)
            if not connection.recv(4096):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize("sent", [b"", HEAD[:30], HEAD, HEAD + b"content-length: 100\r\n\r\n{",
                                  HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n{"],
                         ids=["nothing", "half a line", "no end of headers", "half a body", "a chunk"])
def test_a_request_that_does_not_arrive_is_not_waited_for(url, sent):
    with connect(url) as slow:
        slow.sendall(sent)
        status, _, _ = abuse.ask(url, "GET", "/api/runs")
        assert status == 200
        assert closed(slow, b"x" if sent else b"")


def test_the_second_request_of_a_connection_is_not_waited_for_either(url):
    with connect(url) as slow:
        slow.sendall(b"GET /modules/draw.js HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
        slow.sendall(HEAD)
        assert closed(slow, b"x")


def test_what_is_no_http_after_an_answer_ends_the_connection_without_a_traceback(url, capfd):
    with connect(url) as odd:
        odd.sendall(HEAD.replace(b"/api/views/die", b"/nowhere") + b"transfer-encoding: chunked\r\n\r\n5\r\n")
        assert odd.recv(12) == b"HTTP/1.1 404"
        odd.recv(4096)
        assert closed(odd, b"xxxxxxxxxxxxxxxx")
    assert "Traceback" not in capfd.readouterr().err


def test_a_body_that_comes_in_parts_but_comes_is_answered(url):
    large = BODY[:-1] + b" " * 3000 + b"}"
    with connect(url) as patient:
        patient.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(large))
        for part in range(0, len(large), 400):
            patient.sendall(large[part : part + 400])
            time.sleep(0.1)                                # more than 0.5 s in all, at 4 kB a second
        assert patient.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("origin", abuse.ORIGINS)
def test_a_page_of_another_site_may_not_ask(url, origin):
    status, body, _ = abuse.ask(url, "POST", "/api/views/die", BODY,
                                {"content-type": "application/json", "origin": origin})
    assert status == 403
    assert "another site" in json.loads(body)["error"]
    own = {"content-type": "application/json", "origin": url}
    assert abuse.ask(url, "POST", "/api/views/die", BODY, own)[0] == 200


@pytest.mark.parametrize("program", ["look", "serve"])
def test_fuzzed_requests_are_answered_in_one_line(url, runs, program):
    if program == "look":
        found = abuse.fuzz("look", url, 120, seed=5)
    else:
        with serving(runs) as server:
            found = abuse.fuzz("serve", server.url.rstrip("/"), 120, seed=5)
    assert not found["problems"]
    assert found["statuses"][200] > 20
