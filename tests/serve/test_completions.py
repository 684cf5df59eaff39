"""Completions through OpenAI's own client: they are what `chainrule sample` and `chainrule score` give."""

import asyncio
import math

import openai
import pytest
from serve.serving import KINDS

from chainrule.inference.evaluate import Signature
from chainrule.run import load
from chainrule.serve.endpoints.schemas import Completion

PROMPT = 'the cat said "'
SEED = 7


def generated(path, tokens, rows=1, **options):
    return load(path).generate(PROMPT, tokens, rows=rows, seed=SEED, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_the_texts_of_a_seed_are_the_rows_of_sample(client, paths, kind):
    answer = client.completions.create(model=kind, prompt=PROMPT, n=3, max_tokens=20, seed=SEED)
    assert [choice.text for choice in answer.choices] == generated(paths[kind], 20, 3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.object == "text_completion"
    assert answer.model == kind
    assert answer.usage.prompt_tokens == len(load(paths[kind]).tokenizer.encode(PROMPT))


def test_sampling_settings_are_those_of_sample(client, paths):
    options = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.01, "repetition_penalty": 1.3}
    more = {name: options[name] for name in ("top_k", "min_p", "repetition_penalty")}
    answer = client.completions.create(model="ngram", prompt=PROMPT, max_tokens=30, seed=SEED, temperature=0.7,
                                       top_p=0.9, extra_body=more)
    assert [answer.choices[0].text] == generated(paths["ngram"], 30, **options)


def test_without_a_seed_texts_differ(client):
    texts = {client.completions.create(model="lstm", prompt="a", max_tokens=20).choices[0].text for _ in range(3)}
    assert len(texts) == 3


@pytest.mark.parametrize("kind", [*KINDS, "words"])
def test_log_probabilities_of_an_echoed_text_are_those_of_score(complete, paths, kind):
    text = "the dog saw the cat"
    answer = complete(model=kind, prompt=text, max_tokens=0, echo=True, logprobs=0)
    (choice,) = answer["choices"]
    bits = load(paths[kind]).score(text).bits                                  # the last is the end of the text
    assert choice["text"] == text
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(
        [-math.log(2) * one for one in bits[1:-1]], rel=1e-5)
    assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_has_the_same_text_and_numbers(client, kind):
    asked = {"model": kind, "prompt": ["the", PROMPT], "n": 2, "max_tokens": 12, "seed": SEED, "logprobs": 2,
             "echo": True}
    whole = client.completions.create(**asked)
    texts, tokens, numbers, ends = [""] * 4, [[] for _ in range(4)], [[] for _ in range(4)], {}
    *chunks, last = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    for chunk in chunks:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        tokens[choice.index] += choice.logprobs.tokens
        numbers[choice.index] += zip(choice.logprobs.token_logprobs, choice.logprobs.text_offset)
        if choice.finish_reason:
            assert choice.index not in ends
            ends[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]
    assert numbers == [list(zip(choice.logprobs.token_logprobs, choice.logprobs.text_offset))
                       for choice in whole.choices]
    assert ends == {choice.index: choice.finish_reason for choice in whole.choices}
    assert last.choices == []
    assert last.usage == whole.usage
    assert {chunk.id for chunk in chunks} == {last.id}


def test_a_stop_text_ends_the_answer_and_no_part_of_it_is_sent(client, paths):
    (text,) = generated(paths["ngram"], 60)
    stop = text[20:23]
    asked = {"model": "ngram", "prompt": PROMPT, "max_tokens": 60, "seed": SEED, "stop": ["never", stop]}
    whole = client.completions.create(**asked).choices[0]
    assert whole.text == text[: text.index(stop)]
    assert whole.finish_reason == "stop"
    sent = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(sent) == whole.text


def test_a_stream_has_whole_characters_only(complete, client):
    """The three bytes of € are three tokens of a model of characters that has never seen one."""
    ids = [1 + byte for byte in "€".encode()]
    spelled = complete(model="lstm", prompt=ids, max_tokens=0, echo=True, logprobs=0)["choices"][0]
    assert spelled["text"] == "€"
    assert spelled["logprobs"]["tokens"] == ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]
    assert spelled["logprobs"]["text_offset"] == [0, 0, 0]
    asked = {"model": "lstm", "max_tokens": 60, "seed": SEED}
    pieces = [chunk.choices[0].text for chunk in client.completions.create(prompt=ids[:2], stream=True, **asked)]
    assert "".join(pieces) == client.completions.create(prompt=ids[:2], **asked).choices[0].text


def test_an_answer_completes_a_character_that_the_prompt_began(complete):
    choices = complete(model="lstm", prompt=[1 + 0xC3], max_tokens=1, echo=True, logprobs=0, n=60, seed=1)["choices"]
    whole = [choice for choice in choices if "bytes:\\x80" <= choice["logprobs"]["tokens"][1] <= "bytes:\\xbf"]
    for choice in whole:
        second = int(choice["logprobs"]["tokens"][1].removeprefix("bytes:\\x"), 16)
        assert choice["text"] == bytes([0xC3, second]).decode()
        assert choice["logprobs"]["text_offset"] == [0, 0]
    assert whole


