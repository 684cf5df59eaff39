"""What lm-eval sends and reads: each of its traps, for every kind of model."""

from contextlib import closing
from http.client import HTTPConnection

import httpx
import pytest
from serve.serving import KINDS, serving
from viewer.live import save_run
from viewer.subjects import subject

from chainrule.recipe import Text
from chainrule.text.tokenizers.spelling import Spelling
from chainrule.text.tokenizers.tokenizer import train_tokenizer

SCORING = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}


def numbers(answer):
    return [choice["logprobs"] for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]


def test_a_generated_boundary_has_its_entry(complete, server):
    """1: [ctxlen:-1] drops the generated token, and would drop a real one if this were left out."""
    ids = server.service.find("words").spelling.encode("a cat ran")
    answer = complete(model="words", prompt=[ids], **SCORING)
    (one,) = numbers(answer)
    assert one["tokens"] == ["a", "cat", "ran", "</s>"]
    assert [len(one[name]) for name in ("token_logprobs", "top_logprobs", "text_offset")] == [4, 4, 4]
    assert answer["choices"][0]["text"] == "a cat ran"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_a_token_is_the_same_among_the_most_probable(complete, kind):
    """2: whether a token is greedy is equality of floats."""
    (one,) = numbers(complete(model=kind, prompt="the cat said", **SCORING | {"logprobs": 5}))
    greedy = 0
    for token, number, top in list(zip(one["tokens"], one["token_logprobs"], one["top_logprobs"]))[1:]:
        assert top[token] == number
        assert number <= max(top.values())
        greedy += number == max(top.values())
    assert greedy > 0
    assert one["token_logprobs"][-1] == max(one["top_logprobs"][-1].values())    # temperature 0


@pytest.mark.parametrize("unit", ["characters", "bytes", "words", "bpe", "symbols"])
def test_every_token_has_a_spelling_of_its_own(unit):
    """3: the most probable tokens are keys of an object."""
    text = "the cat, the café and the naïve €uro\n" * 9
    tokenizer = train_tokenizer(Text(tokenizer=unit, vocab=300 if unit == "bpe" else None), [text])
    spelling = Spelling(tokenizer)
    names = [spelling[id] for id in range(len(tokenizer))]
    assert len(set(names)) == len(names)
    if unit in ("characters", "bpe"):
        assert "t" in names
    assert all(name.startswith(("bytes:", "token_id:")) or "\ufffd" not in name for name in names)
    text = text.removesuffix("\n") if unit == "words" else text
    if unit != "symbols":
        assert spelling.decode(spelling.encode(text)) == text


@pytest.mark.parametrize("kind", [*KINDS, "words"])
def test_the_names_of_special_tokens_are_encoded_as_them(http, kind):
    """4 and 5: the boundary begins and ends texts, and its id, 0, is found by its name."""
    info = http.get("/tokenizer_info", params={"model": kind}).json()
    assert info["eos_token"] == info["bos_token"]
    assert {"pad_token", "chat_template"} <= info.keys()
    body = {"model": kind, "prompt": info["eos_token"], "add_special_tokens": False}
    assert http.post("/tokenize", json=body).json()["tokens"] == [0]
    around = http.post("/tokenize", json=body | {"prompt": f"a{info['eos_token']}a"}).json()["tokens"]
    assert (around[1], around[0]) == (0, around[2])


