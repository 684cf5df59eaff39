import errno
import hashlib
import os
import stat
from pathlib import Path

import pytest

from chainrule import files
from chainrule.errors import UserError
from chainrule.files import cache_folder, claim, sha256, sync, write_aside, write_text


def test_a_file_is_written_whole_into_folders_that_need_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "text.txt"
    write_text(path, "Grüße\n")
    assert path.read_bytes() == "Grüße\n".encode()
    assert [file.name for file in path.parent.iterdir()] == ["text.txt"]


def test_a_writer_that_fails_leaves_the_earlier_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt):
        _fail_half_way(path, KeyboardInterrupt())
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_clear_line_and_earlier_files_stay(tmp_path: Path, number: int) -> None:
    path = tmp_path / "text.txt"
    write_text(path, "old")
    with pytest.raises(UserError, match=r"no space to write .*text\.txt.*untouched"):
        _fail_half_way(path, OSError(number, os.strerror(number)))
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_another_error_of_the_system_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(PermissionError):
        _fail_half_way(tmp_path / "x", PermissionError(errno.EACCES, "no"))


def _fail_half_way(path: Path, error: BaseException) -> None:
    before = path.read_text() if path.exists() else None
    with write_aside(path) as aside:
        aside.write_text("half")
        assert (path.read_text() if path.exists() else None) == before
        raise error


def test_a_file_is_on_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "text.txt", []
    monkeypatch.setattr(files, "sync", lambda file: synced.append((file, path.exists())))
    write_text(path, "new")
    (aside, before), (folder, after) = synced
    assert aside.suffix == ".aside"
    assert folder == tmp_path
    assert (before, after) == (False, True)


def test_a_file_has_the_rights_that_any_new_file_has(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    write_text(tmp_path / "aside", "x")
    plain, aside = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "aside"))
    assert plain == aside


def test_a_file_that_is_replaced_keeps_its_rights_and_a_link_to_it_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("old")
    (tmp_path / "private").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "private")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "private").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o640
    assert {file.name for file in tmp_path.iterdir()} == {"private", "link"}


def test_a_link_to_a_file_that_does_not_exist_yet_makes_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "there").read_text() == "new"


def test_a_pipe_is_written_through_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe, text = tmp_path / "pipe", "x" * 1000
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, text)
        assert os.read(reader, 2000).decode() == text
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_a_process_has_open_is_written_through(tmp_path: Path) -> None:
    """As `--out /dev/stdout > FILE` does: what was printed before stays."""
    with (tmp_path / "printed").open("w+") as file:
        write_text(Path(f"/proc/self/fd/{file.fileno()}"), "new")
        assert os.fstat(file.fileno()).st_ino == (tmp_path / "printed").stat().st_ino
    assert (tmp_path / "printed").read_text() == "new"


def test_a_device_without_space_is_one_line_and_stays_a_device() -> None:
    with pytest.raises(UserError, match="no space to write /dev/full"):
        write_text(Path("/dev/full"), "x")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


@pytest.mark.parametrize(
    ("place", "says"),
    [("file/report.html", "file is no folder"), ("file/deeper/report.html", r"file/deeper takes no files \(Not a dir")],
)
def test_a_place_for_no_file_is_one_line_and_what_is_there_stays(tmp_path: Path, place: str, says: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=f"report.html cannot be written: .*{says}"), write_aside(tmp_path / place):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no /proc")
def test_a_folder_of_the_system_takes_no_files() -> None:
    with pytest.raises(UserError, match=r"/proc/report.html cannot be written: /proc takes no files \(No such file"):
        write_text(Path("/proc/report.html"), "")


def test_links_in_a_circle_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UserError, match=r"cannot write .*: Too many levels of symbolic links"):
        write_text(tmp_path / "a", "x")


def test_a_name_as_long_as_a_disk_takes_can_be_written(tmp_path: Path) -> None:
    write_text(tmp_path / ("x" * 250), "new")
    assert (tmp_path / ("x" * 250)).read_text() == "new"


def test_the_hash_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc" * 100_000)
    assert sha256(tmp_path / "x") == hashlib.sha256(b"abc" * 100_000).hexdigest()
    sync(tmp_path / "x")


def test_a_folder_is_claimed_by_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    with claim(folder):
        with pytest.raises(UserError, match=r"another process is writing to .*runs/a\. Wait for it, or choose another"):
            claim(folder).__enter__()
        with claim(tmp_path / "runs" / "b"):
            (folder / "file").touch()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]
    with claim(folder):
        (folder / "file").unlink()
    assert folder.is_dir()                                     # it was there before


def test_a_claimed_folder_that_stays_empty_was_never_made(tmp_path: Path) -> None:
    with claim(tmp_path / "runs" / "a"):
        assert (tmp_path / "runs" / "a").is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: object, **more: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")    # as /proc answers

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(UserError, match=r"cannot be created: No such file or directory\. Choose another folder\.$"):
        claim(tmp_path / "a").__enter__()


def test_where_disks_know_no_locks_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", fail)
    with claim(tmp_path / "a"), claim(tmp_path / "a"):
        (tmp_path / "a" / "file").touch()
    assert (tmp_path / "a" / "file").exists()


def test_what_a_killed_process_was_writing_is_removed_by_the_next_and_what_a_living_one_writes_is_not(
    tmp_path: Path
) -> None:
    abandoned, other = (tmp_path / f".{name}.k1lled.aside" for name in ("text.txt", "other.txt"))
    abandoned.write_text("half")
    other.write_text("half of another file")
    with write_aside(tmp_path / "text.txt") as alive:
        write_text(tmp_path / "text.txt", "one")
        assert alive.exists()
        alive.write_text("two")
    assert {file.name for file in tmp_path.iterdir()} == {"text.txt", other.name}
    assert (tmp_path / "text.txt").read_text() == "two"
    with write_aside(tmp_path / "text.txt") as alive:
        files.remove_abandoned(tmp_path)
        assert alive.exists()
        assert not other.exists()


def test_where_derived_files_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("CHAINRULE_CACHE")
    assert cache_folder() == Path("~/.cache/chainrule").expanduser()
    assert cache_folder(tmp_path / "x") == tmp_path / "x"


def test_a_cache_that_is_a_broken_link_is_reported(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=r"link, the cache, is a link to .*gone, which does not exist") as caught:
        cache_folder(tmp_path / "link")
    assert "\n" not in str(caught.value)
    (tmp_path / "gone").mkdir()
    assert cache_folder(tmp_path / "link") == tmp_path / "link"
