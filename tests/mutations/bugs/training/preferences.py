"""Bugs in chainrule/preferences."""

from mutations.bugs.bug import Bug

BUGS = [
    Bug(
        "answers that were cut off end like any other",
        "chainrule/preferences/answer_task.py",
        "template, text.end and ended, read)",
        "template, text.end, read)",
        ("tests/preferences/reinforce/test_ended_answers.py"
         "::test_an_answer_that_was_cut_off_does_not_end_with_the_boundary",),
    ),
    Bug(
        "frozen layers are kept while one of them is trained",
        "chainrule/preferences/frozen_layers.py",
        "or frozen_blocks(model) < kept.blocks:",
        "or frozen_blocks(model) < 0:",
        ("tests/preferences/test_frozen_layers.py::test_what_is_trained_or_random_is_not_kept",),
    ),
    Bug(
        "sums of answers come back in the order of their lengths",
        "chainrule/preferences/log_probs.py",
        "return sums[torch.cat(groups).argsort()], counts",
        "return sums, counts",
        ("tests/preferences/reinforce/test_ended_answers.py::test_sums_do_not_depend_on_the_groups",),
    ),
    Bug(
        "advantages are not discounted by lambda",
        "chainrule/preferences/reinforce/advantages.py",
        "delta + discount * gae_lambda * after",
        "delta + discount * after",
        ("tests/preferences/reinforce/test_advantages.py::"
         "test_generalised_advantages_are_discounted_sums_of_temporal_differences[0.9-0.5]",),
    ),
    Bug(
        "the ratio is clipped where that helps the policy",
        "chainrule/preferences/reinforce/ppo.py",
        "torch.minimum(ratio * advantages, bounded * advantages)",
        "torch.maximum(ratio * advantages, bounded * advantages)",
        ("tests/preferences/reinforce/test_policy_losses.py::test_ppo_clips_the_ratio_of_each_token[1.0]",),
    ),
    Bug(
        "a group is normalised by the mean of all answers",
        "chainrule/preferences/reinforce/advantages.py",
        "centred = groups - groups.mean(1, keepdim=True)",
        "centred = groups - groups.mean()",
        ("tests/preferences/reinforce/test_advantages.py::"
         "test_a_group_is_normalised_by_its_own_mean_and_unbiased_deviation",),
    ),
    Bug(
        "the KL of a policy is measured from itself",
        "chainrule/preferences/policy_evaluation.py",
        '"reference": reference,',
        '"reference": str(run.path),',
        ("tests/preferences/test_policy_evaluation.py::"
         "test_reward_and_kl_are_those_of_the_next_token_distributions",),
    ),
    Bug(
        "answers are drawn by the weights of the first rollout",
        "chainrule/preferences/reinforce/rollouts.py",
        "        self.update()\n",
        "",
        ("tests/preferences/reinforce/test_rollouts.py::test_after_an_update_a_sampler_draws_what_a_new_one_would[lstm]",),
    ),
    Bug(
        "a rollout in flight is drawn again after a restart",
        "chainrule/preferences/reinforce/rollout_order.py",
        "self.rollout = RolloutBatch(**parts) if parts else None",
        "self.rollout = None",
        ("tests/preferences/reinforce/test_reinforce.py::"
         "test_killed_with_a_rollout_in_flight_it_ends_where_it_would_have[grpo-lstm-inner1]",),
    ),
    Bug(
        "DPO adds the two log-ratios",
        "chainrule/preferences/losses/dpo.py",
        "(chosen - ref_chosen) - (rejected - ref_rejected)",
        "(chosen - ref_chosen) + (rejected - ref_rejected)",
        ("tests/preferences/losses/test_losses.py::test_dpo_by_hand_on_a_model_of_two_tokens",),
    ),
    Bug(
        "the prompt is a target too",
        "chainrule/preferences/encoding.py",
        "(place >= self.prompts.lengths[rows, None] - 1) & ",
        "",
        ("tests/preferences/test_answer_encoding.py::test_targets_are_the_answer_alone",),
    ),
    Bug(
        "KTO estimates the KL of each micro-batch",
        "chainrule/preferences/preference.py",
        "        if not self.training:                    # an evaluation has no steps: z is that of the batch",
        "        if True:",
        ("tests/preferences/test_preference.py::test_micro_batches_change_nothing[kto]",),
    ),
    Bug(
        "a reward is that of the token before the end",
        "chainrule/preferences/encoding.py",
        "BOUNDARY)), to_tensor(self.whole.lengths[rows])",
        "BOUNDARY)), to_tensor(self.whole.lengths[rows] - 1)",
        ("tests/preferences/rewards/test_reward.py::test_the_reward_is_that_of_the_last_token_whatever_the_padding",),
    ),
    Bug(
        "GRPO's KL term is not multiplied by the ratio",
        "chainrule/preferences/reinforce/grpo.py",
        "            kl = kl * torch.exp(log_probs - old)\n",
        "            kl = kl * 1.0\n",
        ("tests/preferences/reinforce/test_estimators.py::test_the_ratio_corrects_the_gradient_of_k3[True-False]",),
    ),
    Bug(
        "k3 has the sign of its exponent wrong",
        "chainrule/preferences/reinforce/kl.py",
        "torch.exp(-difference) - 1 + difference",
        "torch.exp(difference) - 1 - difference",
        ("tests/preferences/reinforce/test_estimators.py::"
         "test_the_sum_of_k1_or_k3_over_an_answer_has_the_kl_divergence_of_whole_answers_as_its_mean",),
    ),
    Bug(
        "reward hacking is said of any large KL divergence",
        "chainrule/preferences/diagnosis.py",
        "kl.late > FAR and kl.late > 1.5 * middle",
        "kl.late > FAR",
        ("tests/preferences/log/test_diagnosis.py::test_a_large_kl_that_no_longer_grows_is_not_hacking",),
    ),
    Bug(
        "a trouble is said again with every record",
        "chainrule/preferences/diagnosis.py",
        "diagnose(records, ended=ended) if finding.trouble not in said]",
        "diagnose(records, ended=ended)]",
        ("tests/preferences/log/test_diagnosis.py::test_each_trouble_is_said_once",),
    ),
]
