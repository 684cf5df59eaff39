"""The tag of a word alone: p(tag | word) of an HMM tagger, from its character class to the word, level by level.

    p_l(tag) = (n(c_l, tag) + α_l p_{l-1}(tag)) / (n(c_l) + α_l)        c_l: shape, last letters, lower case, word

A level whose context was never seen leaves the distribution of the level before it; so an unknown word is tagged by
its ending and its shape (models/hmm/interpolation.py).

Shapes: T words, L levels, K tags.
"""

from collections.abc import Sequence
from typing import Any

import torch

from chainrule.inference.forward import device_of
from chainrule.models.hmm.word_features import FEATURES, SUFFIXES, feature_names, tagging_batch
from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject
from chainrule.viewer.task_views.tagged_words import cut_note, read_sentence
from chainrule.viewer.views import Options, View

LEVELS = ("character class", "shape", *(f"last {size} and shape" for size in range(1, SUFFIXES + 1)), "lower case",
          "the word")


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    sentence = read_sentence(subject, text)
    tables: dict[str, Any] = {"levels": list(LEVELS), "tags": list(subject.run.labels), "name": subject.name,
                              "words": sentence.words, "truth": sentence.truth,
                              **cut_note(sentence.left_out, "words")}
    if not sentence.words:
        return tables
    lexicon = subject.model.lexicon
    features = tagging_batch([sentence.words]).source
    assert features is not None
    contexts = features[0].to(device_of(subject.model))                                            # (T, L)
    below = torch.full((len(contexts), lexicon.outcomes), 1 / lexicon.outcomes, dtype=torch.double)
    found = [below, *(lexicon.probabilities(contexts[:, : level + 1]).cpu() for level in range(FEATURES))]
    counts = [lexicon.total(level, contexts[:, level]).cpu() for level in range(FEATURES)]
    return tables | {
        "contexts": feature_names(sentence.words),                       # (T, L) as text; empty: too short for it
        "counts": pack_array(torch.stack(counts, 1), "int32"),           # (T, L) n(c_l)
        "weights": lexicon.weights.tolist(),                             # (L,) α
        "probabilities": pack_array(torch.stack(found, 1)),              # (T, L + 1, K), first uniform
    }


VIEW = View(
    "word_features", "Word and ending",
    "What a word alone says about its tag: from its shape over its last letters to the word itself. A level that was "
    "never seen in training changes nothing, so unknown words are tagged by their endings.",
    lambda subject: subject.tags_words and hasattr(subject.model, "lexicon"), _make, needs="an HMM tagger "
    "(--kind hmm --task tag)",
)
