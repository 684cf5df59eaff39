"""A mistake that a user can make and mend. The command line prints it as one line and exits with 2."""

from collections.abc import Iterable
from difflib import get_close_matches

NO_MEMORY = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


class UserError(ValueError):
    """What came, what was wanted, how to mend it."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean X?', or nothing when no known word is near."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]}?" if near else ""


def out_of_memory(error: Exception) -> bool:
    """Python's way to say so, torch's of GPUs, and what torch and its libraries say in the words of another error."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
