"""Language modelling: every token of a running text is predicted from those before it."""

from chainrule.tasks.task import Task


class LanguageModelling(Task):
    name = "lm"
