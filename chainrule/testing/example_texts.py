"""The random tokens and texts that the checks read: some_tokens, more_tokens, example_batch."""

import torch
from torch import Tensor

from chainrule.inference.forward import device_of, vocabulary_size
from chainrule.model import BOUNDARY, Batch, LanguageModel


def some_tokens(model: LanguageModel, rows: int, length: int, seed: int = 2) -> Tensor:
    """(B, T) random tokens; a row starts with the boundary and may come to it again."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary_size(model), (rows, length), generator=generator)
    tokens[:, 0] = BOUNDARY
    return tokens.to(device_of(model))


def more_tokens(model: LanguageModel, rows: int, length: int, seed: int = 3) -> Tensor:
    """(B, T) a continuation without a boundary, at which some kinds reset their state."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocabulary_size(model), (rows, length), generator=generator).to(device_of(model))


def example_batch(vocab: int, rows: int = 24, longest: int = 10, seed: int = 1) -> Batch:
    """Texts of 1 to `longest` tokens in which one token often predicts the next; the padding is tokens like others."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(rows, longest + 2, dtype=torch.long)
    for column in range(1, longest + 2):
        usual = tokens[:, column - 1] % (vocab - 1) + 1
        random = torch.randint(1, vocab, (rows,), generator=generator)
        tokens[:, column] = torch.where(torch.rand(rows, generator=generator) < 0.6, usual, random)
    lengths = torch.randint(1, longest + 1, (rows,), generator=generator) + 1
    lengths[0] = longest + 1
    tokens[torch.arange(rows), lengths] = BOUNDARY
    return Batch(tokens[:, :-1], tokens[:, 1:], lengths)


def batch_for(model: LanguageModel) -> Batch:
    return example_batch(vocabulary_size(model)).to(device_of(model))


def with_other_padding(model: LanguageModel, batch: Batch) -> Batch:
    whole, lengths = torch.cat([batch.tokens, batch.targets[:, -1:]], 1), batch.lengths
    assert lengths is not None
    other = torch.randint(vocabulary_size(model), whole.shape, generator=torch.Generator().manual_seed(7)).to(whole)
    real = torch.arange(whole.shape[1], device=whole.device) <= lengths[:, None]
    whole = torch.where(real, whole, other)
    return Batch(whole[:, :-1], whole[:, 1:], lengths)
