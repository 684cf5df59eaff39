"""Two and four ranks on the CPU: the curve of one process, checkpoints for any number of ranks, one voice.

All runs are made once, by `made`.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from torch.testing import assert_close
from training import topics
from training.distributed.ranks import codes, run_groups, said, spawn
from training.small import assert_same_bits

from chainrule import run

SIGINT, SIGKILL, SIGTERM = 2, 9, 15
NEVER = [None, 0, 0]
STOP = 6                     # in the midst of an epoch of 9 steps, so that streams carry a state on

SMALL = {
    "text.tokenizer": "bytes", "model.width": 3, "train.steps": 14, "train.tokens": 80, "train.length": 16,
    "train.evaluate": 7, "train.lr": 0.02, "train.checkpoint": 1000, "train.precision": "float32",
}                                                          # 5 rows, which neither 2 nor 4 ranks share evenly
WINDOWS = SMALL | {"train.micro_batch": 2, "train.optimizer": "sgd", "train.lr": 0.3}
STREAMS = SMALL | {"train.batching": "streams"}
DROPPED = STREAMS | {"model.dropout": 0.3}
SHARDS = STREAMS | {"train.shard": "true", "train.checkpoint": 0}
GPT = {
    "text.tokenizer": "bytes", "model.layers": 2, "model.width": 16, "model.heads": 2, "model.context": 16,
    "train.steps": 8, "train.tokens": 80, "train.evaluate": 4, "train.gradients": "true",
    "train.precision": "float32",
}
EXPERTS = GPT | {"model.experts": 4, "train.micro_batch": 2, "train.checkpoint": 0}
HMM = {"model.states": 4, "train.steps": 6, "train.restarts": 2, "train.length": 16}
NGRAM = {"text.tokenizer": "bytes", "train.tokens": 100}
TASKS = {
    "classify": ("gpt", "topics/few.tsv"), "tag": ("encoder", "topics/tagged.tsv"),
    "translate": ("transformer", "topics/pairs.tsv"),
    "mask": ("encoder", "book.txt"), "span": ("transformer", "book.txt"),
}                                                          # whose validation is one batch, which two ranks cannot share


def job(kind, settings, out, stop=NEVER, text="book.txt", task="lm"):
    words = ["train", text, "--kind", kind, "--task", task, "--out", out]
    return {"words": words + [f"{name}={value}" for name, value in settings.items()], "stop": stop}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder of runs, named by how many ranks made them. Of all processes that test, one makes it."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    folder = tmp_path_factory.getbasetemp() / "ranks"
    if session:
        folder = tmp_path_factory.getbasetemp().parent / f"ranks-{session}"
    try:
        folder.mkdir()
    except FileExistsError:
        while not (folder / "whole").exists():
            time.sleep(0.1)
        return folder
    try:
        make(folder)
    finally:
        (folder / "whole").touch()
    return folder


def jobs_of_tasks(ranks, **more):
    settings = GPT | {"model.dropout": 0.0, "model.context": 64, "train.tokens": 256, "train.gradients": "false"} | more
    for task, (kind, text) in TASKS.items():
        head = {"head.dropout": 0.0} if task in ("classify", "tag") else {}
        yield job(kind, settings | head, f"{task}-{ranks}", text=text, task=task)


def make(folder):
    topics.write_data(folder / "topics")
    (folder / "book.txt").write_text("the cat saw the dog, and the dog ran. the cow saw the cat; nobody ran.\n" * 12)
    by_2 = [
        job("small", WINDOWS, "windows-2"),
        job("small", STREAMS, "streams-2", [1, STOP, SIGTERM]),
        job("small", SHARDS, "shards-2", ["all", STOP, SIGINT]),
        job("small", DROPPED, "dropped-2"),
        job("small", DROPPED, "dropped-2-2", [0, STOP, SIGTERM]),
        job("small", DROPPED, "dropped-2-2"),
        job("gpt", GPT | {"train.shard": "true"}, "gpt-2"),
        job("gpt", EXPERTS | {"train.shard": "true"}, "experts-2", ["all", 5, SIGTERM]),
        job("gpt", EXPERTS | {"train.shard": "true"}, "experts-2"),
        job("ngram", NGRAM, "ngram-2"),
        job("unigram", NGRAM, "unigram-2"),
        job("hmm", HMM, "hmm-2"),
        job("uniform", {}, "uniform-2"),
        job("small", SMALL | {"train.lr": "0.{rank}1"}, "unlike-2"),
    ]
    tasks_by_2 = [*jobs_of_tasks(2, **{"train.shard": "true"})]
    alone = [
        job("small", WINDOWS, "windows-1"),
        job("small", STREAMS, "streams-1"),
        job("small", STREAMS, "streams-1-4", ["all", STOP, SIGTERM]),
        job("gpt", GPT, "gpt-1"),
        job("gpt", EXPERTS, "experts-1"),
        job("ngram", NGRAM, "ngram-1"),
        job("unigram", NGRAM, "unigram-1"),
        job("hmm", HMM, "hmm-1"),
        job("uniform", {}, "uniform-1"),
        *jobs_of_tasks(1),
    ]
    spawn({"by-2": (2, by_2), "tasks-by-2": (2, tasks_by_2), "alone": (0, alone)}, folder)
    for ranks in (1, 4):
        copy(folder, "streams-2", f"streams-2-{ranks}")
        copy(folder, "shards-2", f"shards-2-{ranks}")
    damage(folder / "shards-2-4" / "checkpoints" / "000000006" / "shard-00002-model-00001-of-00001.safetensors")
    by_4 = [
        job("small", STREAMS, "streams-1-4"),
        job("small", STREAMS, "streams-2-4"),
        job("small", SHARDS, "shards-2-4"),
        job("small", WINDOWS, "windows-4"),
    ]
    groups = {"by-4": (4, by_4), "by-1": (1, [job("small", SHARDS, "shards-2-1")])}
    spawn(groups | {"alone-again": (0, [job("small", STREAMS, "streams-2-1")])}, folder)


def copy(folder, there, here):
    shutil.copytree(folder / there, folder / here)


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def weights(path):
    return load_file(path / "model.safetensors")


def logged(path):
    """All losses of the log, in order."""
    names = ("nats_per_token", "nats", "gradient_norm", "bits_per_byte", "load_balancing_loss", "router_z_loss")
    return [record[name] for record in run.read_log(path) for name in names if record.get(name) is not None]


CURVES = [
    "windows-2 windows-1", "windows-4 windows-1", "gpt-2 gpt-1", "experts-2 experts-1",
    "streams-2-1 streams-1", "streams-2-4 streams-1", "streams-1-4 streams-1", "shards-2-1 streams-1",
    "shards-2-4 streams-1", *(f"{task}-2 {task}-1" for task in TASKS),
]


@pytest.mark.parametrize("pair", CURVES)
def test_the_curve_is_that_of_one_process_whoever_went_on(made, pair):
    here, there = (made / name for name in pair.split())
    assert len(logged(here)) > 14
    np.testing.assert_allclose(logged(here), logged(there), rtol=0, atol=1e-5)
    for name, tensor in weights(there).items():
        assert_close(weights(here)[name], tensor, rtol=0, atol=1e-5)
    assert run.read_about(here)["done"]["finished"]
    assert not (here / "checkpoints").exists()


@pytest.mark.parametrize("name", ["ngram", "unigram", "uniform"])
def test_counts_are_those_of_one_process(made, name):
    assert_same_bits(weights(made / f"{name}-2"), weights(made / f"{name}-1"))
    assert logged(made / f"{name}-2") == logged(made / f"{name}-1")


def test_expected_counts_are_those_of_one_process(made):
    assert len(logged(made / "hmm-2")) > 11
    np.testing.assert_allclose(logged(made / "hmm-2"), logged(made / "hmm-1"), rtol=0, atol=1e-9)
    for name, tensor in weights(made / "hmm-1").items():
        assert_close(weights(made / "hmm-2")[name], tensor, rtol=0, atol=1e-9)


def test_asked_to_stop_all_ranks_stop_with_one_checkpoint(made):
    assert codes(made, "by-2", 0) == codes(made, "by-2", 1) == [0, 130, 130, 0, 130, 0, 0, 130, 0, 0, 0, 0, 0, 2]
    assert run.read_about(made / "streams-2")["done"]["rounds"] == STOP    # rank 1 alone was asked
    kept = sorted(path.name for path in (made / "streams-2" / "checkpoints").iterdir())
    assert kept == ["000000006.json", "000000006.safetensors", "begun.json"]


def test_the_last_two_checkpoints_of_shards_are_kept_and_nothing_is_pickled(made):
    folder = made / "shards-2" / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["000000005", "000000006", "begun.json"]
    files = {path.name for path in (folder / "000000006").iterdir()}
    shards = {f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)}
    assert files == shards | {"facts.json", "seal.json"}


def test_a_damaged_checkpoint_of_shards_is_passed_over_by_all_ranks(made):
    lines = said(made, "by-4")
    assert lines.count("checkpoints/000000006 is damaged") == 1
    assert "going on from step 5" in lines


def test_each_rank_has_its_own_random_generator_and_goes_on_with_it(made):
    assert_same_bits(weights(made / "dropped-2"), weights(made / "dropped-2-2"))
    assert logged(made / "dropped-2") == logged(made / "dropped-2-2")


def test_only_the_first_rank_speaks_and_one_complains(made):
    for name in ("by-2", "by-4"):
        lines = said(made, name).splitlines()
        assert not any("rror" in line or "arning" in line for line in lines)
        assert sum(line.startswith("windows-") for line in lines) == 1
    complaints = [line for line in said(made, "by-2").splitlines() if line.startswith("chainrule:")]
    assert len(complaints) == 1
    assert "ranks differ in their recipe or text" in complaints[0]


def test_a_full_disk_is_one_line_and_all_ranks_end(tmp_path):
    """A limit on the size of files stands in for the disk; the shards of a checkpoint are the first beyond it."""
    (tmp_path / "book.txt").write_text("the cat saw the dog, and the dog ran.\n" * 30)
    settings = GPT | {"model.width": 64, "train.shard": "true", "train.checkpoint": 0}
    ended = run_groups({"full": (2, [job("gpt", settings, "full-2")])}, tmp_path, limit=100_000)
    assert ended == {"full": [0, 0]}, said(tmp_path, "full")
    assert codes(tmp_path, "full", 0) == codes(tmp_path, "full", 1) == [2]
    complaints = [line for line in said(tmp_path, "full").splitlines() if line.startswith("chainrule:")]
    assert len(complaints) == 1
    assert "no space to write" in complaints[0]
    assert "000000001.aside: File too large" in complaints[0]
    assert "Traceback" not in said(tmp_path, "full")


def test_a_killed_worker_restarts_under_torchrun_from_the_last_checkpoint(made, tmp_path):
    shutil.copy(made / "book.txt", tmp_path)
    killed = job("small", STREAMS | {"train.checkpoint": 0}, "streams", [1, 9, SIGKILL])
    (tmp_path / "killed.json").write_text(json.dumps([killed]))
    script = Path(__file__).with_name("ranks.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    known = {"CHAINRULE_CACHE": str(made / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, "--max-restarts", "1", str(script), "killed.json"],
        cwd=tmp_path, env=os.environ | known, capture_output=True, text=True, timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "going on from step 8" in done.stderr
    assert done.stderr.count("chainrule: another rank died") == 1
    np.testing.assert_allclose(logged(tmp_path / "streams"), logged(made / "streams-1"), rtol=0, atol=1e-5)
