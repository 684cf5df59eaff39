"""The file of clicks: no click is lost, whatever other processes, crashes and full disks do."""

import errno
import json
import multiprocessing
import os

import pytest

from chainrule.errors import UserError
from chainrule.prefer import clicks
from chainrule.prefer.clicks import ClickFile, LineFile

SOURCE = {"run": "one", "run_sha256": "ab", "temperature": 1.0, "top_p": 1.0, "max_tokens": 8}


def choice(id, chosen=0, left=0, prompt="a <b>", event="choice", rater="ann", **more):
    return {"event": event, "id": id, "rater": rater, "time": 1.5, "pair": f"p{id}", "prompt": prompt,
            "answers": [f"first {id}", f"second {id}"], "ended": [True, False], "tokens": [2, 8], "left": left,
            "chosen": chosen, "seed": 7, "source": SOURCE, **more}


def undo(of, id="u"):
    return {"event": "undo", "id": id, "rater": "ann", "time": 2.0, "of": of}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pairs.jsonl"


def test_a_choice_is_a_pair_in_the_names_of_trl(path):
    ClickFile(path).add(choice("1", chosen=1, left=1))
    (pair,) = lines(path)
    assert pair["prompt"] == "a <b>"
    assert (pair["chosen"], pair["rejected"]) == ("second 1", "first 1")
    assert (pair["chosen_ended"], pair["rejected_ended"]) == (False, True)
    assert pair["rater"] == "ann"
    assert pair["run_sha256"] == "ab"


PLACES = [(0, 0, "left"), (1, 1, "left"), (0, 1, "right"), (1, 0, "right")]


@pytest.mark.parametrize(("chosen", "left", "position"), PLACES)
def test_the_position_is_where_the_chosen_answer_stood(path, chosen, left, position):
    ClickFile(path).add(choice("1", chosen, left))
    assert lines(path)[0]["position"] == position


def test_answers_to_messages_are_messages(path):
    ClickFile(path).add(choice("1", prompt=[{"role": "user", "content": "a"}]))
    assert lines(path)[0]["chosen"] == [{"role": "assistant", "content": "first 1"}]


def test_ties_skips_and_comparisons_are_in_the_journal_alone(path):
    file = ClickFile(path)
    for number, event in enumerate(("tie", "skip")):
        file.add(choice(str(number), None, event=event))
    file.add(choice("c", compares=True))
    assert lines(path) == []
    assert [event["event"] for event in lines(file.journal)] == ["tie", "skip", "choice"]


def test_a_click_that_is_sent_twice_is_written_once(path):
    file = ClickFile(path)
    for _ in range(2):
        file.add(choice("1"))
        ClickFile(path).add(choice("1"))
    assert len(lines(path)) == len(lines(file.journal)) == 1


def test_an_undone_pair_is_blank_in_place_and_kept_in_the_journal(path):
    file = ClickFile(path)
    for id in "123":
        file.add(choice(id))
    size, inode = path.stat().st_size, path.stat().st_ino
    file.add(undo("2"))
    assert [pair["click"] for pair in lines(path)] == ["1", "3"]
    assert (path.stat().st_size, path.stat().st_ino) == (size, inode)
    assert [event["id"] for event in lines(file.journal)] == ["1", "2", "3", "u"]
    assert [event["id"] for event in file.standing()] == ["1", "3"]


def test_a_program_that_holds_the_file_open_and_appends_to_it_loses_no_line(path):
    file = ClickFile(path)
    file.add(choice("1"))
    with path.open("a") as other:
        file.add(undo("1"))
        other.write(json.dumps({"prompt": "x", "chosen": "y", "rejected": "z"}) + "\n")
        other.flush()
        file.add(choice("2"))
    assert [pair["chosen"] for pair in lines(path)] == ["y", "first 2"]


def add_many(path, name):
    file = ClickFile(path)
    for number in range(25):
        file.add(choice(f"{name}{number}"))
    file.add(undo(f"{name}3", f"undo {name}"))


def test_processes_that_append_at_the_same_time_lose_no_click(path):
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=add_many, args=(path, name)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    wanted = {f"{name}{number}" for name in "abc" for number in range(25) if number != 3}
    assert sorted(pair["click"] for pair in lines(path)) == sorted(wanted)
    assert {event["id"] for event in ClickFile(path).standing()} == wanted


def test_only_one_process_writes_at_a_time(path, monkeypatch):
    locked = []
    monkeypatch.setattr(clicks.fcntl, "flock", lambda handle, how: locked.append(how))
    ClickFile(path).add(choice("1"))
    assert locked == [clicks.fcntl.LOCK_EX] * 2    # to open, and to add


