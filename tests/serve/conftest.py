"""One server for the tests of a file that leave it as it was, and clients for it.

No longer than that: its threads run on while tests of other files patch what it uses.
"""

import httpx
import openai
import pytest
from serve.serving import save_runs, serving


@pytest.fixture(scope="session")
def paths(tmp_path_factory):
    return save_runs(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def server(paths):
    with serving(paths) as one:
        yield one


@pytest.fixture(scope="module")
def client(server):
    """OpenAI's own."""
    with openai.OpenAI(base_url=f"{server.url}v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as one:
        yield one


@pytest.fixture
def complete(http):
    """The answer to POST /v1/completions, as JSON."""

    def ask(status=200, **body):
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == status, answer.text[:500]
        return answer.json()

    return ask
