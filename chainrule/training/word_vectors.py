"""Learning from pairs of words that stand near each other: vectors.

A kind meets the pairs of a stretch of text and learns from them at once, anew in every epoch; or it adds them all up
first (`counts_first`) and learns from the sums.
Between rounds it can stop, and the same command goes on as if it had not.

Steps are small at first: vectors grow out of one another, so that many small steps come further than a few large ones.
"""

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, map_state
from chainrule.progress import bar, short
from chainrule.recipe import Pairs
from chainrule.run import Done
from chainrule.text.batches import Tokens
from chainrule.text.corpus import Corpus
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.words import UNKNOWN
from chainrule.training.checkpoint import Checkpoints
from chainrule.training.distributed import ALONE, Ranks
from chainrule.training.interrupt import Stop, listen
from chainrule.training.log import Log

# Where pairs come from: the text, stretch by stretch, on the model's device. Each stretch is a round of training.
#
# Chance is drawn from the seed and the number of the round, so any round can be had again without those before it.

STRETCH = 1 << 20       # tokens, or cells of a table, in a round


class Words:
    """A text in stretches that end where a line or document ends, if one does; without words that have no vector."""

    def __init__(self, tokens: Tokens, tokenizer: Tokenizer, device: torch.device):
        self.tokens, self.device = tokens, device
        self.unknown = tokenizer.id(UNKNOWN)
        self.ends = list(_ends(tokens))

    def __len__(self) -> int:
        return len(self.ends)

    def at(self, place: int) -> tuple[Tensor, Tensor]:
        """(N,) words, and a number for the text that each stands in."""
        begin = self.ends[place - 1] if place else 0
        tokens = torch.from_numpy(self.tokens[begin : self.ends[place]].astype(np.int32)).to(self.device).long()
        texts, known = (tokens == BOUNDARY).cumsum(0), tokens != BOUNDARY
        if self.unknown is not None:
            known &= tokens != self.unknown
        return tokens[known], texts[known]

    def counts(self, vocab: int) -> Tensor:
        """(V,) how often each word occurs."""
        total = torch.zeros(vocab, dtype=torch.long, device=self.device)
        for place in range(len(self)):
            total += torch.bincount(self.at(place)[0], minlength=vocab)
        return total


class Passing:
    """Rounds of pairs that are met as the text passes."""

    unit = "words"

    def __init__(self, model: Any, words: Words, counts: Tensor, seed: int):
        self.model, self.words, self.seed = model, words, seed
        near = any(bool((texts[1:] == texts[:-1]).any()) for _, texts in map(words.at, range(len(words))))
        self.size = int(counts.sum()) if near else 0       # words in an epoch, if any two stand side by side

    def at(self, number: int) -> tuple[Any, int]:
        """Examples, and how many words they are of."""
        tokens, texts = self.words.at(number % len(self.words))
        return self.model.collect_pairs(tokens, texts, chance_of(self.seed, 1 + number, tokens.device)), len(tokens)


class Gathered:
    """Rounds of cells that were added up over the whole text."""

    unit = "pairs"

    def __init__(self, model: Any, words: Words, counts: Tensor, seed: int):
        chance, sums = chance_of(seed, 1, counts.device), []
        with bar("counting pairs", int(counts.sum()), "words") as advance:
            for place in range(len(words)):
                tokens, texts = words.at(place)
                sums.append(model.collect_pairs(tokens, texts, chance))
                while len(sums) > 1 and len(sums[-2]["pairs"]) < 2 * len(sums[-1]["pairs"]):    # like meets like
                    sums.append(model.add(sums.pop(), sums.pop()))
                advance(len(tokens))
        while len(sums) > 1:
            sums.append(model.add(sums.pop(), sums.pop()))
        self.examples = model.shuffled(sums[0], chance)
        self.size = len(self.examples["counts"])

    def at(self, number: int) -> tuple[Any, int]:
        rounds = max(1, -(-self.size // STRETCH))
        examples = rows_of(self.examples, number % rounds * STRETCH, STRETCH)
        return examples, len(examples["counts"])


def rows_of(examples: Any, begin: int, size: int) -> Any:
    return map_state(examples, lambda tensor: tensor[begin : begin + size])


def chance_of(seed: int, number: int, device: torch.device) -> torch.Generator:
    state = np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state) >> 1)


def _ends(tokens: Tokens) -> Iterator[int]:
    """Where stretches end: before the last boundary that comes soon enough, if one does."""
    begin = 0
    while begin < len(tokens):
        end = min(begin + STRETCH, len(tokens))
        if end < len(tokens) and len(found := np.flatnonzero(tokens[begin + 1 : end] == BOUNDARY)):
            end = begin + 1 + int(found[-1])
        yield end
        begin = end


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
    if model.counts_first:
        return {"why": f"{type(model).__name__} fits the counts of one text; `chainrule eval` measures its vectors"}
    words = Words(corpus.splits["valid"].tokens, corpus.tokenizer, model.embeddings.device)
    total, pairs = 0.0, 0.0
    for place in range(len(words)):
        tokens, texts = words.at(place)
        examples = model.collect_pairs(tokens, texts, chance_of(seed, place, tokens.device))
        for at in range(0, len(examples["tokens"]), FIRST):
            loss, count = model.pair_loss(rows_of(examples, at, FIRST))
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
        self.model.initialise(counts, chance_of(seed, 0, device))
        checkpoint = self.checkpoints.last() if self.checkpoints else None
        with stop.while_waiting():
            self.source = (Gathered if self.model.counts_first else Passing)(self.model, words, counts, seed)
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
            self.model.train_step(batch, self._lr())
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
        total, count = (float(part) for part in self.model.pair_loss(batch))
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
