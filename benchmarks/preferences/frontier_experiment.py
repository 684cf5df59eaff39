"""The experiment of frontier.py: its sizes, the methods that are tried, and where everything is."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chainrule

RECIPES = Path(__file__).parents[2] / "recipes"
DATA = "CHAINRULE_DATA is a folder with imdb/train.jsonl.xz, imdb/test.jsonl.xz and gutenberg/"
POSITIVE = "1"                                   # IMDB's label
SPLITS = "train", "valid", "test"                # of prompts: for pairs, for the reward model's accuracy, for points


@dataclass(frozen=True)
class Size:
    minutes: float = 2.5                                    # of the body's training
    prompts: tuple[int, int, int] = 13_000, 2_000, 512      # in each of SPLITS
    answers: int = 8                                        # to each prompt; they make half as many pairs
    tokens: int = 48                                        # of an answer, at most
    best_of: int = 64                                       # answers of the reference to each test prompt
    rows: int = 2048                                        # answers that are drawn at a time
    evaluations: tuple[float, ...] = 1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1    # shares of a training
    configurations: int = 4                                 # of a method, at most
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)    # by recipe, where they differ


SIZES = {
    "full": Size(),
    "smoke": Size(
        0.1, (512, 256, 128), best_of=8, rows=512, evaluations=(0.5, 1), configurations=1,
        settings={"imdb-gpt": {"train.epochs": 0.05}, "imdb-reference": {"train.epochs": 0.05},
                  "imdb-reward": {"train.epochs": 1}, "imdb-preference": {"train.steps": 30},
                  "imdb-reinforce": {"train.steps": 6}},
    ),
    "tiny": Size(
        0.2, (256, 64, 64), tokens=12, best_of=8, rows=256, evaluations=(0.3, 0.6, 1), configurations=1,
        settings={"reviews-gpt": {"text.vocab": 320, "model.layers": 1, "model.width": 48, "model.heads": 2,
                                  "model.context": 96, "train.tokens": 1024, "train.compile": "false"},
                  "imdb-gpt": {"train.tokens": 1024, "train.epochs": 8, "train.lr": 3e-3, "model.context": 96},
                  "imdb-reference": {"train.tokens": 1024, "train.epochs": 1},
                  "imdb-reward": {"train.epochs": 4, "train.pairs": 16, "train.lr": 2e-3},
                  "imdb-preference": {"train.steps": 60, "train.pairs": 16, "train.lr": 1e-3},
                  "imdb-reinforce": {"train.steps": 30, "train.prompts": 8, "train.generations": 8, "train.lr": 1e-3,
                                     "train.answer_tokens": 12}},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Method:
    """A method of tuning, and the settings that are tried: its curve is made of the points of all of them."""

    recipe: str
    name: str                            # train.method
    tried: Sequence[Mapping[str, Any]]
    reward: str | None = None            # learned or true, where it needs one


def tried(name: str, *values: float, **more: Any) -> list[dict[str, Any]]:
    return [{name: value, **{f"train.{setting}": given for setting, given in more.items()}} for value in values]


PPO = {"prompts": 256, "generations": 1, "inner_epochs": 2, "steps": 200, "lr": 2e-5}    # 100 rollouts of 256 answers
GRPO = {"prompts": 32, "generations": 8, "steps": 100, "lr": 5e-5, "kl_estimator": "k1"}    # as many
LEARNED = {"value_clip": 10.0}                   # learned rewards are between -10 and 10, and so are values
METHODS = {
    "DPO": Method("imdb-preference", "dpo", tried("train.beta", 0.5, 0.3, 1.0)),
    "IPO": Method("imdb-preference", "ipo", tried("train.beta", 3.0, 1.5)),
    "KTO": Method("imdb-preference", "kto", tried("train.beta", 0.3, 0.6)),
    "SFT on chosen": Method("imdb-preference", "orpo", tried("train.beta", 1e-9)),    # ORPO without its second term
    "PPO": Method("imdb-reinforce", "ppo", tried("train.kl", 1.0, 0.5, **PPO, **LEARNED), "learned"),
    "PPO, true reward": Method("imdb-reinforce", "ppo", tried("train.kl", 0.07, 0.04, **PPO), "true"),
    "GRPO": Method("imdb-reinforce", "grpo", tried("train.kl", 1.0, 2.0, **GRPO), "learned"),
}


@dataclass(frozen=True)
class Experiment:
    """Where everything is, and how much of it there is to be."""

    out: Path
    size: Size
    device: str
    results: Path
    until: float                         # time.time() after which no training goes on
    parallel: int

    def say(self, **facts: Any) -> None:
        """A JSON line, on the screen and in the results. One write, so that lines of several processes stay whole."""
        line = json.dumps({name: _rounded(fact) for name, fact in facts.items()}) + "\n"
        with self.results.open("a", encoding="utf-8") as file:
            file.write(line)
        sys.stdout.write(line)
        sys.stdout.flush()

    def train(self, name: str, recipe: str, texts: Sequence[Path], given: Mapping[str, Any] = {}, **more: Any) -> Any:
        """A run in the folder, made by a recipe; the settings given by the size of the experiment come last."""
        chosen = {**given, **self.size.settings.get(recipe, {})}
        return chainrule.train([str(text) for text in texts], recipe=RECIPES / f"{recipe}.toml", out=self.out / name,
                               settings=chosen, device=self.device, **more)

    @property
    def true_reward(self) -> str:
        return f"{self.out / 'classifier'}:{POSITIVE}"


def _rounded(fact: Any) -> Any:
    if isinstance(fact, list | tuple):
        return [_rounded(part) for part in fact]
    if isinstance(fact, dict):
        return {name: _rounded(part) for name, part in fact.items()}
    return float(f"{fact:.6g}") if isinstance(fact, float) else fact


def made(here: Experiment, name: str) -> bool:
    """Whether a run is complete: recipe.json is written last."""
    return (here.out / name / "recipe.json").exists()


def data(name: str) -> Path:
    path = Path(os.environ["CHAINRULE_DATA"]) / name
    if not path.exists():
        sys.exit(f"{path} is missing: {DATA}.")
    return path
