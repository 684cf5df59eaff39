"""The bits of what a task predicts: tags of words, words that are hidden, texts from a source.

    tagger          −log₂ p(tag of the word | sentence)        its true tag where it is given, else the most probable
    masked, word2vec   −log₂ p(word | the words on both sides)     each word hidden in turn
    from a source   −log₂ p(token | source, the tokens before it)  of the text after the tab, else the model's own
"""

import math
from typing import Any

import torch

from chainrule.inference.forward import eval_mode
from chainrule.inference.text_score import pieces_with_bits
from chainrule.viewer.subject import Subject
from chainrule.viewer.task_views import hidden_word
from chainrule.viewer.task_views.tagged_words import read_sentence, tag_probabilities

LIMIT = 1024     # tokens of a text that is written from a source

Pieces = list[tuple[str, float]]
"""What a reader sees of each prediction, and its bits."""


def fits(subject: Subject) -> bool:
    return subject.tags_words or subject.writes_from_source or hidden_word.fits(subject)


def task_pieces(subject: Subject, text: str) -> tuple[Pieces, dict[str, Any]]:
    """The pieces with their bits, and what the page says above them."""
    if subject.tags_words:
        return _tags(subject, text)
    if subject.writes_from_source:
        return _from_source(subject, text)
    read = hidden_word.read_text(subject, text)
    log_p = hidden_word.hidden_logits(subject, read.tokens).log_softmax(-1)
    bits = -log_p.gather(-1, read.tokens[0, 1:, None])[:, 0].double().cpu() / math.log(2)
    pieces = pieces_with_bits(subject.run.tokenizer, read.tokens[0, 1:].tolist(), bits.numpy())
    return list(pieces), {"note": "Each word is predicted from the words on both sides of it."}


def _tags(subject: Subject, text: str) -> tuple[Pieces, dict[str, Any]]:
    sentence = read_sentence(subject, text)
    if not sentence.words:
        return [], {}
    (found,) = tag_probabilities(subject, [sentence.words])
    known = sentence.truth is not None
    tags = found.argmax(-1).tolist() if sentence.truth is None else sentence.truth
    bits = [-math.log2(row[tag]) if tag >= 0 and row[tag] > 0 else math.inf for row, tag in zip(found.tolist(), tags)]
    named = [f"{word}/{subject.run.labels[tag]} " if tag >= 0 else f"{word}/? " for word, tag in
             zip(sentence.words, tags)]
    which = "the true tag" if known else "the most probable tag"
    return list(zip(named, bits)), {"note": f"The bits of {which} of each word. word/TAG gives the true tags."}


def _from_source(subject: Subject, text: str) -> tuple[Pieces, dict[str, Any]]:
    prompt = subject.read_prompt(text, LIMIT, answer=True)
    tokens = prompt.tokens
    if tokens.shape[1] == 1:
        return [], dict(prompt.given or {})
    with torch.no_grad(), eval_mode(subject.model):
        log_p, _ = subject.model.score(tokens[:, :-1], tokens[:, 1:], subject.start(prompt))
    bits = -log_p[0].double().cpu() / math.log(2)
    pieces = pieces_with_bits(subject.run.tokenizer, tokens[0, 1:].tolist(), bits.numpy())
    return list(pieces), dict(prompt.given or {})