def test_a_click_is_on_disk_in_the_journal_before_the_pairs_and_there_before_it_is_saved(path, monkeypatch):
    file, done = ClickFile(path), []
    names = {file.journal.stat().st_ino: "journal", path.stat().st_ino: "pairs"}
    write, sync = os.write, os.fsync
    name = lambda handle: names[os.fstat(handle).st_ino]    # noqa: E731
    monkeypatch.setattr(os, "write", lambda handle, data: done.append(("write", name(handle))) or write(handle, data))
    monkeypatch.setattr(os, "fsync", lambda handle: done.append(("fsync", name(handle))) or sync(handle))
    file.add(choice("1"))
    assert done == [("write", "journal"), ("fsync", "journal"), ("write", "pairs"), ("fsync", "pairs")]


def test_a_process_that_died_between_journal_and_pairs_is_completed_by_the_next(path, monkeypatch):
    file = ClickFile(path)
    file.add(choice("1"))
    monkeypatch.setattr(ClickFile, "_settle", lambda *given: None)
    file.add(choice("2"))
    file.add(undo("1"))
    monkeypatch.undo()
    assert [pair["click"] for pair in lines(path)] == ["1"]
    ClickFile(path)
    assert [pair["click"] for pair in lines(path)] == ["2"]


@pytest.mark.parametrize("which", ["pairs", "journal"])
def test_a_torn_last_line_is_set_aside_and_the_next_click_is_whole(path, which, monkeypatch, capsys):
    monkeypatch.setattr(clicks, "PATIENCE", 0.0)
    file = ClickFile(path)
    file.add(choice("1"))
    torn = getattr(file, which)
    with torn.open("ab") as other:
        other.write(b'{"prompt": "caf\xc3')
    again = ClickFile(path)
    again.add(choice("2"))
    assert [pair["click"] for pair in lines(path)] == ["1", "2"]
    (kept,) = [event for event in lines(file.journal) if event["event"] == "torn"]
    assert (kept["file"], kept["text"]) == (torn.name, '{"prompt": "caf\\xc3')
    assert "which is kept in" in capsys.readouterr().err


def test_a_torn_line_of_a_click_is_written_again_from_the_journal(path, monkeypatch):
    monkeypatch.setattr(clicks, "PATIENCE", 0.0)
    file = ClickFile(path)
    file.add(choice("1"))
    os.truncate(path, path.stat().st_size - 20)
    ClickFile(path)
    assert [pair["click"] for pair in lines(path)] == ["1"]


def test_a_last_line_without_an_end_is_completed(path):
    path.write_text(json.dumps({"prompt": "x", "chosen": "y", "rejected": "z"}))
    ClickFile(path).add(choice("1"))
    assert [pair["chosen"] for pair in lines(path)] == ["y", "first 1"]


@pytest.mark.parametrize("which", ["journal", "pairs"])
def test_on_a_full_disk_no_part_of_a_click_remains_and_it_can_be_sent_again(path, which, monkeypatch):
    file = ClickFile(path)
    file.add(choice("1"))
    whole = LineFile.write

    def full(self, data):
        if self.path == getattr(file, which):
            whole(self, data[:30])
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(self, data)

    monkeypatch.setattr(LineFile, "write", full)
    with pytest.raises(OSError, match="No space"):
        file.add(choice("2"))
    assert [pair["click"] for pair in lines(path)] == ["1"]
    monkeypatch.undo()
    file.add(choice("2"))
    assert [pair["click"] for pair in lines(path)] == ["1", "2"]
    assert [event["id"] for event in lines(file.journal)] == ["1", "2"]


def test_a_file_that_was_deleted_is_made_again_from_the_journal(path):
    file = ClickFile(path)
    file.add(choice("1"))
    path.unlink()
    file.add(choice("2"))
    assert [pair["click"] for pair in lines(path)] == ["1", "2"]


def test_a_file_of_anything_else_is_refused_and_left_as_it_is(path):
    path.write_text("# my notes\nmilk\n")
    with pytest.raises(UserError, match="line 1 is not a pair, which is a JSON object with prompt, chosen, rejected"):
        ClickFile(path)
    assert path.read_text() == "# my notes\nmilk\n"
    with pytest.raises(UserError, match="is a folder; name the file"):
        ClickFile(path.parent)


def test_datasets_reads_the_file_as_trl_does(path, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    file = ClickFile(path)
    for id in "123":
        file.add(choice(id, prompt=[{"role": "user", "content": f"<{id}>"}]))
    file.add(undo("1"))
    datasets.disable_progress_bars()
    read = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert read["prompt"][:] == [[{"role": "user", "content": f"<{id}>"}] for id in "23"]
    assert read["chosen"][0] == [{"role": "assistant", "content": "first 2"}]
    assert {"rejected", "rater", "seed", "position", "run_sha256"} <= set(read.column_names)