def test_ids_come_back_as_the_text_they_are_of(http):
    text = "the<|endoftext|>café €\n"
    ids = http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert ids["count"] == len(ids["tokens"]) == len(ids["token_strs"])
    assert http.post("/detokenize", json={"tokens": ids["tokens"]}).json() == {"prompt": text}
    wrong = http.post("/detokenize", json={"tokens": [278]})
    assert wrong.status_code == 400
    assert "from 0 to 277" in wrong.json()["error"]["message"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_boundary_in_front_is_added_and_not_reported(complete, server, kind):
    """6: lists are as long as the ids that were sent, with or without the boundary."""
    ids = server.service.find(kind).spelling.encode("the cat")
    without, begun = numbers(complete(model=kind, prompt=[ids, [0, *ids]], **SCORING))
    assert len(without["tokens"]) == len(ids) + 1
    assert len(begun["tokens"]) == len(ids) + 2
    assert begun["tokens"][0] == "<|endoftext|>"
    assert begun["token_logprobs"][2:] == without["token_logprobs"][1:]
    assert begun["token_logprobs"][1] is not None


def test_the_first_number_is_null_and_minus_infinity_is_written(tmp_path):
    """7: JSON has no infinity."""
    never = save_run(tmp_path / "never", subject("ngram", unit="words", text="a b\n" * 2, estimator="mle", order=2))
    with serving({"never": never}) as one, httpx.Client(base_url=one.url) as http:
        asked = {"prompt": "a a b", **SCORING, "max_tokens": 0, "logprobs": 3}
        (found,) = numbers(http.post("/v1/completions", json=asked).json())
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    assert found["token_logprobs"][1] == -9999.0
    assert found["token_logprobs"][2] == 0.0
    assert found["top_logprobs"][1]["b"] == 0.0
    assert min(found["top_logprobs"][2].values()) == -9999.0


def test_an_empty_bearer_token_is_accepted_where_no_key_is_needed(http):
    """8: httpx would not send this header, and aiohttp does."""
    asked = HTTPConnection(http.base_url.host, http.base_url.port)
    asked.request("GET", "/v1/models", headers={"Authorization": "Bearer "})
    with closing(asked):
        assert asked.getresponse().status == 200


@pytest.mark.parametrize("kind", KINDS)
def test_places_are_counted_in_characters(complete, kind):
    """9: é is two tokens here, since the model has never seen it."""
    context, text = "Café", "Café said"
    (one,) = numbers(complete(model=kind, prompt=text, **SCORING | {"logprobs": 10}))
    assert one["text_offset"][:-1] == [0, 1, 2, 3, 3, 4, 5, 6, 7, 8]
    assert one["text_offset"][-1] == len(text)
    first = next(place for place, offset in enumerate(one["text_offset"]) if offset >= len(context))
    assert "".join(one["tokens"][first:-1]) == " said"


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_prompts_of_different_lengths_is_answered_as_each_alone(complete, server, kind):
    """10: also without a stop text, or with an empty list of them."""
    encode = server.service.find(kind).spelling.encode
    prompts = [encode(text) for text in ("the", "the cat said", "a")]
    together = numbers(complete(model=kind, prompt=prompts, stop=[], **SCORING))
    assert together == [numbers(complete(model=kind, prompt=[ids], **SCORING))[0] for ids in prompts]


def test_a_request_may_name_no_model(complete):
    """As lm-eval's gguf client sends it."""
    answer = complete(prompt="the", logprobs=10, temperature=0.0, max_tokens=1, echo=True)
    assert answer["model"] == "ngram"
    assert len(numbers(answer)[0]["tokens"]) == 4


@pytest.mark.parametrize("body", [b"{", b"[]", b'"a"', b"null", b'{"prompt": "\\ud83d"}', b'{"\\ud83d": 1}',
                                  b'{"temperature": NaN}', b'{"temperature": 1e999}', b'{"n": 1.5}',
                                  b'{"seed": 99999999999999999999}', b'{"prompt": ' + b"[" * 5000, b"\xff",
                                  b'{"n": ' + b"9" * 5000 + b"}"])
def test_what_would_fail_again_is_refused_at_once(http, body):
    """12: a client repeats what is not 400."""
    answer = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert "\n" not in answer.json()["error"]["message"]


@pytest.mark.parametrize("setting", [{"temperature": 1e-310}, {"temperature": 1e308}, {"top_k": 1 << 20},
                                     {"top_p": 1e-300}, {"min_p": 1}, {"repetition_penalty": 1e-300},
                                     {"repetition_penalty": 1e6}, {"seed": 2**63 - 1}, {"stop": ["\0", "€" * 1000]}])
def test_extreme_settings_are_answered(complete, setting):
    assert complete(model="gpt", prompt="the \0€", **setting)["choices"]
