"""UserError: a mistake of the user. The command line prints it as one line and exits with 2."""

import errno
from collections.abc import Iterable
from difflib import get_close_matches

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)    # of an OSError: the disk, a quota or a file is full
NO_MEMORY = ("can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


class UserError(ValueError):
    """Says what was given, what was expected, and how to fix it."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean X?', or an empty string where no known word is similar."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]}?" if near else ""


def out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory ran out: Python's own, torch's for GPUs, or a RuntimeError that says so."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
