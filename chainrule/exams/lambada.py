"""LAMBADA: the last word of a passage, which people can guess only from the whole passage (Paperno et al., 2016).

Accuracy and perplexity are lm-eval's. The passage is cut at its last space; the tokens of the last word are those that
the whole passage has more than the passage without it. The model is right where each of them is the most probable token
after the true ones before it. Perplexity is that of whole words: exp of the mean of -log p(word), p(word) the product
over its tokens. A word outside the vocabulary is a mistake, and the perplexity is that of the other words.

Shapes: N texts, B rows, T tokens, K context tokens, V vocabulary.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.exams.wording import WORDINGS, choose_wording, count_unknown, sign_exam
from chainrule.inference.evaluate import DIVERGED
from chainrule.inference.forward import eval_mode, logits_at_once, on_device
from chainrule.inference.score import Nats, Places, Tokens
from chainrule.inference.statistics import Score, bootstrap
from chainrule.model import BOUNDARY, LanguageModel
from chainrule.progress import bar
from chainrule.run import Run
from chainrule.text.datasets import get
from chainrule.text.tables import numbered_lines
from chainrule.text.tokenizers.tokenizer import Tokenizer

PUBLISHED = {"GPT-2 117M": {"accuracy": 45.99, "perplexity": 35.13}}
"""From the paper of GPT-2 (Radford et al., 2019), table 3."""

LARGEST = 700.0    # nats whose exp a float can hold


@dataclass(frozen=True)
class Ending:
    """A text from its boundary on, and where its last word begins."""

    tokens: Tokens      # (T,)
    begin: int          # the tokens before it are the context

    @property
    def size(self) -> int:
        return len(self.tokens) - self.begin


def examine_passages(run: Run, limit: int | None = None) -> dict[str, Any]:
    """Accuracy and perplexity of the last words, with intervals; `limit`: passages."""
    began, model, tokenizer = time.perf_counter(), run.language_model, run.tokenizer
    passages = read_passages(limit)
    wording = choose_wording(tokenizer, passages)
    endings = encode_endings(tokenizer, passages, wording)
    nats, right = score_endings(model, endings)
    if np.isnan(nats).any():
        raise UserError(f"{run.path}: {DIVERGED}.")
    known = np.array([_known(tokenizer, ending) for ending in endings])
    right &= known
    return {
        "exam": "lambada",
        **bootstrap(lambda weights: float(weights @ right) / len(right), len(right)).as_dict("accuracy"),
        **_perplexity(nats[known]),
        "passages": len(passages),
        "unknown": int((~known).sum()),
        "published": PUBLISHED,
        "seconds": time.perf_counter() - began,
        "signature": sign_exam("lambada", len(passages), model, tokenizer, wording, passages),
    }


def _known(tokenizer: Tokenizer, ending: Ending) -> bool:
    """Whether the last word is in the vocabulary."""
    return not count_unknown(tokenizer, ending.tokens[ending.begin :])


def _perplexity(nats: Nats) -> dict[str, Any]:
    """Of the words that the vocabulary has; None, with the reason, where it is not a number."""
    if not len(nats):
        return {"perplexity": None, "perplexity_interval": None, "why": "no last word is in the vocabulary"}
    if np.isinf(nats).any():
        return {"perplexity": None, "perplexity_interval": None, "why": "the model gives a last word probability 0"}
    mean = bootstrap(lambda weights: float(weights @ nats) / len(nats), len(nats))
    if mean.high > LARGEST:
        return {"perplexity": None, "perplexity_interval": None, "why": "it is beyond what a float can hold"}
    return Score(*np.exp([mean.value, mean.low, mean.high]).tolist()).as_dict("perplexity")


def encode_endings(tokenizer: Tokenizer, passages: Sequence[str], wording: str = "plain") -> list[Ending]:
    """Each passage as tokens; its last word is what follows the last space."""
    written = [tuple(map(WORDINGS[wording], passage.rsplit(" ", 1))) for passage in passages]
    before = tokenizer.encode_many([context.rstrip() for context, _ in written])
    whole = tokenizer.encode_many([f"{context} {word}" for context, word in written])
    return [Ending(np.append(BOUNDARY, ids), 1 + len(context)) for context, ids in zip(before, whole)]


@torch.inference_mode()
def score_endings(model: LanguageModel, endings: Sequence[Ending]) -> tuple[Nats, NDArray[np.bool_]]:
    """-log p of each last word (N,), and whether each of its tokens is the most probable one (N,)."""
    nats, right = np.empty(len(endings)), np.empty(len(endings), bool)
    sizes = np.array([ending.size for ending in endings])
    kept = np.array([_context(model, ending) for ending in endings])
    with eval_mode(model), bar("last words", len(endings), "passages") as advance:
        for chosen in _groups(model, kept, sizes):
            nats[chosen], right[chosen] = _score_rows(model, [endings[at] for at in chosen], int(kept[chosen[0]]))
            advance(len(chosen))
    return nats, right


def _context(model: LanguageModel, ending: Ending) -> int:
    """Tokens of context that are read: all, or those that a state can hold, or those that can make a difference."""
    if model.context is None:
        return min(ending.begin, max(1, model.receptive_field or ending.begin))
    if ending.size > model.context:
        raise UserError(f"a last word has {ending.size} tokens, and the context of the model holds {model.context}. "
                        "Evaluate a model with a larger model.context.")
    return min(ending.begin, model.context - ending.size + 1)


def _groups(model: LanguageModel, kept: Places, sizes: Places) -> Iterator[Places]:
    """Texts with contexts of one length, so that none is padded. Last words are padded where the context has no limit.

    Texts of one group are read at once; they are at most as many as their logits allow.
    """
    keys = np.stack([kept, sizes if model.context is not None else np.zeros_like(sizes)])
    _, group = np.unique(keys, axis=1, return_inverse=True)
    order = np.argsort(group, kind="stable")
    at_once = logits_at_once(model)
    for texts in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        rows = max(1, at_once // int(sizes[texts].max()))
        yield from (texts[first : first + rows] for first in range(0, len(texts), rows))


def _score_rows(model: LanguageModel, endings: Sequence[Ending], kept: int) -> tuple[Nats, NDArray[np.bool_]]:
    """For texts with `kept` tokens of context each: the context is read first, then the last words are predicted."""
    longest = max(ending.size for ending in endings)
    rows = np.full((len(endings), kept + longest), BOUNDARY, np.int64)
    for row, ending in zip(rows, endings):
        row[: kept + ending.size] = ending.tokens[ending.begin - kept :]
    tokens, state = on_device(model, rows), model.start(len(rows))
    width = max(1, logits_at_once(model) // len(rows))
    for begin in range(0, kept - 1, width):
        end = min(begin + width, kept - 1)
        _, state = model.score(tokens[:, begin:end], tokens[:, begin + 1 : end + 1], state)
    logits, _ = model.step(tokens[:, kept - 1 : -1], state)                            # (B, T, V)
    targets = tokens[:, kept:]
    real = torch.tensor([ending.size for ending in endings], device=targets.device)[:, None] > torch.arange(
        longest, device=targets.device)
    log_p = logits.float().log_softmax(-1).gather(-1, targets[..., None])[..., 0].double()
    most_probable = (logits.argmax(-1) == targets) | ~real
    return -log_p.where(real, 0).sum(1).cpu().numpy(), most_probable.all(1).cpu().numpy()


def read_passages(limit: int | None = None) -> list[str]:
    """The first `limit` passages, each with a context and a last word."""
    ((source,),) = get("lambada").values()
    passages = list[str]()
    for number, line in numbered_lines(source, "strict"):
        if len(passages) == limit:
            break
        passages.append(_passage(line, f"{source.path} line {number}"))
    if not passages:
        raise UserError(f"{source.path} is empty: there are no passages in it.")
    return passages


def _passage(line: str, place: str) -> str:
    try:
        text: Any = json.loads(line)["text"]
        if not isinstance(text, str) or not all(part.strip() for part in text.rpartition(" ")[::2]):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f'{place} is damaged: a line is a JSON object with a "text" of two words or more. '
                        "Download the file again.") from error
    return text
