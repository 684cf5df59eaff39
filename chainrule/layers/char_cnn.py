"""Character CNN: vectors of words from their spelling, so that unknown words get a meaningful one (Kim et al. 2016).

    x_w = W max_i relu(filters · [e_i, e_{i+1}, …]),  filters 2 to 5 bytes wide; added to the word's own embedding

A batch brings the bytes of its words as its source, (B, T, F), with 0 after the end of each word
(tasks/corpus_of_examples.py).

Shapes: B rows, T tokens, F bytes of the longest word, N words, E embedding, K filters.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from chainrule.errors import UserError

WIDTHS = (2, 3, 4, 5)


class CharCNN(nn.Module):
    def __init__(
        self,
        size: int,               # E, the embedding size of the body: its `inputs`
        embedding: int = 32,     # embedding size of a byte
        filters: int = 64,       # of each width
        dropout: float = 0.0,    # of the pooled features
    ):
        super().__init__()
        self.embedding = nn.Embedding(256, embedding, padding_idx=0)
        self.filters = nn.ModuleList(nn.Conv1d(embedding, filters, width) for width in WIDTHS)
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(filters * len(WIDTHS), size, bias=False)

    def forward(self, characters: Tensor | None) -> Tensor:
        """(B, T, F) -> (B, T, E). The result for a word without characters, such as padding, is not defined."""
        if characters is None:
            raise UserError("this tagger reads characters: a batch needs them as its source, rows x words x bytes.")
        words = characters.flatten(0, 1).long()                                            # (N, F)
        x = self.embedding(words).mT                                                       # (N, E, F)
        features = torch.cat([self._max_pooled(x, words, filters) for filters in self._convolutions()], -1)
        vectors: Tensor = self.project(self.dropout(features))
        return vectors.view(*characters.shape[:2], -1)

    def _convolutions(self) -> list[nn.Conv1d]:
        return [filters for filters in self.filters if isinstance(filters, nn.Conv1d)]

    def _max_pooled(self, x: Tensor, words: Tensor, filters: nn.Conv1d) -> Tensor:
        """(N, K): the maximum of each filter over all positions where it covers a character, the ends included."""
        beyond = filters.kernel_size[0] - 1
        outputs = filters(pad(x, (beyond, beyond)))                                        # (N, K, F + beyond)
        positions = torch.arange(outputs.shape[-1], device=x.device)
        covered = positions < (words != 0).sum(1, keepdim=True) + beyond                   # (N, F + beyond)
        pooled: Tensor = outputs.masked_fill(~covered[:, None], -math.inf).amax(-1).relu()
        return pooled
