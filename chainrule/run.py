"""The run directory: everything about a trained model in one folder, complete and verified.

    recipe.json  tokenizer.json  tokenizer_config.json  model.safetensors  log.jsonl  (chat_template.jinja)

`AutoTokenizer` of transformers opens it by tokenizer.json and tokenizer_config.json. With LoRA it has
adapter.safetensors instead of model.safetensors: the update of the base run's weights. All files are written and synced
under temporary names first, and recipe.json, which holds the sha256 of the others and of its own content, is renamed
last: a run is complete, or it is no run, or `load` names the damaged file. During training there is also a folder
checkpoints/ with begun.json, which says what is being trained.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from chainrule import __version__
from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.files import ASIDE, SEAL, seal_of, sha256, sync, umask, write_aside, write_text
from chainrule.inference.beam import Beam
from chainrule.inference.generate import generate, stream_text
from chainrule.inference.sampling import Sampling
from chainrule.inference.text_score import TextScore, score_tokens
from chainrule.inference.vectors import evaluate_words
from chainrule.model import LanguageModel
from chainrule.recipe import Base, Recipe, make_recipe
from chainrule.settings import flatten, make
from chainrule.tasks import build_for, find_task
from chainrule.tasks.task import Prediction, Search, Task
from chainrule.text.chat_template import ChatTemplate
from chainrule.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from chainrule.viewer.notebook import Page

FORMAT = 2
"""The number of this layout and of the names in it: settings, weights, log events. Other numbers are refused."""

CURE = "Restore it, or train again with --overwrite."
INSTEAD = "Choose another folder, or replace it with --overwrite."

MODEL, TOKENIZER, LOG, RECIPE = ("model.safetensors", "tokenizer.json", "log.jsonl", "recipe.json")
TOKENIZER_CONFIG = "tokenizer_config.json"    # for other programs
FILES = (MODEL, TOKENIZER, TOKENIZER_CONFIG, LOG, RECIPE)
ADAPTER, CHAT_TEMPLATE = "adapter.safetensors", "chat_template.jinja"    # that a run may have
VERIFIED = (MODEL, ADAPTER, TOKENIZER, CHAT_TEMPLATE)
SAVED = (*VERIFIED, TOKENIZER_CONFIG, LOG)    # all but recipe.json, which is renamed last
RECORD = ("time", "event", "elapsed", "split")    # fields of a log record that are not metrics
SEARCH = Beam()                                   # how texts are searched for by default
CHECKPOINTS, BEGUN, BOARD, CURVES = "checkpoints", "begun.json", "tensorboard", "curves.html"
COMPARISON = "comparison.json"    # beside the runs of a comparison: its kinds, the simplest first
UNFINISHED = re.compile(r"\..+\.aside|\.tmp\w{6}")    # what a killed process was writing (files.py; safetensors)
CHECKPOINT = re.compile(rf"begun\.json|\d{{9,}}(\.safetensors|\.json)?|{UNFINISHED.pattern}")    # ours in checkpoints/


@dataclass(frozen=True)
class Done:
    """How far training has come."""

    rounds: int = 0                 # optimizer steps, or passes of counting, that are done
    finished: bool = False          # False: interrupted; the same command continues from here
    nats: float | None = None       # loss per training token before the last pass


class SamplingOptions(TypedDict, total=False):
    """The fields of Sampling (inference/sampling.py)."""

    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    repetition_penalty: float
    stop: tuple[str, ...]
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
        texts = generate(model, self.tokenizer, prompt, tokens, options, rows or 1, past_end)
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

    def averaged_with(self, *others: "Run") -> "Run":
        """An ensemble: `evaluate` and `predict` answer by the mean of this run's probabilities and those of others.

        They classify or tag the same labels; kinds, tokenizers and settings may differ.
        """
        for other in others:
            if not self.task.averages or getattr(self.recipe.text, "input", None) == "frames":
                raise UserError(f"{self.path} was trained for --task {self.recipe.task}, whose answers are not "
                                "averaged; those of taggers and classifiers of text are.")
            if other.recipe.task != self.recipe.task or other.labels != self.labels:
                raise UserError(f"{other.path} does not answer as {self.path} does: an ensemble has one task (here "
                                f"{self.recipe.task}) and the same labels.")
        return replace(self, others=(*self.others, *others))

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


def save(
    path: str | Path,
    model: torch.nn.Module,
    tokenizer: Tokenizer,
    recipe: Recipe,
    *,
    splits: Mapping[str, Mapping[str, Any]] = {},
    done: Done | None = None,
    log: Iterable[Mapping[str, Any]] = (),
    weights: Mapping[str, torch.Tensor] | None = None,
    labels: Sequence[str] = (),
    adapter: bool = False,
    excerpt: str = "",
    source: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
) -> None:
    """Writes a run. An earlier run at `path` stays intact unless all of the new one could be written.

    `weights`: the state to save, where it is not the model's `state_dict`; `labels`: names of classes, tags or hidden
    states; `adapter`: the weights are an update of those of the recipe's base; `excerpt`: a text that pages open with;
    `source`: the files of another program that it was made of; `chat_template`: how the messages of a chat are read.
    """
    path, done = Path(path), done or Done(finished=True)
    mine, other = (ADAPTER, MODEL) if adapter else (MODEL, ADAPTER)
    texts = {TOKENIZER_CONFIG: json.dumps(tokenizer.config(getattr(recipe.model, "context", None)), indent=1) + "\n"}
    texts |= {CHAT_TEMPLATE: chat_template} if chat_template is not None else {}
    with ExitStack() as stack:
        names = (RECIPE, LOG, TOKENIZER, *texts, mine)
        aside = {name: stack.enter_context(write_aside(path / name)) for name in names}
        write_tensors(model.state_dict() if weights is None else weights, aside[mine])
        tokenizer.save(aside[TOKENIZER])
        for name, text in texts.items():
            aside[name].write_bytes(text.encode())    # line ends unchanged
        aside[LOG].write_text(_log_text(log), encoding="utf-8")
        about = {"chainrule": __version__, "format": FORMAT, **recipe.as_dict(), "splits": splits, "done": asdict(done)}
        about |= {"labels": list(labels)} if labels else {}
        about |= {"excerpt": excerpt} if excerpt else {}
        about |= {"source": dict(source)} if source else {}
        about["files"] = {name: _facts(aside[name]) for name in aside if name in VERIFIED}
        about[SEAL] = seal_of(about)
        aside[RECIPE].write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        for file in aside.values():
            sync(file)  # a full disk shows itself here at the latest, before any file has been replaced
        for name in {other, CHAT_TEMPLATE} - aside.keys():
            (path / name).unlink(missing_ok=True)


def finish_saving(path: Path) -> None:
    """Renames the files of a run whose process was killed while it renamed them, in a folder that is locked.

    Only then is there a temporary recipe.json that is complete: it is written last, and takes its place last.
    """
    for recipe in path.glob(f".{RECIPE}.*{ASIDE}"):
        try:
            about = json.loads(recipe.read_text(encoding="utf-8"))
            if about[SEAL] != seal_of(about):
                continue
        except (OSError, ValueError, KeyError, TypeError):
            continue
        aside = {name: file for name in SAVED for file in path.glob(f".{name}.*{ASIDE}")}
        places = {name: aside.get(name, path / name) for name in about["files"]}
        if any(not place.is_file() or _facts(place) != about["files"][name] for name, place in places.items()):
            continue
        for name in {MODEL, ADAPTER, CHAT_TEMPLATE} - about["files"].keys():
            (path / name).unlink(missing_ok=True)
        for name, file in (*aside.items(), (RECIPE, recipe)):
            file.chmod(0o666 & ~umask())
            file.replace(path / name)
        sync(path)


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
        raise UserError(f"{file} does not fit a {recipe.kind} of chainrule {__version__}: {reason}") from error
    return Run(path, recipe, tokenizer, model.to(place).eval(), about, labels, read_chat_template(path))


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

    assert recipe.base is not None, "adapters are trained on a base run"
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


def weights_file(about: Mapping[str, Any]) -> str:
    """The name of a run's weights file."""
    return ADAPTER if ADAPTER in about.get("files", {}) else MODEL


