"""The tasks. A new one is a file beside this and a line below (docs/adding-a-task.md).

Each is imported when it is first asked for, so that naming the tasks costs no time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from chainrule.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from chainrule.tasks.task import Task


@dataclass(frozen=True)
class Entry:
    where: str                      # module:class
    idea: str                       # one line for people


TASKS: Mapping[str, Entry] = {
    "lm": Entry("lm:LanguageModelling", "predict the next token of a running text"),
    "classify": Entry("classify:Classify", "a class for a text, or for a pair of texts"),
    "tag": Entry("tag:Tag", "a tag for each word"),
    "translate": Entry("translate:Translate", "a text from another one: translation, summaries"),
    "caption": Entry("caption:Caption", "a text from vectors"),
    "mask": Entry("denoise:Mask", "restore hidden tokens (BERT)"),
    "span": Entry("denoise:Span", "restore spans that were cut out (T5)"),
}


@cache
def find_task(name: str) -> "Task":
    """The task of that name."""
    if name not in TASKS:
        raise UserError(f"unknown task {name}.{did_you_mean(name, TASKS) or ' Known: ' + ', '.join(TASKS) + '.'}")
    module, _, attribute = TASKS[name].where.partition(":")
    found: Task = getattr(import_module(f"{__name__}.{module}"), attribute)()
    return found
