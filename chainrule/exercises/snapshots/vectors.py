"""Snapshots of the lesson vectors: word2vec, bpe, feedforward."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from chainrule.models.feedforward import FeedForward, FeedForwardSettings
from chainrule.models.word2vec import Word2Vec, Word2VecSettings
from chainrule.recipe import Text
from chainrule.text.tokenizers.bpe import BPE, SMALLEST

Random = np.random.Generator


def word2vec(random: Random) -> dict[str, Any]:
    counts = random.integers(1, 200, 8)
    model = Word2Vec(Word2VecSettings(), len(counts))
    model.initialise(torch.from_numpy(counts), torch.Generator().manual_seed(1))
    noise = model.negative_cdf.diff(prepend=torch.zeros(1, dtype=torch.double))
    v, u, negatives = (torch.from_numpy(random.normal(size=size)).requires_grad_() for size in ((5,), (5,), (3, 5)))
    loss = _pair_loss(v, u, negatives)
    dv, du, dn = torch.autograd.grad(loss, [v, u, negatives])
    inputs, outputs = (torch.from_numpy(random.normal(size=(6, 4))).requires_grad_() for _ in range(2))
    word, context, ids, lr = 2, 4, np.array([1, 5, 1]), 0.3
    step_loss = _pair_loss(inputs[word], outputs[context], outputs[ids])
    d_inputs, d_outputs = torch.autograd.grad(step_loss, [inputs, outputs])
    return {
        "counts": counts,
        "noise": noise,
        "v": v,
        "u": u,
        "negatives": negatives,
        "loss": loss,
        "dv": dv,
        "du": du,
        "dn": dn,
        "inputs": inputs,
        "outputs": outputs,
        "word": word,
        "context": context,
        "ids": ids,
        "lr": lr,
        "step_loss": step_loss,
        "inputs_after": inputs - lr * d_inputs,
        "outputs_after": outputs - lr * d_outputs,
    }


def _pair_loss(v: Tensor, u: Tensor, negatives: Tensor) -> Tensor:
    """-log σ(u · v) - Σ log σ(-u_k · v), as models/word2vec.py has it: softplus(z) = -log σ(-z)."""
    return softplus(-(u @ v)) + softplus(negatives @ v).sum()


def bpe(random: Random) -> dict[str, Any]:
    stems, ends = ("low", "new", "wid", "slow", "un", "believ", "banana"), ("", "er", "est", "able", "ing", "ness", "s")
    every = [stem + end for stem in stems for end in ends]
    words = sorted(random.choice(every, 30, replace=False).tolist())
    counts, number = random.integers(1, 12, len(words)), 40
    text = "\n".join(word for word, count in zip(words, counts.tolist()) for _ in range(count))
    spec = BPE.train(Text(tokenizer="bpe", vocab=SMALLEST + number), [text])
    merges, unit = [tuple(pair) for pair in spec["model"]["merges"]], BPE(spec)
    new = [word for word in every if word not in words][:12]
    encoded = [" ".join(unit.spellings[token].decode() for token in unit.encode(word).tolist()) for word in new]
    return {"words": words, "counts": counts, "merges": merges, "new": new, "encoded": encoded}


def feedforward(random: Random) -> dict[str, Any]:
    vocab, order = 6, 4
    model = FeedForward(FeedForwardSettings(order=order, embedding=4, hidden=8, activation="tanh"), vocab).eval()
    tokens = torch.from_numpy(random.integers(0, vocab, (3, 7)))
    with torch.no_grad():
        for parameter in model.parameters():  # large enough that all parts of the formula matter
            parameter.copy_(torch.from_numpy(random.normal(size=tuple(parameter.shape)) / 2))
        logits, _ = model.step(tokens, model.start(len(tokens)))
    weights = model.state_dict()
    names = {
        "E": "embedding.weight",
        "W": "layers.0.weight",
        "b": "layers.0.bias",
        "U": "embedding.output.weight",
        "c": "embedding.bias",
    }
    return {"order": order, "tokens": tokens, "logits": logits, **{name: weights[full] for name, full in names.items()}}
