"""The batches of reinforcement learning: a rollout is drawn when it is due, and serves several optimizer steps.

    step = rollout · inner steps + inner step        inner steps = inner epochs · mini-batches

Prompts are visited in random order, each once an epoch. The rollout in flight and REINFORCE's baseline are the order's
state: with them in a checkpoint, training resumes between two inner steps as if it had never stopped.

Shapes: B answers of a rollout, T tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.inference.decoding import Tokens
from chainrule.inference.forward import device_of, eval_mode
from chainrule.preferences.records import Content
from chainrule.preferences.reinforce.advantages import (
    generalised_advantages,
    group_normalised,
    leave_one_out,
    next_baseline,
    whiten,
)
from chainrule.preferences.reinforce.environment import Environment, Played, in_parts
from chainrule.preferences.reinforce.kl import estimate_kl
from chainrule.preferences.reinforce.policy import Policy, RolloutBatch
from chainrule.preferences.reinforce.ppo import explained_variance, token_rewards
from chainrule.preferences.reinforce.rollouts import repeat_each, rollout_seed


class RolloutOrder:
    """`prompts` as tokens without the boundary, and `contents`: the same as the reward reads them."""

    def __init__(self, policy: Policy, prompts: Sequence[Tokens], contents: Sequence[Content]):
        self.policy, self.prompts, self.contents, self.settings = policy, prompts, contents, policy.settings
        self.environment: Environment = policy.environment
        self.number = -1                                           # of the rollout in flight; -1: none
        self.rollout: RolloutBatch | None = None
        self.baseline = torch.full((), torch.nan, device=device_of(policy))

    @property
    def answers(self) -> int:
        """Answers of a rollout."""
        return int(self.settings.prompts * self.settings.generations)

    @property
    def inner_steps(self) -> int:
        return int(self.settings.epochs_per_rollout * self.settings.mini_batches)

    @property
    def rows(self) -> int:
        return -(-self.answers // int(self.settings.mini_batches))

    @property
    def length(self) -> int:
        return max(map(len, self.prompts)) + int(self.settings.answer_tokens)

    @property
    def targets(self) -> int:
        """Targets of a step, where an answer is as long as it may be."""
        return self.rows * (int(self.settings.answer_tokens) if self.settings.counts_tokens else 1)

    @property
    def epoch(self) -> float:
        return len(self.prompts) / int(self.settings.prompts) * self.inner_steps

    def goes_on(self, step: int) -> bool:
        return False

    def at(self, step: int) -> RolloutBatch:
        number, inner = divmod(step, self.inner_steps)
        if self.rollout is None or number != self.number:
            self.rollout, self.number = self.draw(number), number
        rows = torch.from_numpy(self._rows(number, inner)).to(self.rollout.tokens.device)
        batch = self.rollout.map(lambda tensor: tensor[rows])
        assert isinstance(batch, RolloutBatch)
        if inner and batch.fresh is not None:
            batch.fresh.zero_()
        return batch

    def _rows(self, number: int, inner: int) -> Any:
        """The answers of a mini-batch."""
        epoch, part = divmod(inner, int(self.settings.mini_batches))
        order = np.random.default_rng((self.settings.seed, number, epoch)).permutation(self.answers)
        return np.sort(np.array_split(order, int(self.settings.mini_batches))[part])

    def prompts_of(self, number: int) -> list[int]:
        """Which prompts a rollout answers: each epoch has its own random order."""
        count, size = int(self.settings.prompts), len(self.prompts)
        places = range(number * count, (number + 1) * count)
        orders = {epoch: np.random.default_rng((self.settings.seed, epoch)).permutation(size)
                  for epoch in {place // size for place in places}}
        return [int(orders[place // size][place % size]) for place in places]

    # A rollout

    def draw(self, number: int) -> RolloutBatch:
        ids = repeat_each(self.prompts_of(number), int(self.settings.generations))
        played = self.environment.play([self.prompts[id] for id in ids], [self.contents[id] for id in ids],
                                       rollout_seed(self.settings.seed, number))
        return self.judge(played)

    @torch.no_grad()
    def judge(self, played: Played) -> RolloutBatch:
        """Advantages by the method that was chosen."""
        settings, mask, rewards = self.settings, played.batch.loss_mask, played.rewards
        penalty = estimate_kl(played.log_probs, played.reference, settings.estimator)
        more: dict[str, Tensor] = {}
        if settings.method == "ppo":
            advantages, more = self._token_advantages(played, penalty)
        else:
            if settings.kl_in_reward:
                rewards = rewards - settings.kl_weight * penalty.sum(1)
            advantages = self._answer_advantages(rewards)
        groups = played.rewards.view(-1, settings.generations)
        deviation = groups.std(1) if settings.generations > 1 else played.rewards.std().expand(len(groups))
        return RolloutBatch(
            **played.batch.tensors(), rewards=played.rewards, kl=played.kl, entropy=played.entropy,
            reward_std=deviation.nan_to_num().repeat_interleave(settings.generations), old=played.log_probs,
            reference=played.reference, advantages=advantages, fresh=torch.ones_like(mask[:, 0]), **more,
        )

    def _answer_advantages(self, rewards: Tensor) -> Tensor:
        settings = self.settings
        if settings.method == "rloo":
            return leave_one_out(rewards, settings.generations)
        if settings.method == "grpo":
            return group_normalised(rewards, settings.generations, settings.scale)
        baseline = torch.where(self.baseline.isnan(), rewards.mean(), self.baseline)    # of the rollouts before it
        self.baseline = next_baseline(self.baseline, rewards)
        return rewards - baseline

    def _token_advantages(self, played: Played, penalty: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        settings, mask = self.settings, played.batch.loss_mask
        with self.environment.precision(), eval_mode(self.policy):
            values, = in_parts(lambda model, batch, _: (model.values_of(batch),), self.policy, played.batch, 1.0)
        rewards = token_rewards(played.rewards, penalty, mask, settings.kl_weight)
        advantages = generalised_advantages(rewards, values, mask, settings.discount, settings.gae_lambda)
        returns = (advantages + values).where(mask, 0.0)
        explained = explained_variance(values, returns, mask).expand(len(mask)).clone()
        return whiten(advantages, mask), {"values": values, "returns": returns, "explained": explained}

    # Checkpoints

    def state(self) -> Mapping[str, Tensor]:
        batch = {} if self.rollout is None else self.rollout.tensors()
        return {"number": torch.tensor(self.number), "baseline": self.baseline, **batch}

    def load(self, state: Mapping[str, Tensor]) -> None:
        parts = dict(state)
        self.number, self.baseline = int(parts.pop("number")), parts.pop("baseline")
        self.rollout = RolloutBatch(**parts) if parts else None
