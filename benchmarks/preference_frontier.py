"""Reward against KL from the reference, on film reviews: DPO, IPO, KTO, PPO, GRPO, best-of-n and SFT on chosen answers.

    CHAINRULE_DATA=DATA python benchmarks/preference_frontier.py --out runs/frontier
        [--stages models pairs tune picture] [--seeds 1 2 3] [--parallel 8] [--seconds S] [--results FILE]
        [--device cuda] [--size full|smoke|tiny]

The experiment of Rafailov et al. 2023, figure 2. A GPT reads film reviews (IMDB's training texts) and books; tuned on
the reviews alone it is the reference. It continues the first 2 to 8 tokens of reviews that it has not read. The true
reward is p(positive) of a classifier; of two answers to a prompt the one with the higher reward is chosen. Each method
starts from the reference, with three seeds. Several times during training the policy draws answers to held-out prompts,
whose mean true reward and KL from the reference are one point.

    models     recipes/reviews-gpt.toml, the body; imdb-gpt.toml, the classifier; imdb-reference.toml, the reference
    pairs      answers of the reference, their true rewards, the pairs
    tune       the reward model, every method, several at a time, and best-of-n
    picture    frontier.svg and table.md: of each method the reward that is reached within a budget of KL

What a stage has made is not made again. Each point is appended to --results as it comes, as a JSON line, and no
training begins or goes on after --seconds. `--size tiny` is the whole program with tiny models on invented reviews, on
a CPU in a minute or two; `--size smoke` has the real models, hardly trained. Figures of both say nothing.
"""

import argparse
import gc
import json
import lzma
import math
import multiprocessing
import os
import random
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from frontier_points import (
    BEST_OF,
    BEST_OF_LEARNED,
    PREFIX,
    REFERENCE,
    best_of_n,
    by_method,
    mean_score,
    pair_up,
    picture,
    prompts_of,
    read_rows,
    table,
)

import chainrule
from chainrule.files import write_text

RECIPES = Path(__file__).parents[1] / "recipes"
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


# The models

def make_models(here: Experiment, tiny: bool) -> None:
    """The body; then, at the same time, the classifier and the reference."""
    reviews, books = (invent_reviews(here.out), []) if tiny else (data("imdb/train.jsonl.xz"), [data("gutenberg")])
    began = time.monotonic()
    if not made(here, "body"):
        alone(here, train_body, here, [reviews, *books])
    here.say(event="body", seconds=time.monotonic() - began)
    jobs = [job for job in (train_classifier, train_reference) if not made(here, job.__name__.removeprefix("train_"))]
    with workers(min(2, here.parallel)) as pool:
        for future in [pool.submit(job, here, reviews, tiny) for job in jobs]:
            future.result()


def train_body(here: Experiment, texts: Sequence[Path]) -> None:
    here.train("body", "reviews-gpt", texts, {"train.minutes": here.size.minutes})


def train_classifier(here: Experiment, reviews: Path, tiny: bool) -> None:
    began = time.monotonic()
    run = here.train("classifier", "imdb-gpt", [reviews], base=here.out / "body")
    trained = time.monotonic()
    result = run.evaluate(reviews if tiny else data("imdb/test.jsonl.xz"))
    here.say(event="classifier", accuracy=result["accuracy"], interval=result["accuracy_interval"],
             seconds=trained - began, evaluated=time.monotonic() - trained)


def train_reference(here: Experiment, reviews: Path, tiny: bool) -> None:
    began = time.monotonic()
    run = here.train("reference", "imdb-reference", [reviews], base=here.out / "body")
    here.say(event="reference", bits_per_byte=run.result["bits_per_byte"], seconds=time.monotonic() - began)


def made(here: Experiment, name: str) -> bool:
    """Whether a run is complete: recipe.json is written last."""
    return (here.out / name / "recipe.json").exists()


def data(name: str) -> Path:
    path = Path(os.environ["CHAINRULE_DATA"]) / name
    if not path.exists():
        sys.exit(f"{path} is missing: {DATA}.")
    return path


def invent_reviews(out: Path, count: int = 600) -> Path:
    """Short reviews with words that tell their label, for `--size tiny`."""
    words, words_of = random.Random(1), {"1": ["great", "superb", "fine"], "0": ["bad", "dull", "poor"]}
    path, rows = out / "reviews.jsonl", []
    for number in range(count):
        label = str(number % 2)
        parts = [f"the {words.choice(['film', 'plot', 'end', 'cast'])} is {words.choice(words_of[label])}"
                 for _ in range(4)]
        rows.append(json.dumps({"text": " and ".join(parts), "label": int(label)}))
    write_text(path, "\n".join(rows) + "\n")
    return path


# Prompts, answers and pairs

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


# Tuning

@dataclass(frozen=True)
class Job:
    method: str
    settings: Mapping[str, Any]
    seed: int

    @property
    def name(self) -> str:
        return "-".join([self.method, *map(str, self.settings.values()), str(self.seed)])


