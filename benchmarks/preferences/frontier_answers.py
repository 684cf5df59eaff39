"""Answers of the reference and of policies: drawn, judged by the true reward, paired, and measured as a point."""

import json
import lzma
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from frontier_experiment import SPLITS, Experiment, data
from frontier_points import PREFIX, mean_score, pair_up, prompts_of

import chainrule
from chainrule.files import write_text


def make_pairs(here: Experiment, tiny: bool) -> None:
    """Files: prompts-SPLIT.jsonl, pairs-train.jsonl, pairs-valid.jsonl, best-of.json."""
    began, size = time.monotonic(), here.size
    source = here.out / "reviews.jsonl" if tiny else data("imdb/test.jsonl.xz")
    tools = Tools.load(here)
    texts = [json.loads(line)["text"] for line in (lzma.open if source.suffix == ".xz" else open)(source, "rt")]
    prompts = prompts_of(texts, tools.tokenizer, sum(size.prompts), seed=1)
    first = 0
    for split, count in zip(SPLITS, size.prompts):
        some, first = prompts[first : first + count], first + count
        write_lines(here.out / f"prompts-{split}.jsonl", ({"prompt": prompt} for prompt in some))
        each = size.best_of if split == "test" else size.answers
        answers, rewards = tools.draw(some, each, seed=SPLITS.index(split) + 1)
        pairs = [pair for row in zip(some, answers, rewards.tolist()) for pair in pair_up(*row)]
        here.say(event="answers", split=split, prompts=len(some), answers=rewards.size, reward=float(rewards.mean()),
                 deviation=float(rewards.std()), pairs=len(pairs), seconds=time.monotonic() - began)
        if split != "test":
            write_lines(here.out / f"pairs-{split}.jsonl", pairs)
        else:
            write_text(here.out / "best-of.json", json.dumps([answers, rewards.tolist()]))    # last: all is there


def write_lines(path: Path, rows: Any) -> None:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


@dataclass
class Tools:
    """The reference, its tokenizer and the true reward, with which a process draws and judges answers."""

    here: Experiment
    reference: Any
    tokenizer: Any
    reward: Any

    @classmethod
    def load(cls, here: Experiment) -> "Tools":
        from chainrule.preferences.reinforce.rewards import load_reward

        run = chainrule.load(here.out / "reference", here.device)
        return cls(here, run.language_model, run.tokenizer, load_reward(here.true_reward, here.device))

    def sampler(self, policy: Any) -> Any:
        from chainrule.preferences.reinforce.rollouts import Sampler

        return Sampler(policy, self.here.size.tokens, longest=PREFIX[1])

    def draw(self, prompts: Sequence[str], each: int, seed: int) -> tuple[list[list[str]], Any]:
        """Texts and (P, K) true rewards of `each` answers of the reference to each prompt."""
        sampler, texts = self.sampler(self.reference), list[str]()
        rows = [prompt for prompt in prompts for _ in range(each)]
        for first in range(0, len(rows), self.here.size.rows):
            drawn = sampler.draw(self.encode(rows[first : first + self.here.size.rows]), seed + 1000 * first)
            texts += [self.tokenizer.decode(drawn.ids(row)) for row in range(len(drawn.tokens))]
        rewards = np.array(self.reward(rows, texts)).reshape(len(prompts), each)
        return [texts[row : row + each] for row in range(0, len(texts), each)], rewards

    def encode(self, prompts: Sequence[str]) -> list[Any]:
        return [self.tokenizer.encode(prompt) for prompt in prompts]

    @cached_property
    def test_prompts(self) -> list[str]:
        lines = (self.here.out / "prompts-test.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["prompt"] for line in lines]

    def environment(self, policy: Any) -> Any:
        """In float32, not in bfloat16: what is measured is the policy, not its rounding."""
        from chainrule.device import choose_device, choose_precision
        from chainrule.preferences.reinforce.environment import Environment

        precision = choose_precision("float32", choose_device(self.here.device))
        return Environment(self.sampler(policy), self.reference, self.reward, self.tokenizer, precision)

    def measure(self, environment: Any, seed: int) -> dict[str, Any]:
        """One point: the true reward of the policy's answers to the test prompts, and its KL from the reference."""
        played = environment.play(self.encode(self.test_prompts), self.test_prompts, seed)
        rewards, kl = (part.double().cpu().numpy() for part in (played.rewards, played.kl))
        lengths = played.batch.loss_mask.sum(1).double()
        return {
            **mean_score(rewards).as_dict("reward"), **mean_score(kl).as_dict("kl"),
            "halves": [float(rewards[half::2].mean()) for half in (0, 1)], "length": float(lengths.mean()),
            "entropy": float((played.entropy / lengths).mean()), "example": self.test_prompts[0] + played.texts[0],
        }
