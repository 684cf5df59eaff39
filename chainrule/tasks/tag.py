"""Tagging: a tag for each word, such as its part of speech (`--task tag`).

    0 word word …  ->  a tag at the last token of each word

There a model that reads in one direction has read the whole word. A network tags by a head on its body, the `hmm` by
counting tags and words (models/hmm/tagger.py).

Shapes: B rows, T tokens or words, F bytes of the longest word.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule import models
from chainrule.errors import UserError
from chainrule.inference.evaluate import count_parameters
from chainrule.inference.forward import eval_mode
from chainrule.inference.metrics import measure_tags
from chainrule.model import BOUNDARY, IGNORE, Batch, Model
from chainrule.recipe import Recipe
from chainrule.settings import BelowOne, Settings, Size
from chainrule.tasks.batching import (
    AT_ONCE,
    Ids,
    Ragged,
    RowsWithTargets,
    concatenate_rows,
    constant_rows,
    encode_texts,
    positions,
    to_tensor,
    truncate_texts,
)
from chainrule.tasks.conllu import Tagged, TagText, read_tagged
from chainrule.tasks.entities import measure_entities, name_spans
from chainrule.tasks.example_task import (
    ExampleCorpus,
    ExampleSplit,
    ExampleTask,
    evaluation_batches,
    mean_probabilities,
)
from chainrule.tasks.examples import Names, label_ids, label_names
from chainrule.tasks.frames import (
    EncodedFrames,
    Frames,
    complete_frames,
    encode_frames,
    frame_answers,
    measure_frames,
    read_frames,
)
from chainrule.tasks.task import Prediction, Search, Trained, Truncate
from chainrule.text.corpus import Corpus
from chainrule.text.sources import Source
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import Tokenizer

LONGEST = 24    # bytes of a word; of longer words both ends are kept, which say most about their tag


@dataclass(frozen=True)
class TagHead(Settings, part="head"):
    """`head.*` of a network that tags."""

    hidden: Size | None = None          # hidden units of a feed-forward head (MLP); none: the head is linear
    dropout: BelowOne = 0.1             # dropout on each word's vector, or on the hidden units, during training
    char_cnn: bool = False              # also read each word's characters, by a convolution: helps with unknown words
    outputs: Size | None = None         # numbers y_t for each frame instead of a tag, of a model written by hand


class Tag(ExampleTask[Any]):
    name, target = "tag", "word"
    reads_frames, averages = True, "labels"
    text = TagText
    heads: ClassVar[Mapping[str, type[Settings]]] = {"gradient": TagHead}
    readable = ("errors", "tag")

    def model_class(self, kind: str) -> type[Model]:
        found = super().model_class(kind)
        if found.learns_by == "gradient":
            return found
        from chainrule.models.hmm.tagger import HMMTagger

        return HMMTagger

    def build(self, recipe: Recipe, vocab: int, labels: Sequence[str] = ()) -> Any:
        if self._counts(recipe):
            tagger: Any = self.model_class(recipe.kind)
            return tagger(recipe.model, len(labels))
        from chainrule.layers.embedding import CharCNN
        from chainrule.models.heads import TokenClassifier

        body = models.build(recipe.kind, recipe.model, vocab)
        pretrained = recipe.base is not None
        char_cnn = CharCNN(body.inputs, zero_init=pretrained) if recipe.head.char_cnn else None
        head = recipe.head
        return TokenClassifier(
            body, head.outputs or len(labels), head.dropout, char_cnn=char_cnn, hidden=head.hidden
        )

    def _counts(self, recipe: Recipe) -> bool:
        return self.model_class(recipe.kind).learns_by == "counting"

    def complete(self, recipe: Recipe, texts: Sequence[str]) -> Recipe:
        if getattr(recipe.head, "outputs", None):
            raise UserError("head.outputs is of models that are written by hand, and tags are learned. Leave it out.")
        return complete_frames(recipe, texts)

    def read(self, sources: Sequence[Source], text: TagText) -> Iterable[Tagged | Frames]:
        if text.input == "frames":
            return read_frames(sources, text)
        return (example for source in sources for example in read_tagged(source, text))

    def read_rows(self, source: Source, text: TagText) -> Iterable[Frames] | None:
        return read_frames([source], text, labels=False) if text.input == "frames" else None

    def line(self, text: str, place: Place) -> Tagged:
        return Tagged(tuple(text.split()), (), place)

    def label_names(self, examples: Sequence[Tagged | Frames]) -> Names:
        return label_names((tag for example in examples for tag in example.tags), "tags")

    def encode(
        self, examples: Sequence[Any], recipe: Recipe, tokenizer: Tokenizer, labels: Names
    ) -> "Tags | TagsWithBytes | SpelledTags | EncodedFrames":
        if cast(TagText, recipe.text).input == "frames":
            return encode_frames(examples, recipe, labels, each=True)
        if self._counts(recipe):
            return SpelledTags(examples, labels)
        limit, truncate = getattr(recipe.model, "context", None), cast(TagText, recipe.text).truncate
        tags = encode_tagged(examples, tokenizer, labels, limit, truncate)
        return TagsWithBytes(tags) if recipe.head.char_cnn else tags

    def measure_validation(self, model: Model, corpus: Corpus) -> dict[str, Any]:
        corpus = cast(ExampleCorpus, corpus)
        if isinstance(corpus.splits["valid"].encoded, EncodedFrames):
            return measure_frames(model, corpus.splits["valid"], corpus.labels)
        known = {word for example in corpus.splits["train"].examples for word in example.words}
        return measure_tagging(model, corpus.splits["valid"], corpus.labels, known)

    def measure_split(self, run: Trained, split: ExampleSplit, search: Search) -> dict[str, Any]:
        if not run.labels:
            raise UserError("this model has no tags: it gives numbers, which `chainrule predict` prints.")
        if isinstance(split.encoded, EncodedFrames):
            return measure_frames(run.model, split, run.labels)
        known, predicted = Vocabulary(run.tokenizer), self._predicted(run, split.encoded)
        return measure_tagging(run.model, split, run.labels, known, predicted)

    def answers(self, run: Trained, encoded: Any, search: Search) -> list[Prediction]:
        if isinstance(encoded, EncodedFrames):
            return frame_answers(run.model, encoded, run.labels)
        return [
            {"answer": " ".join(run.labels[number] for number in predicted), "words": list(words)}
            for words, predicted in zip(encoded.words, self._predicted(run, encoded))
        ]

    def _predicted(self, run: Trained, encoded: Any) -> list[NDArray[np.int64]]:
        """The tags of each sentence; by several runs, of which each encodes the words for itself."""
        if not run.others:
            return predict_tags(run.model, encoded)
        examples = [Tagged(tuple(words), (), Place("the text", 1 + row)) for row, words in enumerate(encoded.words)]
        more = ((one.model, self.encode(examples, one.recipe, one.tokenizer, one.labels)) for one in run.others)
        parts = [tag_probabilities(*each) for each in ((run.model, encoded), *more)]
        return [row.argmax(-1) for row in mean_probabilities(run, parts)]


def predict_tags(model: Model, encoded: Any) -> list[NDArray[np.int64]]:
    """The tag of each word of each sentence."""
    return _each_word(model, encoded, lambda logits: logits.argmax(-1))


def tag_probabilities(model: Model, encoded: Any) -> list[NDArray[np.float64]]:
    """(words, tags) of each sentence."""
    return _each_word(model, encoded, lambda logits: logits.double().softmax(-1))


@torch.inference_mode()
def _each_word(model: Model, encoded: Any, answer: Callable[[Tensor], Tensor]) -> list[Any]:
    """What `answer` makes of the logits, at the words of each sentence."""
    rows: dict[int, Any] = {}
    with eval_mode(model):
        for ids, batch in evaluation_batches(model, encoded, "tagging"):
            answers = answer(model(batch)).cpu().numpy()
            rows |= {number: row[encoded.places[number]] for number, row in zip(ids.tolist(), answers)}
    return [rows[number] for number in range(len(encoded))]


def measure_tagging(
    model: Model, split: ExampleSplit, labels: Sequence[str], known: Container[str], predicted: Any = None
) -> dict[str, Any]:
    """Accuracy, F1 and the rest; of known and unknown words too, where `known` are those that training saw.

    `predicted`: the tags of each sentence, where they are not the model's alone.
    """
    encoded = split.encoded
    seen = [np.array([word in known for word in words], bool) for words in encoded.words]
    truth, predicted = list(encoded.targets), predict_tags(model, encoded) if predicted is None else predicted
    facts = measure_tags(truth, predicted, labels, seen).as_dict()
    if name_spans(labels):
        facts |= measure_entities(*([[labels[tag] for tag in tags] for tags in each] for each in (truth, predicted)))
    return {**facts, "parameters": count_parameters(model)}


class Vocabulary:
    """The words that have a token of their own; where words are cut into pieces, no word counts as known."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def __contains__(self, word: object) -> bool:
        return self.tokenizer.lines and self.tokenizer.id(str(word)) is not None


