"""The protocol of all tasks: what a model is trained to do, and how it is measured and used afterwards."""

from typing import Literal, TypeAlias

from chainrule.recipe import TaskSettings

Truncate: TypeAlias = Literal["false", "true", "ends"]


class Task(TaskSettings):
    """What a model is trained to do."""
