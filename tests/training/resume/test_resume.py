"""Killed anywhere, the same command again ends where it would have ended, to the last bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training import small
from training.small import assert_same_bits

from chainrule import files, models, run
from chainrule.errors import UserError
from chainrule.recipe import make_recipe
from chainrule.training import checkpoint, pipeline, trainer
from chainrule.training.pipeline import make_run
from chainrule.training.step import Step
from chainrule.training.trainer import Diverged

SETTINGS = {
    "text.tokenizer": "bytes", "model.dropout": 0.2, "model.width": 8, "train.steps": 24, "train.tokens": 64,
    "train.length": 16, "train.evaluate": 7, "train.checkpoint": 0, "train.lr": 0.02,
}
OTHERS = [
    {},
    {"train.batching": "streams", "train.optimizer": "muon"},
    {"train.optimizer": "sgd", "train.momentum": 0.9, "train.micro_batch": 3},
]


class Killed(BaseException):
    """As little is tidied up after this as after SIGKILL."""


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    """The small network is a kind; one thread, so that sums are the same in every process."""
    monkeypatch.setitem(sys.modules, "chainrule.models.small", small)
    monkeypatch.setattr(models, "KINDS", {**models.KINDS, "small": models.Kind("small:Net", "for tests")})
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "sync", lambda path: None)  # processes die here, not disks
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("the cat saw the dog, and the dog ran. the cow saw the cat; nobody ran.\n" * 12)
    return path


@pytest.fixture
def make(book, tmp_path):
    def call(name, overwrite=False, **given):
        dotted = SETTINGS | {key.replace("_", ".", 1): value for key, value in given.items()}
        recipe = make_recipe("small", models.model_class("small"), dotted)
        return make_run([str(book)], recipe, tmp_path / name, overwrite=overwrite)

    return call


def weights(path):
    return load_file(path / "model.safetensors")


def logged(path):
    """The log, but for the clock."""
    keep = ("event", "step", "nats_per_token", "nats", "gradient_norm", "lr")
    records = [{name: record.get(name) for name in keep} for record in run.read_log(path)]
    return [record for record in records if record["event"] in ("step", "evaluation", "best")]


def killed_at(number, place=Step.take):
    """Whatever `place` is, it is not survived when it is called for the `number`-th time."""
    calls = iter(range(1, 1000))

    def mortal(*words, **more):
        if next(calls) == number:
            raise Killed
        return place(*words, **more)

    return mortal


@pytest.mark.parametrize("given", OTHERS, ids=str)
def test_a_run_killed_at_any_step_ends_where_it_would_have_ended(make, tmp_path, monkeypatch, given):
    given = {key.replace(".", "_", 1): value for key, value in given.items()}
    make("whole", **given)
    for number in (1, 5, 9, 7):
        with monkeypatch.context() as patched:
            patched.setattr(Step, "take", killed_at(number, Step.take))
            with pytest.raises(Killed):
                make("killed", **given)
        torch.manual_seed(random.randrange(1000))          # another process has had other chances
    made = make("killed", **given)
    assert made.finished
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    assert logged(tmp_path / "killed") == logged(tmp_path / "whole")
    assert not (tmp_path / "killed" / "checkpoints").exists()


def test_the_seconds_before_a_restart_are_counted(make, monkeypatch):
    take = Step.take
    monkeypatch.setattr(Step, "take", lambda *words: time.sleep(0.05) or take(*words))
    with monkeypatch.context() as patched:
        patched.setattr(Step, "take", killed_at(20, Step.take))
        with pytest.raises(Killed):
            make("killed")
    assert make("killed").result["train_seconds"] >= 0.05 * 23        # the last process takes five steps


@pytest.mark.parametrize("name", ["write_aside", "write_text", "sha256"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_run_killed_while_it_writes_a_checkpoint_loses_only_that(make, tmp_path, monkeypatch, name, number):
    make("whole")
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, name, killed_at(number, getattr(checkpoint, name)))
        with pytest.raises(Killed):
            make("killed")
    assert make("killed").finished
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


@pytest.mark.parametrize("place", ["_measure", "run.save"])
def test_a_run_killed_at_its_very_end_is_made_again_from_its_checkpoint(make, tmp_path, monkeypatch, place):
    make("whole")
    with monkeypatch.context() as patched:
        owner, name = (pipeline, place) if place == "_measure" else (run, "save")
        patched.setattr(owner, name, killed_at(1))
        with pytest.raises(Killed):
            make("killed")
    with monkeypatch.context() as patched:
        taken = []
        take = Step.take
        patched.setattr(Step, "take", lambda *words: taken.append(1) or take(*words))
        make("killed")
    assert len(taken) <= 1
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


def kill_after(monkeypatch, make, steps, **given):
    with monkeypatch.context() as patched:
        patched.setattr(Step, "take", killed_at(steps + 1, Step.take))
        with pytest.raises(Killed):
            make("killed", **given)


def checkpoints(tmp_path):
    return sorted((tmp_path / "killed" / "checkpoints").glob("0*.safetensors"))


def test_the_last_two_checkpoints_are_kept(make, tmp_path, monkeypatch):
    kill_after(monkeypatch, make, 9)
    assert [path.stem for path in checkpoints(tmp_path)] == ["000000008", "000000009"]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "seal", "no seal"])
def test_a_damaged_checkpoint_is_found_and_the_one_before_it_used(make, tmp_path, monkeypatch, damage, capsys):
    make("whole")
    kill_after(monkeypatch, make, 9)
    newest = checkpoints(tmp_path)[-1]
    content = bytearray(newest.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        newest.write_bytes(content)
    elif damage in ("cut", "empty"):
        newest.write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
    elif damage == "seal":
        newest.with_suffix(".json").write_text("{")
    else:
        newest.with_suffix(".json").unlink()
    capsys.readouterr()
    make("killed")
    err = capsys.readouterr().err
    assert "000000009.safetensors is damaged" in err
    assert "going on from step 8" in err
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


def test_where_no_checkpoint_is_whole_it_begins_again(make, tmp_path, monkeypatch, capsys):
    make("whole")
    kill_after(monkeypatch, make, 9)
    for path in checkpoints(tmp_path):
        path.write_bytes(b"")
    make("killed")
    assert capsys.readouterr().err.count("is damaged") == 2
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


def test_nothing_is_pickled(make, tmp_path, monkeypatch):
    kill_after(monkeypatch, make, 3)
    names = {path.suffix for path in (tmp_path / "killed" / "checkpoints").iterdir()}
    assert names == {".safetensors", ".json"}


def test_a_recipe_that_differs_from_the_run_it_would_go_on_with_is_named(make, monkeypatch, tmp_path):
    kill_after(monkeypatch, make, 3)
    with pytest.raises(UserError) as caught:
        make("killed", train_lr=0.01, model_width=16)
    line = str(caught.value)
    assert "model.width is 8 there and 16 here; train.lr is 0.02 there and 0.01 here" in line
    assert make("killed", train_lr=0.01, overwrite=True).finished
    assert not checkpoints(tmp_path)


def test_other_text_is_refused_unless_it_may_be_overwritten(make, monkeypatch, book):
    kill_after(monkeypatch, make, 3)
    book.write_text(book.read_text().replace("cow", "pig"))
    with pytest.raises(UserError, match="on other text"):
        make("killed")
    assert make("killed", overwrite=True).finished


def test_the_same_command_goes_on_even_if_it_said_overwrite(make, tmp_path, monkeypatch, capsys):
    make("whole")
    make("killed", train_seed=2)
    with monkeypatch.context() as patched:
        patched.setattr(Step, "take", killed_at(8, Step.take))
        with pytest.raises(Killed):
            make("killed", overwrite=True)
    assert run.load(tmp_path / "killed").recipe.train.seed == 2    # until the new run is whole, the old one is
    capsys.readouterr()
    make("killed", overwrite=True)
    assert "going on from step 7" in capsys.readouterr().err
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


def test_a_mistake_before_the_first_checkpoint_does_not_block_the_run(make, tmp_path):
    with pytest.raises(UserError, match="shorter than the context"):
        make("killed", train_length=10_000, train_tokens=10_000)
    assert make("killed").finished


def stop_in_step(monkeypatch, number, signals):
    take, calls = Step.take, iter(range(1, 1000))

    def stopping(*words):
        if next(calls) == number:
            for one in signals:
                os.kill(os.getpid(), one)
        return take(*words)

    monkeypatch.setattr(Step, "take", stopping)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_asked_to_stop_it_writes_a_checkpoint_and_a_run_and_goes_on_later(make, tmp_path, monkeypatch, number):
    make("whole")
    before = signal.getsignal(number)
    with monkeypatch.context() as patched:
        stop_in_step(patched, 9, [number])
        made = make("killed", train_checkpoint=1000.0)
    assert signal.getsignal(number) is before
    assert made.interrupted
    assert not made.finished
    assert run.load(tmp_path / "killed").about["done"]["rounds"] == 9
    assert [path.stem for path in checkpoints(tmp_path)] == ["000000009"]
    assert make("killed", train_checkpoint=1000.0).finished
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


def test_a_second_ctrl_c_does_not_wait(make, monkeypatch):
    stop_in_step(monkeypatch, 2, [signal.SIGINT, signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        make("killed")


@pytest.mark.parametrize("number", [1, 4])    # the fourth is the evaluation at the end
def test_an_evaluation_is_left_at_once_and_repeated_later(make, tmp_path, monkeypatch, number):
    from chainrule.training import validation

    make("whole")
    evaluate, evaluations = validation.evaluate, iter(range(1, 100))

    def stopping(*words):
        if next(evaluations) < number:
            return evaluate(*words)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)                                # the signal ends it
        went_on.append(number)
        return evaluate(*words)

    went_on = []
    with monkeypatch.context() as patched:
        patched.setattr(validation, "evaluate", stopping)
        assert make("killed").interrupted
    assert not went_on
    make("killed")
    assert logged(tmp_path / "killed") == logged(tmp_path / "whole")
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


def test_a_folder_in_which_a_run_is_being_made_is_not_used_for_another(make, tmp_path, monkeypatch):
    take, said = Step.take, []

    def meanwhile(*words):
        if not said:
            with pytest.raises(UserError) as refused:
                make("one", train_seed=2)
            said.append(str(refused.value))
        return take(*words)

    monkeypatch.setattr(Step, "take", meanwhile)
    assert make("one").finished
    assert "another process is writing to" in said[0]
    assert run.load(tmp_path / "one").recipe.train.seed == 1


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe{}", b"7"])
def test_checkpoints_of_nobody_knows_what_are_not_thrown_away(make, tmp_path, monkeypatch, content):
    with monkeypatch.context() as patched:
        patched.setattr(Step, "take", killed_at(9, Step.take))
        with pytest.raises(Killed):
            make("killed")
    there = checkpoints(tmp_path)
    (tmp_path / "killed" / "checkpoints" / "begun.json").write_bytes(content)
    with pytest.raises(UserError, match=r"begun\.json is damaged, so the checkpoints beside it cannot be used\. Ch"):
        make("killed")
    assert checkpoints(tmp_path) == there
    assert make("killed", overwrite=True).finished


def test_checkpoints_that_are_written_after_damaged_ones_stay(make, tmp_path, monkeypatch):
    for number in (16, 2):
        with monkeypatch.context() as patched:
            patched.setattr(Step, "take", killed_at(number, Step.take))
            with pytest.raises(Killed):
                make("killed")
        if number == 16:
            for file in checkpoints(tmp_path):
                file.write_bytes(b"damaged")
    assert [path.stem for path in checkpoints(tmp_path)] == ["000000001"]


def test_a_checkpoint_is_not_written_again_without_a_step(make, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        stop_in_step(patched, 9, [signal.SIGINT])
        make("killed", train_checkpoint=1000.0)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.Checkpoints, "write", killed_at(1))
        go = trainer.Trainer.run
        patched.setattr(trainer.Trainer, "run", lambda *words: [os.kill(os.getpid(), signal.SIGINT), go(*words)][1])
        assert make("killed", train_checkpoint=1000.0).interrupted
    assert make("killed", train_checkpoint=1000.0).finished


def test_a_stopped_run_whose_checkpoints_are_gone_begins_again(make, tmp_path, monkeypatch):
    make("whole")
    with monkeypatch.context() as patched:
        stop_in_step(patched, 9, [signal.SIGINT])
        make("killed")
    run.forget_checkpoints(tmp_path / "killed")
    assert make("killed").finished
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


def test_a_run_that_diverges_is_kept_at_its_last_good_checkpoint(make, tmp_path, monkeypatch):
    take, calls = Step.accumulate, iter(range(1, 1000))

    def breaking(self, rows, state):
        totals, state = take(self, rows, state)
        if next(calls) == 8:
            self.model.layer.weight_hh_l0.grad.fill_(float("inf"))
        return totals, state

    monkeypatch.setattr(Step, "accumulate", breaking)
    with pytest.raises(Diverged, match=r"step 8: .* layer.weight_hh_l0 is not finite; .* the checkpoint of step 7"):
        make("killed")
    kept = run.load(tmp_path / "killed")
    assert kept.about["done"]["rounds"] == 7
    assert all(tensor.isfinite().all() for tensor in kept.model.state_dict().values())


WORKER = Path(__file__).parents[1] / "worker.py"


def test_kill_minus_9_and_the_same_command_again(make, book, tmp_path):
    given = {"train.steps": 60, "train.batching": "streams", "train.optimizer": "muon"}
    words = ["train", book, "--kind", "small", *(f"{name}={value}" for name, value in (SETTINGS | given).items())]
    command = [sys.executable, str(WORKER), *map(str, words), "--out", "killed"]
    killed = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    wanted = random.randrange(2, 40)
    while killed.poll() is None and not any(int(path.stem) >= wanted for path in checkpoints(tmp_path)):
        time.sleep(0.001)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert again.returncode == 0, again.stderr
    assert "going on from step" in again.stderr
    make("whole", train_checkpoint=1000, **{name.replace(".", "_", 1): value for name, value in given.items()})
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    assert json.loads((tmp_path / "killed" / "recipe.json").read_text())["done"]["finished"]
