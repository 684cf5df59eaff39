"""The views, in the order of the page. Each is a module here, with `VIEW`, and one of the same name in web/views/."""

from functools import cache
from importlib import import_module

from chainrule.errors import UserError, did_you_mean
from chainrule.viewer.view import View

NAMES = ("die", "surprise", "backoff", "trellis", "neurons", "attention", "alignment", "lens", "unrolled", "gradient",
         "vectors", "cost")


@cache
def every_view() -> dict[str, View]:
    return {name: import_module(f"{__name__}.{name}").VIEW for name in NAMES}


def find_view(name: str) -> View:
    if name not in NAMES:
        hint = did_you_mean(name, NAMES) or f" There are: {', '.join(NAMES)}."
        raise UserError(f"there is no view {name}.{hint}")
    return every_view()[name]
