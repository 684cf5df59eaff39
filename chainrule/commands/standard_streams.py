"""stdin, stdout and stderr where the caller has closed them, or where they are not UTF-8."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path


def open_closed_streams() -> None:
    """A stream that the caller has closed (`>&-`) is empty, or goes nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open to the end


def escape_unknown_characters() -> None:
    """In a terminal that is not UTF-8, a character that it does not have is written as \\u2026."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """What is still to be printed goes nowhere, since the reader of the pipe has closed it: no error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
