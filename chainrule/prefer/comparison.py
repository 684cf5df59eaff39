"""Comparison of the old and the new model: blind, on held-out prompts, with the share of wins of the tuned one.

Each prompt gets one answer of each model, with the same seed; of few prompts each gets several. Equal answers are
counted and not shown. A prompt is held out if no pair of it was trained on; where all were, the comparison says so.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from chainrule.prefer.agreement import share_of
from chainrule.prefer.clicks import Event
from chainrule.prefer.drawing import NoPair, Pair, Policy, digest, seed_of
from chainrule.prefer.prompt_file import Prompt
from chainrule.prefer.session import Item

FEWEST = 20    # comparisons; prompts are answered several times to reach it


class Comparison:
    """A deck of pairs: answer 0 is the old model's, answer 1 the new one's."""

    def __init__(self, old: Policy, new: Policy, prompts: Sequence[Prompt], held_out: bool, seed: int = 1):
        self.old, self.new, self.prompts, self.held_out, self.seed = old, new, prompts, held_out, seed
        self.source = {**old.source, "tuned_run": new.served.name, "tuned_sha256": new.sha256}

    def items(self) -> Iterator[Item]:
        rounds = math.ceil(FEWEST / max(1, len(self.prompts)))
        for round, prompt in product(range(rounds), self.prompts):
            seed = seed_of(self.seed, prompt, round)
            yield Item(prompt, seed, digest([self.source, prompt, seed]), shared=True)

    async def draw_item(self, item: Item) -> Pair:
        both = await asyncio.gather(*(model.answers(item.prompt, item.seed, (0,)) for model in (self.old, self.new)))
        (old,), (new,) = both
        if old.text == new.text:
            raise NoPair("the two models gave the same answer.")
        return Pair(item.id, item.prompt, (old, new), item.seed, self.source, compares=True)

    def close(self) -> None:
        self.old.close()
        self.new.close()

    def result(self, events: Iterable[Event], equal: int) -> dict[str, Any]:
        """Wins of the new model, among the clicks that prefer one of the two; ties are counted beside them."""
        mine = {item.id for item in self.items()}
        clicks = [event for event in events if event.get("compares") and event["pair"] in mine]
        chosen = [event["chosen"] for event in clicks if event["event"] == "choice"]
        pairs = {event["pair"]: event["tokens"] for event in clicks}.values()
        tokens = [round(sum(each) / len(pairs), 1) for each in zip(*pairs)] or None
        return {"old": self.old.served.name, "new": self.new.served.name, "held_out": self.held_out,
                "prompts": len(self.prompts), "items": len(mine), "equal": equal,
                "ties": sum(one["event"] == "tie" for one in clicks),
                "wins": share_of(sum(chosen), len(chosen)).as_dict(), "tokens": tokens}
