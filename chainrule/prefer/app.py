"""The page of `chainrule prefer` as a FastAPI app."""

from typing import Any

from chainrule.errors import UserError


def make_app(*given: Any) -> Any:
    raise UserError("the page is not here yet; --judge fills the file without one.")
