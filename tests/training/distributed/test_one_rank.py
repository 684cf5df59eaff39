"""What ranks do that can be seen from within one process: shares that add up, a rank alone under torchrun, bad use."""

import copy
import json
import math
import os
import sys
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from contract.kernels_in_torch import stand_in
from contract.moved import moved
from safetensors.torch import load_file
from torch.testing import assert_close
from training import small
from training.distributed.ranks import free_port
from training.small import assert_same_bits, split, walk

from chainrule import files, kernels, models
from chainrule.errors import UserError
from chainrule.inference.score import stream_pieces
from chainrule.model import IGNORE
from chainrule.models.hmm.hmm import HMM, HMMSettings
from chainrule.models.ngram.counts import NGramCounts, count_ngrams, merge_counts
from chainrule.progress import say, speaks
from chainrule.recipe import Gradient, make_recipe
from chainrule.tasks.lm import LM
from chainrule.text.batches import Streams, Windows, stream, texts
from chainrule.training import distributed
from chainrule.training.distributed import Ranks, add_statistics, join_ranks, make_buckets
from chainrule.training.fsdp import is_sharded, local, shard
from chainrule.training.loader import TokenLoader, make_loader
from chainrule.training.pipeline import make_run
from chainrule.training.step import Step

CPU = torch.device("cpu")
TOKENS = walk(601)


class Killed(BaseException):
    """As little is tidied up after this as after SIGKILL."""


# Shares


@pytest.mark.parametrize("order", [Windows(TOKENS, 5, 16, 1), Streams(TOKENS, 5, 16)], ids=["windows", "streams"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_the_shares_of_all_ranks_are_the_step(order, size):
    whole = TokenLoader(order, CPU).batch(3)
    shares = [TokenLoader(order, CPU, ranks=Ranks(rank, size)).batch(3) for rank in range(size)]
    assert len({share.tokens.shape for share in shares}) == 1
    tokens, targets = (torch.cat([getattr(share, name) for share in shares]) for name in ("tokens", "targets"))
    counted = torch.cat([share.loss_mask for share in shares])
    assert counted.sum() == whole.targets.numel()
    assert torch.equal(tokens[counted], whole.tokens.flatten())
    assert torch.equal(targets[counted], whole.targets.flatten())
    assert (targets[~counted] == IGNORE).all()


class Windowed(small.Net):
    context = 16


@pytest.mark.parametrize("parts", [1, 2, 3, 50])
def test_the_parts_of_an_evaluation_are_the_evaluation(parts):
    torch.manual_seed(1)
    model = Windowed()
    whole = np.concatenate(list(stream_pieces(model, TOKENS)))
    shared = [list(stream_pieces(model, TOKENS, part=part, parts=parts)) for part in range(parts)]
    assert len(set(map(len, shared))) == 1
    np.testing.assert_allclose(np.concatenate([piece for pieces in shared for piece in pieces]), whole, atol=1e-5)


def test_each_rank_has_its_own_seed_and_the_first_the_given_one():
    seeds = [Ranks(rank, 4).seed(seed) for seed in (1, 2) for rank in range(4)]
    assert len(set(seeds)) == 8
    assert (seeds[0], seeds[4]) == (1, 2)


def test_buckets_hold_what_is_alike_and_not_too_much(monkeypatch):
    monkeypatch.setattr(distributed, "BUCKET", 4)
    some = [torch.zeros(2, dtype=torch.float64), *(torch.zeros(size) for size in (3, 2, 2, 9, 1))]
    assert [[len(tensor) for tensor in bucket] for bucket in make_buckets(some)] == [[2], [3], [2, 2], [9], [1]]


# Statistics


@pytest.fixture
def post(monkeypatch):
    """What is sent to the first rank waits to be received."""
    sent = SimpleQueue()
    monkeypatch.setattr(dist, "send", lambda tensor, to: sent.put(tensor.clone()))
    monkeypatch.setattr(dist, "recv", lambda tensor, rank: tensor.copy_(sent.get_nowait()))


def counted(tokens, order=3, memory=1 << 28):
    parts = [count_ngrams(batch, order, small.VOCAB, memory) for batch in stream(tokens, 60, order - 1)]
    return sum(parts[1:], parts[0])


@pytest.mark.parametrize("memory", [1, 1 << 28], ids=["spilled", "held"])
@pytest.mark.parametrize("order", [1, 3])
def test_counts_add_over_ranks(post, memory, order):
    here, there = counted(TOKENS[:301], order, memory), counted(TOKENS[300:], order, memory)
    assert add_statistics(Ranks(1, 2, distributed=True), there) is None
    added, alone = merge_counts(add_statistics(Ranks(0, 2, distributed=True), here)), merge_counts(here + there)
    assert isinstance(here, NGramCounts)
    for one, other in zip(added, alone, strict=True):
        assert one.counts.tolist() == other.counts.tolist()
        assert one.words.tolist() == other.words.tolist()


def test_expected_counts_add_over_ranks_and_a_rank_may_have_none(post):
    model = HMM(HMMSettings(states=3), small.VOCAB)
    model.forget(torch.Generator().manual_seed(1))
    here, there = (model.collect(batch) for batch in texts(TOKENS, 300, 300))
    add_statistics(Ranks(1, 3, distributed=True), there)
    add_statistics(Ranks(2, 3, distributed=True), None)
    added, alone = add_statistics(Ranks(0, 3, distributed=True), here), here + there
    assert added.nats == alone.nats
    for name in ("initial", "transitions", "emissions"):
        assert torch.equal(getattr(added, name), getattr(alone, name))


def test_statistics_that_cannot_be_sent_are_refused():
    with pytest.raises(UserError, match="Start it without torchrun"):
        add_statistics(Ranks(0, 2, distributed=True), object())


# One rank that torchrun has started


@pytest.fixture
def torchrun(monkeypatch):
    """From here on this process is the only rank."""
    known = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "GROUP_WORLD_SIZE": 1}
    known |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    known |= {"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_RESTART_COUNT": 0}
    for name, value in known.items():
        monkeypatch.setenv(name, str(value))
    distributed._rendezvous.cache_clear()
    yield
    distributed._leave()
    distributed._leave()                                      # twice, as where a user has left before the end
    distributed._rendezvous.cache_clear()


@pytest.fixture
def make(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "chainrule.models.small", small)
    monkeypatch.setattr(models, "KINDS", {**models.KINDS, "small": models.Kind("small:Net", "for tests")})
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "sync", lambda path: None)
    (tmp_path / "book.txt").write_text("the cat saw the dog, and the dog ran. the cow saw the cat.\n" * 12)
    settings = {
        "text.tokenizer": "bytes", "model.width": 4, "model.dropout": 0.1, "train.steps": 14, "train.tokens": 80,
        "train.length": 16, "train.evaluate": 7, "train.checkpoint": 0, "train.batching": "streams",
        "train.precision": "float32",
    }

    def call(name, **given):
        dotted = settings | {key.replace("_", ".", 1): value for key, value in given.items()}
        recipe = make_recipe("small", models.model_class("small"), dotted)
        return make_run([str(tmp_path / "book.txt")], recipe, tmp_path / name)

    return call