class OutOfTime(Exception):
    pass


def tune_all(here: Experiment, seeds: Sequence[int]) -> None:
    """All trainings, `parallel` at a time; those that need the learned reward wait for it."""
    (here.out / "tuned").mkdir(exist_ok=True)
    done = {(row["method"], *row["settings"].values(), row["seed"]) for row in read_rows(here.results)
            if row["event"] == "tuned"}
    known = any(row["event"] == "reward" for row in read_rows(here.results))
    waiting: list[Callable[..., Any] | Job] = [train_reward] * (not known)
    waiting += [job for job in jobs_of(here.size, seeds) if (job.method, *job.settings.values(), job.seed) not in done]
    waiting.append(measure_best_of)
    with workers(here.parallel) as pool:
        running: dict[Future[Any], Any] = {}
        retries = 2 * here.parallel
        while waiting or running:
            while len(running) < here.parallel and (job := next((job for job in waiting if ready(here, job)), None)):
                waiting.remove(job)
                call = (tune, job) if isinstance(job, Job) else (job,)
                running[pool.submit(attempt, here, *call)] = job
            if not running:                                # the reward model failed, and only its users are left
                here.say(event="skipped", jobs=len(waiting))
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                again = not future.result() and retries > 0 and time.time() < here.until
                retries, waiting = retries - again, [*waiting, *[job] * again]


def ready(here: Experiment, job: Any) -> bool:
    needs = METHODS[job.method].reward == "learned" if isinstance(job, Job) else job is measure_best_of
    return not needs or made(here, "reward")


def jobs_of(size: Size, seeds: Sequence[int]) -> list[Job]:
    """The first settings of every method first, so that what is cut short has some of each."""
    return [Job(name, method.tried[number], seed) for number in range(size.configurations) for seed in seeds
            for name, method in METHODS.items() if number < len(method.tried)]


def attempt(here: Experiment, function: Callable[..., None], *more: Any) -> bool:
    """One that fails says so, and does not take the others with it. False: it should be tried again."""
    facts = {"method": more[0].method, "settings": dict(more[0].settings), "seed": more[0].seed} if more else {}
    began = time.time()
    try:
        if began < here.until:
            function(*((here, *more)))
    except OutOfTime:
        here.say(event="out of time", **facts, seconds=time.time() - began)
    except Exception as error:
        lines = traceback.format_exc().splitlines()
        here.say(event="failed", what=function.__name__, **facts, error=f"{type(error).__name__}: {error}"[:600],
                 where=lines[-8:-1])
        return "memory" not in str(error)                  # another may have had it, and it is tried again
    finally:
        free_memory()
    return True


