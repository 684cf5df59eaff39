"""POST /v1/embeddings: a vector for each text, by the mean of its tokens' vectors (mean pooling).

    encoders, recurrent networks, GPT, and these under a head:  mean of the vectors of `0 text 0`, at length 1
    word vectors:                                               mean of the vectors of the words that have one

A vector has the same bits whatever else is asked for: every call of the model has a shape that follows from one text.

Shapes: B rows, T tokens, D width.
"""

import base64
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import torch
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from chainrule.errors import UserError
from chainrule.inference.forward import device_of, eval_mode
from chainrule.inference.vectors import Vectors, vectors_of
from chainrule.model import BOUNDARY, Encoder
from chainrule.run import Run
from chainrule.serve.api_errors import HEADERS, APIError
from chainrule.serve.app import require_json
from chainrule.serve.endpoints.schemas import ERRORS, Answer, Body, Prompts
from chainrule.serve.service import Served, Service

Floats: TypeAlias = NDArray[np.float32]
ROWS = {"cuda": 16}      # rows of one call, some of them idle; on a CPU, where idle rows cost time, 1
WIDTH = 16               # on a GPU the tokens of a row are rounded up to a power of two, at least this


class EmbeddingBody(Body):
    model: str | None = Field(None, description="name of a run; missing: the first")
    input: Prompts = Field(description="a text, the ids of its tokens, or a list of these")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: little-endian float32 (default: float)")
    dimensions: Annotated[int, Field(ge=1)] | None = Field(None, description="the size of the model's vectors only")
    user: str | None = Field(None, description="accepted; changes nothing")


class Embedding(Answer):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Answer):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Answer):
    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


def add_embeddings(router: APIRouter, service: Service) -> None:
    @router.post("/v1/embeddings", dependencies=[Depends(require_json)], response_model=EmbeddingList, responses=ERRORS)
    async def create_embeddings(body: EmbeddingBody, request: Request) -> Response:
        """A vector for each text."""
        served = service.find(body.model)
        answer = await service.work(served, partial(embed, served, body), request)
        return JSONResponse(answer, headers=HEADERS)


def embed(served: Served, body: EmbeddingBody) -> dict[str, Any]:
    """The answer to a request; called in a thread of its own."""
    given: Any = body.input
    inputs = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    vectors, tokens = embed_inputs(served.run, inputs)
    if body.dimensions not in (None, vectors.shape[1]):
        raise APIError(400, f"dimensions={body.dimensions} is not supported: the vectors of {served.name} have "
                            f"{vectors.shape[1]} numbers.", param="dimensions")
    written = [_base64(row) if body.encoding_format == "base64" else row.tolist() for row in vectors]
    data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(written)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": served.name, "data": data, "usage": usage}


def _base64(row: Floats) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def embed_inputs(run: Run, inputs: Sequence[str | Sequence[int]]) -> tuple[Floats, int]:
    """(N, D): the vectors of texts, or of ids; and how many tokens were read."""
    if run.model.learns_by == "pairs":
        return embed_words(vectors_of(run.model, run.tokenizer), run, inputs)
    rows = [_framed(run, given, number) for number, given in enumerate(inputs)]
    return mean_vectors(encoder_of(run), rows), sum(map(len, rows))


# Word vectors


def embed_words(vectors: Vectors, run: Run, inputs: Sequence[str | Sequence[int]]) -> tuple[Floats, int]:
    means, count = [], 0
    for number, given in enumerate(inputs):
        words = given.split() if isinstance(given, str) else [run.tokenizer.token(id) for id in _known(run, given)]
        places = [place for word in words if (place := vectors.find(word)) is not None]
        if not places:
            raise UserError(f"input {number} has no word that is among the {len(vectors):,} words with a vector.")
        means.append(vectors.matrix[places].mean(0))
        count += len(words)
    return np.stack(means), count


# Networks


def encoder_of(run: Run) -> Encoder:
    """The network that gives the tokens of a run's text their vectors: its model, or the body under a head."""
    body = getattr(run.model, "body", run.model)
    if getattr(run.recipe.model, "features", None) is not None:
        raise UserError(f"{run.path.name} reads vectors and no text, so no text has an embedding. Use /v1/predict.")
    if not isinstance(body, Encoder) or getattr(body, "needs_source", False):
        raise UserError(f"{run.path.name} ({run.recipe.kind}) has no vectors of texts. Encoders, GPTs, recurrent "
                        "networks and word vectors have.")
    return body


def _framed(run: Run, given: str | Sequence[int], number: int) -> list[int]:
    """`0 text 0`; ids that begin or end with the boundary already get no second one."""
    ids = run.tokenizer.encode(given).tolist() if isinstance(given, str) else list(_known(run, given))
    ids = ids if ids[:1] == [BOUNDARY] else [BOUNDARY, *ids]
    ids = ids if len(ids) > 1 and ids[-1] == BOUNDARY else [*ids, BOUNDARY]
    most = getattr(run.model, "context", None)
    if most is not None and len(ids) > most:
        raise APIError(400, f"input {number} has {len(ids)} tokens with its boundaries, and {run.path.name} can read "
                            f"{most}. Shorten it.", param="input", code="context_length_exceeded")
    return ids


def _known(run: Run, ids: Sequence[int]) -> Sequence[int]:
    for id in ids:
        if not 0 <= id < len(run.tokenizer):
            raise UserError(f"there is no token {id}: the vocabulary has the ids from 0 to {len(run.tokenizer) - 1}.")
    return ids


@torch.inference_mode()
def mean_vectors(encoder: Any, texts: Sequence[Sequence[int]]) -> Floats:
    """(N, D), at length 1: the mean of the vectors of each text's tokens."""
    device, means = device_of(encoder), dict[int, Floats]()
    rows = ROWS.get(device.type, 1)
    with eval_mode(encoder):
        for width, numbers in _groups([len(text) for text in texts], rows, getattr(encoder, "context", None)):
            tokens, lengths = _padded([texts[number] for number in numbers], rows, width)
            vectors = encoder.encode(tokens.to(device), lengths.to(device))                  # (B, T, D)
            real = torch.arange(width, device=device) < lengths.to(device)[:, None]
            sums = vectors.float().where(real[..., None], 0).sum(1)
            pooled = normalize(sums / lengths.to(device)[:, None]).cpu().numpy()
            means |= dict(zip(numbers, pooled))
    found = np.stack([means[number] for number in range(len(texts))])
    if not np.isfinite(found).all():
        raise UserError("the model gives vectors that are not finite; its training may have diverged.")
    return found


def _groups(lengths: Sequence[int], rows: int, most: int | None) -> Iterator[tuple[int, list[int]]]:
    """The texts of each call, and the tokens of its rows, which follow from the text alone; `most`: tokens of a row."""
    round_up = [max(WIDTH, 1 << (length - 1).bit_length()) for length in lengths]
    widths = lengths if rows == 1 else round_up if most is None else [min(width, most) for width in round_up]
    for width in sorted(set(widths)):
        alike = [number for number, other in enumerate(widths) if other == width]
        for at in range(0, len(alike), rows):
            yield width, alike[at : at + rows]


def _padded(texts: Sequence[Sequence[int]], rows: int, width: int) -> tuple[Tensor, Tensor]:
    """(B, T) and (B,): with idle rows, which read one boundary."""
    tokens, lengths = torch.full((rows, width), BOUNDARY), torch.ones(rows, dtype=torch.long)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
        lengths[row] = len(text)
    return tokens, lengths
