"""Reward models: they learn what was preferred, rate texts, and read each answer to its end."""

import numpy as np
import pytest
import torch
from preferences.animals import pairs, write_lines

from chainrule import run
from chainrule.errors import UserError
from chainrule.preferences.reward import RewardModel, score_answers


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_a_toy_preference_is_learned(tune, bases, kind):
    path = tune(task="reward", base=kind, train_steps=20, train_lr=1e-2)
    made = run.load(path)
    result = made.evaluate(bases / "held.jsonl")
    assert result["accuracy"] == 1
    assert result["accuracy_interval"] == [1, 1]
    fast, slow = (prediction["reward"] for prediction in made.predict(["a fox runs fast", "a fox runs slow"]))
    assert fast > slow
    assert score_answers(made, ["a fox runs"] * 2, [" fast", " slow"]) == pytest.approx([fast, slow], abs=1e-5)
    assert [record for record in run.read_log(path) if record["event"] == "step"][-1]["rewards/accuracies"] > 0.5


def test_the_reward_is_that_of_the_last_token_whatever_the_padding(tune):
    made = run.load(tune(task="reward", train_steps=2))
    text = "a cat runs fast"
    alone = score_answers(made, [""], [text])
    beside = score_answers(made, ["", ""], [text, text + " and"])
    assert beside[0] == pytest.approx(alone[0], abs=1e-5)
    model = made.model
    assert isinstance(model, RewardModel)
    row = torch.tensor([[0, *made.tokenizer.encode(text).tolist(), 0]])
    with torch.no_grad():
        by_hand = model.body.encode(row)[0, -1] @ model.output.weight[0]
    assert alone[0] == pytest.approx(float(by_hand), abs=1e-5)


def test_a_margin_must_be_exceeded_and_centring_keeps_rewards_near_zero(tune, bases):
    write_lines(bases / "margins.jsonl", [pair | {"margin": 1.0} for pair in pairs(24)])
    plain, wide = (tune(f"run{number}", task="reward", text=text, train_steps=1, train_lr=1e-9)
                   for number, text in enumerate(("pairs.jsonl", "margins.jsonl")))
    losses = [run.read_log(path) for path in (plain, wide)]
    first = [next(record["loss"] for record in log if record["event"] == "step") for log in losses]
    margins = next(record["rewards/margins"] for record in losses[0] if record["event"] == "step")
    assert first[0] == pytest.approx(np.log(2), abs=abs(margins) + 1e-3)
    assert first[1] == pytest.approx(np.log1p(np.exp(1)), abs=abs(margins) + 1e-3)
    tuned = run.load(tune("centred", task="reward", train_center=1.0, train_steps=20, train_lr=1e-2))
    result = tuned.evaluate(bases / "held.jsonl")
    assert abs(result["rewards/chosen"] + result["rewards/rejected"]) < 0.5


def test_an_answer_without_tokens_has_the_reward_of_its_prompt(tune):
    made = run.load(tune(task="reward", train_steps=1, text_end="false"))
    empty, = score_answers(made, ["a cat"], [""])
    whole, = score_answers(made, [""], ["a cat"])
    assert empty == pytest.approx(whole, abs=1e-6)


def test_json_lines_are_rated(tune, tmp_path):
    made = run.load(tune(task="reward", train_steps=1))
    records = [{"prompt": "a cat runs", "completion": " fast"}, {"text": "a cat runs fast"}]
    first, second = made.predict(write_lines(tmp_path / "a.jsonl", records))
    assert first["reward"] == pytest.approx(second["reward"], abs=1e-6)
    with pytest.raises(UserError, match="a reward is given to"):
        made.predict(write_lines(tmp_path / "b.jsonl", [{"prompt": "x"}]))


def test_a_reward_run_continues_no_text(tune):
    made = run.load(tune(task="reward", train_steps=1))
    with pytest.raises(UserError, match="was trained for --task reward"):
        made.generate("a")


def test_lora_and_a_head_are_saved_together(tune, bases):
    path = tune(task="reward", train_steps=3, train_lora=2)
    assert run.load(path).evaluate(bases / "held.jsonl")["examples"] == 8
