"""Experts through the whole of training: log, resuming to the last bit, adapters, plan, export; and wrong settings."""

import json

import pytest
import torch
from safetensors.torch import load_file

from chainrule import files, run
from chainrule.cli import main
from chainrule.layers.experts import Experts
from chainrule.training.step import Step

BOOK = "the cat saw the dog, and the dog ran. the cow saw the cat; nobody ran.\n" * 12
GPT = ("--kind", "gpt", "model.layers=2", "model.width=16", "model.heads=2", "model.context=16")
EXPERTS = (*GPT, "model.experts=4", "text.tokenizer=bytes")
SHORT = ("train.steps=12", "train.tokens=64", "train.lr=0.02", "train.evaluate=5")


class Killed(BaseException):
    """As little is tidied up after this as after SIGKILL."""


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    monkeypatch.setattr(files, "sync", lambda path: None)
    (tmp_path / "book.txt").write_text(BOOK)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)                               # so that sums are the same every time
    yield
    torch.set_num_threads(threads)


def train(out, *words):
    assert main(["train", "book.txt", *EXPERTS, *SHORT, *words, "--out", out]) == 0


def records(out, event):
    keep = ("step", "nats_per_token", "load_balancing_loss", "router_z_loss", "expert_shares")
    return [{name: one.get(name) for name in keep} for one in run.read_log(out) if one["event"] == event]


def test_a_run_killed_and_begun_again_ends_where_it_would_have_ended(tmp_path, monkeypatch, capsys):
    train("whole")
    calls, take = iter(range(1, 100)), Step.take

    def mortal(*words):
        if next(calls) == 8:
            raise Killed
        return take(*words)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "take", mortal)
        with pytest.raises(Killed):
            train("killed", "train.checkpoint=0")
    train("killed", "train.checkpoint=0")
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    assert "experts: load-balancing loss" in capsys.readouterr().err
    steps = records(tmp_path / "whole", "step")
    assert steps == records(tmp_path / "killed", "step")
    assert all(2 <= one["load_balancing_loss"] < 4 and one["router_z_loss"] > 0 for one in steps)
    assert [len(layer) for layer in steps[0]["expert_shares"]] == [4, 4]


def test_adapters_are_trained_on_experts_and_merged_to_the_last_bit(tmp_path):
    train("base")
    words = ["--from", "base", "train.lora=2", "text.tokenizer=bytes", *SHORT]
    assert main(["train", "book.txt", *words, "--out", "tuned"]) == 0
    adapter = load_file(tmp_path / "tuned" / "adapter.safetensors")
    assert adapter["stack.blocks.0.feed_forward.up.weight/up"].shape == (4, 32, 2)
    assert main(["export", "tuned", "merged", "--to", "merged"]) == 0
    tuned, merged, base = (run.load(name).model.state_dict() for name in ("tuned", "merged", "base"))
    assert all(torch.equal(tuned[name], merged[name]) for name in tuned)
    name = "stack.blocks.0.feed_forward.up.weight"
    changed = (tuned[name] - base[name]).flatten(1).abs().amax(1)
    assert (changed > 0).all()                             # of every expert
    assert all(torch.linalg.matrix_rank(part) <= 2 for part in tuned[name] - base[name])


def test_a_plan_knows_the_active_parameters(capsys):
    assert main(["plan", *GPT[1:], "model.experts=8", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    idle = 2 * 6 * (2 * 16 * 32)                           # layers, idle experts, matrices of 16 x 32
    assert plan["parameters"] - plan["active"] == idle
    assert main(["plan", *GPT[1:], "model.experts=8"]) == 0
    assert "active for a token" in capsys.readouterr().out


def test_a_run_with_experts_is_sampled_and_exported(tmp_path, capsys):
    llama = ("model.activation=swiglu", "model.norm_scale=true", "model.qk_norm=false", "model.norm_embedding=false")
    train("mixture", *llama)
    assert main(["sample", "mixture", "--prompt", "the ", "--tokens", "9", "--seed", "1"]) == 0
    capsys.readouterr()
    assert main(["export", "mixture", "folder", "--to", "huggingface", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["what"].startswith("MixtralForCausalLM")
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["num_local_experts"] == 4
    assert isinstance(run.load("mixture").model.stack.blocks[0].feed_forward, Experts)


@pytest.mark.parametrize(("words", "line"), [
    (["--kind", "gpt", "model.experts=4", "model.active=5"], "model.active=5: there are only model.experts=4"),
    (["--kind", "gpt", "model.experts=4", "model.active=0"], "model.active=0: it must be 1 or more"),
    (["--kind", "lstm", "model.experts=4"], "model.experts"),
    (["--kind", "gpt", "model.active=2"], "Set model.experts too"),
    (["--kind", "gpt", "model.experts=-1"], "model.experts=-1: it must be from 0"),
])  # fmt: skip
def test_wrong_settings_are_one_line(words, line, capsys):
    assert main(["train", "book.txt", *words]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert line in said