def weights(path):
    return load_file(path / "model.safetensors")


def kill_after(monkeypatch, steps, make, *words, **more):
    take, calls = Step.take, iter(range(1, 1000))

    def mortal(*words):
        if next(calls) > steps:
            raise Killed
        return take(*words)

    with monkeypatch.context() as patched:
        patched.setattr(Step, "take", mortal)
        with pytest.raises(Killed):
            make(*words, **more)


def test_one_rank_learns_what_a_process_learns(make, tmp_path, request):
    make("process")
    request.getfixturevalue("torchrun")
    assert make("rank").finished
    assert_same_bits(weights(tmp_path / "process"), weights(tmp_path / "rank"))


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_a_sharded_run_killed_goes_on_and_learns_what_a_process_learns(make, tmp_path, monkeypatch, request, optimizer):
    make("process", train_optimizer=optimizer)
    request.getfixturevalue("torchrun")
    kill_after(monkeypatch, 9, make, "shards", train_optimizer=optimizer, train_shard=True)
    assert make("shards", train_optimizer=optimizer, train_shard=True).finished
    for name, tensor in weights(tmp_path / "process").items():
        assert_close(weights(tmp_path / "shards")[name], tensor, rtol=0, atol=1e-6)


def test_layers_are_shards_of_their_own_whatever_is_called(torchrun):
    settings = models.model_class("gpt").Settings(layers=2, width=8, heads=2, context=16)
    torch.manual_seed(1)
    plain = models.build("gpt", settings, small.VOCAB)
    rows = TokenLoader(Windows(TOKENS, 5, 16, 1), CPU).batch(0)
    with join_ranks("cpu") as ranks:
        sharded = shard(copy.deepcopy(plain), ranks.device)
    assert all(is_sharded(weight) for weight in sharded.parameters())
    assert all(is_sharded(weight) for weight in sharded.stack.blocks[1].parameters())
    scores = np.concatenate(list(stream_pieces(sharded, TOKENS)))
    np.testing.assert_allclose(scores, np.concatenate(list(stream_pieces(plain, TOKENS))), atol=1e-5)
    for model in (plain, sharded):
        model.loss(rows)[0].backward()
    for one, other in zip(plain.parameters(), sharded.parameters(), strict=True):
        assert_close(local(other.grad), one.grad)


