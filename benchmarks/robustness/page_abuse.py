"""Abuse of the pages: `look`, `prefer` and `serve`, each a process of its own on this machine.

    python benchmarks/robustness/page_abuse.py [--requests 10000] [--clients 300] [--slow 300] [--leavers 50] [--seed 1]

Requests are valid ones that were changed at random (values, types, fields, bytes, methods, paths, headers), bodies that
are too large, paths out of the root, names of other hosts (DNS rebinding), and pages of other sites (Origin). Each must
be answered, none with a server error, and every refusal is one line of JSON. Then: many clients at once; slow ones that
send a byte at a time, begin and never end, or do not read; and clients that leave. Meanwhile others are answered; after
it the answers are as before, no connection, thread or file is left, and no traceback was printed. JSON lines.
"""

import argparse
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent))

from serve_abuse import TIMEOUT, process_facts, settle, tiny_runs

PATIENCE = 300.0                                # seconds that a client waits among many
BUSY = (429, 503, 507)                          # "not now" is an answer
HOSTS = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "evil.example:80", "10.1.2.3", "[",
         "", "localhost@evil.example", "evil.example#localhost", "\x7f", "0", "[::ffff:10.0.0.1]", "local host")
TYPES = ("text/plain", "", "application/json; charset=utf-7", "\t", "*/*")
ENDS = ("?rater=" + "%F0%9F%98%80" * 9, "?" + "a=1&" * 500, "/", "%00", "?rater=%ff", "#x")    # of paths
ORIGINS = ("http://evil.example", "null", "http://127.0.0.1.evil.example", "http://[", "https://localhost", "x", "")
PATHS = ("/../../etc/passwd", "/modules/../../app.py", "/modules/..%2f..%2fapp.js", "/modules/%2e%2e/page.js",
         "/modules/....//app.js", "/%2e%2e/%2e%2e/etc/passwd", "/modules/die.js/../../app.py", "//etc/passwd",
         "/modules/\\..\\app.js", "/modules/%00.js", "/api/views/%2e%2e%2fdie", "/static/../recipe.json")
ODD = ("", " ", "\0", "😀" * 50, "\u202e", "</script><script>alert(1)</script>", "../../etc/passwd", "%s%n", "a" * 3000,
       -1, 0, 1e308, 1 << 70, True, None, [], {}, [[]], {"a": {}}, [None] * 50, "NaN", "\ud83d")
RUNS = ("ngram", "hmm", "gpt", "encoder-classify")


# What is asked

def questions(program: str) -> list[tuple[str, str, Any]]:
    """Valid requests: method, path and body."""
    if program == "prefer":
        rater = {"rater": "ann"}
        return [("GET", "/", None), ("GET", "/api/state?rater=ann", None), ("GET", "/modules/prefer.js", None),
                ("POST", "/api/pairs", rater | {"have": [], "mode": "prefer"}),
                ("POST", "/api/click", rater | {"id": "12345678", "pair": "none", "choice": "left"}),
                ("POST", "/api/undo", rater | {"id": "12345679"}),
                ("POST", "/api/prompt", rater | {"id": "1234567a", "prompt": "the cat"}),
                ("POST", "/api/tune", rater | {"method": "dpo", "lora": True, "settings": "train.steps=1"}),
                ("POST", "/api/cancel", rater), ("POST", "/api/policy", rater)]
    page = [("GET", "/", None), ("GET", "/api/runs", None), ("GET", "/modules/draw.js", None),
            *(("POST", f"/api/views/{view}", {"runs": ["gpt", "ngram"], "text": "the cat", "options": {}})
              for view in ("die", "surprise", "attention", "backoff", "neurons", "vectors")),
            ("POST", "/api/chat", {"run": "gpt", "messages": [{"role": "user", "content": "the"}], "temperature": 1.0,
                                   "seed": 1, "tokens": 4})]
    if program == "look":
        return page
    return [*page, ("POST", "/v1/completions", {"model": "gpt", "prompt": "the cat", "max_tokens": 4, "seed": 3}),
            ("POST", "/v1/predict", {"model": "encoder-classify", "input": ["the cat"]}),
            ("POST", "/tokenize", {"model": "gpt", "prompt": "the cat"}), ("GET", "/v1/models", None),
            ("GET", "/metrics", None), ("GET", "/health", None)]


