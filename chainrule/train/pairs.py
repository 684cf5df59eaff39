"""Learning from pairs of words that stand near each other: vectors.

A kind meets the pairs of a stretch of text and learns from them at once, anew in every epoch; or it adds them all up
first (`whole`) and learns from the sums. Between rounds it can stop, and the same command goes on as if it had not.

Steps are small at first: vectors grow out of one another, so that many small steps come further than a few large ones.
"""

import math
import time
from typing import Any

from chainrule.errors import UserError
from chainrule.progress import bar, short
from chainrule.recipe import Pairs
from chainrule.run import Done
from chainrule.text.corpus import Corpus
from chainrule.train.checkpoint import Checkpoints
from chainrule.train.log import Log
from chainrule.train.parallel import ALONE, Ranks
from chainrule.train.stop import Stop, listen
from chainrule.train.stretches import Gathered, Passing, Words, chance_of, rows_of

STEP, CPU_STEP = 1 << 14, 1 << 12    # words in a step where that is left to us; what fits a CPU's cache is quicker
FIRST = 1 << 10         # words in the first steps;
GROWTH = 0.01           # then at most this share of what is behind, and always at most this share of the text
PULSE = 0.5             # seconds between looks at the loss, for which a GPU is waited for
RECORDS = 100           # most of those in the log
CHECKPOINT = 300.0      # seconds between checkpoints
FACTS = ("round", "behind", "seconds", "told")


def pair(
    model: Any, corpus: Corpus, settings: Pairs, log: Log, done: Done, checkpoints: Checkpoints | None = None,
    ranks: Ranks = ALONE,
) -> Done:
    """Rounds until the budget is spent. Asked to stop, it ends the round that it is in, and can be gone on from."""
    if ranks.size > 1:
        raise UserError("word vectors are learned on one device; start it without torchrun.")
    with listen() as stop:
        training = Training(model, corpus, settings, log, checkpoints)
        finished = training.begin(stop) and training.run(stop)
    return Done(training.round, finished)


def measure(model: Any, corpus: Any, seed: int = 1) -> dict[str, Any]:
    """Its loss on held-out pairs, where it has one that other text can be measured by."""
    if model.whole:
        return {"why": f"{type(model).__name__} fits the counts of one text; `chainrule eval` measures its vectors"}
    words = Words(corpus.splits["valid"].tokens, corpus.tokenizer, model.embeddings.device)
    total, pairs = 0.0, 0.0
    for place in range(len(words)):
        tokens, texts = words.at(place)
        examples = model.meet(tokens, texts, chance_of(seed, place, tokens.device))
        for at in range(0, len(examples["tokens"]), FIRST):
            loss, count = model.loss(rows_of(examples, at, FIRST))
            total, pairs = total + float(loss), pairs + float(count)
    if not pairs:
        return {"why": "the held-out text has no two known words near each other"}
    return {"nats_per_pair": total / pairs, "pairs": round(pairs)}


