"""Errors whose cause is the machine: memory, disk, permissions, damaged files. Each is one line for the user."""

import errno

from chainrule.errors import NO_SPACE, out_of_memory

NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
LONGEST_NAME = 80    # characters of a file's name in a message


def machine_error(error: Exception) -> str:
    """A message where the cause is the machine: memory, disk, permissions. Empty where it is a bug."""
    if out_of_memory(error):
        return "out of memory. Try a smaller model, a smaller train.tokens or a smaller text."
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return f"no space to write {error.filename or 'a file'}: {error.strerror}. Free some space and run again."
    if isinstance(error, OSError) and error.errno in NO_ACCESS:
        return f"{_shortened(str(error.filename))}: {error.strerror}."
    if str(error).startswith("Symlink loop"):              # how pathlib says it
        return f"{_shortened(str(error))}: it leads back to itself. Name the file or the folder."
    if isinstance(error, RecursionError) and _raised_in(error) & {"json", "tomllib"}:
        return "a JSON or TOML file that is read here is nested too deeply. It is damaged, or another file is meant."
    return ""


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def _raised_in(error: BaseException) -> set[str]:
    """The packages whose functions the error came through."""
    frames, trace = set[str](), error.__traceback__
    while trace is not None:
        frames.add(str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0])
        trace = trace.tb_next
    return frames
