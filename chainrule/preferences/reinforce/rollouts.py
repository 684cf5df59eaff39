"""Rollouts: answers that the policy draws to prompts, by the decode loop of sampling with its KV cache and CUDA graph.

The sampler has a copy of the policy in the dtype that is fast on its device, with LoRA adapters merged. Before each
rollout the weights of the policy are copied into it, in place: so the memory of the KV cache and the CUDA graph of a
decoding step, which reads the weights where they are, serve all rollouts and are made once. A rollout is repeated by
its seed, which is made of the seed of training and the number of the rollout.

Shapes: B rows, A tokens of the longest answer, T tokens of the longest row.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parametrize

from chainrule import kernels
from chainrule.inference.decoding import DecodeLoop, Tokens, prefill_prompts
from chainrule.inference.forward import device_of, eval_mode
from chainrule.inference.generate import draw_columns
from chainrule.inference.sampling import Sampling, SamplingStrategy
from chainrule.layers.lora import merged_state_dict
from chainrule.model import BOUNDARY, IGNORE, Batch, LanguageModel

if TYPE_CHECKING:
    from chainrule.preferences.reinforce.rewards import Reward

Ids = NDArray[np.int64]
GPU_WIDTH = 32    # rows are padded to a multiple of this on a GPU, so that few shapes of a batch occur


def rollout_seed(seed: int, number: int) -> int:
    """Of the rollout of that number: 63 bits, another for each pair."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True)
class Answers:
    """What was drawn: one answer for each prompt, with the token that ends it where it ended."""

    tokens: Ids                        # (B, A), the boundary after the end
    lengths: Ids                       # (B,) tokens of each answer, with the one that ends it
    ended: NDArray[np.bool_]           # (B,) False: it was cut at the limit

    def ids(self, row: int) -> list[int]:
        """The tokens of an answer, without the one that ends it."""
        listed: list[int] = self.tokens[row, : self.lengths[row] - self.ended[row]].tolist()
        return listed


class Sampler:
    """Draws answers from a policy. `longest`: the length of the longest prompt, for which memory is reserved once."""

    def __init__(
        self, policy: LanguageModel, limit: int, temperature: float = 1.0, *, dtype: torch.dtype = torch.float32,
        end_of_turn: int | None = None, longest: int = 0,
    ):
        self.policy, self.limit, self.temperature = policy, limit, temperature
        self.model = plain_copy(policy).to(dtype)
        self.end_of_turn, self.longest = end_of_turn, longest
        self.loop: DecodeLoop | None = None
        if device_of(policy).type == "cuda":
            kernels.available()                            # they are loaded now, since many rollouts will use them

    @torch.no_grad()
    def update(self) -> None:
        """Copies the weights of the policy."""
        new, old = merged_state_dict(self.policy), self.model.state_dict()
        torch._foreach_copy_(list(old.values()), [new[name] for name in old])

    @torch.inference_mode()
    def draw(self, prompts: Sequence[Tokens], seed: int) -> Answers:
        """An answer to each prompt, by the weights that the policy has now."""
        self.update()
        model, device = self.model, device_of(self.model)
        strategy = SamplingStrategy(Sampling(self.temperature), True, prompts, self.end_of_turn)
        with torch.autocast(device.type, enabled=False), eval_mode(model):
            prefilled = prefill_prompts(model, prompts, together=True)
            if self.loop is None or len(self.loop.held) != len(prompts):
                self.loop = DecodeLoop(model, prefilled, strategy)
            else:
                self.loop.restart(prefilled, strategy)
            more = max(0, self.longest - max(map(len, prompts)))
            columns = list(draw_columns(self.loop, self.limit, seed, left=self.limit + more))
        return find_ends(torch.stack(columns, 1).cpu().numpy(), self.end_of_turn)


def plain_copy(policy: LanguageModel) -> Any:
    """A copy without adapters: what they give is part of its weights."""
    model = copy.deepcopy(policy).eval()
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            names: Any = module.parametrizations
            weights = {name: getattr(module, name).detach().clone() for name in names}
            module.__class__ = type(module).__bases__[0]    # torch's own removal would change the policy's class too
            del module.parametrizations
            for name, weight in weights.items():
                module.register_parameter(name, nn.Parameter(weight))
    return model.requires_grad_(False)


def find_ends(tokens: Ids, end_of_turn: int | None = None) -> Answers:
    """(B, A) tokens that were drawn, of which those after the first end do not count."""
    ends = tokens == BOUNDARY
    if end_of_turn is not None:
        ends |= tokens == end_of_turn
    ended = ends.any(1)
    lengths = np.where(ended, ends.argmax(1) + 1, tokens.shape[1])
    kept = np.arange(tokens.shape[1]) < lengths[:, None]
    return Answers(np.where(kept, tokens, BOUNDARY), lengths, ended)


def answer_rows(prompts: Sequence[Tokens], answers: Answers, multiple: int = 1, most: int | None = None) -> Batch:
    """(B, T): boundary, prompt and answer, teacher-forced; the targets of a prompt are IGNORE.

    T is a multiple of `multiple`, and at most `most`.
    """
    before = np.array([1 + len(prompt) for prompt in prompts])
    lengths = before + answers.lengths - 1                 # targets of each row
    width = -(-int(lengths.max()) // multiple) * multiple
    width = width if most is None else max(min(width, most), int(lengths.max()))
    rows = np.full((len(prompts), width + 1), BOUNDARY, np.int64)
    targets = np.full((len(prompts), width + 1), IGNORE, np.int64)
    for row, (prompt, begin, count) in enumerate(zip(prompts, before, answers.lengths)):
        rows[row, 1:begin] = prompt
        rows[row, begin : begin + count] = targets[row, begin : begin + count] = answers.tokens[row, :count]
    return Batch(torch.from_numpy(rows[:, :-1]), torch.from_numpy(targets[:, 1:]), torch.from_numpy(lengths))


def repeat_each(items: Sequence[Any], times: int) -> list[Any]:
    """Each item so many times, one after the other: a group."""
    return [item for item in items for _ in range(times)]


def best_of_n(
    sampler: Sampler, prompts: Sequence[Tokens], texts: Sequence[Any], tokenizer: Any, reward: "Reward", n: int,
    seed: int,
) -> tuple[list[str], list[float]]:
    """Of `n` answers drawn to each prompt the one with the highest reward, and that reward.

    `prompts` are tokens, and `texts` the same as the reward reads them. How far it is from the policy: `best_of_n_kl`.
    """
    drawn = sampler.draw(repeat_each(prompts, n), seed)
    answers = [tokenizer.decode(drawn.ids(row)) for row in range(len(drawn.tokens))]
    rewards = torch.tensor(reward(repeat_each(texts, n), answers)).view(-1, n)
    best = rewards.argmax(1)
    chosen = [answers[row * n + place] for row, place in enumerate(best.tolist())]
    return chosen, rewards.gather(1, best[:, None])[:, 0].tolist()