class Fuzzer:
    """Requests made from valid ones: (method, path, body as bytes, headers)."""

    def __init__(self, program: str, seed: int):
        self.questions, self.random = questions(program), random.Random(f"{program}{seed}")

    def request(self) -> tuple[str, str, bytes, dict[str, str]]:
        method, path, body = self.random.choice(self.questions)
        headers = {"content-type": "application/json"}
        data = b"" if body is None else json.dumps(self._changed(body)).encode()
        turn = self.random.random()
        if turn < 0.1:
            data = self._torn(data or b'{"runs": []}')
        elif turn < 0.15:
            path = self.random.choice(PATHS)
        elif turn < 0.2:
            method = self.random.choice(("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "BREW"))
        elif turn < 0.25:
            headers["origin"] = self.random.choice(ORIGINS)
        elif turn < 0.3:
            headers["host"] = self.random.choice(HOSTS)
        elif turn < 0.33:
            headers["content-type"] = self.random.choice(TYPES)
        elif turn < 0.36:
            path += self.random.choice(ENDS)
        elif turn < 0.362:
            data = b'{"text": "' + b"x" * (4 << 20) + b'"}'
        return method, path, data, headers

    def _changed(self, value: Any) -> Any:
        if self.random.random() < 0.3:
            return value
        if isinstance(value, dict) and value and self.random.random() < 0.9:
            name = self.random.choice([*value])
            rest = {key: one for key, one in value.items() if key != name}
            turn = self.random.random()
            return rest if turn < 0.1 else {**rest, str(self._odd()): 1} if turn < 0.2 else {
                **rest, name: self._changed(value[name])}
        if isinstance(value, list) and value and self.random.random() < 0.5:
            return value * self.random.choice((0, 1, 2, 300)) if self.random.random() < 0.5 else [
                self._changed(value[0]), *value[1:]]
        return self._odd()

    def _odd(self) -> Any:
        return self.random.choice(ODD)

    def _torn(self, data: bytes) -> bytes:
        cut = self.random.randrange(len(data))
        new = self.random.randbytes(self.random.choice((0, 1, 7)))
        return data[:cut] + new + data[cut + self.random.choice((0, 1)) :]


def ask(address: str, method: str, path: str, data: bytes = b"", headers: Mapping[str, str] = {},
        connection: HTTPConnection | None = None, timeout: float = TIMEOUT) -> tuple[int, bytes, dict[str, str]]:
    """The status, the body and the headers of an answer. Paths and headers are sent as they are."""
    where = urlsplit(address)
    one = connection or HTTPConnection(where.hostname or "", where.port, timeout=timeout)
    try:
        one.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in ({"host": where.netloc, "content-length": str(len(data))} | dict(headers)).items():
            one.putheader(name, value)
        one.endheaders(data)
        answer = one.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        if connection is None:
            one.close()


def faults(program: str, request: tuple[str, str, bytes, dict[str, str]], status: int, body: bytes) -> list[str]:
    """What is wrong with an answer."""
    method, path, _, headers = request
    found, host = [], headers.get("host")
    if status >= 500 and status not in BUSY:
        found.append(f"status {status}: {body[:200]!r}")
    if host is not None and status < 400:
        found.append(f"host {host!r} was answered with {status}")
    if headers.get("origin") and program != "serve" and method == "POST" and status < 400:
        found.append(f"origin {headers['origin']!r} was answered with {status}")
    if path in PATHS and status < 400:
        found.append(f"status {status}")
    if b"root:" in body or b"Traceback" in body:
        found.append(f"it tells too much: {body[:100]!r}")
    if status >= 400 and method != "HEAD" and not _one_line(body):
        found.append(f"status {status} without a line of JSON: {body[:100]!r}")
    return [f"{program}: {shown(request)}: {line}" for line in found]


def shown(request: tuple[str, str, bytes, dict[str, str]]) -> str:
    method, path, data, headers = request
    return f"{method} {path[:80]} {data[:150]!r} {headers}"


def _one_line(body: bytes) -> bool:
    with suppress(ValueError, KeyError, TypeError):
        error = json.loads(body)["error"]
        line = error["message"] if isinstance(error, dict) else error
        return bool(line) and "\n" not in line
    return body == b"Invalid HTTP request received."      # of the HTTP layer


def fuzz(program: str, address: str, number: int, seed: int, seconds: float = 600.0) -> dict[str, Any]:
    fuzzer, statuses, problems, slowest = Fuzzer(program, seed), Counter[int](), list[str](), 0.0
    end, sent = time.monotonic() + seconds, 0
    where = urlsplit(address)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT)
    while sent < number and time.monotonic() < end:
        request, began = fuzzer.request(), time.monotonic()
        sent += 1
        try:
            status, body, _ = ask(address, *request, connection=connection)
        except (ValueError, UnicodeError):                 # the client itself refuses to send it
            connection.close()
            continue
        except (OSError, HTTPException) as error:
            connection.close()
            if len(request[2]) < 1 << 20:                  # of a body that is too large the rest is not read
                problems.append(f"{program}: {shown(request)}: {error!r}")
            continue
        statuses[status] += 1
        slowest = max(slowest, time.monotonic() - began)
        problems += faults(program, request, status, body)
    connection.close()
    return {"program": program, "requests": sent, "statuses": dict(sorted(statuses.items())),
            "slowest": round(slowest, 2), "problems": problems[:20], "number_of_problems": len(problems)}


# Many clients, slow ones, and those that leave

def crowd(program: str, address: str, clients: int) -> dict[str, Any]:
    """All at once; each is answered as it is alone."""
    asked = [one for one in questions(program) if one[1] not in ("/metrics", "/api/tune", "/api/policy", "/api/cancel")]
    kind = {"content-type": "application/json"}

    def one(place: int) -> tuple[int, int | str]:
        method, path, body = asked[place % len(asked)]
        data = b"" if body is None else json.dumps(body).encode()
        try:
            return place, ask(address, method, path, data, kind, timeout=PATIENCE)[0]
        except (OSError, HTTPException) as error:
            return place, repr(error)

    alone = [one(place)[1] for place in range(len(asked))]
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(one, range(clients)))
    wrong = [status for place, status in found if status != alone[place % len(asked)] and status not in BUSY]
    return {"clients": clients, "statuses": dict(Counter(status for _, status in found)), "wrong": wrong}