# Encoded sentences

@dataclass(frozen=True)
class Tags(RowsWithTargets):
    rows: Ragged                                     # tokens
    places: Ragged                                   # of each word: where its last token stands
    targets: Ragged                                  # of each word: its tag; IGNORE: not known
    words: Ragged                                    # as they are written, without those that were truncated
    notes: tuple[str, ...] = ()

    def batch(self, rows: Ids, widths: Sequence[int]) -> Batch:
        tokens = to_tensor(self.rows.padded(rows, widths[0], BOUNDARY))
        targets = np.full(tokens.shape, IGNORE, np.int64)
        places = self.places.take(rows)
        targets[np.repeat(np.arange(len(rows)), places.lengths), places.flat] = self.targets.take(rows).flat
        return Batch(tokens, torch.from_numpy(targets), to_tensor(self.rows.lengths[rows]))


class TagsWithBytes(Tags):
    """Tagged words with their bytes as the batch's source, at the place where the word has its tag (CharCNN)."""

    def __init__(self, tags: Tags):
        super().__init__(tags.rows, tags.places, tags.targets, tags.words, tags.notes)

    def batch(self, rows: Ids, widths: Sequence[int]) -> Batch:
        batch = super().batch(rows, widths)
        return replace(batch, source=self._bytes(rows, batch.tokens.shape[1]))

    @cached_property
    def _spelled(self) -> NDArray[np.uint8]:
        """(N, LONGEST): the bytes of all words; made once, since a GPU waits for batches that are made word by word."""
        words = self.words.flat.tolist()
        spelled = np.zeros((len(words), LONGEST), np.uint8)
        for first in range(0, len(words), AT_ONCE):
            some = word_bytes([words[first : first + AT_ONCE]])[0].numpy()
            spelled[first : first + len(some), : some.shape[1]] = some
        return spelled

    def _bytes(self, rows: Ids, width: int) -> Tensor:
        """(B, T, F), as `word_bytes` of the words at their places."""
        places = self.places.take(rows)
        spelled = Ragged(self._spelled, self.words.ends).take(rows).flat                        # (N, LONGEST)
        longest = int(np.flatnonzero(spelled.any(0)).max(initial=0)) + 1
        result = np.zeros((len(rows), width, longest), np.uint8)
        result[np.repeat(np.arange(len(rows)), places.lengths), places.flat] = spelled[:, :longest]
        return torch.from_numpy(result)


