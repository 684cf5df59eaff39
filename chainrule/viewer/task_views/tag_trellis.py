"""The trellis of a tagger: tags from top to bottom, words from left to right, in the form of the trellis of an HMM.

    α_s(t) = Σ_{s'} α_{s's}(t)      p(tag s, tag before s' | the words so far), summed over the tag before
    γ_s(t) = Σ_{s'} ξ_{ss'}(t+1)    p(tag s, next tag s' | the sentence), summed over the tag after
    δ_s(t) = max_{s'} δ_{s's}(t)    the best path to both tags

An HMM tagger is of second order, so its messages belong to pairs of tags, and each value is a sum over one of the two.
A network gives p(tag | sentence) alone; its path is the most probable tag of each word.

Shapes: T words, K tags.
"""

from typing import Any

import torch
from torch import Tensor

from chainrule.inference.forward import device_of
from chainrule.models.hmm.word_features import tagging_batch
from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject
from chainrule.viewer.task_views.tagged_words import Sentence, cut_note, read_sentence, tag_probabilities


def tag_trellis(subject: Subject, text: str) -> dict[str, Any]:
    sentence, labels = read_sentence(subject, text), list(subject.run.labels)
    facts = {"name": subject.name, "states": len(labels), "shown": list(range(len(labels))), "names": labels,
             "begins": [0], **cut_note(sentence.left_out, "words")}
    if not sentence.words:
        return facts
    (gamma,) = tag_probabilities(subject, [sentence.words])
    messages = _messages(subject, sentence) if hasattr(subject.model, "tag_messages") else {}
    path = messages.pop("path", gamma.argmax(-1))
    truth = {} if sentence.truth is None else {"truth": sentence.truth}
    return facts | truth | {
        "tokens": sentence.words, "path": path.tolist(), "gamma": pack_array(gamma),
        "modes": ["gamma", *(["alpha", "delta"] if messages else [])],
        **{name: pack_array(values) for name, values in messages.items()},
    }


@torch.no_grad()
def _messages(subject: Subject, sentence: Sentence) -> dict[str, Tensor]:
    """Values (T, K) and their terms (T, K, K), by the tag itself and then by the other tag."""
    batch = tagging_batch([sentence.words]).to(device_of(subject.model))
    found, tags = subject.model.tag_messages(batch), len(subject.run.labels)
    alpha, delta, pairs = (part.double().cpu()[:, :tags] for part in (found.alpha, found.delta, found.pairs))
    after = pairs[1:, :, :tags].mT                    # (T - 1, K, K): by the tag, and the one after it
    return {
        "alpha": alpha.sum(2), "delta": delta.amax(2), "path": subject.model.viterbi(batch)[0].cpu(),
        "alpha_terms": alpha[:, :, :tags], "delta_terms": delta[:, :, :tags],
        "gamma_terms": torch.cat([after, torch.zeros_like(pairs[:1, :, :tags])]),
        "begin": alpha[0, :, tags],                   # (K,) of the first word: the tag before it is the boundary
    }