class Training:
    def __init__(self, model: Any, corpus: Corpus, settings: Pairs, log: Log, checkpoints: Checkpoints | None):
        self.model, self.corpus, self.settings, self.log, self.checkpoints = model, corpus, settings, log, checkpoints
        self.round, self.behind = 0, 0.0                   # rounds, and words or pairs, that are behind
        self.earlier, self.sat = 0.0, time.monotonic()     # seconds of earlier sittings, and when this one began
        self.pulsed, self.pulsed_at, self.told, self.note = self.sat, 0.0, 0, ""
        self.kept = self.sat

    def begin(self, stop: Stop) -> bool:
        """At the last checkpoint, or at the beginning. False: asked to stop before anything was learned."""
        device, seed = self.model.embeddings.device, self.settings.seed
        words = Words(self.corpus.splits["train"].tokens, self.corpus.tokenizer, device)
        counts = words.counts(len(self.model.embeddings))
        self.model.begin(counts, chance_of(seed, 0, device))
        checkpoint = self.checkpoints.last() if self.checkpoints else None
        with stop.while_waiting():
            self.source = (Gathered if self.model.whole else Passing)(self.model, words, counts, seed)
        if stop.asked:
            return False
        if not self.source.size:
            raise UserError("the training text has no two known words near each other. Give more text, or a lower "
                            "text.min_count.")
        if checkpoint is not None:
            for name, buffer in self.model.named_buffers():
                buffer.copy_(checkpoint.part("model")[name])
            self.round, self.behind, self.earlier, self.told = (checkpoint.facts[name] for name in FACTS)
            self.log.records[:] = checkpoint.facts["log"]
            self.log("resume", f"going on from round {self.round}", round=self.round)
        else:
            self._introduce()
        return True

    def run(self, stop: Stop) -> bool:
        """Whether it came to its end."""
        name, amount = self.settings.budget
        total = amount * self.source.size - self.behind if name == "epochs" else None
        with bar("training", total, self.source.unit) as advance:
            while self._share() < 1:
                if stop.asked or time.monotonic() - self.kept >= CHECKPOINT:
                    self.keep()
                if stop.asked:
                    return False
                self._one_round(advance)
        return True

    def keep(self) -> None:
        if self.checkpoints is not None:
            facts = dict(zip(FACTS, (self.round, self.behind, self._seconds(), self.told)))
            parts = {"model": dict(self.model.named_buffers())}
            self.checkpoints.write(self.round, facts | {"log": self.log.records}, parts)
        self.kept = time.monotonic()

    def _one_round(self, advance: Any) -> None:
        examples, size = self.source.at(self.round)
        began, rows, at = self.behind, len(next(iter(examples.values()))), 0
        while at < rows and self._share() < 1:
            step = min(rows - at, self._step())
            batch = rows_of(examples, at, step)
            self._pulse(batch)
            self.model.learn(batch, self._lr())
            at += step
            self.behind = began + size * at / rows
            advance(size * step / rows, self.note)
        self.round += 1

    def _step(self) -> int:
        """Rows of examples to learn from at once."""
        most = self.settings.tokens or (CPU_STEP if self.model.embeddings.device.type == "cpu" else STEP)
        words = min(most, GROWTH * self.source.size, max(FIRST, GROWTH * self.behind))
        return max(1, int(words) // int(self.model.block))

    def _share(self) -> float:
        """Of training that is behind."""
        name, amount = self.settings.budget
        return self._seconds() / 60 / amount if name == "minutes" else self.behind / (amount * self.source.size) + 1e-9

    def _lr(self) -> float:
        final = self.settings.final_lr
        return self.settings.lr * (final + (1 - final) * max(0.0, 1 - self._share()))

    def _seconds(self) -> float:
        return self.earlier + time.monotonic() - self.sat

    def _pulse(self, batch: Any) -> None:
        """Now and then: the loss on what comes next, for the bar and the log."""
        now, share = time.monotonic(), self._share()
        due = share * RECORDS >= self.told
        if now - self.pulsed < PULSE and not due:
            return
        total, count = (float(part) for part in self.model.loss(batch))
        loss = total / max(count, 1)
        if not math.isfinite(loss):
            raise UserError(f"round {self.round + 1}: the vectors are not finite. A lower train.lr (it is "
                            f"{self.settings.lr:g}) or fewer train.tokens at once helps, with --overwrite.")
        speed = (self.behind - self.pulsed_at) / max(now - self.pulsed, 1e-9)
        self.note, self.pulsed, self.pulsed_at = f"loss {loss:.4f}", now, self.behind
        if due:
            self.told = math.floor(share * RECORDS) + 1
            facts: dict[str, Any] = {f"{self.source.unit}_per_second": round(speed)}
            self.log("step", round=self.round + 1, share=round(share, 4), loss=loss, lr=self._lr(), **facts)

    def _introduce(self) -> None:
        name, amount = self.settings.budget
        vocab, size = self.model.embeddings.shape
        unit, pool = self.source.unit, self.source.size
        line = f"vectors of {size} numbers for {vocab:,} words, {short(pool)} {unit} to learn from, {amount:g} {name}"
        facts: dict[str, Any] = {unit: pool, name: amount}
        self.log("pairs", line, **facts)