def word_bytes(rows: Sequence[Sequence[str]], longest: int = LONGEST) -> Tensor:
    """(B, T, F): the bytes of each word in UTF-8, padded with 0; an empty word and the padding are 0 throughout."""
    spelled = [[_shortened(word.encode(), longest) for word in row] for row in rows]
    words, width = max(map(len, spelled)), max((len(word) for row in spelled for word in row), default=0)
    width = max(width, 1)
    padded = (b"".join(word.ljust(width, b"\0") for word in row).ljust(words * width, b"\0") for row in spelled)
    return torch.frombuffer(bytearray(b"".join(padded)), dtype=torch.uint8).view(len(rows), words, width)


def _shortened(word: bytes, longest: int) -> bytes:
    first = longest // 2
    return word if len(word) <= longest else word[:first] + word[first - longest :]


class SpelledTags:
    """Tagged words as the tagger that counts reads them: by their spelling, without a tokenizer."""

    notes: tuple[str, ...] = ()

    def __init__(self, examples: Sequence[Tagged], labels: Names):
        self.words = [example.words for example in examples]
        lengths = np.array([len(words) for words in self.words], np.int64)
        ends = np.cumsum(lengths)
        tags = [tag for example in examples for tag in example.tags or [None] * len(example.words)]
        where = [example.place for example in examples for _ in example.words]
        self.targets = Ragged(label_ids(tags, labels, where, "tag"), ends)
        self.places = Ragged(positions(lengths).astype(np.int32), ends)
        self.sizes, self.tokens, self.target_count = (lengths,), self.places.flat, int(lengths.sum())

    def __len__(self) -> int:
        return len(self.words)

    def batch(self, rows: Ids, widths: Sequence[int]) -> Batch:
        from chainrule.models.hmm.word_features import tagging_batch

        chosen = rows.tolist()
        return tagging_batch([self.words[row] for row in chosen], [self.targets[row].tolist() for row in chosen])


