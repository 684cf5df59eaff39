"""Tests of the exercise dpo, against a snapshot in which the formula is written out."""

import adapters
import numpy as np

from chainrule.exercises.expect import same, snapshot

FORMULA = "-log σ(β [(log π(y_w) - log π_ref(y_w)) - (log π(y_l) - log π_ref(y_l))])"


def given(s):
    return [s[name] for name in ("policy_w", "policy_l", "reference_w", "reference_l")] + [float(s["beta"])]


def test_log_probability_of_the_answer_alone():
    s = snapshot(__file__)
    found = adapters.completion_log_prob(s["logits"], s["targets"], s["completion"])
    formula = "Σ_t log softmax(logits_t)[target_t] where completion is True"
    same(found, s["log_prob"], "completion_log_prob(…)", formula)


def test_loss():
    s = snapshot(__file__)
    same(adapters.dpo_loss(*given(s)), s["loss"], "dpo_loss(…)", f"the mean of {FORMULA}")


def test_loss_is_log_2_where_the_policy_is_the_reference():
    z = np.array([-3.0, -7.0])
    same(adapters.dpo_loss(z, z - 1, z, z - 1, 0.1), np.log(2), "dpo_loss where π = π_ref", "-log σ(0) = log 2")


def test_loss_of_a_pair_that_is_very_wrong():
    far = np.array([-2000.0])
    same(adapters.dpo_loss(far, far * 0, far * 0, far * 0, 0.5), 1000, "dpo_loss at -log σ(-1000)", "1000, not inf")


def test_gradient():
    s = snapshot(__file__)
    of_w, of_l = adapters.dpo_gradient(*given(s))
    same(of_w, s["gradient_w"], "the gradient of policy_w", "-β σ(-z) / B, z what σ is taken of in the loss")
    same(of_l, s["gradient_l"], "the gradient of policy_l", "+β σ(-z) / B")


def test_implicit_reward():
    s = snapshot(__file__)
    found = adapters.implicit_reward(s["policy_w"], s["reference_w"], float(s["beta"]))
    same(found, s["reward_w"], "implicit_reward(policy, reference, beta)", "β (log π(y|x) - log π_ref(y|x))")