def test_fused_kernels_work_in_shards_too(torchrun, monkeypatch):
    stand_in(monkeypatch)
    like_gpt2 = {"norm": "layer", "norm_scale": True, "biases": True, "activation": "gelu-tanh"}
    settings = models.model_class("gpt").Settings(layers=3, width=8, heads=2, context=16, **like_gpt2)
    torch.manual_seed(1)
    plain = models.build("gpt", settings, small.VOCAB)
    moved(plain, 0.1)
    rows = TokenLoader(Windows(TOKENS, 5, 16, 1), CPU).batch(0)
    with join_ranks("cpu") as ranks:
        sharded = shard(copy.deepcopy(plain), ranks.device)
    for model, together in ((plain, False), (sharded, True)):
        with kernels.in_training(together):
            nats, _, _ = model.loss(rows)
        nats.backward()
    for one, other in zip(plain.parameters(), sharded.parameters(), strict=True):
        assert_close(local(other.grad), one.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("damage", ["flip", "cut", "seal", "no seal", "facts", "one file less"])
def test_a_damaged_checkpoint_of_shards_is_passed_over(make, tmp_path, monkeypatch, torchrun, capsys, damage):
    kill_after(monkeypatch, 4, make, "shards", train_shard=True)
    newest = tmp_path / "shards" / "checkpoints" / "000000004"
    (shard,) = newest.glob("*.safetensors")
    content = bytearray(shard.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
        shard.write_bytes(content)
    elif damage == "cut":
        shard.write_bytes(content[:-1])
    elif damage == "one file less":
        shard.unlink()
    elif damage == "no seal":
        (newest / "seal.json").unlink()
    else:
        (newest / f"{damage}.json").write_text("{}")
    (tmp_path / "shards" / "checkpoints" / ".000000005.aside").mkdir()    # what a kill would leave
    capsys.readouterr()
    kill_after(monkeypatch, 0, make, "shards", train_shard=True)
    err = capsys.readouterr().err
    assert "000000004 is damaged" in err
    assert "going on from step 3" in err
    assert not list((tmp_path / "shards" / "checkpoints").glob(".*"))


def test_what_a_signal_asks_is_heard_by_counting_ranks_too(torchrun, tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("the cat saw the dog, and the dog ran.\n" * 12)
    collect, calls = HMM.collect, iter(range(1, 100))

    def stopping(*words):
        if next(calls) == 3:
            os.kill(os.getpid(), 15)
        return collect(*words)

    monkeypatch.setattr(HMM, "collect", stopping)
    recipe = make_recipe("hmm", HMM, {**HMM.recipe, "model.states": 2, "train.steps": 5})
    made = make_run([str(tmp_path / "book.txt")], recipe, tmp_path / "hmm")
    assert made.interrupted
    assert json.loads((tmp_path / "hmm" / "recipe.json").read_text())["done"]["rounds"] == 2
    assert make_run([str(tmp_path / "book.txt")], recipe, tmp_path / "hmm").finished


# Bad use


def test_shards_need_torchrun(make):
    with pytest.raises(UserError, match="torchrun --nproc-per-node N -m chainrule train"):
        make("shards", train_shard=True)


def test_shards_and_graphs_exclude_each_other():
    with pytest.raises(UserError, match=r"leave out train.shard=true"):
        Gradient(shard=True, graph="true")


def test_more_ranks_than_rows_are_refused():
    model, corpus = SimpleNamespace(context=None), SimpleNamespace(splits={"train": split(TOKENS)})
    with pytest.raises(UserError, match=r"6 ranks share the 5 rows .* raise train.tokens to 48 or more"):
        make_loader(LM, model, corpus, Gradient(tokens=40, length=8), CPU, Ranks(0, 6))


def test_more_ranks_than_gpus_are_refused(torchrun, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=r"4 ranks on a machine with 2 GPUs\. .*--nproc-per-node 2"), join_ranks("cuda"):
        pass


def test_each_rank_has_its_own_gpu(torchrun, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(dist, "init_process_group", lambda how, **more: chosen.append(how))
    with join_ranks("auto") as ranks:
        assert ranks.device == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 1), "cpu:gloo,cuda:nccl"]


def test_shards_that_find_no_memory_say_what_would_fit(make, torchrun, monkeypatch):
    def full(*words):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Step, "accumulate", full)
    with pytest.raises(UserError, match=r"with a micro-batch of 5 rows.* train.micro_batch=2, or start more ranks"):
        make("shards", train_shard=True)


def test_one_rank_complains_and_says_which_it_is(torchrun, monkeypatch, capsys):
    with pytest.raises(UserError), join_ranks("cpu"):
        raise UserError("no.")
    with pytest.raises(SystemExit), join_ranks("cpu"):           # it has been said
        raise UserError("no.")
    store, _, size = distributed._rendezvous()
    store.set("complaints", "0")
    with monkeypatch.context() as patched:
        patched.setattr(distributed, "_rendezvous", lambda: (store, 3, size))
        with pytest.raises(UserError, match="another rank died"), join_ranks("cpu"):
            raise RuntimeError("gloo: Connection closed by peer")
    assert capsys.readouterr().err.startswith("chainrule: rank 3: another rank died, so all stop.")
    with pytest.raises(RuntimeError, match="a bug"), join_ranks("cpu"):
        raise RuntimeError("a bug")


def test_all_but_the_first_rank_are_silent(torchrun, monkeypatch, capsys):
    say("one")
    monkeypatch.setenv("RANK", "2")
    say("two")
    assert not speaks()
    assert capsys.readouterr().err == "one\n"


def test_ranks_agree_on_a_number_that_is_not_finite_too(torchrun):
    with join_ranks("cpu") as ranks:
        (nan, inf), asked = ranks.agree([math.nan, math.inf], True)
    assert math.isnan(nan)
    assert inf == math.inf
    assert asked