def find_base(base: Base, near: Path) -> Path:
    """The base of the run at `near`: where it was at that time, or beside that run."""
    there, seen = Path(base.path), ""
    for path in dict.fromkeys((there, near.parent / there.name)):
        if (path / RECIPE).is_file():
            about = read_about(path)
            if about.get("files", {}).get(weights_file(about), {}).get("sha256") == base.sha256:
                return path
            seen = f" ({path} has been trained again since)"
    raise UserError(f"{near} needs the run {there} whose weights have the sha256 {base.sha256[:12]}…, and it is "
                    f"not there{seen}. Put it back, or beside {near}.")


def read_about(path: Path) -> dict[str, Any]:
    """The content of recipe.json; a UserError where there is no run, or one that this version cannot read."""
    if not path.exists():
        raise UserError(f"there is no run at {path}. `chainrule train TEXT --out {path}` would make one.")
    if not path.is_dir():
        raise UserError(f"{path} is a file; a run is a folder that `chainrule train` has made.")
    if not (path / RECIPE).is_file():
        if read_begun(path, damaged_is_none=True) is not None:
            raise UserError(f"{path} is not finished: the same `chainrule train` continues from its last checkpoint.")
        raise UserError(f"{path} is not a run: it has no {RECIPE}. A run is a folder that `chainrule train` has made.")
    try:
        about = json.loads((path / RECIPE).read_text(encoding="utf-8"))
        written, _ = int(about["format"]), {about[key] for key in ("chainrule", "kind", "task")}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(f"{path / RECIPE} is damaged: not the JSON that chainrule wrote. {CURE}") from error
    if written > FORMAT:
        raise UserError(f"{path} was made by chainrule {about['chainrule']}, and this is {__version__}. Upgrade it.")
    if written < FORMAT:
        raise UserError(f"{path} has run format {written}, and this chainrule reads format {FORMAT}. Train it again: "
                        f"chainrule train … --out {path} --overwrite.")
    if SEAL in about and about[SEAL] != seal_of(about):    # runs of earlier versions have none
        raise UserError(f"{path / RECIPE} has been changed since it was written: its sha256 differs. {CURE}")
    if wrong := _misshapen(about):
        raise UserError(f"{path / RECIPE} is damaged: {wrong}. {CURE}")
    return dict(about)


