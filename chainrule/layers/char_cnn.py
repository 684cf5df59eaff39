"""Words by their letters, for words that were never seen: convolutions over bytes, the maximum over places (Kim 2014).

    x_w = W max_i relu(filters · [e_i, e_{i+1}, …]),  2 to 5 bytes at a time; added to the word's own vector

A batch brings the letters of its words as its source, (B, T, F): bytes, with 0 after each word
(tasks/corpus_of_examples.py).

Shapes: B rows, T tokens, F bytes of the longest word, N words, E embedding, K filters.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from chainrule.errors import UserError

WIDTHS = (2, 3, 4, 5)


class Letters(nn.Module):
    def __init__(
        self,
        size: int,               # numbers in the vector of a word: the body's `inputs`
        embedding: int = 32,     # numbers in the vector of a byte
        filters: int = 64,       # of each width
        dropout: float = 0.0,    # share dropped of what they find
    ):
        super().__init__()
        self.embedding = nn.Embedding(256, embedding, padding_idx=0)
        self.filters = nn.ModuleList(nn.Conv1d(embedding, filters, width) for width in WIDTHS)
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(filters * len(WIDTHS), size, bias=False)

    def forward(self, letters: Tensor | None) -> Tensor:
        """(B, T, F) -> (B, T, E); where there are no letters, as in padding, what comes is nobody's business."""
        if letters is None:
            raise UserError("this tagger reads letters: a batch needs them as its source, (rows, words, letters).")
        words = letters.flatten(0, 1).long()                                               # (N, F)
        x = self.embedding(words).mT                                                       # (N, E, F)
        found = torch.cat([self._strongest(x, words, filters) for filters in self._convolutions()], -1)
        vectors: Tensor = self.project(self.dropout(found))
        return vectors.view(*letters.shape[:2], -1)

    def _convolutions(self) -> list[nn.Conv1d]:
        return [filters for filters in self.filters if isinstance(filters, nn.Conv1d)]

    def _strongest(self, x: Tensor, words: Tensor, filters: nn.Conv1d) -> Tensor:
        """(N, K): each filter where it answers most, of all places where it touches a letter, the ends included."""
        beyond = filters.kernel_size[0] - 1
        answers = filters(pad(x, (beyond, beyond)))                                        # (N, K, F + beyond)
        places = torch.arange(answers.shape[-1], device=x.device)
        touched = places < (words != 0).sum(1, keepdim=True) + beyond                      # (N, F + beyond)
        strongest: Tensor = answers.masked_fill(~touched[:, None], -math.inf).amax(-1).relu()
        return strongest
