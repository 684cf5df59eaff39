"""Rewards: a number for each answer, by a reward run, a classifier, a language model, or a Python function.

    RUN                       a run of --task reward: its score of the answer; of --task lm or chat, any kind:
                              the mean log-probability of the answer's tokens after the prompt
    RUN:LABEL                 a run of --task classify: the probability that prompt and answer together are LABEL
    log:RUN:LABEL             its logarithm
    python:MODULE.FUNCTION    called with two lists of strings, prompts and answers; returns as many numbers

A reward that is not finite is refused. Networks run on the device of the policy.
"""

import importlib
import math
import sys
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from chainrule import run
from chainrule.errors import UserError, did_you_mean
from chainrule.inference.forward import device_of, eval_mode, targets_at_once
from chainrule.model import BOUNDARY
from chainrule.preferences.answer_task import plain_template
from chainrule.preferences.encoding import encode_answer, encode_prompt
from chainrule.preferences.records import Content, texts_of
from chainrule.tasks import find_task
from chainrule.tasks.classify import Labelled, class_probabilities
from chainrule.text.tables import Place

SHOWN = 40              # characters of a prompt or an answer in a message
PYTHON, LOG = "python:", "log:"
FORMS = "RUN, RUN:LABEL of a classifier, or python:MODULE.FUNCTION"


class Reward(Protocol):
    def __call__(self, prompts: Sequence[Content], answers: Sequence[str]) -> list[float]:
        """The reward of each answer to its prompt."""


def load_reward(name: str, device: torch.device | str = "cpu") -> Reward:
    """The reward that `train.reward` or `--reward` names; its numbers are checked."""
    if name.startswith(PYTHON):
        return Checked(name, FunctionReward(name))
    log = name.startswith(LOG) and not Path(name).exists()
    path, label = _split_label(name.removeprefix(LOG) if log else name)
    made = run.load(path, device)
    if made.recipe.task == "classify":
        return Checked(name, ClassifierReward(made, label, log))
    if label is not None or log:
        raise UserError(f"reward {name}: a label is for runs of --task classify; {path} is one of "
                        f"--task {made.recipe.task}. Leave the label out.")
    if made.recipe.task == "reward":
        return Checked(name, ModelReward(made))
    if not find_task(made.recipe.task).generates:
        raise UserError(f"reward {name}: a run of --task {made.recipe.task} gives answers no reward. A reward is a run "
                        "of --task reward, classify or lm, or python:MODULE.FUNCTION.")
    return Checked(name, LanguageModelReward(made))


def _split_label(name: str) -> tuple[str, str | None]:
    """RUN and LABEL of RUN:LABEL; a path may contain a colon."""
    if Path(name).exists() or ":" not in name:
        return name, None
    path, _, label = name.rpartition(":")
    return path, label


class Checked:
    """A reward whose numbers are as many as the answers, and finite."""

    def __init__(self, name: str, reward: Callable[[Sequence[Content], Sequence[str]], Any]):
        self.name, self.reward = name, reward

    def __call__(self, prompts: Sequence[Content], answers: Sequence[str]) -> list[float]:
        given = self.reward(prompts, answers)
        if isinstance(given, torch.Tensor | np.ndarray):
            given = given.tolist()
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise UserError(f"reward {self.name} returned {type(given).__name__}; it should return a list of numbers, "
                            "one for each answer.")
        if len(given) != len(answers):
            raise UserError(f"reward {self.name} returned {len(given)} numbers for {len(answers)} answers; "
                            "it should return one for each.")
        for number, prompt, answer in zip(given, prompts, answers):
            if not isinstance(number, Real) or not math.isfinite(float(number)):
                raise UserError(f"reward {self.name} is {number!r} for the answer {shorten(answer)} to the prompt "
                                f"{shorten(prompt_text(prompt))}; a reward is a finite number.")
        return [float(number) for number in given]


def prompt_text(prompt: Content) -> str:
    """A prompt as one string: messages are on lines of their own."""
    return "\n".join(texts_of(prompt))


