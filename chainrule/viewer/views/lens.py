"""The logit lens (nostalgebraist 2020): what a model would predict after each layer, if no layer followed.

    logits after layer l = W norm(x_l)        the last norm and the output matrix, on the residual stream after layer l

After the last layer these are the model's own logits. For every token the best guesses are kept, and the probability
and the rank of the true next token; rank 1 is the best guess.

Shapes: T tokens, V vocabulary, L layers, K best guesses.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import Options, View

LIMIT = 256        # tokens that are shown
BEST = 10          # guesses
LOGITS = 1 << 24   # numbers at a time: 64 MB


def _fits(subject: Subject) -> bool:
    return subject.continues_text and subject.has("hidden") and hasattr(subject.model, "read_out")


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    read = subject.read(text, LIMIT)
    truth = read.tokens[0, 1:]
    layers = [_guesses(subject, hidden[0], truth) for hidden in _hidden(subject, read.tokens)]
    guesses, probabilities, truths, ranks = (torch.stack(parts) for parts in zip(*layers))
    known = sorted({*guesses.flatten().tolist(), *truth.tolist()})
    return {
        "name": subject.name,
        "left_out": read.left_out,
        "tokens": read.shown,
        "truth": truth.tolist(),                               # of all tokens but the last
        "names": dict(zip(map(str, known), subject.show(known))),
        "vocabulary": len(subject.run.tokenizer),
        "guesses": pack_array(guesses.numpy(), "int32"),             # (L, T, K) the best first
        "probabilities": pack_array(probabilities),                  # (L, T, K)
        "truths": pack_array(truths),                                # (L, T - 1)
        "ranks": pack_array(ranks.numpy(), "int32"),                 # (L, T - 1)
    }


def _hidden(subject: Subject, tokens: Tensor) -> list[Tensor]:
    """(1, T, D) after each layer."""
    where = subject.taps("hidden")
    _, seen = subject.trace(tokens, *where)
    return [seen[name] for name in where]


@torch.no_grad()
def _guesses(subject: Subject, hidden: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(T, D) -> (T, K) best guesses and their probabilities, (T - 1,) probabilities and ranks of the truth."""
    size = max(1, LOGITS // len(subject.run.tokenizer))
    parts = [_predicted(subject.model.read_out(hidden[None, at : at + size])[0].float(), truth[at : at + size])
             for at in range(0, len(hidden), size)]
    guesses, probabilities, truths, ranks = (torch.cat(some).cpu() for some in zip(*parts))
    return guesses, probabilities, truths, ranks


def _predicted(logits: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    probabilities = logits.softmax(-1)
    best = probabilities.topk(min(BEST, logits.shape[-1]))
    here = logits[: len(truth)]
    own = here.gather(-1, truth[:, None])
    ranks = 1 + (here > own).sum(-1)
    return best.indices, best.values, probabilities[: len(truth)].gather(-1, truth[:, None])[:, 0], ranks


VIEW = View(
    "lens", "Layer by layer",
    "What the model would predict after each layer, if it were the last one: its best guess, and the rank of the token "
    "that did follow.",
    _fits, _make, needs="a language model of several layers, such as a gpt",
)