def test_a_prompt_may_be_missing_null_text_ids_or_lists(complete, server):
    ids = server.service.find("gpt").spelling.encode("the")

    def texts(**prompt):
        return [choice["text"] for choice in complete(model="gpt", seed=1, max_tokens=5, **prompt)["choices"]]

    assert texts() == texts(prompt=None) == texts(prompt="") == texts(prompt=[[]]) == texts(prompt=[0])
    assert texts(prompt="the") == texts(prompt=ids) == texts(prompt=["the"]) == texts(prompt=[[0, *ids]])
    assert texts(prompt=["the", ""]) == texts(prompt="the") + texts(prompt="")


def test_words_have_spaces_between_them_and_the_prompt_keeps_its_own(complete):
    def of(prompt):
        return complete(model="words", prompt=prompt, temperature=0, max_tokens=3, echo=True, logprobs=0)["choices"][0]

    assert of("the cat")["text"] == of("the cat ")["text"] == "the cat saw the dog"
    assert of("the cat")["logprobs"]["text_offset"] == of("the cat ")["logprobs"]["text_offset"] == [0, 3, 7, 11, 15]
    unknown = of("the  zebra saw")
    assert unknown["text"].startswith("the  zebra saw ")
    assert unknown["logprobs"]["tokens"][:3] == ["the", "<unk>", "saw"]
    assert unknown["logprobs"]["text_offset"][:4] == [0, 4, 10, 14]


def test_the_default_is_sixteen_tokens_or_what_the_context_has_left(complete):
    assert complete(prompt="a", model="lstm", seed=1)["usage"]["completion_tokens"] == 16
    long = complete(prompt="a" * 60, model="gpt", seed=1)
    assert long["usage"]["completion_tokens"] <= 4
    refused = complete(400, prompt="a" * 60, model="gpt", max_tokens=16)["error"]
    assert "context of gpt, which is 64" in refused["message"]
    assert complete(400, prompt="a" * 64, model="gpt")["error"]["code"] == "context_length_exceeded"


def test_the_asynchronous_client_gets_the_same(server, client):
    asked = {"model": "gpt", "prompt": PROMPT, "max_tokens": 20, "seed": SEED}

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{server.url}v1", api_key="none") as one:
            stream = await one.completions.create(**asked, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

    assert asyncio.run(ask()) == client.completions.create(**asked).choices[0].text


def test_models_are_listed_with_the_signature_of_their_numbers(client, http, paths):
    assert [model.id for model in client.models.list()] == list(paths)
    assert client.models.retrieve("gpt").kind == "gpt"
    answer = http.post("/v1/completions", json={"model": "gpt", "max_tokens": 1})
    signature = Signature.parse(answer.headers["x-chainrule-signature"])
    assert (signature.unit, signature.context, signature.boundary) == ("characters", "64", "document")
    Completion.model_validate(answer.json())


@pytest.mark.parametrize(("ask", "expected", "message"), [
    ({"model": "gp"}, openai.NotFoundError, "there is no model 'gp' here. Did you mean gpt?"),
    ({"model": "gpt-classify"}, openai.BadRequestError, "does not continue a text. Use POST /v1/predict"),
    ({"suffix": "x"}, openai.BadRequestError, "suffix is not supported"),
    ({"best_of": 2}, openai.BadRequestError, "best_of is not supported"),
    ({"logit_bias": {"5": 1}}, openai.BadRequestError, "logit_bias is not supported"),
    ({"presence_penalty": 0.5}, openai.BadRequestError, "presence_penalty is not supported by this server. Use rep"),
    ({"extra_body": {"topk": 3}}, openai.BadRequestError, "unknown field topk: .* Did you mean top_k?"),
    ({"temperature": -1}, openai.BadRequestError, "temperature: .*greater than or equal to 0"),
    ({"top_p": 0}, openai.BadRequestError, "top_p: .*greater than 0"),
    ({"logprobs": 21}, openai.BadRequestError, "logprobs: .*less than or equal to 20"),
    ({"seed": -1}, openai.BadRequestError, "seed: "),
    ({"n": 0}, openai.BadRequestError, "n: "),
    ({"n": 65, "prompt": ["a", "b"]}, openai.BadRequestError, "130 texts, and one request may ask for 128"),
    ({"stop": ""}, openai.BadRequestError, "stop must be a text or a list of texts"),
    ({"prompt": [5, 999]}, openai.BadRequestError, "there is no token 999: the vocabulary has the ids from 0 to 277"),
    ({"prompt": []}, openai.BadRequestError, "prompt must be a text, a list of token ids, or a list of these"),
    ({"prompt": ["a", [1]]}, openai.BadRequestError, "prompt must be a text"),
    ({"max_tokens": 70_000}, openai.BadRequestError, "do not fit in the context of ngram, which is 65536"),
    ({"stream_options": {"include_usage": True}}, openai.BadRequestError, "stream_options is for stream: true"),
])
def test_what_is_wrong_or_not_supported_is_refused_by_name(client, ask, expected, message):
    with pytest.raises(expected, match=message) as caught:
        client.completions.create(**{"model": "ngram", "prompt": "a"} | ask)
    assert caught.value.body["message"].count("\n") == 0
    assert caught.value.type in ("invalid_request_error", "not_found_error")


def test_values_that_ask_for_nothing_are_accepted(complete):
    nothing = {"suffix": None, "best_of": 1, "n": 1, "logit_bias": {}, "presence_penalty": 0.0, "frequency_penalty": 0,
               "user": "me", "metadata": {"a": "b"}, "stop": None, "stream": False, "stream_options": None,
               "logprobs": None, "echo": None, "temperature": None, "top_p": None, "seed": None, "max_tokens": None}
    assert complete(prompt="a", **nothing)["object"] == "text_completion"
