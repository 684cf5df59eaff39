"""Training of word vectors from pairs of words near each other (word2vec, GloVe).

A kind either learns from the pairs of a chunk of text at once, again in every epoch (word2vec); or it first sums the
co-occurrence counts of the whole text and learns from those (`counts_first`: GloVe). A chunk is a round; random numbers
are drawn from the seed and the number of the round, so any round can be repeated without those before it. Training can
stop between rounds, and the same command goes on as if it had not.

Steps are small at first: vectors grow out of one another, so many small steps get further than a few large ones.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, map_state
from chainrule.progress import bar, short
from chainrule.recipe import Pairs
from chainrule.run import Done
from chainrule.tasks.lm import LM
from chainrule.tasks.task import Task
from chainrule.text.batches import Tokens
from chainrule.text.corpus import Corpus
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.words import UNKNOWN
from chainrule.training.checkpoint import Checkpoints
from chainrule.training.compile.vector_steps import VectorSteps, graph_size
from chainrule.training.distributed import ALONE, Ranks
from chainrule.training.interrupt import Stop, catch_signals
from chainrule.training.log import Log

CHUNK = 1 << 20         # tokens, or cells of co-occurrence counts, in a round
STEP, CPU_STEP = 1 << 14, 1 << 12    # words in a step, where that is left to us; a CPU is fastest within its cache
FIRST = 1 << 10         # words in the first steps
GROWTH = 0.01           # then at most this share of the words done, and always at most this share of the text
REFRESH = 0.5           # seconds between two losses for the progress bar
RECORDS = 100           # most of those in the log
CHECKPOINT = 300.0      # seconds between checkpoints
FACTS = ("round", "done", "seconds", "logged")

Examples: TypeAlias = dict[str, Tensor]


class PairModel(Protocol):
    """A model that learns vectors from pairs of words."""

    counts_first: bool      # learns from counts of the whole text, rather than as the text is read
    block: int              # words in one row of examples

    @property
    def embeddings(self) -> Tensor: ...

    def initialise(self, counts: Tensor, generator: torch.Generator) -> None: ...

    def collect_pairs(self, tokens: Tensor, texts: Tensor, generator: torch.Generator) -> Any: ...

    def train_step(self, examples: Any, lr: float | Tensor) -> None: ...

    def pair_loss(self, examples: Any) -> tuple[Tensor, Tensor]: ...

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...


def train_by_pairs(
    model: PairModel, corpus: Corpus, settings: Pairs, log: Log, done: Done, checkpoints: Checkpoints | None = None,
    ranks: Ranks = ALONE, task: Task = LM,
) -> Done:
    """Rounds until the budget is spent. If a stop is requested, it ends the round and writes a checkpoint."""
    if ranks.size > 1:
        raise UserError("word vectors are trained on one device; start it without torchrun.")
    with catch_signals() as stop:
        trainer = PairTrainer(model, corpus, settings, log, checkpoints)
        finished = trainer.begin(stop) and trainer.run(stop)
    return Done(trainer.round, finished)


def held_out_loss(model: PairModel, tokens: Tokens, tokenizer: Tokenizer, seed: int = 1) -> dict[str, Any]:
    """The loss on pairs of a held-out text, for kinds whose loss is defined on other text."""
    if model.counts_first:
        return {"why": f"{type(model).__name__} fits the counts of one text; `chainrule eval` measures its vectors"}
    chunks = TextChunks(tokens, tokenizer, model.embeddings.device)
    total, pairs = 0.0, 0.0
    for place in range(len(chunks)):
        words, texts = chunks.at(place)
        examples = model.collect_pairs(words, texts, generator_of(seed, place, words.device))
        for at in range(0, len(examples["tokens"]), FIRST):
            loss, count = model.pair_loss(rows_of(examples, at, FIRST))
            total, pairs = total + float(loss), pairs + float(count)
    if not pairs:
        return {"why": "the held-out text has no two known words near each other"}
    return {"nats_per_pair": total / pairs, "pairs": round(pairs)}


def restore_counts(model: Any, corpus: Corpus) -> None:
    """For a trained model that was loaded: by how often words occur, pairs of a text are drawn."""
    if not model.counts_first:
        chunks = TextChunks(corpus.splits["train"].tokens, corpus.tokenizer, model.embeddings.device)
        model.set_counts(chunks.counts(len(model.embeddings)))


class TextChunks:
    """A text in chunks that end where a line or document ends, if one does; without words that have no vector."""

    def __init__(self, tokens: Tokens, tokenizer: Tokenizer, device: torch.device):
        self.tokens, self.device = tokens, device
        self.unknown = tokenizer.id(UNKNOWN)
        self.ends = list(_chunk_ends(tokens))

    def __len__(self) -> int:
        return len(self.ends)

    def at(self, place: int) -> tuple[Tensor, Tensor]:
        """(N,) words, and the number of the text that each is in."""
        tokens = self._all(place)
        texts, known = (tokens == BOUNDARY).cumsum(0), tokens != BOUNDARY
        if self.unknown is not None:
            known &= tokens != self.unknown
        places = known.nonzero()[:, 0]
        return tokens[places], texts[places]

    def counts(self, vocab: int) -> Tensor:
        """(V,) how often each word occurs."""
        total = torch.zeros(vocab, dtype=torch.long, device=self.device)
        for place in range(len(self)):
            total += torch.bincount(self._all(place), minlength=vocab)
        total[BOUNDARY] = 0
        if self.unknown is not None:
            total[self.unknown] = 0
        return total

    def _all(self, place: int) -> Tensor:
        """All tokens of a chunk, boundaries and unknown words too."""
        begin = self.ends[place - 1] if place else 0
        return torch.from_numpy(np.array(self.tokens[begin : self.ends[place]])).to(self.device).long()


def _chunk_ends(tokens: Tokens) -> Iterator[int]:
    """Each before the last boundary within CHUNK tokens, if there is one."""
    begin = 0
    while begin < len(tokens):
        end = min(begin + CHUNK, len(tokens))
        if end < len(tokens) and len(found := np.flatnonzero(tokens[begin + 1 : end] == BOUNDARY)):
            end = begin + 1 + int(found[-1])
        yield end
        begin = end


class StreamedPairs:
    """Rounds of pairs that are drawn as the text is read."""

    unit = "words"

    def __init__(self, model: PairModel, chunks: TextChunks, counts: Tensor, seed: int):
        self.model, self.chunks, self.seed = model, chunks, seed
        near = any(bool((texts[1:] == texts[:-1]).any()) for _, texts in map(chunks.at, range(len(chunks))))
        self.size = int(counts.sum()) if near else 0       # words in an epoch, if any two are side by side

    def at(self, number: int) -> tuple[Examples, int]:
        """Examples, and how many words they are of."""
        tokens, texts = self.chunks.at(number % len(self.chunks))
        return self.model.collect_pairs(tokens, texts, generator_of(self.seed, 1 + number, tokens.device)), len(tokens)


class CooccurrenceCounts:
    """Rounds of cells of the co-occurrence counts of the whole text."""

    unit = "pairs"

    def __init__(self, model: Any, chunks: TextChunks, counts: Tensor, seed: int):
        generator, sums = generator_of(seed, 1, counts.device), []
        with bar("counting pairs", int(counts.sum()), "words") as advance:
            for place in range(len(chunks)):
                tokens, texts = chunks.at(place)
                sums.append(model.collect_pairs(tokens, texts, generator))
                while len(sums) > 1 and len(sums[-2]["pairs"]) < 2 * len(sums[-1]["pairs"]):    # sizes that are alike
                    sums.append(model.add(sums.pop(), sums.pop()))
                advance(len(tokens))
        while len(sums) > 1:
            sums.append(model.add(sums.pop(), sums.pop()))
        self.examples = model.shuffled(sums[0], generator)
        self.size = len(self.examples["counts"])

    def at(self, number: int) -> tuple[Examples, int]:
        rounds = max(1, -(-self.size // CHUNK))
        examples = rows_of(self.examples, number % rounds * CHUNK, CHUNK)
        return examples, len(examples["counts"])


def rows_of(examples: Any, begin: int, size: int) -> Any:
    return map_state(examples, lambda tensor: tensor[begin : begin + size])


def generator_of(seed: int, number: int, device: torch.device) -> torch.Generator:
    state = np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state) >> 1)


class LateLoss:
    """The loss of a batch, which a GPU computes while steps go on, and what the log says beside it."""

    def __init__(self, loss: tuple[Tensor, Tensor], facts: dict[str, Any] | None):
        self.facts, self.event = facts, None
        self.parts = torch.stack([part.double() for part in loss]).to("cpu", non_blocking=True)
        if loss[0].is_cuda:
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record()

    def ready(self) -> bool:
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def read(self) -> float:
        if self.event is not None:
            self.event.synchronize()
        total, count = (float(part) for part in self.parts)
        return total / max(count, 1)


class PairTrainer:
    def __init__(self, model: PairModel, corpus: Corpus, settings: Pairs, log: Log, checkpoints: Checkpoints | None):
        self.model, self.corpus, self.settings, self.log, self.checkpoints = model, corpus, settings, log, checkpoints
        self.device = model.embeddings.device
        self.steps = VectorSteps(model.train_step, self.device)
        self.round, self.done = 0, 0.0                     # rounds, and words or pairs, learned from
        self.earlier, self.started = 0.0, time.monotonic()    # seconds before a restart; when this process began
        self.refreshed, self.refreshed_at, self.logged, self.note = self.started, 0.0, 0, ""
        self.saved = self.started
        self.losses: deque[LateLoss] = deque()             # on their way

    def begin(self, stop: Stop) -> bool:
        """At the last checkpoint, or at the beginning. False: a stop was requested before anything was learned."""
        device, seed = self.device, self.settings.seed
        chunks = TextChunks(self.corpus.splits["train"].tokens, self.corpus.tokenizer, device)
        counts = chunks.counts(len(self.model.embeddings))
        self.model.initialise(counts, generator_of(seed, 0, device))
        checkpoint = self.checkpoints.last() if self.checkpoints else None
        with stop.interruptible():
            source = CooccurrenceCounts if self.model.counts_first else StreamedPairs
            self.source = source(self.model, chunks, counts, seed)
        if stop.requested:
            return False
        if not self.source.size:
            raise UserError("the training text has no two known words near each other. Give more text, or a lower "
                            "text.min_count.")
        if checkpoint is not None:
            for name, buffer in self.model.named_buffers():
                buffer.copy_(checkpoint.part("model")[name])
            self.round, self.done, self.earlier, self.logged = (checkpoint.facts[name] for name in FACTS)
            self.log.records[:] = checkpoint.facts["log"]
            self.log("resume", f"going on from round {self.round}", round=self.round)
        else:
            self._log_start()
        return True

    def run(self, stop: Stop) -> bool:
        """True: it came to its end."""
        name, amount = self.settings.budget
        total = amount * self.source.size - self.done if name == "epochs" else None
        with bar("training", total, self.source.unit) as advance:
            while self._progress() < 1:
                if stop.requested or time.monotonic() - self.saved >= CHECKPOINT:
                    self.checkpoint()
                if stop.requested:
                    return False
                self._one_round(advance)
            self._read_losses(wait=True)
        return True

    def checkpoint(self) -> None:
        self._read_losses(wait=True)
        if self.checkpoints is not None:
            facts = dict(zip(FACTS, (self.round, self.done, self._seconds(), self.logged)))
            parts = {"model": dict(self.model.named_buffers())}
            self.checkpoints.write(self.round, facts | {"log": self.log.records}, parts)
        self.saved = time.monotonic()

    def _one_round(self, advance: Any) -> None:
        examples, size = self.source.at(self.round)
        began, rows, at = self.done, len(next(iter(examples.values()))), 0
        while at < rows and self._progress() < 1:
            step = min(rows - at, self._step())
            batch = rows_of(examples, at, step)
            self._report(batch)
            self.steps.take(batch, self._lr())
            at += step
            self.done = began + size * at / rows
            advance(size * step / rows, self.note)
        self.round += 1

    def _step(self) -> int:
        """Rows of examples in a step."""
        most = self.settings.tokens or (CPU_STEP if self.device.type == "cpu" else STEP)
        words = min(most, GROWTH * self.source.size, max(FIRST, GROWTH * self.done))
        most, rows = (max(1, int(number) // int(self.model.block)) for number in (most, words))
        return graph_size(rows, most) if self.steps.on_gpu else rows

    def _progress(self) -> float:
        """The fraction of training that is done."""
        name, amount = self.settings.budget
        return self._seconds() / 60 / amount if name == "minutes" else self.done / (amount * self.source.size) + 1e-9

    def _lr(self) -> float:
        final = self.settings.final_lr
        return self.settings.lr * (final + (1 - final) * max(0.0, 1 - self._progress()))

    def _seconds(self) -> float:
        return self.earlier + time.monotonic() - self.started

    def _report(self, batch: Any) -> None:
        """From time to time: the loss on the next batch, for the progress bar and the log. No GPU is waited for."""
        self._read_losses(wait=False)
        now, progress = time.monotonic(), self._progress()
        due = progress * RECORDS >= self.logged
        if now - self.refreshed < REFRESH and not due:
            return
        speed = (self.done - self.refreshed_at) / max(now - self.refreshed, 1e-9)
        self.refreshed, self.refreshed_at, facts = now, self.done, None
        if due:
            self.logged = math.floor(progress * RECORDS) + 1
            facts = {"round": self.round + 1, "progress": round(progress, 4), "lr": self._lr(),
                     f"{self.source.unit}_per_second": round(speed)}
        self.losses.append(LateLoss(self.model.pair_loss(batch), facts))

    def _read_losses(self, wait: bool) -> None:
        """Those that have been computed, or all, for the progress bar and the log."""
        while self.losses and (wait or self.losses[0].ready()):
            late = self.losses.popleft()
            loss = late.read()
            if not math.isfinite(loss):
                raise UserError(f"round {self.round + 1}: the vectors are not finite. A lower train.lr (it is "
                                f"{self.settings.lr:g}) or a smaller train.tokens helps, with --overwrite.")
            self.note = f"loss {loss:.4f}"
            if late.facts is not None:
                self.log("step", loss=loss, **late.facts)

    def _log_start(self) -> None:
        name, amount = self.settings.budget
        vocab, size = self.model.embeddings.shape
        unit, pool = self.source.unit, self.source.size
        line = f"vectors of {size} numbers for {vocab:,} words, {short(pool)} {unit} to learn from, {amount:g} {name}"
        facts: dict[str, Any] = {unit: pool, name: amount}
        self.log("pairs", line, **facts)
