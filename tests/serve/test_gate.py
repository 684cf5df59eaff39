"""Who may ask, and how much: the key, the host, other sites' pages, the size of a body; all answers are JSON."""

import httpx
import openai
import pytest
from serve.serving import serving

from chainrule.serve.api import Gate
from chainrule.serve.service import ServerLimits

KEY = "s3cret-key"
PAGE_OF = {"origin": "https://example.org"}


@pytest.fixture(scope="module")
def guarded(paths):
    """A server that needs its key, and that pages of one other site may use."""
    with serving({"ngram": paths["ngram"]}, ServerLimits(body=2 << 20), key=KEY, cors=["https://example.org"]) as one:
        yield one


@pytest.fixture(scope="module")
def stranger(guarded):
    with httpx.Client(base_url=guarded.url) as one:
        yield one


def test_the_key_is_openais(guarded):
    with openai.OpenAI(base_url=f"{guarded.url}v1", api_key=KEY) as client:
        assert client.completions.create(model="ngram", prompt="a", max_tokens=1).choices
    with openai.OpenAI(base_url=f"{guarded.url}v1", api_key="wrong", max_retries=0) as client, pytest.raises(
        openai.AuthenticationError, match="needs its key: send the header Authorization: Bearer KEY"
    ) as caught:
        client.models.list()
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/openapi.json", "/", "/api/runs", "/nowhere",
                                  "/tokenizer_info", "/modules/draw.js"])
@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer"}, {"authorization": f"Bearer {KEY}x"},
                                    {"authorization": KEY}, {"authorization": "Basic é".encode()},
                                    {"authorization": "Bearer ☃".encode()}])
def test_nothing_but_health_is_answered_without_the_key(stranger, path, header):
    answer = stranger.get(path, headers=header)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].split()[0] in ("Bearer", "Basic")
    assert stranger.get("/health", headers=header).json() == {"status": "ok"}


def test_a_browser_gives_the_key_as_a_password_and_only_to_the_page(stranger):
    assert stranger.get("/").headers["www-authenticate"].startswith("Basic ")
    assert stranger.get("/", auth=("anybody", KEY)).status_code == 200
    assert stranger.get("/api/runs", auth=("", KEY)).status_code == 200
    assert stranger.get("/", auth=(KEY, "")).status_code == 401
    assert stranger.get("/v1/models", auth=("", KEY)).status_code == 401    # a browser would send it for any site


def test_the_key_is_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda given, key: compared.append((given, key)) or given == key)
    gate = Gate(None, None, KEY)
    assert gate.allows({"headers": [(b"authorization", b"bearer " + KEY.encode())]}, page=False)
    assert compared == [(KEY.encode(), KEY.encode())]


def test_a_request_that_names_another_host_is_refused_where_there_is_no_key(http, stranger):
    answer = http.get("/v1/models", headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert "answers only to its own name" in answer.json()["error"]["message"]
    behind_a_proxy = {"host": "models.example", "authorization": f"Bearer {KEY}"}
    assert stranger.get("/v1/models", headers=behind_a_proxy).status_code == 200


def test_pages_of_other_sites_may_ask_only_where_their_site_was_named(http, stranger):
    preflight = PAGE_OF | {"access-control-request-method": "POST",
                           "access-control-request-headers": "authorization,content-type"}
    asked = stranger.options("/v1/completions", headers=preflight)
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == "https://example.org"
    body = {"json": {"max_tokens": 1}, "headers": PAGE_OF | {"authorization": f"Bearer {KEY}"}}
    answer = stranger.post("/v1/completions", **body)
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    assert "access-control-allow-origin" not in stranger.get("/v1/models", headers={"origin": "https://evil.example"}
                                                             ).headers
    refused = http.options("/v1/completions", headers=preflight)
    assert refused.status_code == 405
    assert "access-control-allow-origin" not in http.get("/v1/models", headers=PAGE_OF).headers


def test_a_form_of_another_site_is_refused(http):
    answer = http.post("/v1/completions", content=b'{"prompt": "a"}', headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    assert "content-type: application/json" in answer.json()["error"]["message"]


def test_a_body_that_is_too_large_is_refused(stranger):
    answer = stranger.post("/v1/completions", json={"prompt": "a" * (2 << 20)},
                           headers={"authorization": f"Bearer {KEY}"})
    assert answer.status_code == 413
    assert answer.json()["error"]["message"] == "the body has more than 2 MB. Give a shorter text."


@pytest.mark.parametrize(("method", "path", "status"), [
    ("POST", "/v1/responses", 404), ("GET", "/nowhere", 404), ("GET", "/v1/models/no/such", 404),
    ("DELETE", "/v1/models", 405), ("GET", "/v1/completions", 405),
])
def test_what_is_not_here_is_answered_in_json(http, method, path, status):
    answer = http.request(method, path, json={})
    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


def test_the_live_page_is_beside_it_with_its_own_errors(http):
    assert "<title>chainrule look</title>" in http.get("/").text
    asked = {"runs": ["gpt"], "text": "the", "options": {}}
    assert http.post("/api/views/die", json=asked).status_code == 200
    assert http.post("/api/views/die", json=asked | {"runs": ["no"]}).json()["error"].startswith("there is no run no")


def test_a_failure_of_the_server_is_one_line_and_it_goes_on(server, http, monkeypatch, capfd):
    monkeypatch.setattr(type(server.service.find("gpt").spelling), "known", lambda *given: 1 / 0)
    answer = http.post("/detokenize", json={"tokens": [1]})
    assert answer.status_code == 500
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["message"] == "this failed, which is a bug: ZeroDivisionError: division by zero"
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert http.get("/health").status_code == 200


def test_the_figures_count_requests_tokens_rows_and_times(http, complete):
    def figures():
        lines = (line for line in http.get("/metrics").text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    before = figures()
    complete(model="hmm", prompt="the", max_tokens=5, seed=3)
    complete(400, model="hmm", n=0)
    after = figures()

    def more(name):
        return after[f"chainrule_{name}"] - before.get(f"chainrule_{name}", 0)

    assert more('requests_total{path="/v1/completions",status="200"}') == 1
    assert more('requests_total{path="/v1/completions",status="400"}') == 1
    assert more('request_prompt_tokens_total{model="hmm"}') == 3
    assert 1 <= more('request_completion_tokens_total{model="hmm"}') <= 5
    assert more('time_to_first_token_seconds_count{model="hmm"}') == 1
    assert more('request_seconds_count{path="/v1/completions"}') == 2
    assert after['chainrule_rows_running{model="hmm"}'] == after['chainrule_rows_waiting{model="hmm"}'] == 0
    assert 'chainrule_engine_cached_tokens_total{model="hmm"}' in after


def test_the_schema_describes_bodies_answers_and_errors(http):
    schema = http.get("/openapi.json").json()
    asked = schema["paths"]["/v1/completions"]["post"]
    assert asked["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("CompletionBody")
    assert asked["responses"].keys() >= {"200", "4XX", "5XX"}
    assert "422" not in asked["responses"]
    assert not any(path.startswith(("/api", "/modules")) for path in schema["paths"])
    assert schema["components"]["schemas"]["CompletionBody"]["additionalProperties"] is False
