"""Settings of reinforcement learning: `train.*` of --task reinforce."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from chainrule.errors import UserError
from chainrule.preferences.answer_task import Tuning
from chainrule.preferences.reinforce.advantages import Scale
from chainrule.preferences.reinforce.grpo import LossType
from chainrule.preferences.reinforce.kl import Estimator
from chainrule.recipe import Epochs
from chainrule.settings import Count, Fraction, NonNegative, Positive, Size

Method: TypeAlias = Literal["reinforce", "rloo", "ppo", "grpo"]

KL = {"reinforce": 0.05, "rloo": 0.05, "ppo": 0.05, "grpo": 0.0}           # TRL's, by method
INNER_EPOCHS = {"reinforce": 1, "rloo": 1, "ppo": 4, "grpo": 1}


@dataclass(frozen=True)
class ReinforceTraining(Tuning):
    """`train.*` of a language model that learns from rewards."""

    passes = 1
    method: Method = "grpo"             # policy gradient: reinforce, rloo, ppo (with a value head) or grpo
    reward: str | None = None           # RUN, RUN:LABEL of a classifier, or python:MODULE.FUNCTION; also --reward
    reference: str | None = None        # run from which the KL divergence is measured; none: the base
    prompts: Size = 16                  # prompts of a rollout
    generations: Size = 8               # answers to each prompt of a rollout: a group
    answer_tokens: Size = 64            # most tokens of an answer
    temperature: Positive = 1.0         # of drawing answers; the policy's logits are divided by it in training too
    kl: NonNegative | None = None       # weight β of the KL penalty; none: 0.05, and 0 for grpo
    kl_estimator: Estimator | None = None  # of the penalty: k1 in the reward, so that the optimum is π_ref·exp(r/β);
                                        # k3 or k2 in the loss, for grpo alone; none: k3 for grpo, k1 for the others
    kl_correction: bool = True          # grpo: k3 times the probability ratio, whose mean gradient is unbiased
    reward_clip: Positive | None = None  # rewards are clipped to ± this; none: they are not
    clip_ratio: Positive = 0.2          # probability ratios beyond 1 ± this get no gradient (rloo, ppo, grpo)
    inner_epochs: Size | None = None    # passes over a rollout; none: 4 for ppo, else 1
    mini_batches: Size = 1              # optimizer steps of one pass over a rollout
    loss_type: LossType = "dapo"        # grpo: mean over tokens (dapo), over answers (grpo), or without a length bias
    scale_rewards: Literal["group", "batch", "off"] | None = None  # grpo: divide advantages by the deviation of the
                                        # group, of all answers, or not (off); none: group, and off for dr_grpo
    discount: Fraction = 1.0            # γ of the rewards of later tokens (ppo)
    gae_lambda: Fraction = 0.95         # λ of generalised advantage estimation (ppo)
    value_weight: NonNegative = 0.1     # weight of the value loss (ppo)
    value_clip: Positive = 0.2          # values move at most so far from those of the rollout (ppo)
    epochs: Epochs | None = None        # budget: passes over the prompts; 1 where no budget is given
    warmup: Fraction = 0.0              # fraction of training in which the learning rate rises linearly
    keep_best: bool = False             # save the weights of the best evaluation; false: those of the last step
    tokens: Count | None = None         # not used: a step has the answers of a mini-batch

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batching == "streams" or self.length is not None or self.tokens is not None:
            raise UserError("train.batching=streams, train.length and train.tokens are for running text; a step of "
                            "this task has train.prompts x train.generations / train.mini_batches answers.")
        if self.method in ("rloo", "grpo") and self.generations < 2:
            raise UserError(f"train.generations={self.generations}: train.method={self.method} compares the answers to "
                            "a prompt with each other, so it needs 2 or more.")
        if self.kl_estimator in ("k2", "k3") and self.method != "grpo":
            raise UserError(f"train.kl_estimator={self.kl_estimator} is for grpo, in its loss; {self.method} has the "
                            "penalty in the reward, where only k1 is unbiased. Leave it out.")
        if self.method == "reinforce" and self.epochs_per_rollout * self.mini_batches > 1:
            raise UserError("train.method=reinforce has no probability ratio, so a rollout serves one step. Leave out "
                            "train.inner_epochs and train.mini_batches, or use rloo.")
        if self.mini_batches > self.prompts * self.generations:
            raise UserError(f"train.mini_batches={self.mini_batches} is more than the answers of a rollout: "
                            f"train.prompts x train.generations = {self.prompts * self.generations}.")

    @property
    def kl_weight(self) -> float:
        """β"""
        return KL[self.method] if self.kl is None else self.kl

    @property
    def estimator(self) -> Estimator:
        return self.kl_estimator or ("k3" if self.method == "grpo" else "k1")

    @property
    def kl_in_reward(self) -> bool:
        """Whether the penalty is part of the reward. In the loss, k1 would have no effect: its mean gradient is 0."""
        return self.method != "grpo" or self.estimator == "k1"

    @property
    def epochs_per_rollout(self) -> int:
        return INNER_EPOCHS[self.method] if self.inner_epochs is None else self.inner_epochs

    @property
    def scale(self) -> Scale:
        wanted = self.scale_rewards or ("off" if self.loss_type == "dr_grpo" else "group")
        return "none" if wanted == "off" else wanted

    @property
    def counts_tokens(self) -> bool:
        """Whether the loss is a mean over tokens, not over answers."""
        return self.method == "ppo" or (self.method == "grpo" and self.loss_type == "dapo")