def shorten(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")


class FunctionReward:
    """A function of the user's own. Modules of the current folder are found, as by `python -m`."""

    def __init__(self, name: str):
        self.name, self.function = name, _import(name)

    def __call__(self, prompts: Sequence[Content], answers: Sequence[str]) -> Any:
        try:
            return self.function([prompt_text(prompt) for prompt in prompts], list(answers))
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"reward {self.name} failed on {len(answers)} answers, the first to the prompt "
                            f"{shorten(prompt_text(prompts[0]))}: {type(error).__name__}: {error}") from error


def _import(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.removeprefix(PYTHON).rpartition(".")
    if not module_name or not attribute:
        raise UserError(f"reward {name}: expected python:MODULE.FUNCTION, such as python:rewards.shorter.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UserError(f"reward {name}: {module_name} cannot be imported: {error}. Modules are looked for in the "
                        "current folder and among the installed ones.") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        known = [one for one in vars(module) if callable(getattr(module, one)) and not one.startswith("_")]
        raise UserError(f"reward {name}: {module_name} has no function {attribute}.{did_you_mean(attribute, known)}")
    return function  # type: ignore[no-any-return]


class ClassifierReward:
    """The probability of a label, or its logarithm, for the prompt and the answer as one text."""

    def __init__(self, made: run.Run, label: str | None, log: bool):
        if label not in made.labels:
            named = f"it has no label {label}" if label else "a label is missing"
            raise UserError(f"reward {made.path}: {named}. Give one as {made.path}:LABEL, of "
                            f"{', '.join(made.labels)}.")
        self.made, self.log, self.column = made, log, made.labels.index(label)

    def __call__(self, prompts: Sequence[Content], answers: Sequence[str]) -> Any:
        made: Any = self.made
        texts = [(prompt_text(prompt) + answer).strip() or " " for prompt, answer in zip(prompts, answers)]
        examples = [Labelled((text,), None, Place("answer", number)) for number, text in enumerate(texts, 1)]
        task: Any = find_task("classify")
        encoded = task.encode(examples, made.recipe, made.tokenizer, made.labels)
        probs = class_probabilities(made.model, encoded)[:, self.column]
        return np.log(np.maximum(probs, np.finfo(np.float64).tiny)) if self.log else probs


class ModelReward:
    """The score of a reward model (--task reward)."""

    def __init__(self, made: run.Run):
        self.made = made

    def __call__(self, prompts: Sequence[Content], answers: Sequence[str]) -> Any:
        from chainrule.preferences.reward import score_answers

        return score_answers(self.made, prompts, answers)


class LanguageModelReward:
    """The mean log-probability of an answer's tokens after the prompt, by any kind of language model."""

    def __init__(self, made: run.Run):
        self.made = made

    def __call__(self, prompts: Sequence[Content], answers: Sequence[str]) -> list[float]:
        made, model = self.made, self.made.language_model
        rows = []
        for prompt, answer in zip(prompts, answers):
            template = None if isinstance(prompt, str) else made.template or plain_template(made.tokenizer)
            before = encode_prompt(made.tokenizer, template, prompt)[1:]
            after = encode_answer(made.tokenizer, template, prompt, answer, end=False)
            rows.append((before, after or [BOUNDARY]))       # of an empty answer, its end
        return mean_log_probs(model, rows)


@torch.inference_mode()
def mean_log_probs(model: Any, rows: Sequence[tuple[Any, Any]]) -> list[float]:
    """Of the answer of each (prompt, answer) after its prompt: log p, divided by its tokens."""
    means, device = [0.0] * len(rows), device_of(model)
    texts = [np.concatenate([[BOUNDARY], before, after]).astype(np.int64) for before, after in rows]
    order = sorted(range(len(rows)), key=lambda row: len(texts[row]))
    with eval_mode(model):
        at_once = max(1, targets_at_once(model) // max(map(len, texts), default=1))
        for first in range(0, len(order), at_once):
            some = order[first : first + at_once]
            width = max(len(texts[row]) for row in some)
            padded = np.full((len(some), width), BOUNDARY, np.int64)
            for place, row in enumerate(some):
                padded[place, : len(texts[row])] = texts[row]
            tokens = torch.from_numpy(padded).to(device)
            log_probs, _ = model.score(tokens[:, :-1], tokens[:, 1:], model.start(len(some)))
            for row, one in zip(some, log_probs.double().cpu()):
                size = len(rows[row][1])
                means[row] = float(one[len(texts[row]) - 1 - size : len(texts[row]) - 1].mean())
    return means
