"""The experiment of reward against KL: pairs, best-of-n, the frontier, its table and picture, and a point on a toy."""

import itertools
import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from programs import benchmark

from chainrule.device import choose_precision
from chainrule.models import build
from chainrule.tasks import recipe_for


@pytest.fixture(scope="module")
def points():
    return benchmark("frontier_points")


def test_the_answer_with_the_higher_reward_is_chosen(points):
    pairs = points.pair_up("the film", [" is bad", " is good", " is fine", " is dull"], [0.1, 0.9, 0.8, 0.3])
    assert [(pair["chosen"], pair["rejected"]) for pair in pairs] == [(" is good", " is bad"), (" is fine", " is dull")]
    assert [pair["prompt"] for pair in pairs] == ["the film"] * 2


@pytest.mark.parametrize(("answers", "rewards"), [
    ([" a", " b"], [0.5, 0.5]), ([" a", " a"], [0.4, 0.5]), ([" a", " "], [0.4, 0.5]), ([" a"], [0.4]),
])
def test_answers_that_cannot_be_compared_make_no_pair(points, answers, rewards):
    assert points.pair_up("x", answers, rewards) == []


def test_best_of_n_is_the_mean_over_all_subsets(points):
    generator = np.random.default_rng(1)
    truth, by = generator.random((3, 6)), generator.random((3, 6))
    for n in (1, 2, 4, 6):
        subsets = list(itertools.combinations(range(6), n))
        expected = [mean_of(row[max(subset, key=lambda place: judged[place])] for subset in subsets)
                    for row, judged in zip(truth, by)]
        assert points.best_of_n(truth, by, n) == pytest.approx(expected)


def mean_of(numbers):
    numbers = list(numbers)
    return sum(numbers) / len(numbers)


def point(seed, kl, *halves, method="DPO", **more):
    reward = sum(halves) / 2
    return {"event": "point", "method": method, "settings": {}, "seed": seed, "step": round(100 * kl), "kl": kl,
            "reward": reward, "halves": list(halves), "reward_interval": [reward - 0.01, reward + 0.01], **more}


def test_the_frontier_is_the_best_reward_within_the_budget(points):
    rows = [point(1, 0.5, 0.6, 0.6), point(1, 2.0, 0.8, 0.8), point(1, 4.0, 0.7, 0.7), point(1, 9.0, 0.9, 0.9)]
    assert points.frontier(rows, 0.4) is None
    assert [points.frontier(rows, budget).value for budget in (1, 2, 5, 10)] == pytest.approx([0.6, 0.8, 0.8, 0.9])


def test_the_best_point_is_chosen_by_one_half_and_counted_by_the_other(points):
    rows = [point(1, 1.0, 0.9, 0.5), point(1, 1.0, 0.5, 0.8)]      # by the first half 0.5 is counted, by the second 0.5
    assert points.frontier(rows, 2).value == pytest.approx(0.5)


def test_the_interval_is_the_range_of_the_seeds_and_needs_all_of_them(points):
    rows = [point(1, 1.0, 0.6, 0.6), point(2, 1.5, 0.7, 0.7), point(3, 1.2, 0.8, 0.8)]
    score = points.frontier(rows, 2)
    assert (score.value, score.low, score.high) == pytest.approx((0.7, 0.6, 0.8))
    assert points.frontier(rows, 1.3) is None


def test_points_of_a_training_that_was_begun_again_replace_the_first_ones(points):
    rows = [point(1, 1.0, 0.6, 0.6), point(1, 1.0, 0.7, 0.7), point(2, 1.0, 0.8, 0.8)]
    assert [row["reward"] for row in points.by_method(rows)["DPO"]] == pytest.approx([0.7, 0.8])


