"""Scoring: the cross-entropy of every token of a text, -log p in nats, in bits when shown (teacher forcing).

A stream `0 text 0 text 0` is scored as a whole. A model without a context limit carries its state along; one with a
limit reads overlapping windows (sliding window), each from an empty state, and a target counts in the first window that
has it. Texts that are scored separately are rows from boundary to boundary.

Shapes: B rows, T tokens.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.inference.forward import eval_mode, on_device, targets_at_once
from chainrule.model import BOUNDARY, LanguageModel
from chainrule.progress import bar
from chainrule.text.tokenizers.tokenizer import Tokenizer

Tokens = NDArray[np.integer]
Nats = NDArray[np.float64]
Places = NDArray[np.int64]


def score_stream(model: LanguageModel, tokens: Tokens, *, stride: int | None = None) -> Nats:
    """Nats of every token of the stream except the first, each counted once, in order."""
    return np.concatenate([np.empty(0), *stream_pieces(model, tokens, stride=stride)])


@torch.inference_mode()
def stream_pieces(
    model: LanguageModel, tokens: Tokens, *, stride: int | None = None, part: int = 0, parts: int = 1
) -> Iterator[Nats]:
    """`score_stream` in pieces, for streams whose scores need not all be kept.

    Ranks can share the windows: each scores one part of several, and all parts have as many pieces.
    """
    targets = len(tokens) - 1
    stride = stride_of(model, stride)
    if targets < 1:
        return
    at_once = targets_at_once(model)
    with eval_mode(model), bar("scoring", targets // parts, "tokens") as advance:
        windows = None if stride is None else _windows(model, tokens, stride, at_once, part, parts)
        for piece in windows or _along(model, tokens[None], at_once):
            yield piece.ravel()
            advance(piece.size)


def stride_of(model: LanguageModel, stride: int | None = None) -> int | None:
    """Tokens from the start of one window to the start of the next; None: there are no windows."""
    if model.context is None:
        if stride is not None:
            raise UserError(f"stride {stride} is for models with a context limit; this one has none. Leave it out.")
        return None
    stride = max(1, model.context // 2) if stride is None else stride
    if not 1 <= stride <= model.context:
        raise UserError(f"stride {stride} must be from 1 to {model.context}, the model's context.")
    return stride


def score_texts(model: LanguageModel, texts: Sequence[Tokens]) -> list[Nats]:
    """Nats of each text's tokens and of the boundary that ends it, each text scored separately."""
    stream, ends = _stream(texts)
    nats = _score_each(model, stream, ends)
    return [nats[begin:end] for begin, end in zip([0, *ends[:-1]], ends)]


