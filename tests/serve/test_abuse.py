"""Abuse of the server, in small: fuzzed and malformed requests, a crowd, clients that leave; no leak, no other answer.

benchmarks/robustness/serve_abuse.py is the same with 10,000 requests and 300 clients, for a server of its own.
"""

import threading
from pathlib import Path

import pytest
from programs import benchmark
from serve.serving import serving

for package in ("schemathesis", "aiohttp", "requests"):
    pytest.importorskip(package)
abuse = benchmark("serve_abuse")

NAMES = ("ngram", "gpt", "encoder-classify")
SMALL = {name: body for name, body in abuse.BODIES.items() if len(body) < 1 << 20}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder, patch = tmp_path_factory.mktemp("abuse"), pytest.MonkeyPatch()
    patch.setenv("CHAINRULE_CACHE", str(folder / "cache"))
    paths = {path.name: path for path in abuse.tiny_runs(folder, NAMES)}
    with serving(paths) as server:
        yield server.url.rstrip("/")
    patch.undo()


def test_fuzzed_requests_get_declared_answers(server):
    found = abuse.fuzz(server, NAMES, 80, seconds=60)
    assert not found["problems"]
    assert found["requests"] >= 40
    assert found["statuses"][200] > 5                     # some reach a model


def test_malformed_requests_are_refused_in_one_line(server):
    found = abuse.malform(server, "gpt", SMALL)
    assert not found["problems"]


def test_a_crowd_gets_the_answers_that_each_gets_alone(server):
    bodies = abuse.crowd_bodies(("gpt", "ngram"), 40)
    alone = [abuse.crowd(server, [body])[0] for body in bodies[:12]]
    together = abuse.crowd(server, bodies)
    assert {status for status, _ in together} == {200}
    assert together[:12] == alone


def test_clients_that_leave_free_their_rows(server):
    before = abuse.reference(server, NAMES)
    assert abuse.leave(server, "ngram", 8) > 0
    assert abuse.settle(lambda: abuse.rows_running(server) == 0)
    assert abuse.reference(server, NAMES) == before


def test_nothing_is_left_open(server):
    def files():
        return len(list(Path("/proc/self/fd").iterdir()))

    if not Path("/proc/self/fd").exists():
        pytest.skip("open files are counted on Linux only")
    abuse.crowd(server, abuse.crowd_bodies(("gpt", "ngram"), 20))     # the pool of threads is full after it
    assert abuse.settle(lambda: abuse.rows_running(server) == 0)
    threads, open_files = threading.active_count(), files()
    for _ in range(3):
        abuse.crowd(server, abuse.crowd_bodies(("gpt", "ngram"), 20))
        abuse.leave(server, "ngram", 6)
        abuse.malform(server, "gpt", {"not JSON": b"{"})
    assert abuse.settle(lambda: abuse.rows_running(server) == 0 and files() <= open_files)
    assert threading.active_count() <= threads + abuse.POOL
