"""A network small enough to be trained in a second, and a text for it.

Shapes: B rows, T tokens, D width, V vocabulary.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from chainrule.model import LanguageModel

VOCAB = 7


@dataclass(frozen=True)
class NetSettings:
    width: int = 16        # of everything
    dropout: float = 0.0   # of the vectors that are read


class Net(LanguageModel):
    """A gated recurrent network with dropout. State: the hidden vector."""

    Settings = NetSettings

    def __init__(self, settings=NetSettings(), vocab=VOCAB):  # noqa: B008
        super().__init__()
        self.embed = nn.Embedding(vocab, settings.width)
        self.dropout = nn.Dropout(settings.dropout)
        self.layer = nn.GRU(settings.width, settings.width, batch_first=True)
        self.norm = nn.LayerNorm(settings.width)
        self.output = nn.Linear(settings.width, vocab)

    def start(self, rows, source=None, lengths=None):
        return self.output.weight.new_zeros(rows, self.norm.normalized_shape[0])

    def step(self, tokens, state):
        hidden, last = self.layer(self.dropout(self.embed(tokens)), state[None].contiguous())
        return self.output(self.norm(hidden)), last[0]


def net(dropout=0.0, width=16, seed=1):
    torch.manual_seed(seed)
    return Net(NetSettings(width, dropout))


def walk(size, seed=1, certain=0.9):
    """A text in which each token mostly says the next: t -> t + 1 among 1 … V - 1."""
    generator = np.random.default_rng(seed)
    tokens = np.zeros(size, np.uint16)
    for place in range(1, size):
        habit = tokens[place - 1] % (VOCAB - 1) + 1
        tokens[place] = habit if generator.random() < certain else generator.integers(1, VOCAB)
    return tokens


def split(tokens):
    return SimpleNamespace(tokens=tokens, bytes=2 * len(tokens), sha256="ab" * 32, documents=1, packed=False)


def corpus(train=None, valid=None, lossless=True):
    splits = {"train": split(walk(601) if train is None else train)}
    splits |= {} if valid is None else {"valid": split(valid)}
    tokenizer = SimpleNamespace(unit="numbers", sha256="cd" * 32, lines=False, lossless=lossless)
    return SimpleNamespace(splits=splits, tokenizer=_Sized(tokenizer))


class _Sized(SimpleNamespace):
    boundary = "document"

    def __init__(self, tokenizer):
        super().__init__(**vars(tokenizer))

    def __len__(self):
        return VOCAB


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
