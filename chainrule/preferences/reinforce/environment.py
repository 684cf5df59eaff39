"""The environment: prompts are answered by the policy, and answers are rewarded and scored.

    play(prompts, seed) -> tokens, rewards, log-probabilities under policy and reference, entropy

The log-probabilities of the policy are those of a teacher-forced pass, in the precision of training, and not those by
which a token was drawn: so they can be compared with what a training step computes.

Shapes: B answers, T tokens, N targets, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chainrule.device import Precision
from chainrule.errors import UserError
from chainrule.inference.decoding import Tokens
from chainrule.inference.forward import device_of, eval_mode
from chainrule.layers.cross_entropy import chunk_rows
from chainrule.model import Batch, LanguageModel, Model
from chainrule.preferences.log_probs import answer_log_probs, hidden_and_projection
from chainrule.preferences.records import Content
from chainrule.preferences.reinforce.kl import estimate_kl
from chainrule.preferences.reinforce.policy import RolloutBatch
from chainrule.preferences.reinforce.rewards import Reward
from chainrule.preferences.reinforce.rollouts import GPU_WIDTH, Sampler, answer_rows, rollout_seed
from chainrule.text.tokenizers.tokenizer import Tokenizer

EVALUATION = 1 << 32                           # the first number of the rollouts of an evaluation
AT_ONCE = {"cpu": 1 << 12, "cuda": 1 << 16}    # tokens of a pass without gradient


@dataclass(frozen=True)
class Played:
    """Answers, and what is known about them; tensors on the policy's device."""

    batch: Batch                       # (B, T): prompts and answers, teacher-forced
    texts: list[str]                   # the answers
    rewards: Tensor                    # (B,)
    log_probs: Tensor                  # (B, T) of the answers' tokens under the policy; 0 elsewhere
    reference: Tensor                  # (B, T) under the reference
    entropy: Tensor                    # (B,) of the policy's distributions, summed over the answer's tokens

    @property
    def kl(self) -> Tensor:
        """(B,): log π(answer) - log π_ref(answer), whose mean estimates the KL divergence in nats per answer."""
        return estimate_kl(self.log_probs, self.reference).sum(1)


class Environment:
    def __init__(
        self, sampler: Sampler, reference: LanguageModel, reward: Reward, tokenizer: Tokenizer, precision: Precision,
        reward_clip: float | None = None,
    ):
        self.sampler, self.reference, self.reward, self.tokenizer = sampler, reference, reward, tokenizer
        self.precision, self.reward_clip = precision, reward_clip

    @torch.no_grad()
    def play(self, prompts: Sequence[Tokens], contents: Sequence[Content], seed: int) -> Played:
        """`prompts` as tokens without the boundary, and `contents`: the same as the reward reads them."""
        policy, temperature = self.sampler.policy, self.sampler.temperature
        device = device_of(policy)
        answers = self.sampler.draw(prompts, seed)
        texts = [self.tokenizer.decode(answers.ids(row)) for row in range(len(prompts))]
        with torch.autocast(device.type, enabled=False):   # an evaluation has it on, and training here has not
            rewards = torch.tensor(self.reward(contents, texts), dtype=torch.float32, device=device)
        if self.reward_clip is not None:
            rewards = rewards.clamp(-self.reward_clip, self.reward_clip)
        multiple = GPU_WIDTH if device.type == "cuda" else 1
        batch = answer_rows(prompts, answers, multiple, getattr(policy, "context", None)).to(device)
        with self.precision():
            log_probs, entropy = in_parts(policy_log_probs, policy, batch, temperature)
            reference, = in_parts(reference_log_probs, self.reference, batch, temperature)
        if not reference.isfinite().all():
            raise UserError("the reference gives an answer of the policy probability 0, so there is no KL divergence "
                            "from it. Use a reference with smoothing, or leave train.reference out.")
        return Played(batch, texts, rewards, log_probs, reference, entropy)


def in_parts(function: Any, model: Model, batch: Batch, temperature: float) -> list[Tensor]:
    """A function of the model and some rows of a batch, whose results are tensors with these rows."""
    device, rows = device_of(model), len(batch.tokens)
    size = max(1, AT_ONCE.get(device.type, AT_ONCE["cpu"]) // batch.tokens.shape[1])
    with eval_mode(model):
        parts = [function(model, batch.rows(slice(first, first + size)), temperature) for first in range(0, rows, size)]
    return [torch.cat(part) for part in zip(*parts)]


def policy_log_probs(model: LanguageModel, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """(B, T) log p of each target, 0 where none counts; (B,) the entropy of their distributions, summed."""
    mask, found = batch.loss_mask, hidden_and_projection(model, batch)
    targets = batch.targets.where(mask, 0)
    if found is None:
        log_probs, entropy = _log_probs_and_entropy(model(batch).flatten(0, 1), targets.flatten(), temperature)
    else:
        hidden, project = found
        flat = hidden.flatten(0, 1)
        size = chunk_rows(len(flat), project(flat[:1]).shape[-1], flat.device.type)
        parts = [_log_probs_and_entropy(project(some), wanted, temperature)
                 for some, wanted in zip(torch.split(flat, size), torch.split(targets.flatten(), size))]
        log_probs, entropy = (torch.cat(part) for part in zip(*parts))
    return log_probs.view_as(targets) * mask, (entropy.view_as(targets) * mask).sum(1)


def _log_probs_and_entropy(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(N, V), (N,) -> (N,), (N,)"""
    every = (logits.float() / temperature).log_softmax(-1)
    return every.gather(-1, targets[:, None])[:, 0], torch.special.entr(every.exp()).sum(-1)


def reference_log_probs(model: LanguageModel, batch: Batch, temperature: float = 1.0) -> tuple[Tensor]:
    """(B, T), looked up where the kind has tables."""
    if type(model).score is LanguageModel.score or temperature != 1:
        return (answer_log_probs(model, batch, temperature),)
    mask = batch.loss_mask
    log_probs, _ = model.score(batch.tokens, batch.targets.where(mask, 0), model.begin(batch))
    return (log_probs.float().where(mask, 0.0),)


class HeldOut:
    """Batches of an evaluation: one answer to each held-out prompt, drawn as it is asked for, by seeds that stay."""

    def __init__(
        self, environment: Environment, prompts: Sequence[Tokens], contents: Sequence[Content], rows: int, seed: int
    ):
        self.environment, self.prompts, self.contents = environment, prompts, contents
        self.rows, self.seed = rows, seed

    @property
    def epoch(self) -> float:
        return len(self.prompts) / self.rows

    @property
    def steps(self) -> int:
        return math.ceil(self.epoch)

    def at(self, step: int) -> RolloutBatch:
        """As many answers are drawn as in training, so that the decode loop is used again; some may not count."""
        ids = [id % len(self.prompts) for id in range(step * self.rows, (step + 1) * self.rows)]
        played = self.environment.play([self.prompts[id] for id in ids], [self.contents[id] for id in ids],
                                       rollout_seed(self.seed, EVALUATION + step))
        batch = RolloutBatch(**played.batch.tensors(), rewards=played.rewards, kl=played.kl, entropy=played.entropy)
        counted = batch.rows(slice(len(self.prompts) - step * self.rows))
        assert isinstance(counted, RolloutBatch)
        return counted
