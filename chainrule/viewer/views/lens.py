"""The logit lens (nostalgebraist 2020): what a model would predict after each layer, if no layer followed.

    logits after layer l = W norm(x_l)        the last norm and the output matrix, on the residual stream after layer l

After the last layer these are the model's own logits. For every token the best guesses are kept, and the probability
and the rank of the true next token; rank 1 is the best guess.

Shapes: T tokens, V vocabulary, L layers, K best guesses.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.forward import eval_mode
from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Prompt, Subject
from chainrule.viewer.task_views.tagged_words import cut_note, encode_sentences, one_batch, read_sentence
from chainrule.viewer.views import Options, View

LIMIT = 256        # tokens that are shown
BEST = 10          # guesses
LOGITS = 1 << 24   # numbers at a time: 64 MB


def _fits(subject: Subject) -> bool:
    if subject.tags_words:
        return subject.has("hidden") and _last_norm(subject) is not None and subject.model.char_cnn is None
    return subject.predicts_next and subject.has("hidden") and hasattr(subject.model, "read_out")


def _last_norm(subject: Subject) -> Any:
    """The norm after the last block of a Transformer under a head."""
    return getattr(getattr(subject.body, "stack", None), "norm", None)


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    if subject.tags_words:
        return _tags(subject, text)
    prompt = subject.read_prompt(text, LIMIT, answer=True)
    read = prompt.read
    truth = read.tokens[0, 1:]
    layers = [_guesses(subject, hidden[0], truth) for hidden in _hidden(subject, prompt)]
    facts = {"name": subject.name, "left_out": read.left_out, "tokens": read.shown}
    return facts | _packed(layers, truth, subject.show, len(subject.run.tokenizer)) | (
        {"input": dict(prompt.given)} if prompt.given else {})


def _tags(subject: Subject, text: str) -> dict[str, Any]:
    """p(tag) of each word, as the head would read it after each layer."""
    sentence = read_sentence(subject, text)
    if not sentence.words:
        raise UserError("there is no word yet: type a sentence to see its tags.")
    encoded = encode_sentences(subject, [sentence.words])
    batch, where = one_batch(subject, encoded), subject.taps("hidden")
    _, seen = subject.watched(lambda: subject.model(batch), *where)
    known = sentence.truth is not None and min(sentence.truth) >= 0
    truth = torch.tensor(sentence.truth if known else [], dtype=torch.long)
    model, norm, places = subject.model, _last_norm(subject), encoded.places[0].tolist()
    with torch.no_grad(), eval_mode(model):
        layers = [_predicted(model.output(model.hidden(norm(seen[name][0, places]))).float().cpu(), truth)
                  for name in where]
    labels = subject.run.labels
    facts = {"name": subject.name, "tokens": sentence.words, "row": "word", "answer": "true tag"}
    return facts | _packed(layers, truth, lambda ids: [labels[id] for id in ids], len(labels)) | (
        cut_note(sentence.left_out, "words"))


def _packed(
    layers: Sequence[tuple[Tensor, ...]], truth: Tensor, show: Callable[[Sequence[int]], list[str]], size: int
) -> dict[str, Any]:
    guesses, probabilities, truths, ranks = (torch.stack(parts) for parts in zip(*layers))
    known = sorted({*guesses.flatten().tolist(), *truth.tolist()})
    return {
        "truth": truth.tolist(),                               # of all tokens but the last; of words, of all or none
        "names": dict(zip(map(str, known), show(known))),
        "vocabulary": size,
        "guesses": pack_array(guesses.numpy(), "int32"),             # (L, T, K) the best first
        "probabilities": pack_array(probabilities),                  # (L, T, K)
        "truths": pack_array(truths),                                # (L, T - 1)
        "ranks": pack_array(ranks.numpy(), "int32"),                 # (L, T - 1)
    }


def _hidden(subject: Subject, prompt: Prompt) -> list[Tensor]:
    """(1, T, D) after each layer; of a model with an encoder, after those of the decoder."""
    where = subject.taps("hidden")
    _, seen = subject.trace(prompt.tokens, *where, source=prompt.source)
    return [seen[name] for name in where if name in seen]


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
    "that did follow; for a tagger, the tag of each word.",
    _fits, _make, needs="a language model of several layers, such as a gpt, or a tagger on one",
)
