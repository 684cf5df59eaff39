"""Reinforcement learning through the one trainer: it finds the best answer, resumes to the last bit, and refuses.

The base writes random letters; the reward asks for one of them.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import chainrule
from chainrule import cli, files, run
from chainrule.errors import UserError
from chainrule.preferences.reinforce import rollout_order
from chainrule.preferences.reinforce.training import ReinforceTraining
from chainrule.training.trainer import Trainer

KINDS = {
    "feedforward": {"model.order": 3, "model.embedding": 8, "model.hidden": 16, "model.dropout": 0.0, "train.lr": 0.03},
    "gpt": {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 16, "train.lr": 0.01},
    "lstm": {"model.hidden": 12, "model.layers": 1, "train.lr": 0.03},
}
QUICK = {
    "train.prompts": 2, "train.generations": 4, "train.answer_tokens": 4, "train.steps": 6, "train.lr": 0.01,
    "text.held_out": 0.25, "train.evaluate": 3,
}


class Killed(BaseException):
    """As little is tidied up after this as after SIGKILL."""


def share_of_b(prompts: list[str], answers: list[str]) -> list[float]:
    return [answer[:2].count("b") / 2 for answer in answers]


def is_b(prompts: list[str], answers: list[str]) -> list[float]:
    return [float(answer == "b") for answer in answers]


def not_a_number(prompts: list[str], answers: list[str]) -> list[float]:
    return [float("nan")] * len(answers)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(files, "sync", lambda path: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reinforce")
    letters = np.random.default_rng(1).choice(list("abc\n"), 4000)
    (path / "text.txt").write_text("".join(letters).strip() + "\n")
    (path / "prompts.txt").write_text("ab\nc\nbca\naa\n" * 2)
    (path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in ("ab", "c", "bca", "aa")))
    return path


@pytest.fixture(scope="module")
def bases(folder: Path) -> dict[str, Path]:
    made = {}
    for kind, settings in KINDS.items():
        made[kind] = chainrule.train(
            folder / "text.txt", kind=kind, out=folder / kind, device="cpu",
            settings={"text.tokenizer": "characters", "train.steps": 25, "train.tokens": 512, **settings},
        ).path
    return made


def tune(base: Path, file: Path, out: Path, reward: Any = share_of_b, **given: Any) -> Any:
    settings = {**QUICK, "train.reward": f"python:{__name__}.{reward.__name__}",
                **{f"train.{name}": value for name, value in given.items()}}
    if "minutes" in given or "epochs" in given:
        settings.pop("train.steps")
    return chainrule.train(file, task="reinforce", base=base, out=out, device="cpu", settings=settings)


@pytest.mark.parametrize("method", ["reinforce", "rloo", "ppo", "grpo"])
def test_a_policy_learns_the_answer_that_is_rewarded(
    method: str, folder: Path, bases: dict[str, Path], tmp_path: Path
) -> None:
    made = tune(bases["feedforward"], folder / "prompts.txt", tmp_path / "tuned", method=method, steps=60, lr=0.02,
                prompts=4, generations=8, answer_tokens=2, kl=0.0, evaluate=0)
    assert made.result["reward"] > 0.9
    steps = [record for record in run.read_log(made.path) if record["event"] == "step"]
    assert steps[0]["reward"] < 0.6 < 0.85 < steps[-1]["reward"]
    assert steps[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert steps[-1]["kl"] > 0.5
    assert steps[-1]["entropy"] < steps[0]["entropy"]
    assert ("value_loss" in steps[-1]) == (method == "ppo")
    assert made.generate("ab", 2, seed=3)[:2].count("b") >= 1         # it is a language model as any other


def test_a_kl_penalty_keeps_the_policy_near_the_reference(
    folder: Path, bases: dict[str, Path], tmp_path: Path
) -> None:
    free, held = (
        tune(bases["feedforward"], folder / "prompts.txt", tmp_path / f"kl{kl}", method="grpo", kl=kl, steps=14,
             lr=0.02, prompts=4, generations=8, kl_estimator=estimator, evaluate=0).result
        for kl, estimator in ((0.0, None), (2.0, "k3"))
    )
    assert held["kl"] < 0.5 * free["kl"]
    in_reward = tune(bases["feedforward"], folder / "prompts.txt", tmp_path / "k1", method="grpo", kl=2.0, steps=14,
                     lr=0.02, prompts=4, generations=8, kl_estimator="k1", evaluate=0).result
    assert in_reward["kl"] < 0.5 * free["kl"]


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_networks_of_other_kinds_are_tuned(
    kind: str, method: str, folder: Path, bases: dict[str, Path], tmp_path: Path
) -> None:
    made = tune(bases[kind], folder / "prompts.jsonl", tmp_path / "tuned", method=method, steps=4)
    assert {"reward", "kl", "reward_interval", "kl_interval"} <= made.result.keys()
    evaluations = [record for record in run.read_log(made.path) if record["event"] == "evaluation"]
    assert {"reward", "kl", "entropy", "completions/mean_length"} <= evaluations[0].keys()
    weights = load_file(made.path / "model.safetensors")
    assert weights.keys() == load_file(bases[kind] / "model.safetensors").keys()       # no value head is saved


def test_lora_is_tuned(folder: Path, bases: dict[str, Path], tmp_path: Path) -> None:
    made = tune(bases["gpt"], folder / "prompts.jsonl", tmp_path / "tuned", method="grpo", lora=2, steps=3)
    assert (made.path / "adapter.safetensors").exists()
    assert made.recipe.train.lr == 0.01


# Resuming


def facts(path: Path) -> list[dict[str, Any]]:
    clock = ("time", "elapsed", "tokens_per_second", "seconds")
    return [{name: value for name, value in record.items() if name not in clock}
            for record in run.read_log(path) if record["event"] in ("step", "evaluation")]


@pytest.mark.parametrize(("method", "kind", "inner"), [
    ("ppo", "gpt", {"inner_epochs": 2, "mini_batches": 2}),
    ("grpo", "lstm", {"inner_epochs": 2, "mini_batches": 2}),
    ("reinforce", "feedforward", {}),
])
def test_killed_with_a_rollout_in_flight_it_ends_where_it_would_have(
    method: str, kind: str, inner: dict[str, int], folder: Path, bases: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"method": method, "steps": 10, "checkpoint": 0, **inner}
    whole = tune(bases[kind], folder / "prompts.txt", tmp_path / "whole", **settings)
    step, drawn = Trainer.one_step, []

    def dies(trainer: Trainer) -> None:
        if trainer.number == 6:                                         # between two inner steps of the second rollout
            raise Killed
        step(trainer)

    monkeypatch.setattr(Trainer, "one_step", dies)
    with pytest.raises(Killed):
        tune(bases[kind], folder / "prompts.txt", tmp_path / "again", **settings)
    draw = rollout_order.RolloutOrder.draw

    def noted(order: Any, number: int) -> Any:
        drawn.append(number)
        return draw(order, number)

    monkeypatch.setattr(Trainer, "one_step", step)
    monkeypatch.setattr(rollout_order.RolloutOrder, "draw", noted)
    again = tune(bases[kind], folder / "prompts.txt", tmp_path / "again", **settings)
    one, other = (load_file(made.path / "model.safetensors") for made in (whole, again))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert facts(whole.path) == facts(again.path)
    assert drawn == ([2] if inner else [6, 7, 8, 9])                    # the rollout in flight came from the checkpoint


def test_a_seed_repeats_training_and_another_differs(folder: Path, bases: dict[str, Path], tmp_path: Path) -> None:
    runs = [tune(bases["feedforward"], folder / "prompts.txt", tmp_path / str(number), seed=seed, steps=2)
            for number, seed in enumerate((1, 1, 2))]
    first, same, other = (load_file(made.path / "model.safetensors") for made in runs)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


# The batches


def test_each_setting_that_is_left_out_has_the_value_of_its_method() -> None:
    grpo, dr_grpo, ppo = (ReinforceTraining(**given) for given in ({}, {"loss_type": "dr_grpo"}, {"method": "ppo"}))
    assert (grpo.kl_weight, grpo.estimator, grpo.kl_in_reward, grpo.scale, grpo.epochs_per_rollout) == (
        0, "k3", False, "group", 1)
    assert (dr_grpo.scale, ReinforceTraining(scale_rewards="off").scale) == ("none", "none")
    assert (ppo.kl_weight, ppo.estimator, ppo.kl_in_reward, ppo.epochs_per_rollout) == (0.05, "k1", True, 4)
    assert ReinforceTraining(kl_estimator="k1").kl_in_reward
    assert (grpo.lr, ReinforceTraining(lora=4).lr, ReinforceTraining(lr=0.1).lr) == (1e-6, 1e-4, 0.1)


def order_of(**given: Any) -> Any:
    settings = ReinforceTraining(method="ppo", prompts=3, generations=2, **given)
    policy: Any = torch.nn.Linear(1, 1)
    policy.settings, policy.environment = settings, None
    return rollout_order.RolloutOrder(policy, [np.array([1])] * 7, ["a"] * 7)


def test_each_prompt_is_answered_once_an_epoch_in_another_order() -> None:
    order = order_of()
    visited = [id for number in range(14) for id in order.prompts_of(number)]
    epochs = [visited[first : first + 7] for first in range(0, 42, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_mini_batches_share_a_rollout_and_each_inner_epoch_shuffles_it() -> None:
    order = order_of(inner_epochs=2, mini_batches=4)
    assert (order.inner_steps, order.answers, order.rows, order.epoch) == (8, 6, 2, pytest.approx(7 / 3 * 8))
    first, second = ([order._rows(0, inner) for inner in range(begin, begin + 4)] for begin in (0, 4))
    for epoch in (first, second):
        assert sorted(np.concatenate(epoch).tolist()) == list(range(6))
    assert [part.tolist() for part in first] != [part.tolist() for part in second]


# References and rewards that count; refusals


def test_an_ngram_is_reference_and_reward(folder: Path, bases: dict[str, Path], tmp_path: Path) -> None:
    ngram = chainrule.train(folder / "text.txt", kind="ngram", out=tmp_path / "ngram", device="cpu",
                            settings={"text.tokenizer": str(bases["gpt"] / "tokenizer.json"), "model.order": 2})
    settings = {**QUICK, "train.reward": str(ngram.path), "train.reference": str(ngram.path), "train.steps": 2}
    made = chainrule.train(folder / "prompts.txt", task="reinforce", base=bases["gpt"], out=tmp_path / "tuned",
                           device="cpu", settings=settings)
    assert made.result["reward"] < 0
    assert made.result["kl"] != 0


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main([*map(str, words), "--device", "cpu"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    return said.removeprefix("chainrule: ")


REWARD = ("--reward", f"python:{__name__}.is_b")


def test_what_cannot_be_done_is_said_in_one_line(
    folder: Path, bases: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, base = folder / "prompts.txt", bases["gpt"]
    train, out = ("train", prompts, "--task", "reinforce"), ("--out", tmp_path / "out")
    assert "--from RUN says which" in refused(capsys, *train, *REWARD, *out)
    assert "needs a reward: --reward RUN" in refused(capsys, *train, "--from", base, *out)
    long = tmp_path / "long.txt"
    long.write_text("a\n" + "ab" * 20 + "\n")
    said = refused(capsys, "train", long, "--task", "reinforce", "--from", base, *REWARD, *out)
    assert "long.txt line 1: the prompt has 2 tokens" in said
    assert "lower train.answer_tokens" in said
    few = ("train.answer_tokens=8",)
    said = refused(capsys, "train", long, "--task", "reinforce", "--from", base, *REWARD, *out, *few)
    assert "long.txt line 2: the prompt has 41 tokens" in said
    for settings, says in (
        (["train.method=grpo", "train.generations=1"], "needs 2 or more"),
        (["train.method=reinforce", "train.inner_epochs=2"], "a rollout serves one step"),
        (["train.method=ppo", "train.kl_estimator=k3"], "is for grpo, in its loss"),
        (["train.mini_batches=1000"], "more than the answers of a rollout"),
        (["train.tokens=64"], "are for running text"),
    ):
        assert says in refused(capsys, *train, "--from", base, *REWARD, *out, *few, *settings)
    said = refused(capsys, "train", folder / "text.txt", "--kind", "gpt", *REWARD, *out)
    assert "is for --task reinforce; --task lm has none" in said
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"text": "a"}\n')
    assert "a prompt is" in refused(capsys, "train", empty, "--task", "reinforce", "--from", base, *REWARD, *out, *few)


def test_a_kind_that_counts_is_not_tuned(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = chainrule.train(folder / "text.txt", kind="ngram", out=tmp_path / "ngram", device="cpu",
                           settings={"text.tokenizer": "characters", "model.order": 2}).path
    said = refused(capsys, "train", folder / "prompts.txt", "--task", "reinforce", "--from", base, *REWARD)
    assert "it learns by counting" in said


def test_a_reward_that_is_not_finite_ends_training_in_one_line(
    folder: Path, bases: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"is nan for the answer .* to the prompt '.*'; a reward is a finite number"):
        tune(bases["feedforward"], folder / "prompts.txt", tmp_path / "out", not_a_number)


def test_rewards_are_clipped(folder: Path, bases: dict[str, Path], tmp_path: Path) -> None:
    made = tune(bases["feedforward"], folder / "prompts.txt", tmp_path / "out", share_of_b, reward_clip=0.25, steps=2)
    assert made.result["reward"] <= 0.25


def test_chats_are_answered_by_the_template_and_the_run_keeps_it(
    folder: Path, bases: dict[str, Path], tmp_path: Path
) -> None:
    chats = tmp_path / "chats.jsonl"
    record = {"prompt": [{"role": "user", "content": "b"}]}
    chats.write_text((json.dumps(record) + "\n") * 4)
    made = tune(bases["lstm"], chats, tmp_path / "out", steps=2)
    assert made.chat_template is not None
    assert "message" in made.chat_template


def test_eval_measures_reward_and_kl_of_prompts_and_bits_of_a_text(
    folder: Path, bases: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tune(bases["feedforward"], folder / "prompts.txt", tmp_path / "out", steps=2)
    assert cli.main(["eval", str(made.path), str(folder / "prompts.jsonl"), "--json", "--device", "cpu"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {"reward", "kl", "reward_interval", "kl_interval"} <= facts.keys()
    assert cli.main(["eval", str(made.path), str(folder / "text.txt"), "--json", "--device", "cpu"]) == 0
    assert "bits_per_byte" in json.loads(capsys.readouterr().out)
