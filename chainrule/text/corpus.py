"""Text files into tokens on disk, once: split, tokenized, memory-mapped, and reused until something changes.

A split is one stream `0 document 0 document 0` (of words, `0 line 0 line 0`) in uint16 or uint32, and beside it a JSON file
that says what is in it. Everything is read in bounded pieces: memory does not grow with the text.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.files import write_aside, write_text
from chainrule.model import BOUNDARY
from chainrule.progress import bar
from chainrule.recipe import Text
from chainrule.text.cache import cache_folder
from chainrule.text.splits import Selection, gather, hold_out, pieces
from chainrule.text.tokenizer import Tokenizer, train_tokenizer

VERSION = 1                 # of the files; goes up when the same text would be stored another way


@dataclass(frozen=True)
class Split:
    tokens: NDArray[np.unsignedinteger]      # memory-mapped
    bytes: int                               # of the text, as UTF-8
    documents: int
    sha256: str                              # of the text


@dataclass(frozen=True)
class Corpus:
    splits: Mapping[str, Split]              # train, and maybe valid and test
    tokenizer: Tokenizer
    notes: tuple[str, ...]                   # what was chosen on the user's behalf