def encode_tagged(
    examples: Sequence[Tagged], tokenizer: Tokenizer, tags: Names, limit: int | None, truncate: Truncate = "false"
) -> Tags:
    """Tagged words, a space before each but the first of a sentence."""
    known: dict[str, int] = {}
    space = "" if tokenizer.lines else " "
    spelled = [known.setdefault(space * (place > 0) + word, len(known))
               for example in examples for place, word in enumerate(example.words)]
    words = encode_texts(tokenizer, known).take(np.array(spelled, np.int64))
    sentences = np.cumsum([len(example.words) for example in examples], dtype=np.int64)    # where each ends, in words
    _refuse_wordless(words, sentences, examples)
    ends = np.append(0, np.cumsum(words.lengths))[np.append(0, sentences)]                   # and in tokens
    tokens, places = Ragged(words.flat, ends[1:]), Ragged(_last(words, sentences, ends), sentences)
    labels = [tag for example in examples for tag in example.tags or [None] * len(example.words)]
    where = [example.place for example in examples for _ in example.words]
    numbers = label_ids(labels, tags, where, "tag")
    written = np.array([word for example in examples for word in example.words], object)
    kept, notes = truncate_texts([tokens], limit, 1, truncate, [example.place for example in examples])
    if notes:
        places, here = _still_there(tokens, kept[0], places, truncate)
        numbers, written = numbers[here], written[here]
    read = concatenate_rows([constant_rows(BOUNDARY, len(examples)), kept[0]])
    return Tags(read, places, Ragged(numbers, places.ends), Ragged(written, places.ends), notes)


def _last(words: Ragged, sentences: Ids, ends: Ids) -> NDArray[np.int32]:
    """Where the last token of each word stands in its row, after the boundary."""
    begins = np.repeat(ends[:-1], np.diff(sentences, prepend=0))
    return (words.ends - begins).astype(np.int32)


def _refuse_wordless(words: Ragged, sentences: Ids, examples: Sequence[Tagged]) -> None:
    for word in np.flatnonzero(words.lengths == 0)[:1]:
        sentence = int(np.searchsorted(sentences, word, "right"))
        example = examples[sentence]
        text = example.words[int(word - sentences[sentence]) + len(example.words)]
        raise UserError(f"{example.place}: the tokenizer has no token for the word {text!r} in this sentence.")


def _still_there(tokens: Ragged, kept: Ragged, places: Ragged, truncate: Truncate) -> tuple[Ragged, Ids]:
    """The places of the words whose last token was not cut away, and which of all words they are."""
    marks = np.full(len(tokens.flat), -1, np.int64)                 # of each token: the word that it ends
    marks[np.repeat(tokens.begins, places.lengths) + places.flat - 1] = np.arange(len(places.flat))
    left = Ragged(marks, tokens.ends).truncated(kept.lengths, truncate == "ends")
    here = left.flat >= 0
    row = np.repeat(np.arange(len(left)), left.lengths)[here]
    ends = np.cumsum(np.bincount(row, minlength=len(left)))
    columns = (positions(left.lengths)[here] + 1).astype(np.int32)
    return Ragged(columns, ends), left.flat[here]
