"""Abuse of `chainrule serve`: fuzzed requests, malformed ones, a crowd, clients that leave; then leaks are looked for.

    python benchmarks/robustness/serve_abuse.py [--requests 10000] [--clients 300] [--leavers 50] [--seconds 1500]
                                                [--run RUN …]

The server is a process of its own on this machine, with tiny runs of several kinds and tasks unless --run names others.
Requests are made by schemathesis from /openapi.json, half of them valid and half of them not; most are given the name
of a run, so that they reach a model. Each answer must have a declared status and content, and none may be a server
error (429 and 503 are answers, too). Before and after, the same requests must have the same answers bit by bit, and
threads, file descriptors and rows of the engines must be as before; memory may grow by --megabytes. JSON lines.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import chainrule

TIMEOUT = 60.0                                   # seconds after which a request hangs
POOL = 40                                        # threads that wait for work (anyio.s)
RETRIES = 12                                     # of a fuzzed request, each without the field that was refused
ALLOWED = (429, 503, 504)                        # "not now" is an answer, and no fault of the server
LIMITS = ("max_tokens", "max_completion_tokens")
REQUIRED = {"prompt": "the cat sat", "input": "the cat sat", "tokens": [1, 2, 3],
            "messages": [{"role": "user", "content": "the cat"}]}
TEXT = "".join(f"the cat {word} on the mat, and the dog {word} too.\n" for word in
               ("sat", "slept", "sang", "ran", "ate", "hid", "lay", "sneezed")) * 6


# Runs of several kinds and tasks, as small as they can be

def tiny_runs(folder: Path, names: Sequence[str] = ()) -> list[Path]:
    """All of them, or those named."""
    text, labelled, pairs = folder / "text.txt", folder / "labelled.tsv", folder / "pairs.tsv"
    text.write_text(TEXT)
    labelled.write_text("sentence\tlabel\n" + "".join(f"the {animal} {verb}\t{animal}\n" for animal in ("cat", "dog")
                                for verb in ("sat", "ran", "hid", "ate")) * 3)
    pairs.write_text("".join(f"{word}\t{word[::-1]}\n" for word in TEXT.split()[:40]))
    steps = {"train.steps": 3, "text.held_out": 0.1}
    recipes: dict[str, tuple[Path, dict[str, Any]]] = {
        "ngram": (text, {"text.tokenizer": "characters"}),
        "hmm": (text, {"text.tokenizer": "words", "text.min_count": 1, "model.states": 4}),
        "lstm": (text, {"text.tokenizer": "bpe", "text.vocab": 300, "model.hidden": 16, **steps}),
        "gpt": (text, {"text.tokenizer": "bpe", "text.vocab": 300, "model.layers": 2, "model.width": 16,
                       "model.heads": 2, "model.context": 64, **steps}),
        "encoder-classify": (labelled, {"model.layers": 1, "model.width": 16, "model.heads": 2, **steps}),
        "seq2seq-translate": (pairs, {"model.hidden": 16, "model.layers": 1, **steps}),
        "word2vec": (text, {"model.embedding": 8, "text.min_count": 1, "train.epochs": 1}),
    }
    made = []
    for name in names or recipes:
        source, settings = recipes[name]
        kind, _, task = name.partition("-")
        made.append(chainrule.train(source, kind=kind, task=task or None, out=folder / name, settings=settings,
                                    device="cpu").path)
    return made


# Fuzzing

def fuzz(address: str, names: Sequence[str], number: int, seconds: float = 600.0, seed: int = 1) -> dict[str, Any]:
    """At most so many requests made from the schema, for so long; statuses, and what was wrong with the answers."""
    import requests
    import schemathesis

    schema = schemathesis.openapi.from_url(f"{address}/openapi.json", timeout=TIMEOUT)
    operations = sorted((found.ok() for found in schema.get_all_operations()), key=lambda one: one.method == "post")
    jobs = [(operation, mode) for operation in operations for mode in schemathesis.GenerationMode]
    end, found = time.monotonic() + seconds, Found()
    with requests.Session() as session:
        for place, (operation, mode) in enumerate(jobs):
            left = number - found.requests
            share = -(-left // (len(jobs) - place))
            if share < 1 or time.monotonic() > end:
                break
            _fuzz_one(operation, mode, share, names, session, found, end, seed + place)
    return {"requests": found.requests, "operations": len(operations), "statuses": dict(sorted(found.statuses.items())),
            "slowest": found.slowest, "problems": found.problems}


class Found:
    def __init__(self) -> None:
        self.requests, self.slowest = 0, (0.0, "")       # seconds, and the request
        self.statuses, self.problems = Counter[int](), list[str]()

    def timed(self, seconds: float, request: str) -> None:
        self.slowest = max(self.slowest, (round(seconds, 2), request))

    def problem(self, line: str) -> None:
        if len(self.problems) < 50 and line not in self.problems:
            self.problems.append(line)


def _fuzz_one(
    operation: Any, mode: Any, number: int, names: Sequence[str], session: Any, found: Found, end: float, seed: int
) -> None:
    import hypothesis
    from hypothesis import HealthCheck, Phase
    from schemathesis.core.failures import FailureGroup
    from schemathesis.specs.openapi import checks

    random_source, asked = random.Random(seed), found.requests + number
    wanted = [checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance]

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=number, database=None, deadline=None, phases=[Phase.generate],
                         suppress_health_check=list(HealthCheck))
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if found.requests >= asked or time.monotonic() > end:
            return
        reach_a_model(case, suited(operation.path, names), random_source)
        for _ in range(1 + RETRIES):
            answer = ask_once(case)
            if answer is None or found.requests >= asked or not leave_out_refused(case, answer):
                break

    def ask_once(case: Any) -> Any:
        began = time.monotonic()
        try:
            answer = case.call(session=session, timeout=TIMEOUT)
        except Exception as error:                         # such as a header that requests itself refuses
            if "Timeout" in type(error).__name__ or "ConnectionError" in type(error).__name__:
                found.problem(f"{operation.label}: {type(error).__name__}: {json.dumps(case.body, default=str)[:300]}")
            return None
        found.requests += 1
        found.statuses[answer.status_code] += 1
        found.timed(time.monotonic() - began, f"{operation.label} {json.dumps(case.body, default=str)[:300]}")
        if answer.status_code >= 500 and answer.status_code not in ALLOWED:
            found.problem(f"{operation.label}: {answer.status_code} {answer.text[:300]} for "
                          f"{json.dumps(case.body, default=str)[:500]}")
        if answer.status_code not in (405, 413, 421, 429, 503):  # of the HTTP layer, which no operation declares
            try:
                case.validate_response(answer, checks=wanted)
            except FailureGroup as failures:
                first = failures.exceptions[0]
                found.problem(f"{operation.label}: {' '.join(str(first).split())[:600]}")
        return answer

    with contextlib.suppress(hypothesis.errors.Unsatisfiable):
        ask()


def leave_out_refused(case: Any, answer: Any) -> bool:
    """Takes the field that was refused out of the body, so that the next try gets further; whether there was one."""
    if answer.status_code != 400 or not isinstance(case.body, dict):
        return False
    field = json.loads(answer.text).get("error", {}).get("param")
    if field in REQUIRED and case.body.get(field) != REQUIRED[field]:
        case.body[field] = REQUIRED[field]
        return True
    return case.body.pop(field, None) is not None


def suited(path: str, names: Sequence[str]) -> Sequence[str]:
    """Runs that can do what is asked, several times, and all others."""
    does = {"/v1/predict": ("classify", "translate"), "/v1/embeddings": ("encoder", "word2vec", "gpt", "lstm")}
    fits = [name for name in names if any(part in name for part in does.get(path, ("ngram", "hmm", "lstm", "gpt")))]
    return [*fits * 5, *names]


def reach_a_model(case: Any, names: Sequence[str], source: random.Random) -> None:
    """Most bodies get the name of a run, ids of its vocabulary and a small number of tokens."""
    body = case.body
    if not isinstance(body, dict) or source.random() < 0.1:
        return
    if "model" in body or source.random() < 0.8:
        body["model"] = source.choice(names)
    for limit in LIMITS:
        if isinstance(body.get(limit), int) and source.random() < 0.9:
            body[limit] = source.choice((1, 2, 8, 24))
    if case.operation.path.endswith("/completions") and not any(body.get(limit) for limit in LIMITS):
        body["max_tokens"] = 4                             # else a model without a context writes 65,536 tokens
    for field in ("prompt", "tokens", "input"):
        if isinstance(ids := body.get(field), list) and ids and all(isinstance(id, int) for id in ids):
            body[field] = [id % 64 for id in ids] if source.random() < 0.8 else ids
    if isinstance(body.get("n"), int) and source.random() < 0.9:
        body["n"] = source.choice((1, 2))


# Malformed requests, which no schema describes

BODIES: Mapping[str, bytes] = {
    "empty": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"prompt": "\xff\xfe"}',
    "a lone surrogate": b'{"prompt": "\\ud800", "max_tokens": 1}',
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "Infinity": b'{"prompt": "a", "temperature": Infinity}',
    "a huge number": b'{"prompt": "a", "max_tokens": 1' + b"0" * 400 + b"}",
    "5,000 digits": b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    "deep nesting": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a key twice": b'{"prompt": "a", "prompt": "b", "max_tokens": 1}',
    "a list": b"[1, 2, 3]",
    "a string": b'"prompt"',
    "null": b"null",
    "NUL characters": b'{"prompt": "\\u0000\\u0000", "max_tokens": 1}',
    "negative ids": b'{"prompt": [-1], "max_tokens": 1}',
    "ids beyond 64 bits": b'{"prompt": [99999999999999999999], "max_tokens": 1}',
    "ids that are true": b'{"prompt": [true, false], "max_tokens": 1}',
    "mixed lists": b'{"prompt": [1, "a", [2]], "max_tokens": 1}',
    "no prompts": b'{"prompt": [], "max_tokens": 1}',
    "a prompt without ids": b'{"prompt": [[]], "max_tokens": 1}',
    "zero tokens": b'{"prompt": "a", "max_tokens": 0, "echo": true, "logprobs": 0}',
    "zero tokens, no echo": b'{"prompt": "a", "max_tokens": 0}',
    "many samples": b'{"prompt": "a", "n": 1000000}',
    "an empty stop": b'{"prompt": "a", "stop": "", "max_tokens": 2}',
    "many stops": b'{"prompt": "a", "stop": ' + json.dumps([str(number) for number in range(5000)]).encode() + b"}",
    "a suffix": b'{"prompt": "a", "suffix": "b"}',
    "a long text": json.dumps({"prompt": "the cat " * 200_000, "max_tokens": 1}).encode(),
    "a long text with log-probabilities": json.dumps(
        {"prompt": "the cat " * 100_000, "max_tokens": 1, "echo": True, "logprobs": 5}).encode(),
    "too large": b'{"prompt": "' + b"a" * (64 << 20) + b'"}',
}
RAW: Mapping[str, bytes] = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 garbage\r\n\r\n",
    "a body that is cut short": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"prompt\": ",
    "a negative length": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n{}",
    "two lengths": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 9\r\n\r\n"
                   b"{}",
    "a stranger's name": b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "no host": b"GET /v1/models HTTP/1.0\r\n\r\n",
    "a bad chunk": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                   b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
    "a long header": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 200_000 + b"\r\n\r\n",
    "outside the root": b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "nothing at all": b"",
}
PATHS = ("completions", "chat/completions", "embeddings", "predict")


def malform(address: str, model: str, bodies: Mapping[str, bytes] = BODIES) -> dict[str, Any]:
    """Bodies that are wrong, to each endpoint; then bytes that are no request. No 5xx, and every refusal is JSON."""
    import requests

    found = Found()
    with requests.Session() as session:
        for path in PATHS:
            for name, body in bodies.items():
                named = body.replace(b'{"prompt"', b'{"model": "%s", "prompt"' % model.encode(), 1)
                try:
                    answer = session.post(f"{address}/v1/{path}", named, timeout=TIMEOUT,
                                          headers={"content-type": "application/json"})
                except requests.exceptions.ConnectionError:    # the server may close on a body that is too large
                    if len(body) < 1 << 20:
                        found.problem(f"/v1/{path}, {name}: the connection was closed")
                    continue
                except requests.exceptions.Timeout:
                    found.problem(f"/v1/{path}, {name}: no answer in {TIMEOUT:.0f} s")
                    continue
                _judge(found, f"/v1/{path}, {name}", answer)
    for name, data in RAW.items():
        status = raw(address, data)
        found.requests += 1
        found.statuses[status or 0] += 1
        if status is not None and status >= 500 and status not in ALLOWED:
            found.problem(f"{name}: status {status}")
    return {"requests": found.requests, "statuses": dict(sorted(found.statuses.items())), "problems": found.problems}


def _judge(found: Found, name: str, answer: Any) -> None:
    found.requests += 1
    found.statuses[answer.status_code] += 1
    if answer.status_code >= 500 and answer.status_code not in ALLOWED:
        found.problem(f"{name}: {answer.status_code} {answer.text[:300]}")
    if answer.status_code >= 400:
        try:
            line = answer.json()["error"]["message"]
            if not line or "\n" in line or "Traceback" in line:
                found.problem(f"{name}: the message is {line[:300]!r}")
        except (ValueError, KeyError, TypeError):
            found.problem(f"{name}: {answer.status_code} without an error in OpenAI's form: {answer.text[:300]!r}")


def raw(address: str, data: bytes) -> int | None:
    """Bytes are sent and the sender hangs up; the status that came until then."""
    parts = urlsplit(address)
    where = parts.hostname or "", parts.port or 80
    with socket.create_connection(where, timeout=TIMEOUT) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(2)
        found = re.match(rb"HTTP/1\.\d (\d+)", connection.recv(4096))
        return int(found[1]) if found else None
    return None


# A crowd, and clients that leave

def crowd_bodies(models: Sequence[str], clients: int) -> list[dict[str, Any]]:
    """Different requests: models, prompts, lengths, samples, log-probabilities, streams."""
    words = TEXT.split()
    return [{"model": models[number % len(models)], "seed": number,
             "prompt": " ".join(words[number % 40 : number % 40 + 1 + number % 7]),
             "max_tokens": 4 + number % 13, "temperature": 0 if number % 5 == 0 else 1,
             "logprobs": 2 if number % 3 == 0 else None, "echo": number % 6 == 0, "stream": number % 4 == 1}
            for number in range(clients)]


def crowd(address: str, bodies: Sequence[Mapping[str, Any]]) -> list[tuple[int, Any]]:
    """All at once: the status and the content of each answer, in order."""
    import aiohttp

    async def ask(session: aiohttp.ClientSession, body: Mapping[str, Any]) -> tuple[int, Any]:
        async with session.post(f"{address}/v1/completions", json=body) as answer:
            return answer.status, content(await answer.text())

    async def ask_all() -> list[tuple[int, Any]]:
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=TIMEOUT)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            return await asyncio.gather(*(ask(session, body) for body in bodies))

    return asyncio.run(ask_all())


def content(text: str) -> Any:
    """An answer without what differs between two equal ones: id and time. Of a stream: the whole text, and the end."""
    if text.startswith("data:") or "\ndata:" in text:
        events = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
        parts = [json.loads(event) for event in events if event != "[DONE]"]
        choices = [choice for part in parts for choice in part.get("choices", [])]
        return {"text": "".join(choice["text"] for choice in choices), "done": events[-1] == "[DONE]",
                "finish_reason": [choice["finish_reason"] for choice in choices if choice["finish_reason"]]}
    whole = json.loads(text)
    return {name: value for name, value in whole.items() if name not in ("id", "created")}


def endless(address: str, names: Sequence[str]) -> str:
    """One of the runs whose model has no context limit, so that an answer can be long."""
    import requests

    listed = requests.get(f"{address}/v1/models", timeout=TIMEOUT).json()["data"]
    return next(one["id"] for one in listed if one["id"] in names and one["max_model_len"] is None)


def leave(address: str, model: str, clients: int, tokens: int = 50_000) -> int:
    """So many clients read the beginning of a long answer, or not even that, and hang up. How many had begun."""
    begun = 0
    parts = urlsplit(address)
    connections = []
    for number in range(clients):
        body = json.dumps({"model": model, "prompt": "the cat", "max_tokens": tokens, "seed": number,
                           "stream": number % 3 != 0}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()
        connection = socket.create_connection((parts.hostname, parts.port or 80), timeout=TIMEOUT)
        connection.sendall(head + body)
        connections.append(connection)
    for number, connection in enumerate(connections):
        if number % 3 == 1:
            begun += bool(connection.recv(256))
        connection.close()
    return begun


# Before and after

def reference(address: str, names: Sequence[str]) -> list[tuple[int, Any]]:
    """Answers that must not change: scores and texts of each run; where a run cannot do it, its refusal."""
    import requests

    asked = [{"model": name, "prompt": "the cat sat", "max_tokens": 8, "seed": 3, "logprobs": 3, "echo": True}
             for name in names]
    answers = [requests.post(f"{address}/v1/completions", json=body, timeout=TIMEOUT) for body in asked]
    return [(answer.status_code, content(answer.text)) for answer in answers]


def rows_running(address: str) -> float:
    """Rows that run or wait, over all engines, as /metrics counts them."""
    import requests

    lines = requests.get(f"{address}/metrics", timeout=TIMEOUT).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines
               if re.match(r"chainrule\w*_(running|waiting)\b", line))


def settle(check: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Waits until it is so; whether it was in time."""
    end = time.monotonic() + seconds
    while not (done := check()) and time.monotonic() < end:
        time.sleep(0.05)
    return done


