"""Snapshots of the lesson ngrams: bigram, perplexity, kneser-ney, forward-backward, viterbi."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.inference.sampling import Sampling, sample_token
from chainrule.inference.statistics import score_split
from chainrule.model import BOUNDARY, Batch
from chainrule.models.hmm import forward_backward as hmm
from chainrule.models.hmm.viterbi import viterbi_paths
from chainrule.models.ngram.ngram import NGram, NGramSettings
from chainrule.models.ngram.smoothing import discounts
from chainrule.recipe import Text
from chainrule.text.corpus import Split
from chainrule.text.tokenizers.tokenizer import train_tokenizer

Random = np.random.Generator
Ints = NDArray[np.int64]


def bigram(random: Random) -> dict[str, Any]:
    vocab, tokens = 7, _text(random, 7, 60, unseen=6)
    p = _bigram_table(tokens, vocab, "mle")
    p[6] = 0  # nothing follows it; the model backs off there
    u = random.random((6, 12))
    texts = [_written(p, numbers) for numbers in u]
    y, betas = random.normal(size=vocab), np.array([0.5, 1.0, 3.0])
    tempered = [torch.from_numpy(y * beta).softmax(0) for beta in betas]
    rows = np.zeros((len(u), u.shape[1]), np.int64)
    for row, text in zip(rows, texts):
        row[: len(text)] = text
    return {
        "tokens": tokens,
        "V": vocab,
        "p": p,
        "y": y,
        "betas": betas,
        "tempered": torch.stack(tempered),
        "u": u,
        "texts": rows,
        "lengths": [len(text) for text in texts],
    }


def _written(p: NDArray[np.float64], uniforms: NDArray[np.float64]) -> list[int]:
    """A text by chainrule's sampling, one number for each token."""
    text, token = list[int](), BOUNDARY
    for u in uniforms:
        logits = torch.from_numpy(np.log(np.maximum(p[token], 1e-300)))[None]
        token = int(sample_token(logits, Sampling(), torch.tensor([u]))[0])
        if token == BOUNDARY:
            break
        text.append(token)
    return text


def perplexity(random: Random) -> dict[str, Any]:
    text = "Die Kühe fressen Gras, Heu und Mais.\nDie Kühe schlafen über Mittag — oft.\n"
    tokenizer = train_tokenizer(Text(tokenizer="characters"), [text])
    words = np.array(text.split())
    read = " ".join(random.choice(words, 9)) + "\nKühe …"
    tokens = np.concatenate([[BOUNDARY], tokenizer.encode(text), [BOUNDARY]]).astype(np.int64)
    model = NGram(NGramSettings(order=3), len(tokenizer))
    model.update(model.collect(_batch(tokens)))
    stream = np.concatenate([[BOUNDARY], tokenizer.encode(read), [BOUNDARY]]).astype(np.uint32)
    scored = score_split(model, tokenizer, Split(stream, len(read.encode()), 1, "0" * 64))
    result = scored.result
    assert result.bits_per_byte is not None
    word_perplexity = math.exp(scored.nats.sum() / len(read.split()))
    return {
        "log_p": -scored.nats,
        "text": read,
        "nats": result.nats,
        "perplexity": result.perplexity,
        "bits_per_byte": result.bits_per_byte,
        "word_perplexity": word_perplexity,
    }


def kneser_ney(random: Random) -> dict[str, Any]:
    vocab, counts = 12, np.array([])
    while True:  # until both orders have counts from 1 to 4
        tokens = _text(random, vocab, 150, unseen=vocab - 1)
        counts = np.zeros((vocab, vocab), np.int64)
        np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
        continuations = (counts > 0).sum(0)
        seen = [set(np.unique(some).tolist()) for some in (counts, continuations)]
        every = [discounts(np.asarray(some).ravel()) for some in (counts, continuations)]
        if all({1, 2, 3, 4} <= one for one in seen) and all((d != [0, 0.5, 1, 1.5]).any() for d in every):
            break
    p = _bigram_table(tokens, vocab, "kneser-ney")
    unseen = p[vocab - 1]  # nothing follows it: the unigram
    return {
        "tokens": tokens,
        "V": vocab,
        "p": p,
        "counts": counts,
        "discounts": discounts(counts.ravel()),
        "continuations": continuations,
        "unigram": unseen,
    }


