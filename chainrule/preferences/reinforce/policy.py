"""The policy in training: its body is the language model that is tuned; its loss is that of the chosen method.

    reinforce, rloo, ppo, grpo    over the answers of a rollout; ratios are 1 in the first step after it

In evaluation the loss is -(reward - β · KL), in nats per answer, on answers drawn to held-out prompts. PPO adds a value
head: one number for each token, from the body's hidden vectors.

Shapes: B answers, T tokens, D width of the body.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.inference.forward import device_of
from chainrule.model import Batch, Encoder, State
from chainrule.preferences.log_probs import answer_log_probs, hidden_and_projection, target_log_probs
from chainrule.preferences.objective import Objective
from chainrule.preferences.reinforce.grpo import grpo_sum, grpo_token_loss
from chainrule.preferences.reinforce.policy_gradient import reinforce_loss, rloo_loss
from chainrule.preferences.reinforce.ppo import ppo_loss, value_loss


@dataclass(frozen=True)
class RolloutBatch(Batch):
    """Answers of a rollout with their advantages, or of an evaluation without."""

    rewards: Tensor | None = None          # (B,)
    reward_std: Tensor | None = None       # (B,) of the group of each answer
    kl: Tensor | None = None               # (B,) of the answer, when it was drawn
    entropy: Tensor | None = None          # (B,) summed over its tokens
    old: Tensor | None = None              # (B, T) log-probabilities when it was drawn
    reference: Tensor | None = None        # (B, T) under the reference
    advantages: Tensor | None = None       # (B,); (B, T) for PPO
    fresh: Tensor | None = None            # (B,) True: the weights are those by which it was drawn
    values: Tensor | None = None           # (B, T) of the value head, when it was drawn (PPO)
    returns: Tensor | None = None          # (B, T)
    explained: Tensor | None = None        # (B,) explained variance of the values of the whole rollout


T = TypeVar("T")


def _given(value: T | None) -> T:
    """What a batch of this kind always has."""
    assert value is not None
    return value


class Policy(Objective):
    metrics = ("reward", "reward_std", "kl", "entropy", "completions/mean_length", "clip_ratio", "value_loss",
               "explained_variance")
    noted = ("reward", "kl", "completions/mean_length")

    def __init__(self, body: Any, settings: Any):
        super().__init__(body)
        self.settings = settings                 # train.*
        self.environment: Any = None             # that of training: task.py puts it here
        self.value: nn.Linear | None = None
        if settings.method == "ppo":
            if not isinstance(body, Encoder) or body.backward:
                raise UserError("train.method=ppo needs a value head, and this kind has no hidden vectors for it: "
                                "use train.method=grpo, rloo or reinforce.")
            self.value = nn.Linear(body.width, 1).to(device_of(self.body))
            nn.init.zeros_(self.value.weight)
            nn.init.zeros_(self.value.bias)

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        assert isinstance(batch, RolloutBatch)
        mask = batch.loss_mask
        self._measure_answers(batch, mask)
        if batch.advantages is None:
            return -(_given(batch.rewards) - self.settings.kl_weight * _given(batch.kl)).sum(), mask.any(1).sum(), None
        total, count = self._policy_loss(batch, mask)
        return total, count, None

    def _policy_loss(self, batch: RolloutBatch, mask: Tensor) -> tuple[Tensor, Tensor]:
        """A sum and a count, whose quotient is the loss."""
        settings, advantages = self.settings, _given(batch.advantages)
        if self.value is None:
            log_probs = answer_log_probs(self.body, batch, settings.temperature)
        else:
            log_probs, values = self._log_probs_and_values(batch, mask)
        old = torch.where(_given(batch.fresh)[:, None], log_probs.detach(), _given(batch.old))
        if settings.method == "reinforce":
            return reinforce_loss(log_probs, advantages).sum(), mask.any(1).sum()
        if settings.method == "rloo":
            loss, clipped = rloo_loss(log_probs, old, advantages, settings.clip_ratio)
            self.measure(mask.any(1).sum(), clip_ratio=clipped.sum())
            return loss.sum(), mask.any(1).sum()
        if settings.method == "grpo":
            beta = 0.0 if settings.kl_in_reward else settings.kl_weight
            loss, clipped = grpo_token_loss(log_probs, old, advantages, batch.reference, beta=beta,
                                            clip_ratio=settings.clip_ratio, estimator=settings.estimator,
                                            corrected=settings.kl_correction)
            self.measure(mask.sum(), clip_ratio=(clipped & mask).sum())
            return grpo_sum(loss, mask, settings.loss_type, settings.answer_tokens)
        loss, clipped = ppo_loss(log_probs, old, advantages, settings.clip_ratio)
        errors = value_loss(values, _given(batch.values), _given(batch.returns), settings.value_clip)
        of_values = errors.where(mask, 0.0).sum()
        self.measure(mask.sum(), clip_ratio=(clipped & mask).sum(), value_loss=of_values)
        return loss.where(mask, 0.0).sum() + settings.value_weight * of_values, mask.sum()

    def _log_probs_and_values(self, batch: Batch, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T), (B, T): both from the same hidden vectors."""
        hidden, project = _given(hidden_and_projection(self.body, batch))
        targets = batch.targets.where(mask, 0)
        log_probs = target_log_probs(hidden.flatten(0, 1), targets.flatten(), project, self.settings.temperature)
        return log_probs.view_as(targets) * mask, _given(self.value)(hidden)[..., 0].float()

    def values_of(self, batch: Batch) -> Tensor:
        """(B, T): the value of what was read before each target."""
        hidden, _ = _given(hidden_and_projection(self.body, batch))
        values: Tensor = _given(self.value)(hidden)[..., 0].float()
        return values

    def _measure_answers(self, batch: RolloutBatch, mask: Tensor) -> None:
        rows = mask.any(1).sum()
        for name, numbers in (("reward", batch.rewards), ("reward_std", batch.reward_std), ("kl", batch.kl),
                              ("explained_variance", batch.explained)):
            if numbers is not None:
                self.measure(rows, **{name: numbers.sum()})
        self.measure(rows, **{"completions/mean_length": mask.sum()})
        if batch.entropy is not None:
            self.measure(mask.sum(), entropy=batch.entropy.sum())
