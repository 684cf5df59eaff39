"""Atomic writing of files (temporary file, fsync, rename), and locks on folders: one process at a time writes."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from chainrule.errors import UserError

SEAL = "seal"    # the name under which a JSON object holds its own sha256
ASIDE = ".aside"    # how the names of temporary files end
NAME = 200    # characters of a file's name that the temporary one beside it repeats, since names have 255 bytes at most


def cache_folder(given: Path | None = None) -> Path:
    """Where derived files are kept: `$CHAINRULE_CACHE`, else ~/.cache/chainrule. It may be deleted at any time."""
    folder = given or Path(os.environ.get("CHAINRULE_CACHE") or "~/.cache/chainrule").expanduser()
    if folder.is_symlink() and not folder.exists():
        raise UserError(f"{folder}, the cache, is a link to {folder.readlink()}, which does not exist. Create it.")
    return folder


@contextmanager
def write_aside(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it is renamed to `path` when it is complete and on disk.

    A link is followed to its file, which keeps its mode and owner. What is not a file, such as a device or a pipe, is
    written through.
    """
    device = _is_device(path)
    path = path if device else _followed(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = None if device else path.parent
        if folder is not None:
            remove_abandoned(folder, path.name)
        handle, aside = _make_aside(folder, path.name)
    except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        there = path.parent
        reason = "is no folder" if there.exists() and not there.is_dir() else f"takes no files ({error.strerror})"
        raise UserError(f"{path} cannot be written: {there} {reason}. Choose another place.") from error
    try:
        yield aside
        if device:
            _write_through(aside, path)
            return
        sync(aside)
        _take_rights(aside, path)
        aside.replace(path)
        sync(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            cure = "Earlier files are untouched; free some space and run again."
            raise UserError(f"no space to write {path}: {error.strerror}. {cure}") from error
        raise
    finally:
        aside.unlink(missing_ok=True)
        os.close(handle)


def _make_aside(folder: Path | None, name: str) -> tuple[int, Path]:
    """A new file, locked as long as the handle is open: so others know that its writer is alive."""
    while True:
        handle, made = tempfile.mkstemp(dir=folder, prefix=f".{name[:NAME]}.", suffix=ASIDE)
        with suppress(OSError):                            # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:                      # else another process had the lock first, and removed it
            return handle, Path(made)
        os.close(handle)


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Deletes the temporary files of killed processes: those for the file of that name, or all of a folder of ours."""
    if not folder.is_dir():
        return
    begins = "." if name is None else f".{name[:NAME]}."
    for found in os.scandir(folder):
        if found.name.startswith(begins) and found.name.endswith(ASIDE) and found.is_file(follow_symlinks=False):
            _remove_unlocked(Path(found.path))


def _remove_unlocked(path: Path) -> None:
    with suppress(OSError):                                # another process removed or renamed it; or it is at work
        handle = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(handle)


def _is_device(path: Path) -> bool:
    """Whether `path` leads to something that a rename would destroy: a device, a pipe, an open file of a process."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from error
    special = not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return special or path.absolute().parts[1:2] in (("dev",), ("proc",))


def _followed(path: Path) -> Path:
    """The file that a link stands for."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _write_through(aside: Path, path: Path) -> None:
    with aside.open("rb") as complete, path.open("wb") as device:
        shutil.copyfileobj(complete, device)


def _take_rights(aside: Path, path: Path) -> None:
    """The mode and owner of the file that is replaced; those of any new file where there is none."""
    try:
        old = path.stat()
    except FileNotFoundError:
        aside.chmod(0o666 & ~umask())
        return
    with suppress(PermissionError):                        # another's file in a folder of ours
        os.chown(aside, old.st_uid, old.st_gid)
    aside.chmod(stat.S_IMODE(old.st_mode))


@contextmanager
def write_folder_aside(path: Path) -> Iterator[Path]:
    """A new folder beside `path` to write to; it replaces `path` when its files are complete and on disk."""
    aside, old = (path.parent / f".{path.name}.{word}" for word in ("aside", "old"))
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        for file in aside.rglob("*"):
            sync(file)
        if path.exists():
            path.replace(old)
        aside.replace(path)
        sync(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if old.exists() and not path.exists():
            old.replace(path)
        shutil.rmtree(old, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    with write_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Adds a line at the end of a file, also where other programs append to it, and returns when it is on disk.

    A last line without an end gets one. If the disk is full, what was written of the line is taken back.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        data = (b"\n" if size and file.read(1) != b"\n" else b"") + line.encode() + b"\n"
        try:
            while data:
                data = data[file.write(data) or 0 :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal_of(content: Mapping[str, Any]) -> str:
    """The sha256 of a JSON object, without the seal that it may have itself."""
    rest = {name: value for name, value in content.items() if name != SEAL}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def sync(path: Path) -> None:
    """Returns when what was written to `path` is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Locks a folder for this process, and makes it where it does not exist; it is removed again if it stays empty."""
    new = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{folder} cannot be created: {error.strerror}. Choose another folder.") from error
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)                                   # releases the lock, as the end of the process would
        with suppress(OSError):                            # one of them is not empty
            for path in new:
                path.rmdir()


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another process is writing to {folder}. Wait for it, or choose another folder.") from None
    except OSError:                                        # some network file systems have no locks
        return


def umask() -> int:
    """The rights that new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
