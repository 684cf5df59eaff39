"""A session of clicking: which pair a rater sees next, and what a click, a tie, a skip or a withdrawal writes.

    pairs in order: every prompt once, then every prompt again (another round), up to the number of pairs asked for

Of these an `overlap` is shown to every rater, so that their agreement can be measured; each of the others is shown to
one. Which answer is on the left is decided by a hash of the pair and the rater: it is random, and can be repeated.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from chainrule.errors import UserError
from chainrule.prefer.clicks import ClickFile, Event
from chainrule.prefer.drawing import NoPair, Pair, Policy, digest, seed_of
from chainrule.prefer.prompt_file import Placed, Prompt

CLICKS = ("choice", "tie", "skip")       # events that answer a pair
SIDES = ("left", "right")
AHEAD = 4                                # pairs of a rater that are drawn before they are asked for


@dataclass(frozen=True)
class Item:
    """A pair that may not have been drawn yet."""

    prompt: Prompt
    seed: int
    id: str
    shared: bool      # whether every rater sees it


class Deck(Protocol):
    """Pairs that can be drawn."""

    def items(self) -> Iterator[Item]: ...

    async def draw_item(self, item: Item) -> Pair: ...

    def close(self) -> None: ...


@dataclass
class Session:
    """Also the deck of its own policy."""

    clicks: ClickFile
    policy: Policy
    prompts: list[Placed]
    pairs: int                                   # to rate, of the prompts of the file
    seed: int = 1
    overlap: float = 0.25
    comparison: Deck | None = None               # of the model before and after tuning
    dropped: dict[str, str] = field(default_factory=dict)        # ids of pairs that cannot be drawn: why
    claimed: dict[str, str] = field(default_factory=dict)        # ids of pairs: the rater who sees it
    _drawn: dict[str, "asyncio.Task[Pair]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """A column of the file has one type in all lines."""
        rated = [event for event in self.clicks.standing() if event["event"] in CLICKS]
        if rated and isinstance(rated[0]["prompt"], str) == self.policy.chat:
            now, then = ("chats", "plain text") if self.policy.chat else ("plain text", "chats")
            raise UserError(f"{self.clicks.pairs} holds answers to {then}, and {self.policy.served.name} answers {now} "
                            "here. Choose another --out.")

    def close(self) -> None:
        self.policy.close()
        if self.comparison is not None:
            self.comparison.close()

    # Which pair is next

    def items(self) -> Iterator[Item]:
        """All pairs, in order. Typed prompts are in every round."""
        every, size = self.every_prompt(), len(self.prompts)
        for round in range(-(-self.pairs // size) if size else self.pairs):
            in_file = min(size, self.pairs - round * size)
            for place, prompt in enumerate(every):
                if place < in_file or place >= size:
                    yield self.item(prompt, round)

    def item(self, prompt: Prompt, round: int) -> Item:
        seed = seed_of(self.seed, prompt, round)
        id = self.policy.pair_id(prompt, seed)
        return Item(prompt, seed, id, int(id[:8], 16) < self.overlap * 16**8)

    async def draw_item(self, item: Item) -> Pair:
        return await self.policy.draw_pair(item.prompt, item.seed)

    def every_prompt(self) -> list[Prompt]:
        """Those of the file, then those that were typed."""
        return [*(placed.prompt for placed in self.prompts), *self.typed()]

    def typed(self, rater: str | None = None) -> list[Prompt]:
        return [event["prompt"] for event in self.clicks.standing()
                if event["event"] == "prompt" and rater in (None, event["rater"])]

    def waiting_for(self, rater: str, deck: Deck | None = None) -> list[Item]:
        """The pairs that this rater has not seen; first those of prompts that the rater has typed."""
        seen, others = set[str](), set[str]()
        for event in self.clicks.standing():
            if event["event"] in CLICKS:
                (seen if event["rater"] == rater else others).add(event["pair"])
        left = [item for item in (deck or self).items() if item.id not in seen and item.id not in self.dropped]
        free = [item for item in left if item.shared or (
            item.id not in others and self.claimed.get(item.id, rater) == rater)]
        mine = self.typed(rater)
        return sorted(free, key=lambda item: item.prompt not in mine)

    async def next_pairs(
        self, rater: str, count: int = 1, have: Sequence[str] = (), deck: Deck | None = None
    ) -> list[Pair]:
        """The next pairs of a rater that the page does not have yet; more are drawn ahead. Empty: all are rated."""
        pairs: list[Pair] = []
        while len(pairs) < count:
            items = [item for item in self.waiting_for(rater, deck) if item.id not in have]
            for item in items[: len(pairs) + 1 + AHEAD]:
                self.draw(item, deck)
            if len(items) <= len(pairs):
                break
            item = items[len(pairs)]
            try:
                pairs.append(await asyncio.shield(self.draw(item, deck)))
                self.claimed[item.id] = rater
            except NoPair as error:
                self.dropped[item.id] = str(error)
        return pairs

    def draw(self, item: Item, deck: Deck | None = None) -> "asyncio.Task[Pair]":
        if item.id not in self._drawn:
            task = asyncio.ensure_future((deck or self).draw_item(item))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())    # it may never be asked for
            self._drawn[item.id] = task
        return self._drawn[item.id]

    async def find(self, id: str) -> Pair:
        """A pair by its id; it is drawn again where this process has not drawn it."""
        for deck in filter(None, (self, self.comparison)):
            for item in deck.items() if id not in self._drawn else ():
                if item.id == id:
                    self.draw(item, deck)
        if id not in self._drawn:
            raise UserError("this pair is of another session. Reload the page.")
        return await asyncio.shield(self._drawn[id])

    # What is written

    def click(self, pair: Pair, rater: str, choice: str, id: str) -> Event:
        """`choice`: left, right, tie or skip. Returns when it is on disk."""
        left = left_answer(pair, rater)
        chosen = {"left": left, "right": 1 - left}.get(choice)
        event = {
            "event": "choice" if chosen is not None else choice, "id": id, "rater": rater,
            "time": round(time.time(), 3), "pair": pair.id, "prompt": pair.prompt,
            "answers": [answer.text for answer in pair.answers], "ended": [answer.ended for answer in pair.answers],
            "tokens": [answer.tokens for answer in pair.answers], "left": left, "chosen": chosen, "seed": pair.seed,
            "source": pair.source, **({"compares": True} if pair.compares else {}),
        }
        self.clicks.add(event)
        return event

    def undo(self, rater: str, id: str) -> Event | None:
        """Withdraws the last click of a rater, which stays in the journal. None: there is none."""
        self.clicks.refresh()
        again = next((event for event in self.clicks.events if event["id"] == id), None)
        if again is not None:                    # the page has sent it twice
            return next(event for event in self.clicks.events if event["id"] == again["of"])
        mine = [event for event in self.clicks.standing() if event["event"] in CLICKS and event["rater"] == rater]
        if not mine:
            return None
        self.clicks.add({"event": "undo", "id": id, "rater": rater, "time": round(time.time(), 3),
                         "of": mine[-1]["id"]})
        return mine[-1]

    def add_prompt(self, prompt: Prompt, rater: str, id: str) -> None:
        prompt = self.policy.form(prompt)
        self.policy.check(Placed(prompt, "this prompt"))
        if prompt in self.every_prompt():
            return
        self.clicks.add({"event": "prompt", "id": id, "rater": rater, "time": round(time.time(), 3),
                         "prompt": prompt})


def left_answer(pair: Pair, rater: str) -> int:
    """The number of the answer that this rater sees on the left."""
    return int(digest([pair.id, rater])[-1], 16) % 2


def as_shown(pair: Pair, rater: str) -> Mapping[str, Any]:
    """A pair as the page gets it: which answer is which is not said."""
    left = left_answer(pair, rater)
    answers = [pair.answers[left], pair.answers[1 - left]]
    return {"id": pair.id, "prompt": pair.prompt, "compares": pair.compares,
            "answers": [{"text": answer.text, "tokens": answer.tokens, "ended": answer.ended} for answer in answers]}
