"""Batches with a source, for the tests of kinds that read one: tokens of the same or another vocabulary, or vectors."""

from typing import Any

import torch

from chainrule.model import Batch

VOCAB, FEATURES = 11, 5


def some_batch(model: Any, rows: int = 3, length: int = 6, size: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCAB, (rows, length + 1), generator=generator)
    if model.settings.source_features is None:
        source = torch.randint(model.settings.source_vocab or VOCAB, (rows, size), generator=generator)
    else:
        source = torch.randn(rows, size, FEATURES, generator=generator)
    lengths = torch.tensor([size, 2, 4])[:rows]
    return Batch(tokens[:, :-1], tokens[:, 1:], torch.tensor([length, 4, 1])[:rows], None, source, lengths)