def test_the_table_and_the_picture_have_every_method(points):
    rows = [point(seed, 2 + seed / 10, 0.8, 0.82, method=method) for method in points.ORDER[:-2] for seed in (1, 2, 3)]
    rows += [point(0, math.log(n) - (n - 1) / n, 0.7, 0.7, method=points.BEST_OF) for n in (2, 4)]
    rows.append({"event": "tuned", "method": "DPO", "seed": 1})
    lines = points.table(rows)
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == list(points.ORDER[:-1])
    drawn = ElementTree.fromstring(points.picture(rows))
    assert {text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")} >= set(points.ORDER[:-1])


def test_a_point_agrees_with_the_sum_over_all_answers():
    """A toy of three tokens and answers of at most two: reward and KL by enumeration, and by drawing."""
    from chainrule.preferences.reinforce.environment import Environment
    from chainrule.preferences.reinforce.rollouts import Sampler

    points = benchmark("frontier_points")
    torch.manual_seed(1)
    policy = build("rnn", recipe_for("rnn", {"model.hidden": 8, "model.layers": 1}).model, 4)
    reference = build("uniform", recipe_for("uniform").model, 4)
    prompt = np.array([1])
    exact_reward, exact_kl = 0.0, 0.0
    for answer in [(0,), *((first, second) for first in (1, 2, 3) for second in range(4))]:
        p = math.exp(log_prob(policy, (0, 1), answer))
        exact_reward += p * (2 in answer)
        exact_kl += p * (math.log(p) - log_prob(reference, (0, 1), answer))
    precision = choose_precision("float32", torch.device("cpu"))
    environment = Environment(Sampler(policy, 2), reference, has_two, Digits(), precision)
    played = environment.play([prompt] * 4000, ["1"] * 4000, seed=3)
    reward, kl = (points.mean_score(part.double().numpy()) for part in (played.rewards, played.kl))
    assert reward.low - 0.01 <= exact_reward <= reward.high + 0.01
    assert kl.low - 0.01 <= exact_kl <= kl.high + 0.01


def has_two(prompts, answers):
    return [float("2" in answer) for answer in answers]


class Digits:
    def decode(self, ids):
        return "".join(map(str, ids))


def log_prob(model, before, answer):
    tokens = torch.tensor([[*before, *answer]])
    with torch.no_grad():
        logits, _ = model.eval().step(tokens[:, :-1], model.start(1))
    log_probs = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[0, :, 0]
    return float(log_probs[len(before) - 1 :].sum())


def test_the_program_asks_for_its_data(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("CHAINRULE_DATA", raising=False)
    program = benchmark("frontier")
    with pytest.raises(SystemExit):
        program.main(["--out", str(tmp_path / "out")])
    assert "CHAINRULE_DATA is a folder with imdb/train.jsonl.xz" in capsys.readouterr().err


def test_the_jobs_begin_with_the_first_settings_of_every_method():
    experiment, tuning = benchmark("frontier_experiment"), benchmark("frontier_tuning")
    jobs = tuning.jobs_of(experiment.SIZES["full"], (1, 2, 3))
    assert [job.method for job in jobs[: len(experiment.METHODS)]] == list(experiment.METHODS)
    assert len({job.name for job in jobs}) == len(jobs)
    assert len(jobs) == 3 * sum(len(method.tried) for method in experiment.METHODS.values())
    assert {job.seed for job in jobs} == {1, 2, 3}


def test_results_are_json_lines(tmp_path):
    experiment, tuning = benchmark("frontier_experiment"), benchmark("frontier_tuning")
    here = experiment.Experiment(tmp_path, experiment.SIZES["tiny"], "cpu", tmp_path / "points.jsonl", math.inf, 1)
    here.say(event="point", kl=1.23456789, halves=[0.1, 0.2])
    tuning.attempt(here, fails)
    one, other = map(json.loads, (tmp_path / "points.jsonl").read_text().splitlines())
    assert one == {"event": "point", "kl": 1.23457, "halves": [0.1, 0.2]}
    assert (other["event"], other["error"]) == ("failed", "ValueError: no")


def fails(here):
    raise ValueError("no")