def process_facts(pid: int) -> dict[str, int]:
    """Threads, open files and resident memory of a process (Linux)."""
    status = (Path("/proc") / str(pid) / "status").read_text()
    facts = {name: int(value) for name, value in re.findall(r"^(Threads|VmRSS):\s+(\d+)", status, re.MULTILINE)}
    files = len(list((Path("/proc") / str(pid) / "fd").iterdir()))
    return {"threads": facts["Threads"], "files": files, "megabytes": facts["VmRSS"] >> 10}


@contextlib.contextmanager
def serving(runs: Sequence[Path]) -> Iterator[tuple[str, int]]:
    """The address and the process of `chainrule serve RUN…`. What it says, such as a traceback, is shown at the end."""
    command = [sys.executable, "-m", "chainrule", "serve", *map(str, runs), "--port", "0", "--chat-template", "plain"]
    with tempfile.NamedTemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        def said() -> str:
            return Path(log.name).read_text()

        try:
            settle(lambda: process.poll() is not None or "http://" in said(), TIMEOUT)
            if not (found := re.search(r"http://[^/\s]+", said())):
                raise SystemExit(f"`chainrule serve` said: {said()}")
            yield found[0], process.pid
        finally:
            process.terminate()
            process.wait(TIMEOUT)
            print(said()[-4000:], file=sys.stderr)


