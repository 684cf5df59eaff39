"""The tokens of a run: /tokenize, /detokenize and /tokenizer_info. They do not wait for its model.

The names of special tokens stand for them: `<|endoftext|>` is id 0.
"""

from functools import partial
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse

from chainrule.serve.api_errors import HEADERS
from chainrule.serve.app import require_json
from chainrule.serve.endpoints.chat import TokenizeBody, encode_chat
from chainrule.serve.endpoints.schemas import ERRORS, DetokenizeBody, Detokenized, Tokenized, TokenizerInfo
from chainrule.serve.service import Served, Service
from chainrule.serve.streams import aside


def add_tokens(router: APIRouter, service: Service) -> None:
    @router.get("/tokenizer_info", response_model=TokenizerInfo, responses=ERRORS)
    async def describe_tokenizer(model: str | None = None) -> Response:
        """The special tokens, as in Hugging Face's tokenizer_config.json."""
        served = service.find(model)
        boundary = served.run.tokenizer.token(0)
        return respond({
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": boundary, "eos_token": boundary,
            "pad_token": None, "chat_template": served.run.chat_template, "model_max_length": served.context,
        })

    @router.post("/tokenize", dependencies=[Depends(require_json)], response_model=Tokenized, responses=ERRORS)
    async def tokenize(body: TokenizeBody) -> Response:
        """The ids of a text, or of the messages of a chat."""
        served = service.find(body.model)
        if body.messages is None:
            text = body.prompt or ""
            ids = await aside(partial(served.spelling.encode, text), len(text))
        else:
            texts = [message.text for message in body.messages]
            ids = await to_thread.run_sync(encode_chat, served, texts, body.add_generation_prompt is not False)
        return await aside(partial(tokenized, served, ids, bool(body.return_token_strs)), len(ids))

    @router.post("/detokenize", dependencies=[Depends(require_json)], response_model=Detokenized, responses=ERRORS)
    async def detokenize(body: DetokenizeBody) -> Response:
        """The text of ids."""
        decode = service.find(body.model).spelling.decode
        return await aside(lambda: respond({"prompt": decode(body.tokens)}), len(body.tokens))


def tokenized(served: Served, ids: list[int], names: bool) -> Response:
    spelled = [served.spelling[id] for id in ids] if names else None
    return respond({"count": len(ids), "max_model_len": served.context, "tokens": ids, "token_strs": spelled})


def respond(answer: dict[str, Any]) -> Response:
    return JSONResponse(answer, headers=HEADERS)
