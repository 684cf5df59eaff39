"""The protocol of all tasks: what a model is trained to do, and how it is measured and used afterwards."""

from typing import Literal, TypeAlias

from chainrule.errors import UserError
from chainrule.recipe import TaskSettings

Truncate: TypeAlias = Literal["false", "true", "ends"]


class Task(TaskSettings):
    """What a model is trained to do."""


def refuse_no_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise UserError(f"{name}={value:g}: it is a share, from 0 to less than 1.")
