"""Ctrl-C at any time: one line, exit code 130, and nothing half written."""

import os
import signal
import subprocess
import sys
import time

import pytest

from chainrule import cli, import_part
from chainrule.models.hmm.hmm import HMM
from chainrule.run import load, read_log


def start(words, cwd):
    command = [sys.executable, "-m", "chainrule", *map(str, words)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_counting_that_is_interrupted_leaves_no_run(chainrule, book, tmp_path, monkeypatch):
    from chainrule.models.ngram.ngram import NGram

    def stop(self, statistics):
        raise KeyboardInterrupt

    monkeypatch.setattr(NGram, "update", stop)
    answer = chainrule("train", book, "--kind", "ngram", "--out", "runs/x")
    assert answer.code == 130
    assert answer.err.splitlines()[-1] == "chainrule: stopped."
    assert not (tmp_path / "runs/x").exists()


def test_ctrl_c_waits_until_what_is_being_imported_is_whole(chainrule, monkeypatch):
    imported = []

    def slow_import(name):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        imported.append(name)
        return import_part(name)

    monkeypatch.setattr(cli, "import_part", slow_import)
    answer = chainrule("settings")
    assert (answer.code, answer.out, answer.err) == (130, "", "chainrule: stopped.\n")
    assert imported == ["commands.show"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_em_that_is_interrupted_keeps_its_last_round_and_goes_on_as_if_it_had_not_been(
    chainrule, book, tmp_path, monkeypatch
):
    words = ["train", book, "--kind", "hmm", "model.states=8", "text.tokenizer=characters", "train.steps=12"]
    update, rounds = HMM.update, []

    def interrupted(self, statistics):
        rounds.append(len(rounds) + 1)
        if len(rounds) == 3:
            signal.raise_signal(signal.SIGINT)
        update(self, statistics)

    with monkeypatch.context() as patched:
        patched.setattr(HMM, "update", interrupted)
        answer = chainrule(*words, "--out", "runs/stopped")
    assert answer.code == 130
    assert "interrupted" in answer.err
    about = load(tmp_path / "runs/stopped").about
    logged = [record["round"] for record in read_log(tmp_path / "runs/stopped") if record["event"] == "round"]
    assert about["done"]["rounds"] == len(logged) == 2
    assert not about["done"]["finished"]
    assert chainrule(*words, "--out", "runs/stopped").code == 0
    assert chainrule(*words, "--out", "runs/whole").code == 0
    stopped, whole = (load(f"runs/{name}") for name in ("stopped", "whole"))
    assert stopped.about["files"] == whole.about["files"]
    assert stopped.about["done"] == whole.about["done"]
    logs = [[record.get("nats_per_token") for record in read_log(run.path)] for run in (stopped, whole)]
    assert [nats for nats in logs[0] if nats] == [nats for nats in logs[1] if nats]


@pytest.mark.parametrize(
    ("trouble", "code", "says"), [(KeyboardInterrupt, 130, "chainrule eval runs/x"), (MemoryError, 2, "out of memory")]
)
def test_a_run_whose_measuring_is_stopped_or_fails_is_whole(chainrule, book, monkeypatch, trouble, code, says):
    from chainrule.training import pipeline

    def stop(*words):
        raise trouble

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "evaluate_together", stop)
        answer = chainrule("train", book, "--kind", "bigram", "--out", "runs/x")
    assert answer.code == code
    assert says in answer.err.splitlines()[-1]
    assert load("runs/x").about["done"]["finished"]
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "train_model", stop)                       # nothing is learned again
        assert chainrule("train", book, "--kind", "bigram", "--out", "runs/x", "--json").json["perplexity"] > 0


def test_a_sample_that_is_interrupted_is_one_line(trained, tmp_path):
    process = start(["sample", trained, "--tokens", "100000000"], tmp_path)
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "chainrule: stopped.\n"


def test_json_that_is_stopped_is_no_json(chainrule, trained, monkeypatch):

    def stop(*words):
        raise KeyboardInterrupt

    from chainrule import run

    monkeypatch.setattr(run.run, "generate", stop)
    answer = chainrule("sample", trained, "--json")
    assert (answer.code, answer.out, answer.err) == (130, "", "chainrule: stopped.\n")
