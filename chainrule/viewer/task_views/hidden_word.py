"""A hidden word: p(word | the words on both sides), as a masked language model or word vectors predict it.

    encoder     the word is replaced by the mask, and the model predicts what was there (BERT)
    cbow        u_w · mean of v_c               skip-gram   Σ_c u_c · v_w               GloVe   Σ_c log X_wc

over the words c around it; for word vectors a softmax over the vocabulary makes these numbers probabilities. The sum of
−log p over all words is the pseudo-log-likelihood of a text (Salazar et al. 2020).

Shapes: T tokens, V vocabulary, K best guesses.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chainrule.inference.forward import eval_mode
from chainrule.tasks.batching import special_id
from chainrule.tasks.denoise import MASK
from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject, TokenizedText
from chainrule.viewer.views import Options, View

LIMIT = 96         # tokens that are shown
BEST = 12          # guesses
AT_ONCE = 32       # rows of one call


def fits(subject: Subject) -> bool:
    """Whether it predicts a word from the words on both sides."""
    return hasattr(subject.model, "surrounded_logits") or masks(subject)


def masks(subject: Subject) -> bool:
    """Whether it is a masked language model."""
    return hasattr(subject.model, "masked_logits") and subject.run.tokenizer.id(MASK) is not None


@torch.no_grad()
def hidden_logits(subject: Subject, tokens: Tensor) -> Tensor:
    """(T, V) of the tokens after the boundary, each hidden in turn; all others are read."""
    model = subject.model
    if hasattr(model, "surrounded_logits"):
        logits: Tensor = model.surrounded_logits(tokens[0, 1:])
        return logits.float()
    places = torch.arange(1, tokens.shape[1], device=tokens.device)
    rows = tokens.repeat(len(places), 1)
    rows[places - 1, places] = special_id(subject.run.tokenizer, MASK)
    with eval_mode(model):
        parts = [model.encode(some)[torch.arange(len(some)), at] for some, at in
                 zip(torch.split(rows, AT_ONCE), torch.split(places, AT_ONCE))]
        return model.logits(torch.cat(parts)).float() if len(places) else torch.zeros(0, 1)


def read_text(subject: Subject, text: str) -> TokenizedText:
    return subject.read(text, LIMIT)


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    read = read_text(subject, text)
    truth = read.tokens[0, 1:]
    if not len(truth):
        return {"name": subject.name, "left_out": 0, "tokens": [], "vocabulary": len(subject.run.tokenizer)}
    log_p = hidden_logits(subject, read.tokens).log_softmax(-1)
    own = log_p.gather(-1, truth[:, None])
    best = log_p.topk(min(BEST, log_p.shape[-1]))
    return {
        "name": subject.name,
        "left_out": read.left_out,
        "tokens": read.shown[1:],
        "vocabulary": log_p.shape[-1],
        "log_p": pack_array(own[:, 0]),                                      # (T,) of the hidden word itself
        "ranks": (1 + (log_p > own).sum(-1)).tolist(),
        "guesses": [subject.show(row) for row in best.indices.tolist()],     # (T, K)
        "guess_log_p": pack_array(best.values),                              # (T, K)
    }


VIEW = View(
    "hidden_word", "Hide a word",
    "Choose a word: it is hidden, and the model predicts it from the words on both sides. A word is coloured by the "
    "bits of its own probability, −log₂ p.",
    fits, _make, needs="a masked language model (an encoder of --task mask) or word vectors",
)
