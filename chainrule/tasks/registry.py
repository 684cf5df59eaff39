"""What each task makes of a recipe: which kinds can do it, and the model that learns it.

lm         any kind that foretells the next token: the task of every language model
classify   a class for a text, or for two: a head on a network, or one language model a class
tag        a tag for each word: a head on a network, or the tagger that counts (`hmm`)
translate  a text from another, summaries too; a decoder reads both in one row; caption: a text from vectors
mask       hidden words, by an encoder (BERT); span: spans cut out of a text, by an encoder–decoder (T5)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from chainrule import models
from chainrule.errors import UserError
from chainrule.model import Batch
from chainrule.models import build
from chainrule.models.hmm.word_features import tagging_batch
from chainrule.recipe import Base, Recipe, make_recipe
from chainrule.tasks import find_task
from chainrule.tasks.corpus_of_examples import Encode, Encoding
from chainrule.tasks.examples import Names, Tagged, numbers_of
from chainrule.tasks.padding import Places, Ragged, within
from chainrule.text.tokenizers.tokenizer import Tokenizer

NETS = ("rnn", "gru", "lstm", "gpt", "encoder")
COUNTED = ("unigram", "bigram", "ngram", "hmm")
WITH_SOURCE = ("seq2seq", "transformer")

TASKS: Mapping[str, tuple[str, ...]] = {
    "lm": (),
    "classify": (*NETS, *COUNTED),
    "tag": (*NETS, "hmm"),
    "translate": (*WITH_SOURCE, "gpt"),
    "caption": WITH_SOURCE,
    "mask": ("encoder",),
    "span": ("transformer",),
}
"""Tasks, and the kinds that can do them; of `lm`, all that need no source and do not see the future."""

EXAMPLES = ("classify", "tag", "translate", "caption")
"""Tasks that learn from examples; the others learn from running text."""

NOT_LM = {**dict.fromkeys(WITH_SOURCE, "translate"), "encoder": "mask"}


def first_task(kind: str) -> str:
    """What a kind is made for."""
    return NOT_LM.get(kind, "lm")


def recipe_for(
    kind: str, settings: Mapping[str, Any] = {}, task: str = "lm", base: Base | None = None
) -> Recipe:
    """A kind's recipe for a task, where dotted settings differ from its defaults; `base`: the run it begins from."""
    refuse_unfit(kind, task)
    recipe = make_recipe(kind, class_for(kind, task), settings, models.kind(kind).preset, find_task(task))
    if base is None and getattr(recipe.train, "lora", None) is not None:
        raise UserError(f"train.lora={recipe.train.lora} adapts what a run has learned: --from RUN says which.")
    if recipe.head is None and getattr(recipe.train, "body_lr", None) is not None:
        raise UserError(f"train.body_lr sets a body apart from its head, and --task {task} has none; it has train.lr.")
    return replace(recipe, base=base)


def refuse_unfit(kind: str, task: str) -> None:
    find_task(task)
    base = models.kind(kind).where
    if task == "lm":
        if kind in NOT_LM:
            raise UserError(f"--kind {kind} does not foretell running text; --task {NOT_LM[kind]} is what it is for.")
    elif base not in {models.KINDS[name].where for name in TASKS[task]} or (task == "tag" and kind in COUNTED[:3]):
        raise UserError(f"--task {task} is not for --kind {kind}. It is for {', '.join(TASKS[task])}.")


def class_for(kind: str, task: str) -> Any:
    """The class whose settings are the recipe's `model.*`, and by whose way it learns."""
    if (kind, task) == ("hmm", "tag"):
        from chainrule.models.hmm.tagger import HMMTagger

        return HMMTagger
    return models.model_class(kind)


def encoding(recipe: Recipe, tokenizer: Tokenizer, labels: Names) -> Encode:
    """How the examples of a recipe become what its model reads."""
    if recipe.task == "tag" and recipe.kind == "hmm":
        return lambda examples: SpelledTags(cast(Sequence[Tagged], examples), labels)
    limit, letters = getattr(recipe.model, "context", None), getattr(recipe.head, "char_cnn", False)
    truncate, in_one_row = getattr(recipe.text, "truncate", "false"), recipe.kind not in WITH_SOURCE
    return Encoding(recipe.task, tokenizer, labels, limit, truncate, letters, in_one_row)


class SpelledTags:
    """Tagged words as the tagger that counts reads them: by their spelling, without a tokenizer."""

    notes: tuple[str, ...] = ()

    def __init__(self, examples: Sequence[Tagged], labels: Names):
        self.words = [example.words for example in examples]
        lengths = np.array([len(words) for words in self.words], np.int64)
        ends = np.cumsum(lengths)
        tags = [tag for example in examples for tag in example.tags or [None] * len(example.words)]
        where = [example.place for example in examples for _ in example.words]
        self.targets = Ragged(numbers_of(tags, labels, where, "tag"), ends)
        self.places = self.tokens = Ragged(within(lengths).astype(np.int32), ends)
        self.sizes = (lengths,)

    def __len__(self) -> int:
        return len(self.words)

    def batch(self, rows: Places, widths: Sequence[int]) -> Batch:
        chosen = rows.tolist()
        return tagging_batch([self.words[row] for row in chosen], [self.targets[row].tolist() for row in chosen])


def build_for(recipe: Recipe, vocab: int, labels: Names = ()) -> Any:
    """The model of a recipe, over so many tokens, for answers of these names."""
    if recipe.task == "tag" and recipe.kind == "hmm":
        return class_for("hmm", "tag")(recipe.model, len(labels))
    if recipe.task == "classify" and recipe.kind in COUNTED:
        from chainrule.models.generative import GenerativeClassifier

        each = [build(recipe.kind, recipe.model, vocab) for _ in labels]
        return GenerativeClassifier(each, recipe.head.length_normalisation)
    body = build(recipe.kind, recipe.model, vocab)
    if recipe.task == "classify":
        return _classifier(recipe, body, labels)
    if recipe.task == "tag":
        from chainrule.layers.char_cnn import CharCNN
        from chainrule.models.heads import TokenClassifier

        char_cnn = CharCNN(body.inputs) if recipe.head.char_cnn else None
        return TokenClassifier(body, len(labels), recipe.head.dropout, char_cnn=char_cnn)
    return body


def _classifier(recipe: Recipe, body: Any, labels: Names) -> Any:
    """On the last token of a network that reads one way; on the mean of one that sees all."""
    from chainrule.models.heads import Classifier

    head, sees_all = recipe.head, recipe.kind == "encoder" or body.backward > 0
    pool: Any = head.pool or ("mean" if sees_all else "last")
    return Classifier(body, len(labels), pool, head.dropout, auxiliary=head.auxiliary)
