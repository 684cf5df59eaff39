"""The words of a batch letter by letter, for models that read them so (models/letters.py).

Shapes: B rows, T words, F bytes of the longest word.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

LONGEST = 24    # bytes; of longer words both ends stay, which say most about their kind


def spell(rows: Sequence[Sequence[str]], longest: int = LONGEST) -> Tensor:
    """(B, T, F): the bytes of each word in UTF-8, with 0 behind them; a word of "" and the padding are 0 throughout."""
    spelled = [[_shortened(word.encode(), longest) for word in row] for row in rows]
    words, width = max(map(len, spelled)), max((len(word) for row in spelled for word in row), default=0)
    width = max(width, 1)
    padded = (b"".join(word.ljust(width, b"\0") for word in row).ljust(words * width, b"\0") for row in spelled)
    return torch.frombuffer(bytearray(b"".join(padded)), dtype=torch.uint8).view(len(rows), words, width)


def _shortened(word: bytes, longest: int) -> bytes:
    first = longest // 2
    return word if len(word) <= longest else word[:first] + word[first - longest :]