FACTS = {"bytes": int, "sha256": str}
SHAPES: Mapping[str, Any] = {
    "chainrule": str, "kind": str, "task": str, "text": dict, "model": dict, "train": dict, "head": dict,
    "splits": {None: dict}, "done": {"rounds": int, "finished": bool}, "labels": [str], "excerpt": str, "source": dict,
    "files": {None: FACTS}, "base": {"path": str, "sha256": str},
}  # fmt: skip
"""The types in recipe.json: a list of one type, an object with these keys, or (None) with any. All are optional."""


def _misshapen(about: Mapping[str, Any]) -> str:
    """What in recipe.json is not of its type; empty: nothing."""
    for name, shape in SHAPES.items():
        if name in about and not _has_shape(about[name], shape):
            return f"`{name}` is not as chainrule writes it"
    if unknown := set(about.get("base", ())) - set(SHAPES["base"]):
        return f"`base` has an unknown key {min(unknown)}"
    return ""


def _has_shape(value: Any, shape: Any) -> bool:
    if isinstance(shape, list):
        return isinstance(value, list) and all(_has_shape(part, shape[0]) for part in value)
    if not isinstance(shape, dict):
        return isinstance(value, shape)
    if not isinstance(value, dict):
        return False
    if None in shape:
        return all(_has_shape(part, shape[None]) for part in value.values())
    return all(name in value and _has_shape(value[name], part) for name, part in shape.items())


def verify(path: Path, about: Mapping[str, Any]) -> None:
    """Refuses files that differ from those that were written."""
    files = about.get("files", {})
    for name in (weights_file(about), TOKENIZER, *([CHAT_TEMPLATE] if CHAT_TEMPLATE in files else [])):
        file, wanted = path / name, files.get(name, {})
        if not file.is_file():
            raise UserError(f"{path} is incomplete: {name} is missing. {CURE}")
        size = file.stat().st_size
        if size != wanted.get("bytes"):
            raise UserError(f"{file} is damaged: it has {size} bytes of {wanted.get('bytes')}. {CURE}")
        if sha256(file) != wanted.get("sha256"):
            raise UserError(f"{file} has been changed since it was written: its sha256 differs. {CURE}")


def recipe_of(path: Path, about: Mapping[str, Any]) -> Recipe:
    given = flatten({part: about[part] for part in ("text", "model", "train", "head") if part in about})
    base = Base(**about["base"]) if "base" in about else None
    try:
        kind, task = about["kind"], find_task(about["task"])
        recipe = make_recipe(kind, task.model_class(kind), given, task=task)
        return replace(recipe, base=base)
    except UserError as error:
        made_by = f"{path} was made by chainrule {about['chainrule']}, and this is {__version__}"
        raise UserError(f"{made_by}: {error}") from error