@torch.inference_mode()
def score_windows(model: LanguageModel, windows: Tokens) -> Nats:
    """(K, T + 1) -> (K, T): nats of every token of each window but its first, each window read from an empty state."""
    at_once = targets_at_once(model)
    rows = max(1, at_once // (windows.shape[1] - 1))
    scored = []
    with eval_mode(model), bar("scoring", windows[:, 1:].size, "tokens") as advance:
        for first in range(0, len(windows), rows):
            scored.append(np.concatenate(list(_along(model, windows[first : first + rows], at_once)), 1))
            advance(scored[-1].size)
    return np.concatenate(scored)


def score_documents(model: LanguageModel, tokens: Tokens) -> Nats:
    """`score_stream` with each document scored separately, from boundary to boundary (text.packed)."""
    return _score_each(model, tokens, np.flatnonzero(np.append(tokens[1:-1] == BOUNDARY, True)) + 1)


def score_pieces(model: LanguageModel, tokens: Tokens, packed: bool = False) -> Iterator[Nats]:
    """Nats of every token of the stream except the first, in pieces; `packed`: each document scored separately."""
    return iter([score_documents(model, tokens)]) if packed else stream_pieces(model, tokens)


def total_scores(model: LanguageModel, texts: Sequence[Tokens]) -> Nats:
    """Nats of each text, its end included."""
    return _totals(model, *_stream(texts))


def score_sentences(model: LanguageModel, tokenizer: Tokenizer, sentences: Sequence[str]) -> Nats:
    """Nats of each sentence, its end included, from strings."""
    return _totals(model, *tokenizer.encode_stream(sentences))


def _totals(model: LanguageModel, stream: Tokens, ends: Places) -> Nats:
    nats = _score_each(model, stream, ends)
    return np.add.reduceat(nats, np.append(0, ends[:-1])) if len(ends) else nats


def token_bits(model: LanguageModel, tokenizer: Tokenizer, text: str) -> list[tuple[str, float]]:
    """Every token of the text as it is displayed, with its bits; the last is the end of the text."""
    return stream_bits(model, tokenizer, tokenizer.framed(text))


def stream_bits(
    model: LanguageModel, tokenizer: Tokenizer, stream: Tokens, packed: bool = False
) -> list[tuple[str, float]]:
    """The same for every token of a stream except the first; `packed`: each document separately."""
    bits = np.concatenate([np.empty(0), *map(in_bits, score_pieces(model, stream, packed))])
    return [(tokenizer.show(token), number) for token, number in zip(stream[1:].tolist(), bits.tolist())]


def in_bits(nats: Nats) -> Nats:
    """-log2 p; 0 for a certain token, whose nats are -0.0, or less than 0 by rounding."""
    bits = nats / math.log(2)
    bits[bits <= 0] = 0.0
    return bits


def _along(model: LanguageModel, rows: Tokens, at_once: int) -> Iterator[Nats]:
    """Nats of (B, T + 1) rows in (B, …) pieces from left to right; the state is carried from one to the next."""
    width = max(1, at_once // len(rows))
    state = model.start(len(rows))
    for begin in range(0, rows.shape[1] - 1, width):
        piece = on_device(model, rows[:, begin : begin + width + 1])
        log_probs, state = model.score(piece[:, :-1], piece[:, 1:], state)
        yield -log_probs.double().cpu().numpy()


def _windows(
    model: LanguageModel, tokens: Tokens, stride: int, at_once: int, part: int = 0, parts: int = 1
) -> Iterator[Nats]:
    """Nats of a stream by sliding windows, several at once as rows. The last one ends where the stream ends."""
    targets = len(tokens) - 1
    context = min(model.context or targets, targets)
    ends = np.append(np.arange(context, targets, stride), targets)
    context_only = context - np.diff(ends, prepend=0)    # targets that the previous window has counted
    each = -(-len(ends) // parts)
    mine = np.arange(part * each, (part + 1) * each)
    real, place = mine < len(ends), mine.clip(max=len(ends) - 1)
    ends, context_only = ends[place], np.where(real, context_only[place], context)    # past the last: none
    every = np.lib.stride_tricks.sliding_window_view(tokens, context + 1)
    rows = max(1, at_once // context)
    for first in range(0, len(ends), rows):
        chosen = slice(first, first + rows)
        nats = np.concatenate(list(_along(model, every[ends[chosen] - context], at_once)), 1)
        yield nats[np.arange(context) >= context_only[chosen, None]]


@torch.inference_mode()
def _score_each(model: LanguageModel, stream: Tokens, ends: Places) -> Nats:
    """Nats of all texts of a stream, each scored separately."""
    if model.resets_at_boundary:                                # then each text of a stream is scored separately anyway
        return score_stream(model, stream)
    lengths = np.diff(ends, prepend=0)               # targets: the tokens and the boundary
    nats = np.empty(len(stream) - 1)
    at_once, stride = targets_at_once(model), stride_of(model)
    fits = lengths <= (model.context or math.inf)
    with eval_mode(model), bar("scoring", len(nats), "tokens") as advance:
        for end, length in zip(ends[~fits], lengths[~fits]):
            windows = _windows(model, stream[end - length : end + 1], stride or 1, at_once)
            nats[end - length : end] = np.concatenate(list(windows))
            advance(length)
        for chosen in _batches(lengths, np.flatnonzero(fits), at_once):
            where, scores = _rows(model, stream, ends[chosen], lengths[chosen], at_once)
            nats[where] = scores
            advance(len(scores))
    return nats


def _stream(texts: Sequence[Tokens]) -> tuple[Tokens, Places]:
    """`0 text 0 text 0`, and where each text ends."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
    stream = np.full(ends[-1] + 1 if len(ends) else 1, BOUNDARY, np.int64)
    inside = np.ones(len(stream), bool)
    inside[0] = inside[ends] = False
    stream[inside] = np.concatenate([np.empty(0, np.int64), *texts])
    return stream, ends


def _batches(lengths: Places, texts: Places, at_once: int) -> Iterator[Places]:
    """The texts in batches of similar length, so that at most a quarter of a batch is padding."""
    texts = texts[np.argsort(-lengths[texts], kind="stable")]
    falling = -lengths[texts]
    first = 0
    while first < len(texts):
        longest = -int(falling[first])
        similar = int(np.searchsorted(falling, -(3 * longest // 4), "right"))
        last = min(similar, first + max(1, at_once // longest))
        yield texts[first:last]
        first = last


def _rows(model: LanguageModel, stream: Tokens, ends: Places, lengths: Places, at_once: int) -> tuple[Places, Nats]:
    """Nats of the texts with these ends, each a row, and their places. A shorter row is padded with what follows it."""
    column = np.arange(lengths.max() + 1)
    place = (ends - lengths)[:, None] + column                    # (B, T + 1)
    rows = stream[np.minimum(place, len(stream) - 1)]
    nats = np.concatenate(list(_along(model, rows, at_once)), 1)  # (B, T)
    real = column[:-1] < lengths[:, None]
    return place[:, :-1][real], nats[real]
