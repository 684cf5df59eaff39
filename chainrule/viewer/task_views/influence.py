"""Influence on tags: how much p(tag) of each word changes when another word is left out of the sentence.

    d_ij = ½ Σ_tag |p(tag of word i | all words) − p(tag of word i | all but word j)|      total variation, from 0 to 1

Shapes: T words, K tags.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject
from chainrule.viewer.task_views.tagged_words import Sentence, cut_note, read_sentence, tag_probabilities
from chainrule.viewer.views import Options, View

LIMIT = 40        # words that are shown


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    sentence = read_sentence(subject, text)
    words = sentence.words[:LIMIT]
    all_words, changes, tags = influence(subject, Sentence(words, None))
    return {
        "name": subject.name, "words": words,
        "tags": [subject.run.labels[tag] for tag in all_words.argmax(-1).tolist()],
        "probability": all_words.amax(-1).tolist(),
        "changes": pack_array(changes),                              # (T, T): of word i without word j
        "without": [[subject.run.labels[tag] for tag in row] for row in tags.tolist()],
    } | cut_note(sentence.left_out + len(sentence.words) - len(words), "words")


def influence(subject: Subject, sentence: Sentence) -> tuple[Tensor, Tensor, Tensor]:
    """(T, K) p(tag | all words); (T, T) how much it changes without each word, nan for the word itself; and (T, T) the
    most probable tag then."""
    words = sentence.words
    shorter = [words[:place] + words[place + 1 :] for place in range(len(words)) if len(words) > 1]
    whole, *others = tag_probabilities(subject, [words, *shorter])
    changes = torch.full((len(words), len(words)), torch.nan, dtype=torch.double)
    tags = whole.argmax(-1)[:, None].repeat(1, len(words))
    for place, found in enumerate(others):
        left = [at for at in range(len(words)) if at != place]
        changes[left, place] = (found - whole[left]).abs().sum(-1) / 2
        tags[left, place] = found.argmax(-1)
    return whole, changes, tags


VIEW = View(
    "influence", "What a tag depends on",
    "Each row is a word and its tag, each column a word that is left out: the colour is how much the tag's "
    "probabilities then change, from 0 (not at all) to 1 (another tag for certain).",
    lambda subject: subject.tags_words, _make, needs="a tagger (--task tag)",
)
