"""What a view is: one way to look at one model or at several, fit for every model that has what it shows.

    make(subjects, text, options)    Python: what is seen, as plain values for JSON
    render(element, data, state, live)     JavaScript, in web/NAME.js: draws it

The page, the file and the notebook are all made of these two, so a view is written once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from chainrule.viewer.subject import Subject

Options: TypeAlias = Mapping[str, str]
"""What a reader has chosen, by name, as it stands in the address. Some choices only concern what draws."""

LIVE = "live"
"""The option that a server adds: it can be asked for more, so that only what is seen first need be sent."""


@dataclass(frozen=True)
class View:
    name: str                                  # in the address, and of its module in web/
    title: str
    note: str                                  # what to see in it
    fits: Callable[[Subject], bool]            # by what a model declares that it has, never by its kind
    make: Callable[[Sequence[Subject], str, Options], Any]
    several: bool = False                      # shows several models at once; else the first that fits
    reads: bool = True                         # shows a text; else the model by itself
    plots: bool = False                        # draws with Plotly
