"""The Viterbi search of models/hmm/viterbi.py in C++ (viterbi.cpp): the same paths and log p to the last bit.

δ of a few texts at a time stays in the CPU's cache, and one instruction adds or compares the numbers of several states.

Shapes: B rows, T tokens, N texts, S states, O symbols.
"""

from ctypes import c_bool, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from chainrule.kernels.cpu.compiled import Library, in_threads

STEP_SECONDS, TOKEN_SECONDS, MOVE_SECONDS = 3e-5, 1e-7, 1e-9    # of the search in torch
WIDTH = 8          # numbers in a row of a table are a multiple of this: the vectors of AVX-512
TOGETHER = 4       # texts that run side by side, as in viterbi.cpp
BLOCK = 1 << 20    # δ that one call computes: milliseconds

LIBRARY = Library(Path(__file__).with_suffix(".cpp"))


def pays(tokens: Tensor, transition: Tensor) -> bool:
    """Whether such a search can be made here, and repays what it takes to compile or load it."""
    if tokens.device.type != "cpu" or tokens.dtype != torch.int64 or transition.dtype != torch.float64:
        return False
    token = TOKEN_SECONDS + MOVE_SECONDS * transition.numel()
    return LIBRARY.pays(STEP_SECONDS * tokens.shape[1] + token * tokens.numel())


def best_paths(
    tokens: Tensor, firsts: Tensor, lengths: Tensor, initial: Tensor, transition: Tensor, symbols: Tensor, paths: Tensor
) -> Tensor:
    """Writes the states of the best path of each text to `paths` (B, T); log p of each text with it (N,)."""
    tokens, log_p = tokens.contiguous(), initial.new_empty(len(firsts))
    log_a = transition.log()
    tables = [_rows(initial.log()), _rows(log_a), pad(_rows(log_a.T), (0, 0, 0, 1)), _rows(symbols.log())]
    function = LIBRARY.functions.viterbi
    function.argtypes, function.restype = [c_int64] * 3 + [c_void_p] * 4 + [c_int64] + [c_void_p] * 6, c_bool

    longest_first = lengths.argsort(descending=True, stable=True)
    most, width = int(lengths[longest_first[:TOGETHER]].sum()), tables[0].shape[-1]
    rooms: list[Tensor] = []    # memory that is new costs more than the search in it: what a call leaves the next takes

    def search(texts: Tensor) -> None:
        room = rooms.pop() if rooms else initial.new_empty(most, width)
        some, sizes, found = firsts[texts], lengths[texts], log_p[texts]
        numbers = [table.data_ptr() for table in (*tables, some, sizes, tokens, paths, found, room)]
        if not function(len(initial), width, len(symbols), *numbers[:4], len(texts), *numbers[4:]):
            raise IndexError(f"tokens must be at least 0 and below {len(symbols)}, the size of the vocabulary.")
        log_p[texts] = found
        rooms.append(room)

    texts = max(1, len(lengths) * BLOCK // max(1, int(lengths.sum()) * len(initial)))
    in_threads(search, longest_first.split(-(-texts // TOGETHER) * TOGETHER))
    return log_p


def _rows(table: Tensor) -> Tensor:
    """A table of logarithms with rows as wide as the vectors need; no path leads to the states that are added."""
    return pad(table, (0, -table.shape[-1] % WIDTH), value=-torch.inf).contiguous()