def forward_backward(random: Random) -> dict[str, Any]:
    pi, a, b = _tables(random, states=3, symbols=4)
    x, long = random.integers(0, 4, 9), random.integers(0, 4, 1500).astype(np.uint8)
    packed, given = _packed(x, pi, a, b)
    alpha, c = hmm.forward(packed, *given)
    beta = torch.empty_like(alpha)
    for here, values, _ in hmm.backward(packed, c, *given[1:]):
        beta[here] = values
    _, xi, _, _ = hmm.expected_counts(packed, *given)
    packed_long, _ = _packed(long.astype(np.int64), pi, a, b)
    _, scales = hmm.forward(packed_long, *given)
    return {
        "pi": pi,
        "a": a,
        "b": b,
        "x": x,
        "alpha": alpha,
        "c": c,
        "beta": beta,
        "xi": xi,
        "gamma": hmm.posteriors(packed, *given),
        "long": long,
        "long_log_likelihood": hmm.log_likelihoods(packed_long, scales)[0],
    }


def viterbi(random: Random) -> dict[str, Any]:
    pi, a, b = _tables(random, states=3, symbols=4)
    x = random.integers(0, 4, 400)
    tokens, (initial, transition, emission) = torch.from_numpy(x + 1)[None], _as_tensors(pi, a, b)
    real = torch.ones_like(tokens, dtype=torch.bool)
    path, log_p = viterbi_paths(tokens, real, initial, transition, emission)
    return {
        "pi": pi,
        "a": a,
        "b": b,
        "x": x.astype(np.uint8),
        "path": path[0].to(torch.uint8),
        "log_p": log_p[0],
        "short": random.integers(0, 4, (6, 5)),
    }


# What they share


def _text(random: Random, vocab: int, length: int, unseen: int) -> Ints:
    """(T,) a text of tokens, some more frequent than others, with boundaries in it; `unseen` does not occur."""
    weights = 1 / (1 + random.permutation(vocab))
    weights[unseen] = 0
    tokens = random.choice(vocab, length, p=weights / weights.sum())
    tokens[0] = tokens[-1] = BOUNDARY
    return tokens


def _batch(tokens: Ints) -> Batch:
    stream = torch.from_numpy(tokens)[None]
    return Batch(stream[:, :-1], stream[:, 1:])


def _bigram_table(tokens: Ints, vocab: int, estimator: str) -> NDArray[np.float64]:
    """(V, V): p(w | v) of chainrule's bigram."""
    settings: Any = {"order": 2, "estimator": estimator}
    model = NGram(NGramSettings(**settings), vocab)
    model.update(model.collect(_batch(tokens)))
    logits, _ = model.step(torch.arange(vocab)[:, None], model.start(vocab))
    return logits[:, 0].double().softmax(-1).numpy()


def _tables(random: Random, states: int, symbols: int) -> list[NDArray[np.float64]]:
    """π, a and b whose states stay for a while and prefer symbols of their own."""
    a = random.dirichlet(np.ones(states), states) + 0.5 * np.eye(states)
    b = random.dirichlet(0.7 * np.ones(symbols), states) + 0.05
    return [random.dirichlet(np.ones(states)), a / a.sum(1, keepdims=True), b / b.sum(1, keepdims=True)]


def _as_tensors(pi: Any, a: Any, b: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The tables as chainrule's HMM has them: symbol 0 is the boundary, which no state emits here."""
    emission = np.concatenate([np.zeros((len(pi), 1)), b], 1)
    return torch.from_numpy(pi), torch.from_numpy(a), torch.from_numpy(emission)


def _packed(x: Ints, *tables: Any) -> tuple[hmm.PackedTexts, tuple[Tensor, Tensor, Tensor]]:
    tokens = torch.from_numpy(x + 1)[None]
    (packed,) = hmm.pack_texts(tokens, torch.ones_like(tokens, dtype=torch.bool), len(tables[0]))
    return packed, _as_tensors(*tables)
