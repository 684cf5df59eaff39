"""C++ for the CPU, compiled on this machine by its own compiler when that first pays, and kept in the cache folder.

Everything also works without a compiler: then there is no library, and what would call it computes in torch. A library
is named by the hash of all that it was compiled from and by that of its own bytes, so a damaged one is made again.
"""

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from chainrule.errors import UserError
from chainrule.files import cache_folder, write_aside

WORTH = 0.1    # seconds of work that repay the compiler's second, since a machine compiles a file once
LIMIT = 60     # seconds for the compiler
HASH = 16      # digits of a hash in a file's name
NATIVE = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"    # for this CPU alone
FLAGS = ("-std=c++17", "-O3", NATIVE, "-fPIC", "-shared")


class Library:
    """The functions of a C++ file."""

    def __init__(self, source: Path, flags: tuple[str, ...] = FLAGS):
        self.source, self.flags = source, flags
        self.seconds = 0.0    # of work in this process that the library could have done

    def pays(self, seconds: float) -> bool:
        """Whether the library can be used, for work that takes so long without it."""
        self.seconds += seconds
        return self.seconds >= WORTH and self.functions is not None

    @cached_property
    def functions(self) -> Any:
        """They are attributes, to be called by ctypes; none where the file cannot be compiled."""
        try:
            return ctypes.CDLL(str(self._found() or self._compiled()))
        except (OSError, subprocess.SubprocessError, UserError) as error:
            reason = getattr(error, "stderr", None) or str(error)
            logging.getLogger(__name__).info("%s is not compiled: %s", self.source.name, reason)
            return None

    @cached_property
    def _stem(self) -> Path:
        """How the library's path begins. The compiler's macros tell its version and what this CPU can do."""
        macros = _run(*self.flags, "-dM", "-E", "-x", "c++", os.devnull)
        key = _hash("\n".join([macros, *self.flags, self.source.read_text(encoding="utf-8")]).encode())
        return cache_folder() / "kernels" / f"{self.source.stem}-{key}"

    def _found(self) -> Path | None:
        every = self._stem.parent.glob(f"{self._stem.name}-*.so")
        return next((path for path in every if path == self._path(path.read_bytes())), None)

    def _compiled(self) -> Path:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "made.so"
            _run(*self.flags, "-o", str(made), str(self.source))
            content = made.read_bytes()
        with write_aside(self._path(content)) as aside:
            aside.write_bytes(content)
        return self._path(content)

    def _path(self, content: bytes) -> Path:
        return Path(f"{self._stem}-{_hash(content)}.so")


def _run(*arguments: str) -> str:
    """What the compiler prints. It may be a command of several words, such as `ccache c++`."""
    command = (os.environ.get("CXX") or "c++").split()
    return subprocess.run(
        [*command, *arguments], check=True, capture_output=True, text=True, errors="replace", timeout=LIMIT
    ).stdout


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:HASH]


# Threads: ctypes releases Python's lock while a function runs.

Part = TypeVar("Part")


def in_threads(function: Callable[[Part], None], parts: Sequence[Part]) -> None:
    """Calls the function for each part, in at most as many threads as torch has."""
    threads = min(torch.get_num_threads(), len(parts))
    if threads > 1:
        list(_pool(threads).map(function, parts))
        return
    for part in parts:
        function(part)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "chainrule-cpu")


os.register_at_fork(after_in_child=_pool.cache_clear)    # a forked process has no threads but its own