def write_log(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Replaces the log of a run, and leaves its other files as they are."""
    write_text(path / LOG, _log_text(records))


def _log_text(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)


def read_log(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (path / LOG).read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):  # the log is for people and plots: the model works without it
        return []


def refuse_unwritable(path: Path) -> None:
    near = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if near.is_dir() and not os.access(near, os.W_OK | os.X_OK):
        raise UserError(f"{near} may not be written to. Choose another folder.")
    if near != path and not near.is_dir():
        raise UserError(f"{near} is a file, so {path} cannot be made. Choose another folder.")
    if not near.is_dir():
        raise UserError(f"{path} is a file; a run is written to a folder. Choose another folder.")


def look_before_writing(path: Path, recipe: Recipe, overwrite: bool) -> dict[str, Any] | None:
    """The recipe.json of an earlier run by the same recipe at `path`, or None where a new run can be written there."""
    refuse_unwritable(path)
    if not path.exists():
        return None
    begun = read_begun(path, damaged_is_none=overwrite)
    if begun is not None and begun.get("format") != FORMAT:
        if not overwrite:
            raise UserError(f"{path} was begun by another version, whose checkpoints cannot be used. {INSTEAD}")
        return None
    if begun is not None:
        differing = differences(begun, recipe.as_dict())
        if differing and not overwrite:
            raise UserError(f"{path} holds another unfinished run: {'; '.join(differing)}. {INSTEAD}")
        return None if differing else begun
    if not (path / RECIPE).is_file():
        others = sorted(file.name for file in path.iterdir() if not _left_over(file))
        if others:
            some = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            raise UserError(f"{path} holds files that are not a run ({some}). Choose another folder.")
        return None
    if overwrite:
        return None
    about = read_about(path)
    if differing := differences(about, recipe.as_dict()):
        raise UserError(f"{path} holds another run: {'; '.join(differing)}. {INSTEAD}")
    return about


def begin(path: Path, recipe: Recipe, splits: Mapping[str, Mapping[str, Any]]) -> None:
    """Records at `path` what is being trained there."""
    about = {"chainrule": __version__, "format": FORMAT, **recipe.as_dict(), "splits": splits}
    write_text(path / CHECKPOINTS / BEGUN, json.dumps(about, indent=1) + "\n")


def read_begun(path: Path, *, damaged_is_none: bool = False) -> dict[str, Any] | None:
    """What is being trained at `path`; None: no run is unfinished there."""
    file = path / CHECKPOINTS / BEGUN
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        if damaged_is_none:
            return None
        raise UserError(f"{file} is damaged, so the checkpoints beside it cannot be used. {INSTEAD}") from error


def forget_checkpoints(path: Path) -> None:
    folder = path / CHECKPOINTS
    (folder / BEGUN).unlink(missing_ok=True)    # first, so that what remains is never resumed from
    if folder.is_dir():
        for file in folder.iterdir():
            if CHECKPOINT.fullmatch(file.name):
                remove(file)
        if not any(folder.iterdir()):
            folder.rmdir()


def remove(path: Path) -> None:
    """Deletes a file, or a folder with its content."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def same_text(
    path: Path, about: Mapping[str, Any], splits: Mapping[str, Mapping[str, Any]], overwrite: bool = False
) -> bool:
    """Whether an earlier run was trained on this text; one on other text is refused, unless it may be overwritten."""
    was = {name: split["sha256"] for name, split in about["splits"].items()}
    now = {name: split["sha256"] for name, split in splits.items()}
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name) and not overwrite:
            raise UserError(f"{path} holds a run by the same recipe on other text: its {name} text differs. {INSTEAD}")
    return was == now


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """'model.order is 3 there and 5 here' for each setting that differs; for another kind, only that."""
    old = flatten({part: there.get(part) for part in here} | {"base": there.get("base", {})})
    new = flatten(json.loads(json.dumps(here)))  # as recipe.json has it: tuples are lists there
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name) and name != "base.path"]
    if "kind" in differing:
        differing = ["kind"]
    return [f"{name} is {old.get(name)} there and {new.get(name)} here" for name in differing]


def _facts(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": sha256(file)}


def _left_over(file: Path) -> bool:
    """Whether a file is what a killed chainrule process left."""
    if file.name in (BOARD, CURVES):
        return True
    if file.name == CHECKPOINTS and file.is_dir():
        return all(CHECKPOINT.fullmatch(inside.name) for inside in file.iterdir())
    return bool(UNFINISHED.fullmatch(file.name))


def remove_unfinished(path: Path) -> None:
    """Deletes the files that a killed process was writing at `path`, which this process has locked."""
    for file in path.iterdir() if path.is_dir() else ():
        if UNFINISHED.fullmatch(file.name):
            remove(file)


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path, facts: Mapping[str, str] | None = None) -> None:
    """Writes safetensors, with facts in the header. A tensor that has two names is written twice."""
    plain, places = {}, set()
    for name, tensor in tensors.items():
        here = tensor.detach().cpu().contiguous()
        plain[name] = here.clone() if here.data_ptr() in places else here
        places.add(here.data_ptr())
    try:
        save_file(plain, path, dict(facts) if facts else None)
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):  # a full disk, as an OSError like any other
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise
