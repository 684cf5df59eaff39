"""The views, in the order of the page. Each is a module here, with `VIEW`, and one of the same name in web/views/;
those of tasks are in task_views/ and web/tasks/.

    make(subjects, text, options)          Python: the data, as plain values for JSON
    render(element, data, state, live)     JavaScript, in web/views/NAME.js: draws the data

The live page, the file and the notebook all use these two, so a view is written once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

from chainrule.errors import UserError, did_you_mean
from chainrule.viewer.subject import Subject

Options: TypeAlias = Mapping[str, str]
"""What a reader has chosen, by name, as in the page's address. Some choices concern only the drawing."""

LIVE = "live"
"""The option that a server adds: the page can ask for more data, so only what is seen first must be sent."""


@dataclass(frozen=True)
class View:
    """One way to show one model, or several, for every model that has what it shows."""

    name: str                                  # in the address, and of its module in web/views/
    title: str
    note: str                                  # what it shows, for the page
    fits: Callable[[Subject], bool]            # decides by the parts that a model has, never by its kind
    make: Callable[[Sequence[Subject], str, Options], Any]
    several: bool = False                      # shows several models at once; else the first that fits
    reads: bool = True                         # shows a text; else only the model
    table: Callable[[Sequence[Subject], str, Options], "Table"] | None = None    # its numbers, for a terminal
    needs: str = "a model that has what it shows"    # the models that it fits, in words

    @property
    def group(self) -> str:
        return next((group for group, names in GROUPS.items() if self.name in names), "")

    def why_not(self, subjects: Sequence[Subject]) -> str:
        """Why it fits none of them: what it needs, and what they are."""
        return f"it needs {self.needs}, and {'; '.join(f'{one.name} is {one.described}' for one in subjects)}"


@dataclass(frozen=True)
class Table:
    """What a view says without a drawing."""

    lines: Sequence[str]                       # for people
    values: Mapping[str, Any]                  # the same, plain values for JSON


GROUPS = {
    "predict": ("die", "write", "surprise", "hidden_word", "in_context", "chat"),
    "count": ("backoff", "word_features"),
    "hidden states": ("trellis", "influence"),
    "vectors": ("vectors", "contextual"),
    "recur": ("neurons", "unrolled", "gradient"),
    "attend": ("attention", "lens", "alignment"),
    "classify": ("votes", "contributions", "class_ngrams", "ratios"),
    "compare": ("cost", "preferences"),
}
"""The views as the lectures come, in the order of the page."""

NAMES = tuple(name for names in GROUPS.values() for name in names)
OF_TASKS = ("votes", "contributions", "class_ngrams", "ratios", "influence", "word_features", "hidden_word")


@cache
def every_view() -> dict[str, View]:
    folders = {name: "chainrule.viewer.task_views" if name in OF_TASKS else __name__ for name in NAMES}
    return {name: import_module(f"{folder}.{name}").VIEW for name, folder in folders.items()}


def find_view(name: str) -> View:
    if name not in NAMES:
        hint = did_you_mean(name, NAMES) or f" There are: {', '.join(NAMES)}."
        raise UserError(f"there is no view {name}.{hint}")
    return every_view()[name]
