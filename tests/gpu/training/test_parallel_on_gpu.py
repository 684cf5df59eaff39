"""One rank on a GPU, as torchrun starts it: NCCL adds up, shards lie on the card, graphs hold what ranks do."""

import shutil

import numpy as np
import pytest
import torch
from training.distributed.ranks import codes, said, spawn

from chainrule import run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

SIGTERM = 15
GPT = {
    "text.tokenizer": "bytes", "model.layers": 2, "model.width": 64, "model.heads": 2, "model.context": 32,
    "train.steps": 40, "train.tokens": 256, "train.micro_batch": 3, "train.evaluate": 20, "train.precision": "float32",
    "train.compile": "false", "train.graph": "false", "train.checkpoint": 1000,
}
LSTM = {
    "text.tokenizer": "bytes", "model.layers": 1, "model.hidden": 64, "model.dropout": 0, "model.weight_dropout": 0,
    "train.steps": 40, "train.tokens": 256, "train.length": 32, "train.evaluate": 20, "train.precision": "float32",
    "train.compile": "false", "train.graph": "false", "train.checkpoint": 1000,
}
SHARD = {"train.shard": "true"}


def job(kind, settings, out, stop=(None, 0, 0)):
    words = ["train", "book.txt", "--kind", kind, "--out", out, "--device", "cuda"]
    return {"words": words + [f"{name}={value}" for name, value in settings.items()], "stop": stop}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "book.txt").write_text("the cat saw the dog, and the dog ran. the cow saw the cat; nobody ran.\n" * 100)
    alone = [job("gpt", GPT, "gpt-alone"), job("lstm", LSTM, "lstm-alone")]
    ranks = [
        job("gpt", GPT, "gpt-ddp"),
        job("lstm", LSTM, "lstm-ddp"),
        job("gpt", GPT | {"train.graph": "true"}, "gpt-graph"),
        job("gpt", GPT | SHARD, "gpt-fsdp"),
        job("lstm", LSTM | SHARD, "lstm-fsdp", ["all", 25, SIGTERM]),
        job("gpt", GPT | SHARD | {"train.precision": "bfloat16"}, "gpt-bfloat16"),
        job("hmm", {"model.states": 8, "train.steps": 3}, "hmm"),
    ]
    spawn({"alone": (0, alone), "ranks": (1, ranks)}, folder)
    shutil.copytree(folder / "lstm-fsdp", folder / "lstm-stopped")
    spawn({"again": (1, [job("lstm", LSTM | SHARD, "lstm-fsdp")])}, folder)
    return folder


def losses(path):
    records = run.read_log(path)
    return [record["nats"] for record in records if record["event"] == "evaluation"]


@pytest.mark.parametrize("name", ["gpt-ddp", "gpt-graph", "gpt-fsdp", "lstm-ddp", "lstm-fsdp"])
def test_a_rank_learns_what_a_process_learns(made, name):
    alone = losses(made / f"{name.partition('-')[0]}-alone")
    assert len(alone) == 2
    np.testing.assert_allclose(losses(made / name), alone, rtol=0, atol=0.02)


def test_every_job_ended_as_it_should(made):
    assert codes(made, "ranks") == [0, 0, 0, 0, 130, 0, 0]
    assert said(made, "ranks").count("steps run as CUDA graphs from here on (train.graph=true)") == 1
    assert "going on from step 25" in said(made, "again")


def test_checkpoints_of_shards_on_a_gpu_are_whole(made):
    folder = made / "lstm-stopped" / "checkpoints" / "000000025"
    assert {path.name for path in folder.iterdir()} >= {"facts.json", "seal.json"}


def test_shards_learn_in_bfloat16(made):
    np.testing.assert_allclose(losses(made / "gpt-bfloat16"), losses(made / "gpt-alone"), rtol=0, atol=0.1)
