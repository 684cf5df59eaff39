"""The optimum of reward under a KL penalty, with all texts enumerated: π*(y | x) ∝ π₀(y | x) exp(r(x, y) / β).

The answers to a prompt are so few that π* is computed exactly, by a sum over all of them. Each method must reach it
through the trainer, from samples or pairs alone.
"""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

import chainrule
from chainrule import run
from chainrule.model import BOUNDARY
from chainrule.recipe import Text
from chainrule.run import Run
from chainrule.tasks import build_for, recipe_for
from chainrule.text.tokenizers.tokenizer import train_tokenizer

PROMPTS = ("x", "y")
WORDS = ("a", "b")
LONGEST = 2           # words of an answer
BETA, KL = 0.5, 1.0
WITHIN = 1e-2
ANSWERS = [" ".join(words) for size in range(1, LONGEST + 1) for words in itertools.product(WORDS, repeat=size)]


def count(prompt: str, answer: str) -> int:
    """How often an answer has the word that the prompt asks for."""
    return answer.split().count(dict(zip(PROMPTS, WORDS, strict=True))[prompt])


def reward(prompt: str, answer: str) -> float:
    """log 2 for each such word: so Bradley–Terry probabilities are rational numbers, 2^d / (1 + 2^d)."""
    return math.log(2) * count(prompt, answer)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A language model of four words with random weights: the reference."""
    tokenizer = train_tokenizer(Text(tokenizer="words", min_count=1), [" ".join([*PROMPTS, *WORDS])])
    settings = {"model.order": 6, "model.embedding": 8, "model.hidden": 48, "text.tokenizer": "words"}
    recipe = recipe_for("feedforward", settings)
    torch.manual_seed(3)
    model = build_for(recipe, len(tokenizer), ())
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    path = tmp_path_factory.mktemp("optimum") / "base"
    run.save(path, model, tokenizer, recipe)
    return run.load(path)


@torch.no_grad()
def log_prob(made: Run, prompt: str, answer: str) -> float:
    """log p(answer, end | prompt), one token at a time."""
    model, total = made.language_model, 0.0
    read = [BOUNDARY, *made.tokenizer.encode(prompt).tolist()]
    logits, state = model.step(torch.tensor([read]), model.start(1))
    for token in [*made.tokenizer.encode(answer).tolist(), BOUNDARY]:
        total += float(logits[0, -1].double().log_softmax(-1)[token])
        logits, state = model.step(torch.tensor([[token]]), state)
    return total


def distribution(made: Run, prompt: str) -> torch.Tensor:
    """Over ANSWERS, given that the answer is one of them."""
    return torch.tensor([log_prob(made, prompt, answer) for answer in ANSWERS]).softmax(0)


def optimum(base: Run, prompt: str, scores: dict[str, float], beta: float) -> torch.Tensor:
    tilt = torch.tensor([scores[answer] / beta for answer in ANSWERS])
    return (distribution(base, prompt).log() + tilt).softmax(0)


def total_variation(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).abs().sum() / 2)


def write(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def tune(base: Run, rows: list[dict[str, str]], folder: Path, **settings: float | str) -> Run:
    """By the whole pipeline, all rows in each step."""
    file = write(folder / "rows.jsonl", rows)
    given = {"train.pairs": len(rows), "train.steps": 100, "train.lr": 0.02, "train.betas": (0.9, 0.95),
             "train.evaluate": 10**6} | {f"train.{name}": value for name, value in settings.items()}
    return chainrule.train(file, task="preference", base=base.path, valid=file, out=folder / "tuned", settings=given,
                           device="cpu")


def pairs(prompt: str, first: str, second: str, times: int, other: int) -> list[dict[str, str]]:
    """The first answer wins so many times, the second so many."""
    one = {"prompt": prompt, "chosen": first, "rejected": second}
    return [one] * times + [{**one, "chosen": second, "rejected": first}] * other


def test_dpo_reaches_the_optimum_from_pairs_in_the_proportions_of_bradley_terry(base: Run, tmp_path: Path) -> None:
    rows = []
    for prompt, (first, second) in itertools.product(PROMPTS, itertools.combinations(ANSWERS, 2)):
        difference = count(prompt, first) - count(prompt, second)
        rows += pairs(prompt, first, second, 2 ** max(0, difference), 2 ** max(0, -difference))
    tuned = tune(base, rows, tmp_path, method="dpo", beta=BETA)
    for prompt in PROMPTS:
        best = optimum(base, prompt, {answer: reward(prompt, answer) for answer in ANSWERS}, BETA)
        assert total_variation(distribution(base, prompt), best) > 0.2
        assert total_variation(distribution(tuned, prompt), best) <= WITHIN


def test_ipo_reaches_its_own_optimum(base: Run, tmp_path: Path) -> None:
    """A margin of (2p - 1) / 2β between the means of log π/π₀ over the tokens, where p is how often an answer wins."""
    longest = [answer for answer in ANSWERS if len(answer.split()) == LONGEST]        # all have as many tokens
    good = {prompt: {answer: count(prompt, answer) > 0 for answer in longest} for prompt in PROMPTS}
    rows = []
    for prompt, (first, second) in itertools.product(PROMPTS, itertools.combinations(longest, 2)):
        difference = good[prompt][first] - good[prompt][second]
        rows += pairs(prompt, first, second, *{1: (4, 2), 0: (3, 3), -1: (2, 4)}[difference])    # p = 2/3 or 1/2
    tuned = tune(base, rows, tmp_path, method="ipo", beta=BETA)
    tokens, margin = LONGEST + 1, (2 * 2 / 3 - 1) / (2 * BETA)
    for prompt in PROMPTS:
        scores = {answer: tokens * margin * good[prompt].get(answer, False) for answer in ANSWERS}
        best, found = (of(longest, one) for one in (optimum(base, prompt, scores, 1.0), distribution(tuned, prompt)))
        assert total_variation(of(longest, distribution(base, prompt)), best) > 0.1
        assert total_variation(found, best) <= WITHIN


def of(answers: list[str], probabilities: torch.Tensor) -> torch.Tensor:
    """Given that the answer is one of these."""
    some = torch.stack([probabilities[ANSWERS.index(answer)] for answer in answers])
    return some / some.sum()


# Reinforcement learning: every answer that can be drawn is enumerated, cut off after LONGEST tokens


def every_answer(vocab: int) -> list[tuple[int, ...]]:
    """Token by token: those that end before, and all that are cut off."""
    whole = [(*words, BOUNDARY) for size in range(LONGEST) for words in itertools.product(range(1, vocab), repeat=size)]
    return whole + list(itertools.product(range(1, vocab), repeat=LONGEST))


@torch.no_grad()
def exact_distribution(made: Run, prompt: str) -> torch.Tensor:
    """Over `every_answer`: it sums to 1."""
    model, read = made.language_model, [BOUNDARY, *made.tokenizer.encode(prompt).tolist()]
    total = []
    for answer in every_answer(len(made.tokenizer)):
        tokens = torch.tensor([[*read, *answer]])
        logits, _ = model.step(tokens[:, :-1], model.start(1))
        log_probs = logits[0, len(read) - 1 :].double().log_softmax(-1)
        total.append(log_probs.gather(1, torch.tensor(answer)[:, None]).sum())
    probabilities = torch.stack(total).exp()
    assert float(probabilities.sum()) == pytest.approx(1)
    return probabilities


def rewards_of(prompts: list[str], answers: list[str]) -> list[float]:
    """What `--reward python:…` names."""
    return [float(count(prompt, answer)) for prompt, answer in zip(prompts, answers, strict=True)]


METHODS: dict[str, dict[str, float | str]] = {
    "reinforce": {},
    "rloo": {},
    "ppo": {"gae_lambda": 1.0, "value_weight": 1.0, "inner_epochs": 1},
    "grpo": {"kl_estimator": "k1"},
}


def reinforce(base: Run, folder: Path, method: str, **settings: float | str) -> Run:
    file = write(folder / "prompts.jsonl", [{"prompt": prompt} for prompt in PROMPTS])
    given = {"train.method": method, "train.reward": f"python:{__name__}.rewards_of", "train.prompts": len(PROMPTS),
             "train.generations": 128, "train.answer_tokens": LONGEST, "train.kl": KL, "train.steps": 80,
             "train.lr": 0.05, "train.schedule": "wsd", "train.evaluate": 0}
    given |= {f"train.{name}": value for name, value in settings.items()}
    return chainrule.train(file, task="reinforce", base=base.path, valid=file, out=folder / "tuned", settings=given,
                           device="cpu")


@pytest.mark.parametrize("method", METHODS)
def test_reinforcement_learning_reaches_the_optimum(method: str, base: Run, tmp_path: Path) -> None:
    tuned = reinforce(base, tmp_path, method, **METHODS[method])
    answers = every_answer(len(base.tokenizer))
    for prompt in PROMPTS:
        texts = [base.tokenizer.decode([token for token in answer if token != BOUNDARY]) for answer in answers]
        scores = torch.tensor(rewards_of([prompt] * len(texts), texts)) / KL
        before = exact_distribution(base, prompt)
        best = (before.log() + scores).softmax(0)
        assert total_variation(before, best) > 0.2
        assert total_variation(exact_distribution(tuned, prompt), best) <= WITHIN
