"""Preference tuning by two ranks: the weights and the measured numbers of one process."""

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close
from training.distributed.ranks import said, spawn

from chainrule import run

METHODS = ("dpo", "kto")
SETTINGS = (
    "train.pairs=5", "train.steps=4", "train.evaluate=2", "train.optimizer=sgd", "train.lr=0.3",
    "train.precision=float32",
)                                                          # 5 rows, which two ranks do not share evenly


def job(bases, method, out):
    words = ["train", str(bases / "pairs.jsonl"), "--valid", str(bases / "held.jsonl"), "--task", "preference",
             "--from", str(bases / "gpt"), "--out", out, f"train.method={method}", *SETTINGS]
    return {"words": words, "stop": [None, 0, 0]}


@pytest.fixture(scope="module")
def made(bases, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    spawn({f"by-{size}": (size, [job(bases, method, f"{method}-{size}") for method in METHODS]) for size in (2, 0)},
          folder)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_end_where_one_process_ends(made, method):
    two, one = (load_file(made / f"{method}-{size}" / run.MODEL) for size in (2, 0))
    for name, weight in one.items():
        assert_close(two[name], weight, atol=1e-5, rtol=1e-4)
    for event in ("step", "evaluation"):
        logs = [[record for record in run.read_log(made / f"{method}-{size}") if record["event"] == event]
                for size in (2, 0)]
        assert len(logs[0]) == len(logs[1]) > 1
        for first, second in zip(*logs):
            numbers = [name for name in second if "/" in name or name in ("loss", "kl")]
            assert {name: first[name] for name in numbers} == pytest.approx(
                {name: second[name] for name in numbers}, abs=1e-3)
    assert "Traceback" not in said(made, "by-2")
