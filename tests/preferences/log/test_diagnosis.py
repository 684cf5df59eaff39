"""The diagnosis of a log: each sentence is said about a log that has the trouble, and not about one that has not."""

import math
import random
from typing import Any

import pytest

from chainrule.preferences.diagnosis import RULES, diagnose, new_findings

Curves = dict[str, Any]
RECORDS = 60


def log(
    curves: Curves, records: int = RECORDS, noise: float = 0.02, held_out: Curves | None = None
) -> list[dict[str, Any]]:
    """Records of steps: each curve a value, or a function of progress from 0 to 1; with noise, relative to its size."""
    generator = random.Random(1)

    def value(curve: Any, progress: float) -> float:
        exact = curve(progress) if callable(curve) else float(curve)
        return exact + noise * generator.gauss(0, 1) * abs(exact)

    made = [{"event": "step", "step": step + 1, "tokens": step, **{name.replace("loss", "nats_per_token"):
            value(curve, step / (records - 1)) for name, curve in curves.items()}} for step in range(records)]
    if held_out:
        made.append({"event": "evaluation", "step": records, **held_out})
    return made


def rises(to: float, start: float = 0.0) -> Any:
    return lambda progress: start + (to - start) * progress


def pairs(chosen: Any, rejected: Any, accuracy: Any, loss: Any = 0.5) -> Curves:
    """Curves of preference tuning; the margin is the difference of the rewards."""
    def margin(progress: float) -> float:
        return float(at(chosen, progress) - at(rejected, progress))

    return {"rewards/chosen": chosen, "rewards/rejected": rejected, "rewards/margins": margin,
            "rewards/accuracies": accuracy, "loss": loss, "logps/chosen": -20.0}


def at(curve: Any, progress: float) -> float:
    return float(curve(progress)) if callable(curve) else float(curve)


def rollouts(**other: Any) -> Curves:
    """Curves of reinforcement learning that goes well."""
    good = {"reward": rises(0.9, 0.3), "reward_std": 0.3, "kl": rises(4.0), "entropy": rises(1.5, 2.0),
            "completions/mean_length": 30.0, "clip_ratio": 0.05}
    return good | {{"length": "completions/mean_length"}.get(name, name): curve for name, curve in other.items()}


GOOD_PAIRS = pairs(rises(0.5), rises(-1.0), rises(0.85, 0.5), rises(0.3, 0.69))
GOOD_REWARDS = rollouts()
CASES: dict[str, tuple[Curves, str]] = {
    "nothing trains": (pairs(0.0, 0.0, 0.0, math.log(2)), "exactly 0"),
    "stuck": (pairs(rises(0.001), 0.0005, 0.51, math.log(2)), "0.693"),
    "both rewards fall": (pairs(rises(-0.8), rises(-2.0), rises(0.8, 0.5)), "as in DPO"),
    "the rejected answers win": (pairs(rises(-0.5), rises(0.5), rises(0.2, 0.5), 0.9), "swapped"),
    "loss 0": (pairs(rises(9.0), rises(-9.0), lambda progress: min(1.0, 0.5 + 2 * progress),
                     lambda progress: 0.69 * math.exp(-12 * progress)), "learned by heart"),
    "reward hacking": (rollouts(kl=lambda progress: 90 * progress**3), "reward hacking"),
    "entropy collapse": (rollouts(entropy=lambda progress: 2.0 * math.exp(-5 * progress)), "the same answer"),
    "length": (rollouts(length=rises(3.0, 30.0)), "short answers"),
    "the same reward for all": (rollouts(reward=0.0, reward_std=0.0), "advantages are 0"),
    "flat reward": (rollouts(reward=0.3), "stays at 0.3"),
    "falling reward": (rollouts(reward=rises(0.1, 0.5)), "falls from"),
    "clipped ratios": (rollouts(clip_ratio=0.7), "are clipped"),
}


def troubles(records: list[dict[str, Any]], **how: Any) -> dict[str, str]:
    return {finding.trouble: finding.sentence for finding in diagnose(records, **how)}


@pytest.mark.parametrize("trouble", CASES)
def test_a_log_with_the_trouble_gets_its_sentence(trouble: str) -> None:
    curves, words = CASES[trouble]
    found = troubles(log(curves))
    assert list(found) == [trouble]
    assert words in found[trouble]
    assert found[trouble].endswith(".")
    assert "\n" not in found[trouble]


def test_every_rule_has_a_case() -> None:
    assert {*CASES, "overfitting"} == set(RULES)


@pytest.mark.parametrize("good", [GOOD_PAIRS, GOOD_REWARDS], ids=["pairs", "rollouts"])
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("ended", [True, False])
def test_a_training_that_goes_well_gets_none(good: Curves, noise: float, ended: bool) -> None:
    assert troubles(log(good, noise=noise), ended=ended) == {}


@pytest.mark.parametrize(("curves", "words"), [
    (pairs(rises(-0.8), rises(-0.8), 0.55), "the margin does not grow"),
    (rollouts(length=rises(120.0, 30.0)), "long answers"),
])
def test_the_sentence_says_which_way_it_went(curves: Curves, words: str) -> None:
    assert words in " ".join(troubles(log(curves)).values())


def test_both_rewards_falling_is_not_said_if_the_chosen_reward_rises_or_stays() -> None:
    for chosen in (rises(0.3), 0.0):
        assert "both rewards fall" not in troubles(log(pairs(chosen, rises(-2.0), rises(0.8, 0.5))))


def test_of_a_reward_model_only_differences_matter() -> None:
    curves = {name: curve for name, curve in CASES["both rewards fall"][0].items() if name != "logps/chosen"}
    assert troubles(log(curves)) == {}
    stuck = {name: curve for name, curve in CASES["stuck"][0].items() if name != "logps/chosen"}
    assert "the reward model learns nothing" in troubles(log(stuck))["stuck"]


def test_a_large_kl_that_no_longer_grows_is_not_hacking() -> None:
    assert troubles(log(rollouts(kl=lambda progress: 25 * min(1.0, 4 * progress)))) == {}


def test_held_out_accuracy_far_below_that_of_training_is_overfitting() -> None:
    curves = pairs(rises(1.0), rises(-1.0), rises(1.0, 0.6), 0.2)
    assert list(troubles(log(curves, held_out={"rewards/accuracies": 0.6}))) == ["overfitting"]
    assert troubles(log(curves, held_out={"rewards/accuracies": 0.9})) == {}


def test_what_has_not_moved_yet_is_not_called_stuck_while_training_is_young() -> None:
    young = log(CASES["stuck"][0], records=20)
    assert troubles(young) == {}
    assert list(troubles(young, ended=True)) == ["stuck"]


def test_too_few_records_say_nothing() -> None:
    assert troubles(log(CASES["reward hacking"][0], records=7), ended=True) == {}


def test_each_trouble_is_said_once() -> None:
    records = log(CASES["clipped ratios"][0])
    (found,) = new_findings(records)
    said = [*records, {"event": "diagnosis", "trouble": found.trouble, "step": 60}]
    assert new_findings(said) == []


def test_the_log_of_another_task_is_left_alone() -> None:
    plain = [{"event": "step", "step": step, "nats_per_token": 0.0, "lr": 0.1} for step in range(50)]
    assert diagnose(plain, ended=True) == []


def test_null_in_a_log_is_skipped() -> None:
    records = log(CASES["clipped ratios"][0])
    records[3]["clip_ratio"] = records[4]["kl"] = None
    assert list(troubles(records)) == ["clipped ratios"]
