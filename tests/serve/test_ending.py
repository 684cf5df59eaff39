"""Clients that leave, queues that are full, times that are over, and the end of the server."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
import openai
import pytest
from serve.serving import serving

from chainrule.serve.service import ServerLimits

LONG = {"model": "ngram", "prompt": "the", "max_tokens": 50_000, "top_k": 1, "temperature": 0}    # never ends
SHORTER = LONG | {"max_tokens": 1_500}    # what a server writes that does not notice that its client has left


@contextmanager
def held(server, name="ngram"):
    """A model that waits in the midst of a step, and the event that lets it go on."""
    model, go_on = server.service.find(name).engine.model, threading.Event()
    step = model.step
    model.step = lambda *given: (go_on.wait(60), step(*given))[1]
    try:
        yield go_on
    finally:
        go_on.set()
        model.step = step


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "this did not happen within 30 seconds"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def small(paths):
    """One text at a time, one that waits, and a second for each request that nothing holds up."""
    with serving({"ngram": paths["ngram"]}, ServerLimits(rows=1, queue=1, grace=20)) as one:
        yield one


def engine(server):
    return server.service.find("ngram").engine


def generated(server):
    return engine(server).stats.generated_tokens


def is_free(server):
    return engine(server).stats.running == engine(server).stats.waiting == server.service.under_way == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_rows(small, stream):
    before = generated(small)
    with pytest.raises(httpx.ReadTimeout), held(small):
        httpx.post(f"{small.url}v1/completions", json=SHORTER | {"stream": stream}, timeout=0.3)
    until(lambda: is_free(small))
    assert generated(small) - before < SHORTER["max_tokens"]


def test_a_client_that_leaves_in_the_midst_of_a_stream_frees_its_row(small):
    before = generated(small)
    with openai.OpenAI(base_url=f"{small.url}v1", api_key="none") as client:
        with client.completions.create(**without(SHORTER, "top_k"), stream=True) as stream:
            assert next(iter(stream)).choices
        until(lambda: is_free(small))
    assert generated(small) - before < SHORTER["max_tokens"]


def without(body, name):
    return {key: value for key, value in body.items() if key != name}


def test_a_full_queue_is_answered_with_429_and_the_client_comes_again(small):
    asked = {"model": "ngram", "prompt": "the", "max_tokens": 1, "seed": 1}

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{small.url}v1", api_key="none", max_retries=0) as client:
            with held(small) as go_on:
                first = asyncio.create_task(client.completions.create(**asked))
                while not engine(small)._running:
                    await asyncio.sleep(0.01)
                second = asyncio.create_task(client.completions.create(**asked))
                while not engine(small)._waiting:
                    await asyncio.sleep(0.01)
                with pytest.raises(openai.RateLimitError, match="waiting already") as refused:
                    await client.completions.create(**asked)
                third = asyncio.create_task(client.with_options(max_retries=2).completions.create(**asked))
                while refusals(small) < 2:
                    await asyncio.sleep(0.01)
                go_on.set()
                return refused.value, [await one for one in (first, second, third)]

    refused, answers = asyncio.run(ask())
    assert refused.response.headers["retry-after"] == "1"
    assert refused.code == "queue_full"
    assert len({answer.choices[0].text for answer in answers}) == 1
    assert is_free(small)


def refusals(server):
    return server.service.metrics.requests.labels("/v1/completions", "429")._value.get()


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_takes_too_long_is_ended(paths, stream):
    with serving({"ngram": paths["ngram"]}, ServerLimits(seconds=1)) as one, held(one) as go_on:
        client = openai.OpenAI(base_url=f"{one.url}v1", api_key="none")
        with client, pytest.raises(openai.APIError, match="took more than 1 seconds, which is the limit") as caught:
            list(client.completions.create(**without(LONG, "top_k"), stream=stream))
        assert stream or caught.value.status_code == 504
        go_on.set()
        until(lambda: is_free(one))
        assert stream or one.service.metrics.requests.labels("/v1/completions", "504")._value.get() == 1    # no retry


def test_a_server_that_is_ending_answers_what_is_under_way_and_refuses_the_rest(paths):
    asked = {"model": "ngram", "prompt": "the", "max_tokens": 3, "seed": 1}
    with serving({"ngram": paths["ngram"]}) as one, httpx.Client(base_url=one.url) as client:
        alone = client.post("/v1/completions", json=asked).json()["choices"]
        until(lambda: one.service.under_way == 0)
        with held(one) as go_on:
            answers = []
            thread = threading.Thread(target=lambda: answers.append(httpx.post(f"{one.url}v1/completions", json=asked)))
            thread.start()
            until(lambda: one.service.under_way == 1)
            one.server.handle_exit(signal.SIGTERM, None)
            refused = client.post("/v1/completions", json=asked)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert "the server is ending" in refused.json()["error"]["message"]
            go_on.set()
            thread.join()
        assert answers[0].json()["choices"] == alone
        until(lambda: one.server.should_exit)


def test_a_second_signal_ends_it_at_once(small):
    class Server(type(small.server)):
        pass

    server = Server(small.server.config, Ending())
    server.handle_exit(signal.SIGINT, None)
    assert not server.should_exit
    server.handle_exit(signal.SIGINT, None)
    assert server.should_exit


class Ending:
    stop_by = None

    def stop(self):
        self.stop_by = 1.0


def test_the_command_serves_until_sigterm(paths):
    command = [sys.executable, "-m", "chainrule", "serve", str(paths["ngram"]), "--port", "0", "--json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        line = process.stderr.readline()
        url = line.split()[1]
        assert line == f"ngram: {url} (OpenAI's interface: {url}v1; stop with Ctrl-C)\n"
        with httpx.stream("POST", f"{url}v1/completions", json=LONG | {"max_tokens": 300, "stream": True}) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: {")
            process.send_signal(signal.SIGTERM)
            *_, last = filter(None, lines)
        assert last == "data: [DONE]"
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert '"runs": ["ngram"]' in out
        assert err == ""
    finally:
        process.kill()
