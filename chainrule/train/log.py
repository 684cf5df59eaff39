"""Facts about a run as it is made: a line for a person on stderr, and a record for log.jsonl.

Records are kept here and written with the rest of the run, so the log never tells of a model that is not there.
"""

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from chainrule.progress import say


class Log:
    def __init__(self, records: Iterable[Mapping[str, Any]] = ()):
        self.records = list(records)
        self.began = time.monotonic()

    def __call__(self, event: str, line: str = "", **facts: Any) -> None:
        """Say `line`, and record the facts; a number that is not finite is null in JSON."""
        if line:
            say(line)
        now = {"time": round(time.time(), 3), "event": event, "elapsed": round(time.monotonic() - self.began, 3)}
        self.records.append(now | {name: _plain(value) for name, value in facts.items()})

    def last(self, event: str) -> Mapping[str, Any] | None:
        return next((record for record in reversed(self.records) if record["event"] == event), None)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