def abuse(args: argparse.Namespace, runs: Sequence[Path]) -> bool:
    names, good = [path.name for path in runs], True
    with serving(runs) as (address, pid):
        before = reference(address, names)
        writers = [name for name, (status, _) in zip(names, before) if status == 200]
        bodies = crowd_bodies(writers, args.clients)
        alone = [crowd(address, [body])[0] for body in bodies]
        crowd(address, bodies)                             # warm: threads of the pool, caches
        facts = process_facts(pid)
        say(before=facts, runs=names)

        found = fuzz(address, names, args.requests, args.seconds)
        say(fuzzed=found)
        malformed = malform(address, writers[-1])
        say(malformed=malformed)
        good &= not found["problems"] and not malformed["problems"] and found["requests"] >= args.requests

        began = time.monotonic()
        together = crowd(address, bodies)
        statuses = Counter(status for status, _ in together)
        equal = sum(one == other for one, other in zip(alone, together))
        answered = statuses[200]
        same = all(one == other for one, other in zip(alone, together) if other[0] == 200)
        seconds = round(time.monotonic() - began, 2)
        say(crowd=args.clients, statuses=dict(statuses), equal_to_alone=equal, seconds=seconds)
        good &= same and answered > 0 and set(statuses) <= {200, *ALLOWED}

        begun = leave(address, endless(address, writers), args.leavers)
        freed = settle(lambda: rows_running(address) == 0)
        say(left=args.leavers, had_begun_to_read=begun, rows_freed=freed)
        good &= freed

        after = reference(address, names)
        settle(lambda: process_facts(pid)["files"] <= facts["files"])
        now = process_facts(pid)
        grown = now["megabytes"] - facts["megabytes"]
        say(after=now, grown=grown, answers_as_before=after == before)
        good &= after == before and now["files"] <= facts["files"] + 2 and now["threads"] <= facts["threads"] + POOL
        good &= grown <= args.megabytes
    say(good=good)
    return good


def say(**facts: Any) -> None:
    print(json.dumps(facts, default=str), flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000, help="fuzzed from the schema")
    parser.add_argument("--seconds", type=float, default=1500.0, help="for the fuzzed requests, at most")
    parser.add_argument("--clients", type=int, default=300, help="at once")
    parser.add_argument("--leavers", type=int, default=50, help="clients that hang up while they are answered")
    parser.add_argument("--megabytes", type=int, default=200, help="by which the memory may grow")
    parser.add_argument("--run", type=Path, action="append", default=[], help="serve these runs; default: tiny ones")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        good = abuse(args, args.run or tiny_runs(Path(folder)))
    gc.collect()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
