"""A bug: what to plant, where, and the tests that must catch it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    name: str                      # what is wrong
    file: str
    right: str                     # the source as it is
    wrong: str                     # and with the bug
    caught_by: tuple[str, ...]     # a test, or several of which each must catch it

    def __str__(self) -> str:
        return self.name
