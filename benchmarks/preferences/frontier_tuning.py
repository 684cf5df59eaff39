"""The trainings of frontier.py, several at a time: the reward model, every method, and best-of-n."""

import json
import math
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from frontier_answers import Tools
from frontier_experiment import METHODS, Experiment, Size, made
from frontier_points import BEST_OF, BEST_OF_LEARNED, REFERENCE, best_of_n, mean_score, read_rows
from frontier_workers import free_memory, workers


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
