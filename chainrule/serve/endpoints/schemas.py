"""Bodies and answers of OpenAI's interface, as the server's OpenAPI schema describes them.

Bodies are strict: a wrong type, an unknown field, and a known field that is not supported are refused by name. A field
that is not supported is accepted with the value that changes nothing, since some clients always send it.
"""

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from chainrule.errors import did_you_mean

Id: TypeAlias = Annotated[int, Field(ge=0, le=2**31 - 1)]
Ids: TypeAlias = Annotated[list[Id], Field(max_length=1 << 20)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=1 << 20)]
StopText: TypeAlias = Annotated[str, Field(min_length=1, max_length=1000)]
Prompts: TypeAlias = (
    str | Annotated[list[Id], Field(min_length=1, max_length=1 << 20)]
    | Annotated[list[str], Field(min_length=1, max_length=1024)]
    | Annotated[list[Ids], Field(min_length=1, max_length=1024)]
)


class Body(BaseModel):
    """A request. `accepted`: fields that change no answer; `neutral`: fields of which one value is supported."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def refuse_unknown(cls, given: Any) -> Any:
        if isinstance(given, dict):
            for name in given:
                if name not in cls.model_fields:
                    line = "unknown field {name}: this server ignores nothing.{hint}"
                    shown = str(name).encode("ascii", "backslashreplace").decode()[:100]
                    about = {"name": shown, "hint": did_you_mean(shown, cls.model_fields)}
                    raise PydanticCustomError("unknown_field", line, about)
        return given


class StreamOptions(Body):
    include_usage: bool | None = Field(None, description="one more chunk at the end, with the usage")
    include_obfuscation: Literal[False] | None = Field(None, description="not supported: false only")


class SamplingBody(Body):
    """How tokens are sampled, for completions and for chats."""

    model: str | None = Field(None, description="name of a run; missing: the first")
    n: Annotated[int, Field(ge=1, le=1024)] | None = Field(None, description="answers to each prompt (default: 1)")
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = Field(
        None, description="the same seed gives the same text, whatever else is asked for; missing: a random one")
    temperature: Annotated[float, Field(ge=0)] | None = Field(None, description="0: greedy (default: 1)")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Count | None = Field(None, description="sample from the k most probable tokens")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=1e6)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=64)] | None = Field(
        None, description="texts that end the answer and are not part of it")
    stream: bool | None = Field(None, description="server-sent events, as the text is generated")
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="accepted; changes nothing")
    metadata: dict[str, str] | None = Field(None, description="accepted; changes nothing")
    store: Literal[False] | None = Field(None, description="not supported: false only")
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = Field(None, description="not supported: 0 only")
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = Field(None, description="not supported: 0 only")
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = Field(
        None, description="not supported: empty only")

    @model_validator(mode="before")
    @classmethod
    def refuse_unsupported(cls, given: Any) -> Any:
        if isinstance(given, dict):
            for name, neutral in cls.neutral().items():
                if name in given and not any(given[name] is value or given[name] == value for value in neutral):
                    instead = UNSUPPORTED.get(name, "")
                    raise PydanticCustomError("unsupported", "{name} is not supported by this server.{instead}",
                                              {"name": name, "instead": instead})
        return given

    @classmethod
    def neutral(cls) -> dict[str, tuple[Any, ...]]:
        """Fields that are not supported, and the values of them that ask for nothing."""
        return {"store": (None, False), "presence_penalty": (None, 0), "frequency_penalty": (None, 0),
                "logit_bias": (None, {})}

    @model_validator(mode="after")
    def options_belong_to_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("unsupported", "stream_options is for stream: true; give both, or neither.",
                                      {"name": "stream_options"})
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def reports_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


UNSUPPORTED = {
    "suffix": " A language model here continues a text and does not fill a gap.",
    "best_of": " Ask for n texts with logprobs, and choose among them.",
    "presence_penalty": " Use repetition_penalty.",
    "frequency_penalty": " Use repetition_penalty.",
}


class CompletionBody(SamplingBody):
    prompt: Prompts | None = Field(
        None, description="a text, the ids of its tokens, or a list of these; missing or null: a new document")
    max_tokens: Annotated[int, Field(ge=0, le=1 << 20)] | None = Field(
        None, description="tokens of the answer at most (default: 16); 0 with echo only scores the prompt")
    echo: bool | None = Field(None, description="the answer begins with the prompt")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="natural log-probabilities of the tokens, and so many of the most probable ones; with echo "
                          "those of the prompt too")
    suffix: Literal[""] | None = Field(None, description="not supported: null only")
    best_of: Count | None = Field(None, description="not supported: n only")

    @classmethod
    def neutral(cls) -> dict[str, tuple[Any, ...]]:
        return super().neutral() | {"suffix": (None, "")}

    @model_validator(mode="after")
    def best_of_is_n(self) -> Self:
        if self.best_of not in (None, self.n or 1):
            raise PydanticCustomError("unsupported", "best_of is not supported by this server.{instead}",
                                      {"name": "best_of", "instead": UNSUPPORTED["best_of"]})
        return self


class Answer(BaseModel):
    """What the server returns."""

    model_config = ConfigDict(extra="forbid")


class CompletionLogprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ModelAnswer(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    kind: str
    task: str
    parameters: int
    max_model_len: int | None


class ModelList(Answer):
    object: Literal["list"]
    data: list[ModelAnswer]


class ErrorDetail(Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Answer):
    error: ErrorDetail


class Tokenized(Answer):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: Ids


class Detokenized(Answer):
    prompt: str


class TokenizerInfo(BaseModel):
    tokenizer_class: str
    bos_token: str
    eos_token: str
    pad_token: str | None
    chat_template: str | None
    model_max_length: int | None


class Health(Answer):
    status: Literal["ok"]


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "the request is refused; `error.message` says why"},
    "5XX": {"model": Error, "description": "the server cannot answer now"},
}