def slow_clients(address: str, number: int, seconds: float) -> dict[str, Any]:
    """Some send a byte at a time, some half of the headers or of a body, some nothing; others must not wait."""
    where = urlsplit(address)
    head = f"POST /api/views/die HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n".encode()
    begun = (b"", head[:40], head, head + b"content-length: 100\r\n\r\n{",
             head + b"transfer-encoding: chunked\r\n\r\n5\r\n")
    connections = []
    for place in range(number):
        connection = socket.create_connection((where.hostname, where.port or 80), timeout=TIMEOUT)
        connection.sendall(begun[place % len(begun)])
        connections.append(connection)
    longest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        for connection in connections:
            with suppress(OSError):
                connection.send(b"x")
        began = time.monotonic()
        status, _, _ = ask(address, "GET", "/")
        longest = max(longest, time.monotonic() - began) if status == 200 else TIMEOUT
        time.sleep(0.5)
    settle(lambda: all(map(_is_closed, connections)), seconds)
    closed = sum(_is_closed(connection) for connection in connections)
    for connection in connections:
        connection.close()
    return {"slow": number, "closed_by_the_server": closed, "others_waited": round(longest, 2)}


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        while data := connection.recv(4096):
            del data
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


def leave(program: str, address: str, clients: int) -> int:
    """Clients that ask and hang up, before or while they are answered."""
    where = urlsplit(address)
    asked = [one for one in questions(program) if one[0] == "POST" and "tune" not in one[1] and "policy" not in one[1]]
    for place in range(clients):
        method, path, body = asked[place % len(asked)]
        data = json.dumps(body).encode()
        with socket.create_connection((where.hostname, where.port or 80), timeout=TIMEOUT) as connection:
            head = (f"{method} {path} HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(data)}\r\n\r\n")
            connection.sendall(head.encode() + data[: place % (len(data) + 1) or None])
            if place % 3 == 0:
                connection.settimeout(0.05)
                with suppress(OSError):
                    connection.recv(16)
    return clients


