"""The tasks, and the recipes and models made for them. A new task is a file beside this and a line below.

Each is imported when it is first asked for, so that naming the tasks costs no time. See docs/inside/adding-a-task.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from chainrule import models
from chainrule.errors import UserError, did_you_mean
from chainrule.models.published import PUBLISHED
from chainrule.recipe import Base, Gradient, Recipe, make_recipe

if TYPE_CHECKING:
    from chainrule.tasks.task import Task


@dataclass(frozen=True)
class Entry:
    where: str                      # module:class, of a module beside this, or by its full name
    idea: str                       # one line for people


TASKS: Mapping[str, Entry] = {
    "lm": Entry("lm:LanguageModelling", "predict the next token of a running text"),
    "classify": Entry("classify:Classify", "a class for a text, a pair of texts, or a sequence of vectors"),
    "tag": Entry("tag:Tag", "a tag for each word, or for each vector of a sequence"),
    "translate": Entry("translate:Translate", "a text from another one: translation, summaries"),
    "caption": Entry("caption:Caption", "a text from a picture or vectors"),
    "answer": Entry("answer:Answer", "the answer to a question about a text"),
    "chat": Entry("chat:Chat", "the assistant's answers in a chat (instruction tuning)"),
    "mask": Entry("denoise:MaskedTokens", "restore masked tokens (BERT)"),
    "span": Entry("denoise:SpanCorruption", "restore spans that were cut out (T5)"),
    "denoise": Entry("denoise:NoiseRemoval", "restore a whole text from noise (BART)"),
    "reward": Entry("chainrule.preferences.reward:Reward", "a number for an answer, learned from pairs"),
    "preference": Entry("chainrule.preferences.preference:Preference", "prefer the better of two answers (DPO …)"),
    "reinforce": Entry("chainrule.preferences.reinforce.task:Reinforce", "learn from rewards of its own answers"),
}


def find_task(name: str) -> "Task":
    """The task of that name."""
    if name not in TASKS:
        raise UserError(f"unknown task {name}.{did_you_mean(name, TASKS) or ' Known: ' + ', '.join(TASKS) + '.'}")
    return _load(TASKS[name].where)


@cache
def _load(where: str) -> "Task":
    module, _, attribute = where.partition(":")
    found: Task = getattr(import_module(module if "." in module else f"{__name__}.{module}"), attribute)()
    return found


def first_task(kind: str) -> str:
    """What a kind is made for."""
    tasks: tuple[str, ...] = models.model_class(kind).tasks
    return tasks[0]


def recipe_for(
    kind: str, settings: Mapping[str, Any] = {}, task: str = "lm", base: Base | None = None
) -> Recipe:
    """A kind's recipe for a task, where dotted settings differ from its defaults; `base`: the run it starts from."""
    found = find_task(task)
    refuse_unfit(kind, found)
    recipe = make_recipe(kind, found.model_class(kind), settings, models.kind(kind).preset, found)
    if base is None and getattr(recipe.train, "lora", None) is not None:
        raise UserError(f"train.lora={recipe.train.lora} adapts what a run has learned: --from RUN says which.")
    if recipe.head is None and getattr(recipe.train, "body_lr", None) is not None:
        raise UserError(f"train.body_lr sets a body apart from its head, and --task {task} has none; it has train.lr.")
    if getattr(recipe.model, "features", None) is not None and not found.reads_frames:
        raise UserError(f"model.features={recipe.model.features}: vectors are read by --task classify and --task tag; "
                        f"--task {task} reads text. Leave it out.")
    refuse_mix(recipe, found)
    return replace(recipe, base=base)


def refuse_mix(recipe: Recipe, task: "Task") -> None:
    """Batches are drawn by weight; who counts, or learns from examples, reads each once."""
    if not recipe.text.mix:
        return
    if task.examples:
        raise UserError(f"text.mix is for running texts, and --task {task.name} learns from examples. Leave it out.")
    if not isinstance(recipe.train, Gradient):
        raise UserError(f"text.mix draws batches by weight, for kinds that learn by gradient descent; {recipe.kind} "
                        "counts every token of a text once. Leave it out; a text that is named twice counts twice.")


def refuse_unfit(kind: str, task: "Task") -> None:
    if not task.suits(models.model_class(kind)):
        own = " or ".join(name for name in TASKS if find_task(name).suits(models.model_class(kind)))
        others = ", ".join(name for name in models.KINDS if name not in PUBLISHED
                           and task.suits(models.model_class(name)))
        raise UserError(f"--task {task.name} is not for --kind {kind}, which is for {own}. It is for {others}.")


def build_for(recipe: Recipe, vocab: int, labels: Sequence[str] = ()) -> Any:
    """The model of a recipe over `vocab` tokens, with a head for `labels` where its task has one."""
    return find_task(recipe.task).build(recipe, vocab, labels)
