"""Denoising, the pretraining of encoders: restore a corrupted text (`--task mask`, `--task span`, `--task denoise`).

mask (BERT): predict masked tokens where they stood. span (T5): write the spans that were cut out. denoise (BART): write
the whole text again. corruption.py says what is taken out. `predict` fills the blanks of a text; `eval` corrupts a
held-out text, always in the same way, and measures what is restored.

Shapes: V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from chainrule import __version__
from chainrule.errors import UserError
from chainrule.inference.beam import Beam
from chainrule.inference.fill_in import (
    Cloze,
    EndDecoder,
    SpanDecoder,
    encode_cloze,
    fill_blanks,
    read_cloze,
    refuse_long,
)
from chainrule.inference.forward import LOGITS
from chainrule.inference.row_scores import mean_over_rows, score_masked_rows, score_rows, summarise_rows
from chainrule.inference.statistics import ROUNDS, SEED
from chainrule.model import BOUNDARY, Batch, Model
from chainrule.progress import track
from chainrule.recipe import Gradient, Recipe, Text
from chainrule.settings import Range
from chainrule.tasks.batching import ragged, special_id
from chainrule.tasks.corruption import Masked, Noise, Noised, Spans, sentinel_names, span_count
from chainrule.tasks.examples import lines_of
from chainrule.tasks.lm import order_text
from chainrule.tasks.task import Prediction, Search, Task, Trained
from chainrule.tasks.translate import Decoder, Sequences, best_texts
from chainrule.text.batches import InOrder, Streams, Windows
from chainrule.text.chat_template import ChatTemplate
from chainrule.text.corpus import Corpus, prepare, read_split
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import Tokenizer

MASK, END = "<|mask|>", "<|end|>"
ROW = 64                 # tokens of a row, for models without a context
EVALUATED = 1 << 13      # tokens of a batch in evaluation
STOPS = (".", "!", "?")  # a token that ends with one ends a sentence
C = TypeVar("C", Masked, Spans, Noised)


@dataclass(frozen=True)
class CorruptedCorpus(Corpus):
    """Running text, whose tokenizer has the tokens that stand for what is taken out."""

    length: int = 0                 # tokens in a row
    ordinary: int = 0               # tokens of the text itself, the boundary included
    special: tuple[int, ...] = ()   # the mask, or the sentinels
    text: Text | None = None        # settings of the text


class Denoising(Task, Generic[C]):
    text: ClassVar[type[Text]] = Text
    running_text = False
    predicts = True
    use = "`chainrule predict {run}` fills in blanks, `chainrule eval {run}` measures it"
    next_commands: ClassVar[Sequence[str]] = ("predict {run} TEXT_WITH_BLANKS", "eval {run} TEXT")

    def special_tokens(self, length: int) -> tuple[str, ...]:
        """Tokens to add to the tokenizer, for rows of `length` tokens."""
        raise NotImplementedError

    def corrupt(self, corpus: CorruptedCorpus, order: Windows | Streams | InOrder, seed: int) -> C:
        raise NotImplementedError

    def row_length(self, recipe: Recipe) -> int:
        """Tokens of a row; a source also ends with a boundary."""
        context = getattr(recipe.model, "context", None)
        length: int = recipe.train.length or (ROW if context is None else context - (1 if self.source else 0))
        return length

    def prepare(
        self, recipe: Recipe, texts: Sequence[str], valid: Sequence[str] = (), test: Sequence[str] = (),
        tokenizer: Tokenizer | None = None, template: ChatTemplate | None = None,
    ) -> CorruptedCorpus:
        corpus = prepare(texts, recipe.text, valid=valid, test=test, tokenizer=tokenizer)
        return self.with_special(corpus, self.row_length(recipe), recipe.text)

    def with_special(self, corpus: Corpus, length: int, text: Text) -> CorruptedCorpus:
        """The corpus for rows of `length` tokens, with the tokens that its tokenizer lacks."""
        names = self.special_tokens(length)
        known = [name for name in names if corpus.tokenizer.id(name) is not None]
        grown = corpus.tokenizer.with_special([name for name in names if name not in known])
        special = tuple(special_id(grown, name) for name in names)
        ordinary = len(corpus.tokenizer) - len(known)
        return CorruptedCorpus(corpus.splits, grown, corpus.notes, length, ordinary, special, text)

    def order(self, model: Model, corpus: Corpus, settings: Gradient) -> C:
        corpus = cast(CorruptedCorpus, corpus)
        settings, context = replace(settings, length=corpus.length), getattr(model, "context", None)
        rows = order_text(corpus.splits["train"], settings, context)
        return self.corrupt(corpus, rows, settings.seed)

    def validation(self, model: Model, corpus: Corpus) -> C:
        """The same is taken out in every evaluation."""
        corpus = cast(CorruptedCorpus, corpus)
        return self.corrupt(corpus, self.in_order(corpus, "valid", EVALUATED), seed=0)

    def in_order(self, corpus: CorruptedCorpus, split: str, tokens: int) -> InOrder:
        """The rows of a split, so many tokens in a batch."""
        return InOrder(corpus.splits[split].tokens, max(1, tokens // corpus.length), corpus.length)

    # Use

    def held_out(self, run: Trained, files: Sequence[str], text: Any) -> tuple[CorruptedCorpus, C]:
        """A held-out text, corrupted by seed 0."""
        split = read_split(files, text, run.tokenizer)
        corpus = self.with_special(Corpus({"test": split}, run.tokenizer, ()), self.row_length(run.recipe), text)
        order = self.in_order(corpus, "test", min(EVALUATED, LOGITS // len(run.tokenizer)))
        return corpus, self.corrupt(corpus, order, seed=0)

    def read_inputs(self, file: str, text: Any) -> Sequence[tuple[str, Place]]:
        return self.read_lines(lines_of(file, text.errors), "stdin" if file == "-" else file)

    def read_lines(self, lines: Iterable[str], name: str = "stdin") -> Sequence[tuple[str, Place]]:
        return [(line.strip(), Place(name, number)) for number, line in enumerate(lines, 1)]

    def predict(self, run: Trained, examples: Sequence[tuple[str, Place]], search: Search) -> list[Prediction]:
        if not examples:
            raise UserError("there is no input: no line came.")
        return self.fill(run, [read_cloze(line, place, run.tokenizer) for line, place in examples], search)

    def fill(self, run: Trained, texts: Sequence[Cloze], search: Search) -> list[Prediction]:
        """The texts with their blanks filled."""
        raise NotImplementedError


@dataclass(frozen=True)
class MaskedText(Text):
    """`text.*` where masked tokens are restored (BERT)."""

    mask_share: Annotated[float, Range(above=0, below=1)] = 0.15  # fraction of tokens that are targets in training


class MaskedTokens(Denoising[Masked]):
    name = "mask"
    text = MaskedText

    def special_tokens(self, length: int) -> tuple[str, ...]:
        return (MASK,)

    def corrupt(self, corpus: CorruptedCorpus, order: Windows | Streams | InOrder, seed: int) -> Masked:
        share = cast(MaskedText, corpus.text).mask_share
        return Masked(order, corpus.special[0], np.arange(1, corpus.ordinary), seed, share)

    def measure(self, run: Trained, files: Sequence[str], text: Any, search: Search) -> dict[str, Any]:
        """Accuracy and bits of masked tokens. All that are chosen are masked; training leaves some as they are."""
        corpus, corrupted = self.held_out(run, files, text)
        hidden = replace(corrupted, share=MaskedText.mask_share, masked=1.0, changed=0.0)
        rows = list(score_masked_rows(run.model, hidden))
        return summarise_rows(np.array(rows), ("right", "nats")) | _signed(corpus, f"masked:{hidden.share:.0%}")

    def fill(self, run: Trained, texts: Sequence[Cloze], search: Search) -> list[Prediction]:
        return fill_blanks(run.model, run.tokenizer, texts, special_id(run.tokenizer, MASK))


class SourceDenoising(Denoising[C]):
    """Denoising by a model that reads the corrupted text as a source, and writes."""

    source = "text"

    def write(
        self, run: Trained, sources: Sequence[Sequence[int]], search: Search, decoder: Decoder | None = None
    ) -> list[list[tuple[str, float]]]:
        """The texts that the search finds for each source, with their scores, the best first."""
        search = replace(search, best=search.width) if isinstance(search, Beam) else search
        rows = [np.append(np.array(read, np.int64), BOUNDARY) for read in sources]
        encoded = Sequences(ragged(rows), ragged([np.empty(0, np.int32)] * len(rows)))
        return best_texts(run, encoded, search, decoder)

    def encode_line(self, run: Trained, cloze: Cloze, special: Sequence[int]) -> list[int]:
        tokens = encode_cloze(cloze, run.tokenizer, special)
        refuse_long(len(tokens) + 2, getattr(run.model, "context", None), cloze.place)
        return tokens


class SpanCorruption(SourceDenoising[Spans]):
    name = "span"

    def special_tokens(self, length: int) -> tuple[str, ...]:
        return sentinel_names(span_count(length)[1])

    def corrupt(self, corpus: CorruptedCorpus, order: Windows | Streams | InOrder, seed: int) -> Spans:
        return Spans(order, np.array(corpus.special), seed)

    def measure(self, run: Trained, files: Sequence[str], text: Any, search: Search) -> dict[str, Any]:
        """Bits of the tokens of the spans, and the share of spans that are restored exactly."""
        corpus, corrupted = self.held_out(run, files, text)
        batches = [corrupted.at(step) for step in range(math.ceil(corrupted.epoch))]
        rows = np.array([row for batch in batches for row in score_rows(run.model, batch)])
        decoder = SpanDecoder(run.tokenizer, corpus.special)
        sources, targets = zip(*(pair for batch in batches for pair in _pairs(batch)))
        found = self.write(run, sources, search, decoder)
        exact = [_exact_spans(decoder, target, texts[0][0]) for target, texts in zip(targets, found)]
        spans = mean_over_rows(np.array(exact, np.float64)).as_dict("exact_spans")
        return summarise_rows(rows, ("nats",)) | spans | _signed(corpus, "spans:15%") | search.as_dict()

    def fill(self, run: Trained, texts: Sequence[Cloze], search: Search) -> list[Prediction]:
        names = sentinel_names(len(run.tokenizer))
        sentinels = [token for name in names if (token := run.tokenizer.id(name)) is not None]
        for cloze in texts:
            if cloze.blanks > len(sentinels):
                raise UserError(f"{cloze.place} has {cloze.blanks} blanks, and the run learned from rows with at most "
                                f"{len(sentinels)}. Give fewer blanks on a line.")
        decoder = SpanDecoder(run.tokenizer, sentinels)
        found = self.write(run, [self.encode_line(run, cloze, sentinels) for cloze in texts], search, decoder)
        return [_filled([(cloze.filled(decoder.spans(text, cloze.blanks)), score) for text, score in some])
                for cloze, some in zip(texts, found)]


def _filled(found: Sequence[tuple[str, float]]) -> Prediction:
    """The best text, and all different ones as its alternatives, with the best score of each."""
    best = dict(reversed(found))
    others = [{"text": text, "score": score} for text, score in reversed(best.items())]
    return {"answer": found[0][0], "score": found[0][1], "alternatives": [others]}


def _exact_spans(decoder: SpanDecoder, target: Sequence[int], written: str) -> tuple[int, int]:
    """How many spans are as in the truth, and how many there are."""
    count = sum(token in decoder.names for token in target)
    pairs = zip(decoder.spans(decoder.decode(target), count), decoder.spans(written, count))
    return sum(one.strip() == other.strip() for one, other in pairs), count


@dataclass(frozen=True)
class NoisyText(Text):
    """`text.*` where a text is restored from noise (BART)."""

    noise: tuple[Noise, ...] = ("infill", "permute")  # corruption: permute (sentences), rotate, infill (spans, each by
                                    # one mask), mask (tokens), delete (tokens)
    noise_share: Annotated[float, Range(above=0, below=1)] = 0.3  # fraction of tokens to infill, mask or delete
    noise_span: Annotated[float, Range(above=0, most=1000)] = 3.0  # mean length of an infilled span (Poisson)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.noise:
            raise UserError("text.noise is empty: name at least one of permute, rotate, infill, mask and delete.")


class NoiseRemoval(SourceDenoising[Noised]):
    name = "denoise"
    text = NoisyText

    def special_tokens(self, length: int) -> tuple[str, ...]:
        return (MASK, END)

    def corrupt(self, corpus: CorruptedCorpus, order: Windows | Streams | InOrder, seed: int) -> Noised:
        text, (mask, end) = cast(NoisyText, corpus.text), corpus.special
        stops = sentence_ends(corpus.tokenizer)
        stops[end] = True
        return Noised(order, text.noise, mask, end, stops, seed, text.noise_share, text.noise_span)

    def measure(self, run: Trained, files: Sequence[str], text: Any, search: Search) -> dict[str, Any]:
        """Bits of the tokens of the text, each given those before it and the corrupted text."""
        corpus, corrupted = self.held_out(run, files, text)
        steps = track(range(math.ceil(corrupted.epoch)), "scoring", math.ceil(corrupted.epoch), "batches")
        rows = np.array([row for step in steps for row in score_rows(run.model, corrupted.at(step))])
        noise = f"noise:{','.join(text.noise)}|share:{text.noise_share:.0%}"
        return summarise_rows(rows, ("nats",)) | _signed(corpus, noise)

    def fill(self, run: Trained, texts: Sequence[Cloze], search: Search) -> list[Prediction]:
        mask, end = (special_id(run.tokenizer, name) for name in (MASK, END))
        sources = [[*self.encode_line(run, cloze, [mask] * cloze.blanks), end] for cloze in texts]
        found = self.write(run, sources, search, EndDecoder(run.tokenizer, end))
        return [_filled(some) for some in found]


def sentence_ends(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """(V,): tokens after which a sentence is over."""
    return np.array([tokenizer.decode([token]).rstrip().endswith(STOPS) for token in range(len(tokenizer))])


def _signed(corpus: CorruptedCorpus, corruption: str) -> dict[str, Any]:
    """How it was measured."""
    tokenizer, split = corpus.tokenizer, corpus.splits["test"]
    signature = (f"{corruption}|seed:0|length:{corpus.length}|unit:{tokenizer.unit}|tokenizer:{tokenizer.sha256[:12]}|"
                 f"interval:bootstrap|rounds:{ROUNDS}|seed:{SEED}|text:{split.sha256[:12]}|chainrule:{__version__}")
    return {"signature": signature}


def _pairs(batch: Batch) -> Iterator[tuple[list[int], list[int]]]:
    """The source and the text of each row, without their ends."""
    assert batch.source is not None
    assert batch.source_lengths is not None
    assert batch.lengths is not None
    for row, (size, length) in enumerate(zip(batch.source_lengths.tolist(), batch.lengths.tolist())):
        yield batch.source[row, : size - 1].tolist(), batch.targets[row, : length - 1].tolist()