# The programs

@contextmanager
def program_of(name: str, runs: Sequence[Path], folder: Path) -> Iterator[tuple[str, int, Path]]:
    """Its address, its process and what it prints."""
    words = {"look": [*map(str, runs), "--no-browser", "--port", "0"],
             "serve": [*map(str, runs), "--port", "0", "--chat-template", "plain"],
             "prefer": [str(runs[2]), "--no-browser", "--port", "0", "--pairs", "20", "--tokens", "4"]}[name]
    said = folder / f"{name}.said"
    command = [sys.executable, "-m", "chainrule", name, *words]
    with said.open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process:
        try:
            settle(lambda: process.poll() is not None or "http://" in said.read_text(), TIMEOUT * 2)
            if not (found := re.search(r"http://[^/\s]+", said.read_text())):
                raise SystemExit(f"`chainrule {name}` said: {said.read_text()}")
            yield found[0], process.pid, said
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(TIMEOUT)
            process.kill()


def reference(program: str, address: str) -> list[tuple[int, bytes]]:
    kept = [one for one in questions(program) if one[1].startswith(("/api/views", "/v1/completions", "/modules"))]
    answers = [ask(address, method, path, b"" if body is None else json.dumps(body).encode(),
                   {"content-type": "application/json"})[:2] for method, path, body in kept]
    return [(status, re.sub(rb'"(id|created)": ?("[^"]*"|\d+)', b"", body)) for status, body in answers]


def abuse(name: str, runs: Sequence[Path], folder: Path, args: argparse.Namespace) -> bool:
    with program_of(name, runs, folder) as (address, process, said):
        before = reference(name, address)
        crowd(name, address, 40)                           # warm: threads of the pool
        facts = process_facts(process)
        found = fuzz(name, address, args.requests, args.seed, args.seconds)
        say(fuzzed=found)
        many = crowd(name, address, args.clients)
        say(program=name, crowd=many)
        slow = slow_clients(address, args.slow, args.slow_seconds)
        say(program=name, **slow)
        left = leave(name, address, args.leavers)
        settle(lambda: process_facts(process)["files"] <= facts["files"] + 2)
        now, after = process_facts(process), reference(name, address)
        tracebacks = said.read_text().count("Traceback")
        say(program=name, left=left, before=facts, after=now, answers_as_before=after == before, tracebacks=tracebacks)
        return not found["problems"] and not many["wrong"] and after == before and not tracebacks \
            and slow["closed_by_the_server"] == args.slow and now["files"] <= facts["files"] + 2 \
            and now["megabytes"] - facts["megabytes"] < args.megabytes


def say(**facts: Any) -> None:
    print(json.dumps(facts, default=str), flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", default="look,prefer,serve")
    parser.add_argument("--requests", type=int, default=4000, help="fuzzed, for each program")
    parser.add_argument("--seconds", type=float, default=900.0, help="for the fuzzed requests of a program, at most")
    parser.add_argument("--clients", type=int, default=300, help="at once")
    parser.add_argument("--slow", type=int, default=300, help="slow clients at once")
    parser.add_argument("--slow-seconds", type=float, default=45.0, help="for so long")
    parser.add_argument("--leavers", type=int, default=50, help="clients that hang up while they are answered")
    parser.add_argument("--megabytes", type=int, default=300, help="by which the memory may grow")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        runs = tiny_runs(Path(folder), RUNS)
        good = min([abuse(name, runs, Path(folder), args) for name in args.programs.split(",")])
    say(good=good)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
