"""The wording of an exam's texts for a word tokenizer, which knows only the words of its training text; signatures.

Exams are written as people write: "Who isn't Derek hugging?". A corpus of words has its punctuation separated ("isn 't
Derek hugging ?", WikiText) and often no capitals ("is n't derek hugging ?", the Penn Treebank). Of these three wordings
the one with the fewest unknown words is used, and the signature names it. All other tokenizers read the text as it is.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from chainrule import __version__
from chainrule.inference.score import Tokens
from chainrule.model import LanguageModel
from chainrule.text.tokenizers.tokenizer import Tokenizer

MARKS = re.compile(r'([.,!?;:"“”()…—])')
CLITIC = re.compile(r"(?<=\w)['’](s|re|ve|ll|d|m)\b", re.IGNORECASE)
NEGATION = re.compile(r"(?<=\w)(n)['’](t)\b", re.IGNORECASE)
UNKNOWN = ("<unk>", "[UNK]", "unk")


def separated(text: str) -> str:
    """Don't! -> Don 't !"""
    return CLITIC.sub(r" '\1", NEGATION.sub(r"\1 '\2", MARKS.sub(r" \1 ", text)))


def penn(text: str) -> str:
    """Don't! -> do n't !"""
    return CLITIC.sub(r" '\1", NEGATION.sub(r" \1'\2", MARKS.sub(r" \1 ", text))).lower()


WORDINGS: Mapping[str, Callable[[str], str]] = {"plain": str, "separated": separated, "penn": penn}


def unknown_token(tokenizer: Tokenizer) -> int | None:
    """The id of all words outside the vocabulary; None: there are no such words."""
    if tokenizer.lossless:
        return None
    return next((id for id in map(tokenizer.id, UNKNOWN) if id is not None), None)


def count_unknown(tokenizer: Tokenizer, tokens: Tokens) -> int:
    unknown = unknown_token(tokenizer)
    return 0 if unknown is None else int(np.count_nonzero(tokens == unknown))


def choose_wording(tokenizer: Tokenizer, texts: Sequence[str]) -> str:
    """The name of the wording that leaves the fewest words unknown; of equals the first."""
    if tokenizer.unit != "words":
        return "plain"

    def share(name: str) -> float:
        tokens = tokenizer.encode("\n".join(map(WORDINGS[name], texts)))
        return count_unknown(tokenizer, tokens) / max(len(tokens), 1)

    return min(WORDINGS, key=share)


def sign_exam(
    name: str, examples: int, model: LanguageModel, tokenizer: Tokenizer, wording: str, texts: Sequence[str]
) -> str:
    """How an exam was taken: the fields of an evaluation's signature, and those that exams add."""
    parts = {
        "exam": name,
        "examples": examples,
        "unit": tokenizer.unit,
        "tokenizer": tokenizer.sha256[:12],
        "context": "all" if model.context is None else model.context,
        "boundary": tokenizer.boundary,
        "wording": wording,
        "text": hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12],
        "chainrule": __version__,
    }
    return "|".join(f"{part}:{value}" for part, value in parts.items())
