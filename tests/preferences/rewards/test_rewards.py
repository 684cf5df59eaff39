"""Rewards by a function, a classifier and language models; every bad one is refused in one line."""

import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainrule
from chainrule.errors import UserError
from chainrule.preferences.records import Message
from chainrule.preferences.reinforce.rewards import load_reward, mean_log_probs

GOOD = "good fine nice\n" * 20
BAD = "bad poor sad\n" * 20


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("runs")
    rows = "".join(f"{text}\t{label}\n" for text, label in [("good fine", "yes"), ("bad poor", "no")] * 12)
    (folder / "rows.tsv").write_text("text\tlabel\n" + rows)
    (folder / "text.txt").write_text(GOOD + BAD)
    classifier = chainrule.train(folder / "rows.tsv", kind="ngram", task="classify", out=folder / "classifier",
                                 text_tokenizer="characters", model_order=2, device="cpu")
    model = chainrule.train(folder / "text.txt", kind="ngram", out=folder / "ngram", text_tokenizer="characters",
                            model_order=3, device="cpu")
    return {"classifier": classifier, "ngram": model}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the module `rewarding` of the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(body: str) -> Any:
        (tmp_path / "rewarding.py").write_text(body)
        sys.modules.pop("rewarding", None)
        return load_reward("python:rewarding.score")

    yield write
    sys.modules.pop("rewarding", None)


def test_a_function_is_called_with_prompts_and_answers_as_strings(module: Any) -> None:
    reward = module("def score(prompts, answers):\n    return [len(a) + 10 * len(p) for p, a in zip(prompts, answers)]")
    assert reward(["ab", "c"], ["x", "yyy"]) == [21, 13]
    assert reward([(Message("user", "hi"), Message("user", "you"))], ["x"]) == [61]


@pytest.mark.parametrize("kind", ["torch.tensor([1, 2])", "__import__('numpy').array([1.0, 2.0])", "(1, 2)"])
def test_numbers_may_be_a_list_an_array_or_a_tensor(module: Any, kind: str) -> None:
    assert module(f"import torch\ndef score(prompts, answers):\n    return {kind}\n")(["a", "b"], ["x", "y"]) == [1, 2]


@pytest.mark.parametrize(("returned", "says"), [
    ("[1.0, float('nan')]", "is nan for the answer 'second' to the prompt 'where'; a reward is a finite number"),
    ("[1.0, float('inf')]", "is inf for the answer 'second'"),
    ("[1.0, 'high']", "is 'high' for the answer 'second'"),
    ("[1.0, None]", "is None for the answer 'second'"),
    ("[1.0]", "returned 1 numbers for 2 answers"),
    ("3.0", "returned float; it should return a list of numbers"),
    ("'ab'", "returned str"),
    ("1 / 0", "failed on 2 answers, the first to the prompt 'who': ZeroDivisionError: division by zero"),
])
def test_a_bad_reward_is_refused_in_one_line(module: Any, returned: str, says: str) -> None:
    reward = module(f"def score(prompts, answers):\n    return {returned}\n")
    with pytest.raises(UserError) as error:
        reward(["who", "where"], ["first", "second"])
    assert says in str(error.value)
    assert "python:rewarding.score" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "says"), [
    ("python:score", "expected python:MODULE.FUNCTION"),
    ("python:no_such_module.score", "no_such_module cannot be imported"),
    ("python:rewarding.scores", "has no function scores. Did you mean score?"),
    ("runs/missing", "there is no run at runs/missing"),
])
def test_a_reward_that_is_not_there_is_refused(module: Any, name: str, says: str) -> None:
    module("def score(prompts, answers):\n    return [0.0 for _ in answers]\n")
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        load_reward(name)
    assert says in str(error.value)


def test_a_classifier_gives_the_probability_of_a_label(runs: dict[str, Any]) -> None:
    made = runs["classifier"]
    texts = ["good fine", "bad poor", "good bad"]
    expected = [one["probabilities"]["yes"] for one in made.predict(texts)]
    prompts, answers = ["good ", "ba", ""], ["fine", "d poor", "good bad"]
    reward = load_reward(f"{made.path}:yes")
    assert reward(prompts, answers) == pytest.approx(expected)
    assert reward(prompts, answers)[0] > 0.9
    assert load_reward(f"log:{made.path}:yes")(prompts, answers) == pytest.approx([math.log(one) for one in expected])


def test_a_classifier_needs_one_of_its_labels(runs: dict[str, Any]) -> None:
    path = runs["classifier"].path
    with pytest.raises(UserError, match=r"a label is missing. Give one as .*:LABEL, of no, yes"):
        load_reward(str(path))
    with pytest.raises(UserError, match="it has no label maybe"):
        load_reward(f"{path}:maybe")
    with pytest.raises(UserError, match="a label is for runs of --task classify"):
        load_reward(f"{runs['ngram'].path}:yes")


def test_a_language_model_rewards_by_the_mean_log_probability_of_the_answers_tokens(runs: dict[str, Any]) -> None:
    made = runs["ngram"]
    prompts, answers = ["go", "bad", ""], ["od fine", " poor", "sad"]
    rewards = load_reward(str(made.path))(prompts, answers)
    for prompt, answer, reward in zip(prompts, answers, rewards):
        ids = [0, *made.tokenizer.encode(prompt + answer).tolist()]
        state, log_probs = made.model.start(1), []
        for token, target in pairwise(ids):
            logits, state = made.model.step(torch.tensor([[token]]), state)
            log_probs.append(float(logits[0, 0].log_softmax(-1)[target]))
        assert reward == pytest.approx(np.mean(log_probs[len(prompt) :]), abs=1e-5)


def test_a_reward_run_gives_its_score(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(GOOD + BAD)
    pairs = [{"prompt": "it is ", "chosen": "good", "rejected": "bad"},
             {"prompt": "so ", "chosen": "fine", "rejected": "sad"}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs * 6))
    base = chainrule.train(tmp_path / "text.txt", kind="lstm", out=tmp_path / "base", device="cpu",
                           settings={"text.tokenizer": "characters", "model.hidden": 8, "train.steps": 4})
    made = chainrule.train(tmp_path / "pairs.jsonl", task="reward", base=base.path, out=tmp_path / "reward",
                           device="cpu", settings={"train.steps": 30, "train.lr": 0.03, "train.pairs": 4})
    good, bad = load_reward(str(made.path))(["it is ", "it is "], ["good", "bad"])
    assert good > bad


def test_rows_of_many_lengths_are_scored_as_one_by_one(runs: dict[str, Any]) -> None:
    model = runs["ngram"].model
    rows = [([1, 2, 3][:size], list(range(4, 4 + size))) for size in (1, 3, 2, 5)]
    assert mean_log_probs(model, rows) == pytest.approx([mean_log_probs(model, [row])[0] for row in rows])
