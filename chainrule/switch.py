"""What is on or off in a whole process: a plain attribute, since torch.compile looks at no context variable."""

from collections.abc import Iterator
from contextlib import contextmanager


class Switch:
    on = False

    @contextmanager
    def turned(self, on: bool) -> Iterator[None]:
        before, self.on = self.on, on
        try:
            yield
        finally:
            self.on = before