def free_memory() -> None:
    """Of this process on the GPU, for the others."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def train_reward(here: Experiment) -> None:
    began = time.monotonic()
    files = [here.out / f"pairs-{split}.jsonl" for split in ("train", "valid")]
    run = here.train("reward", "imdb-reward", files[:1], base=here.out / "reference", valid=files[1])
    facts = {name: value for name, value in run.result.items() if isinstance(value, int | float | list)}
    here.say(event="reward", **facts, **accuracy_by_margin(here, files[1]), seconds=time.monotonic() - began)


def accuracy_by_margin(here: Experiment, file: Path) -> dict[str, Any]:
    """Of the learned reward on held-out pairs, and on those whose true rewards differ by more than a margin."""
    from chainrule.preferences.reinforce.rewards import load_reward

    pairs = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    reward = load_reward(str(here.out / "reward"), here.device)
    chosen, rejected = (np.array(reward([pair["prompt"] for pair in pairs], [pair[name] for pair in pairs]))
                        for name in ("chosen", "rejected"))
    right = chosen > rejected
    margins = np.array([pair["chosen_reward"] - pair["rejected_reward"] for pair in pairs])
    return {"pairs": len(pairs), "share_right": mean_score(right.astype(float)).as_dict("share"),
            "by_margin": {str(least): [round(float(right[margins > least].mean()), 4), int((margins > least).sum())]
                          for least in (0.0, 0.05, 0.2, 0.5) if (margins > least).any()}}


LOADED: dict[Path, Tools] = {}                   # one for each process, which trains several times


def tools_of(here: Experiment) -> Tools:
    if here.out not in LOADED:
        LOADED[here.out] = Tools.load(here)
    return LOADED[here.out]


def tune(here: Experiment, job: Job) -> None:
    """One training from the reference, with points along it."""
    began, method, tools = time.monotonic(), METHODS[job.method], tools_of(here)
    facts: dict[str, Any] = {"method": job.method, "settings": dict(job.settings), "seed": job.seed}
    given = {**job.settings, "train.method": method.name, "train.seed": job.seed, "train.graph": "false"}
    if method.reward is not None:
        given["train.reward"] = here.true_reward if method.reward == "true" else str(here.out / "reward")
    text = here.out / f"{'pairs' if method.reward is None else 'prompts'}-train.jsonl"
    environment, due, evaluating = None, list[int](), 0.0

    def observe(model: Any, record: Mapping[str, Any]) -> None:
        nonlocal environment, due, evaluating
        if time.time() > here.until:
            raise OutOfTime
        if record["event"] == "descent":
            due = [math.ceil(record["steps"] * share) for share in here.size.evaluations]
        if record["event"] == "step" and due and record["step"] >= due[0]:
            due = [step for step in due if step > record["step"]]
            start = time.monotonic()
            environment = environment or tools.environment(model)
            point = tools.measure(environment, seed=job.seed)
            evaluating += time.monotonic() - start
            here.say(event="point", **facts, step=record["step"], **point, seconds=time.monotonic() - began)

    folder = here.out / "tuned" / job.name.replace(" ", "-").replace(",", "")
    here.train(f"tuned/{folder.name}", method.recipe, [text], given, base=here.out / "reference", observe=observe,
               overwrite=True)
    shutil.rmtree(folder)
    here.say(event="tuned", **facts, seconds=time.monotonic() - began, evaluating=evaluating)


def measure_best_of(here: Experiment) -> None:
    """The best of n answers of the reference, by the true reward and by the learned one; and the reference itself."""
    from chainrule.preferences.reinforce.kl import best_of_n_kl
    from chainrule.preferences.reinforce.rewards import load_reward

    began, tools = time.monotonic(), tools_of(here)
    answers, rewards = json.loads((here.out / "best-of.json").read_text(encoding="utf-8"))
    truth = np.array(rewards)                                                           # (P, K)
    prompts = [prompt for prompt in tools.test_prompts for _ in answers[0]]
    texts = [answer for row in answers for answer in row]
    learned = np.array(load_reward(str(here.out / "reward"), here.device)(prompts, texts)).reshape(truth.shape)
    for n in [2**power for power in range(truth.shape[1].bit_length()) if 2**power <= truth.shape[1]]:
        for method, by in ((BEST_OF, truth), (BEST_OF_LEARNED, learned)):
            each = best_of_n(truth, by, n)                                              # (P,)
            method = REFERENCE if n == 1 else method
            here.say(event="point", method=method, settings={"n": n}, seed=0, step=0, kl=best_of_n_kl(n),
                     **mean_score(each).as_dict("reward"), halves=[float(each[half::2].mean()) for half in (0, 1)],
                     seconds=time.monotonic() - began)
            if n == 1:
                break


class Here(Executor):
    """Calls at once, in this process."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **keywords))
        return future


def workers(parallel: int) -> Executor:
    if parallel == 1:
        return Here()
    return ProcessPoolExecutor(parallel, multiprocessing.get_context("spawn"), use_tensor_cores)


def alone(here: Experiment, function: Callable[..., None], *more: Any) -> None:
    """In a process of its own, whose memory on the GPU is free afterwards."""
    with workers(min(2, here.parallel)) as pool:
        pool.submit(function, *more).result()


def use_tensor_cores() -> None:
    """For what is not trained, but drawn and scored: float32 products in TF32, whose error a point does not show."""
    import torch

    torch.set_float32_matmul_precision("high")


def draw(here: Experiment) -> None:
    rows = read_rows(here.results)
    if not by_method(rows):
        sys.exit(f"{here.results} has no points to draw.")
    write_text(here.out / "frontier.svg", picture(rows))
    write_text(here.out / "table.md", "\n".join(table(rows)) + "\n")
    print("\n".join(table(rows)))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for runs, pairs, points and the picture")
    parser.add_argument("--stages", nargs="+", choices=("models", "pairs", "tune", "picture"),
                        default=("models", "pairs", "tune", "picture"))
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--parallel", type=int, default=8, help="trainings at a time; 1: in this process")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no training goes on")
    parser.add_argument("--results", type=Path, help="file of JSON lines; none: points.jsonl in --out")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(words)
    if args.size != "tiny" and "CHAINRULE_DATA" not in os.environ and set(args.stages) & {"models", "pairs"}:
        parser.error(f"{DATA}; set it.")
    args.out.mkdir(parents=True, exist_ok=True)
    out, results = args.out.resolve(), (args.results or args.out / "points.jsonl").resolve()
    here = Experiment(out, SIZES[args.size], args.device, results, time.time() + args.seconds, args.parallel)
    tiny = args.size == "tiny"
    use_tensor_cores()
    if "models" in args.stages:
        make_models(here, tiny)
    if "pairs" in args.stages and not (args.out / "best-of.json").exists():
        alone(here, make_pairs, here, tiny)
    if "tune" in args.stages:
        tune_all(here, args.seeds)
    if "picture" in args.stages:
        draw(here)


if __name__ == "__main__":
    main()
