"""POST /v1/predict: what `chainrule predict` answers: classes, tags, translations, captions, blanks filled in.

    {"model": "spam", "input": "You have won"}    ->    {"model": "spam", "task": "classify", "answers": [{…}]}

An input is a text, as a line of a file is to `chainrule predict`, or an object, as a row of a table: its fields are the
columns. A picture is an object with its file in base64: {"picture": "iVBOR…"}.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from chainrule.errors import UserError
from chainrule.inference.fill_in import ALTERNATIVES, keep_top
from chainrule.inference.mbr import choose_search
from chainrule.run import Run
from chainrule.serve.api_errors import HEADERS
from chainrule.serve.app import require_json
from chainrule.serve.endpoints.schemas import ERRORS, Answer, Body
from chainrule.serve.service import Served, Service
from chainrule.tasks.task import Prediction, Search

Fields = dict[str, Any]
INPUTS = 1024                # of one request
PICTURE = "picture"
ROWS_FILE = "input.jsonl"


class PredictBody(Body):
    model: str | None = Field(None, description="name of a run; missing: the first")
    input: str | Fields | Annotated[list[str], Field(min_length=1, max_length=INPUTS)] | Annotated[
        list[Fields], Field(min_length=1, max_length=INPUTS)] = Field(
        description="a text, an object with the columns of the task's tables, or a list of these")
    top: Annotated[int, Field(ge=1, le=ALTERNATIVES)] | None = Field(
        None, description="so many alternatives for each blank, where blanks are filled")
    beam: Annotated[int, Field(ge=1, le=16)] | None = Field(
        None, description="beam size of beam search, where texts are written; 1: greedy (default: 4)")
    alpha: Annotated[float, Field(ge=0, le=100)] | None = Field(None, description="length penalty (default: 0.6)")
    limit: Annotated[int, Field(ge=1, le=1024)] | None = Field(None, description="tokens in a text (default: 256)")
    samples: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="minimum Bayes risk instead of a beam: of so many samples the one most like the others")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="temperature of these samples (default: 1)")


    @model_validator(mode="before")
    @classmethod
    def refuse_other_inputs(cls, given: Any) -> Any:
        """Before the validator names only one of the forms."""
        inputs = given.get("input") if isinstance(given, dict) else ""
        each = inputs if isinstance(inputs, list) else [inputs]
        if not each or not any(all(isinstance(one, form) for one in each) for form in (str, dict)):
            line = "input must be a text, an object, a list of texts, or a list of objects, which is not empty."
            raise PydanticCustomError("unsupported", "{line}", {"name": "input", "line": line})
        return given


class Predictions(Answer):
    object: Literal["list"]
    model: str
    task: str
    answers: list[Fields]


def add_predict(router: APIRouter, service: Service) -> None:
    @router.post("/v1/predict", dependencies=[Depends(require_json)], response_model=Predictions, responses=ERRORS)
    async def predict(body: PredictBody, request: Request) -> Response:
        """The answers of a run that was trained for a task."""
        served = service.find(body.model)
        answers = await service.work(served, partial(predict_body, served, body), request)
        answer = {"object": "list", "model": served.name, "task": served.run.recipe.task, "answers": answers}
        return JSONResponse(answer, headers=HEADERS)


def predict_body(served: Served, body: PredictBody) -> list[Prediction]:
    """The answers to a request; called in a thread of its own."""
    inputs: Any = body.input if isinstance(body.input, list) else [body.input]
    texts = [given for given in inputs if isinstance(given, str)]
    try:
        answers = (served.run.predict(texts, search=search_of(body)) if texts
                   else predict_rows(served.run, inputs, search_of(body)))
    except UserError as error:
        raise UserError(str(error).replace(str(served.run.path), served.name)) from None
    return answers if body.top is None else [keep_top(answer, served.name, body.top, "top") for answer in answers]


def search_of(body: PredictBody) -> Search:
    """As the options of `chainrule predict`."""
    if body.samples is None and body.temperature is not None:
        raise UserError("temperature is that of the samples of minimum Bayes risk; give samples too.")
    temperature = 1.0 if body.temperature is None else body.temperature
    return choose_search(body.beam, body.alpha, body.limit, body.samples, temperature)


def predict_rows(run: Run, rows: Sequence[Fields], search: Search) -> list[Prediction]:
    """As of a file with a JSON object on each line."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / ROWS_FILE
        if getattr(run.recipe.text, "input", None) == "pictures":
            rows = [{"path": _write_picture(row, number, Path(folder))} for number, row in enumerate(rows, 1)]
        elif not run.task.examples:
            raise UserError(f"{run.path} reads texts, and input is an object. Give a text, or a list of texts.")
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        try:
            return run.predict(file, search=search)
        except UserError as error:
            raise UserError(str(error).replace(str(file), "input").replace(f"{folder}/", "")) from None


def _write_picture(row: Fields, number: int, folder: Path) -> str:
    """The name of a file in the folder. Only what is in the request is read, and no file of this machine."""
    content = row.get(PICTURE)
    if set(row) != {PICTURE} or not isinstance(content, str):
        raise UserError(f'input {number} must be {{"{PICTURE}": the file of a picture in base64}}.')
    try:
        data = base64.b64decode(content.partition(",")[2] if content.startswith("data:") else content, validate=True)
    except (binascii.Error, ValueError):
        raise UserError(f"input {number}: {PICTURE} is not base64.") from None
    (folder / f"{number}.png").write_bytes(data)
    return f"{number}.png"
