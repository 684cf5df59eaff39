"""Run: a trained model with its tokenizer and recipe, loaded from its directory."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from chainrule import __version__
from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.inference.beam import Beam
from chainrule.inference.generate import generate, stream_text
from chainrule.inference.sampling import Sampling
from chainrule.inference.text_score import TextScore, score_tokens
from chainrule.inference.vectors import evaluate_words
from chainrule.model import LanguageModel
from chainrule.recipe import Recipe
from chainrule.run.about import find_base, read_about, recipe_of, verify, weights_file
from chainrule.run.earlier import look_before_writing
from chainrule.run.layout import ADAPTER, CHAT_TEMPLATE, INSTEAD, TOKENIZER, Done
from chainrule.run.saving import read_log, save
from chainrule.settings import make
from chainrule.tasks import build_for, find_task
from chainrule.tasks.task import Prediction, Search, Task
from chainrule.text.chat_template import ChatTemplate
from chainrule.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from chainrule.viewer.notebook import Page

RECORD = ("time", "event", "elapsed", "split")    # fields of a log record that are not metrics
SEARCH = Beam()                                   # how texts are searched for by default
LONGEST_REASON = 200                              # characters of the reason why weights do not fit


class SamplingOptions(TypedDict, total=False):
    """The fields of Sampling (inference/sampling.py)."""

    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    repetition_penalty: float
    stop: str | tuple[str, ...]
    seed: int


@dataclass(frozen=True, repr=False)
class Run:
    """A trained model with its tokenizer and recipe: `chainrule.load` and `chainrule.train` return one."""

    path: Path
    recipe: Recipe
    tokenizer: Tokenizer
    model: Any
    about: Mapping[str, Any]        # all of recipe.json: version, splits, done, files, and the recipe
    labels: tuple[str, ...] = ()    # names of the classes, tags or hidden states, where it has them
    chat_template: str | None = None    # a Jinja template that makes one text of the messages of a chat
    others: "tuple[Run, ...]" = ()  # runs whose probabilities are averaged with this one's (averaged_with)
    weight: float = 1.0             # of its probabilities, where it is one of these others

    def __repr__(self) -> str:
        return f"<Run {self.path}: {self.recipe.kind}, --task {self.recipe.task}>"

    @property
    def result(self) -> dict[str, Any]:
        """The metrics on the validation split at the end of training; empty where there are none."""
        records = [record for record in read_log(self.path) if record["event"] == "result"]
        return {name: value for name, value in (records or [{}])[-1].items() if name not in RECORD}

    @overload
    def generate(
        self, prompt: str = "", tokens: int = 200, *, rows: None = None, past_end: bool = False,
        **sampling: Unpack[SamplingOptions]
    ) -> str: ...

    @overload
    def generate(
        self, prompt: str, tokens: int = 200, *, rows: int, past_end: bool = False,
        **sampling: Unpack[SamplingOptions]
    ) -> list[str]: ...

    @overload
    def generate(
        self, prompt: list[str], tokens: int = 200, *, rows: None = None, past_end: bool = False,
        **sampling: Unpack[SamplingOptions]
    ) -> list[str]: ...

    def generate(
        self, prompt: str | list[str] = "", tokens: int = 200, *, rows: int | None = None, past_end: bool = False,
        **sampling: Unpack[SamplingOptions],
    ) -> str | list[str]:
        """Samples a continuation of the prompt, of at most so many tokens; a list for several `rows` or prompts.

        `sampling`: temperature, top_k, top_p, min_p, repetition_penalty, stop and seed. A sample stops at the end of
        the text, which for words is the end of a line, `</s>`; with `past_end` the next text follows it.
        """
        model, options = self.language_model, Sampling(**sampling)
        texts = generate(model, self.tokenizer, prompt, tokens, options, 1 if rows is None else rows, past_end)
        return texts[0] if isinstance(prompt, str) and rows is None else texts

    def stream(
        self, prompt: str = "", tokens: int = 200, *, past_end: bool = False, **sampling: Unpack[SamplingOptions]
    ) -> Iterator[str]:
        """`generate`, piece by piece while it is sampled."""
        return stream_text(self.language_model, self.tokenizer, prompt, tokens, Sampling(**sampling), past_end)

    def score(self, text: str) -> TextScore:
        """The bits, -log2 p, of each token of a text and of its end."""
        stream = self.tokenizer.framed(text)
        return score_tokens(self.language_model, self.tokenizer, stream, len(text.encode()))

    def evaluate(
        self, files: str | Path | Sequence[str | Path], *, settings: Mapping[str, Any] = {}, search: Search = SEARCH
    ) -> dict[str, Any]:
        """The metrics on held-out files, with a signature that says how they were measured.

        `settings`: `text.*` settings of these files that differ; `search`: how texts are searched for, where the task
        writes texts.
        """
        names = [str(files)] if isinstance(files, str | Path) else [str(file) for file in files]
        if self.model.learns_by == "pairs":
            if settings:
                raise UserError(f"{next(iter(settings))} cannot be set here: a test of words is read as it is.")
            return evaluate_words(self.model, self.tokenizer, names)
        return self.task.measure(self, names, self.reading(settings), search)

    def predict(
        self, inputs: str | Path | Sequence[str], *, settings: Mapping[str, Any] = {}, search: Search = SEARCH
    ) -> list[Prediction]:
        """The prediction for each text of a list, or of a file: its `answer`, and what the task adds to it.

        A tab separates the two texts of a pair, and spaces separate the words of a sentence to tag. An HMM that is a
        language model answers with the Viterbi path of each text.
        """
        if not self.task.predicts:
            self.task.refuse(self)
        if isinstance(inputs, str | Path):
            return self.task.predict(self, self.task.read_inputs(str(inputs), self.reading(settings)), search)
        return self.task.predict(self, self.task.read_lines(inputs, "input"), search)

    def averaged_with(self, *others: "Run", weights: Sequence[float] = ()) -> "Run":
        """An ensemble: `evaluate` and `predict` answer by the mean of this run's probabilities and those of others.

        `weights`: one for each of the others, by which its probabilities count; this run's count once, and so do those
        of others where no weights are given.

        They classify or tag the same labels; or they write, and then their tokenizers are the same, since the mean is
        that of the next token (models/mixture.py). Kinds and other settings may differ.
        """
        weights = weights or [1.0] * len(others)
        if len(weights) != len(others):
            raise UserError(f"there are {len(others)} other runs and {len(weights)} weights; give each run one, or "
                            "none.")
        for other, weight in zip(others, weights, strict=True):
            if not 0 < weight < math.inf:
                raise UserError(f"the weight {weight:g} of {other.path}: it must be more than 0, and finite.")
            if not self.task.averages or getattr(self.recipe.text, "input", None) == "frames":
                raise UserError(f"{self.path} was trained for --task {self.recipe.task}, whose answers are not "
                                "averaged; those of taggers and classifiers of text are, and those that are written.")
            if other.recipe.task != self.recipe.task or other.labels != self.labels:
                raise UserError(f"{other.path} does not answer as {self.path} does: an ensemble has one task (here "
                                f"{self.recipe.task}) and the same labels.")
            if self.task.averages == "tokens" and other.tokenizer.sha256 != self.tokenizer.sha256:
                raise UserError(f"{other.path} has another tokenizer than {self.path}, and an ensemble that writes "
                                "averages the probabilities of tokens. Train both with --from one run.")
        weighed = (replace(other, weight=float(weight)) for other, weight in zip(others, weights, strict=True))
        return replace(self, others=(*self.others, *weighed))

    def look(self, text: str | None = None, view: str | None = None, **options: Any) -> "Page":
        """What the model does with a text, as a page that a notebook draws: see `chainrule.look`."""
        import chainrule

        given: dict[str, Any] = {} if text is None else {"text": text}
        return chainrule.look(self, view=view, **given, **options)

    @property
    def task(self) -> Task:
        return find_task(self.recipe.task)

    @property
    def template(self) -> ChatTemplate | None:
        """The chat template, which makes tokens of messages; None: the run has none."""
        return None if self.chat_template is None else make_template(self.chat_template, self.tokenizer, self.about)

    @property
    def language_model(self) -> LanguageModel:
        """The model, if it predicts the next token of a text."""
        if not self.task.generates:
            self.task.refuse(self)
        if not isinstance(self.model, LanguageModel):
            raise UserError(f"{self.path} is a {self.recipe.kind}, which does not predict the next token.")
        return self.model

    def reading(self, settings: Mapping[str, Any] = {}) -> Any:
        """The `text.*` settings by which the run reads a file: its own, and those given that may differ."""
        text, given = self.recipe.text, dict[str, Any]()
        for name, value in settings.items():
            part, _, setting = name.partition(".")
            if part != "text" or setting not in self.task.readable:
                *most, last = (f"text.{name}" for name in self.task.readable)
                takes = f"{', '.join(most)} and {last}"
                raise UserError(f"{name}={value} cannot be set here: the run has its own. Only {takes} can.")
            given[setting] = value
        return replace(text, **{name: getattr(make(type(text), given, "text"), name) for name in given})


def load(path: str | Path, device: torch.device | str = "cpu", settings: Mapping[str, Any] = {}) -> Run:
    """The run at `path`, its files verified, its model on `device` in evaluation mode.

    `settings`: `model.*` settings that differ from those of training, where they change no weight (RoPE scaling).
    """
    path, place = Path(path), choose_device(device) if isinstance(device, str) else device
    about = read_about(path)
    verify(path, about)
    recipe = _adjusted(recipe_of(path, about), settings)
    tokenizer = Tokenizer.load(path / TOKENIZER)
    labels = tuple(about.get("labels", ()))
    model, file = build_for(recipe, len(tokenizer), labels), path / weights_file(about)
    try:
        if file.name == ADAPTER:
            _merge(model, file, recipe)
        else:
            model.load_state_dict(load_file(file), strict=True)
    except UserError:
        raise
    except (KeyError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        if len(reason) > LONGEST_REASON:                     # it may name every tensor
            reason = f"{reason[:LONGEST_REASON]}…"
        raise UserError(f"{file} does not fit a {recipe.kind} of chainrule {__version__}: {reason}") from error
    return Run(path, recipe, tokenizer, model.to(place).eval(), about, labels, read_chat_template(path))


def _adjusted(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """The recipe with `model.*` settings that a trained model may change."""
    for name, value in settings.items():
        if not name.startswith("model."):
            raise UserError(f"{name}={value} cannot be set here: a run that is loaded takes model.* settings.")
    given = {name.removeprefix("model."): value for name, value in settings.items()}
    return replace(recipe, model=recipe.model.adjusted(given)) if given else recipe


def _merge(model: torch.nn.Module, file: Path, recipe: Recipe) -> None:
    """Adds the adapter to the weights of the base run that it was trained on."""
    from chainrule.layers.lora import load_body, merge_lora

    base = load(find_base(recipe.base, file.parent))
    load_body(model, base.model, len(base.tokenizer))
    merge_lora(model, load_file(file), recipe.train.lora_scale)


def merged(path: str | Path, out: str | Path, overwrite: bool = False) -> Run:
    """Writes the run at `path`, which has adapters, to `out` with the adapters merged into its weights."""
    path, out = Path(path), Path(out)
    if weights_file(read_about(path)) != ADAPTER:
        raise UserError(f"{path} has no adapters to merge; it is complete as it is.")
    made = load(path)
    if look_before_writing(out, made.recipe, overwrite) is not None:
        raise UserError(f"{out} holds a run already. {INSTEAD}")
    about, done = made.about, Done(**made.about["done"])
    save(out, made.model, made.tokenizer, made.recipe, splits=about["splits"], done=done, log=read_log(path),
         labels=made.labels, excerpt=about.get("excerpt", ""), source=about.get("source"),
         chat_template=made.chat_template)
    return made


def read_chat_template(path: Path) -> str | None:
    """That of the run at `path`; None: it has none."""
    try:
        return (path / CHAT_TEMPLATE).read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise UserError(f"{path / CHAT_TEMPLATE} is not UTF-8 text.") from error


def make_template(source: str, tokenizer: Tokenizer, about: Mapping[str, Any]) -> ChatTemplate:
    """The chat template of a run. Its `eos_token` is the token that ended a text where the run was imported from."""
    return ChatTemplate.of(source, tokenizer, **about.get("source", {}).get("boundary", {}))
