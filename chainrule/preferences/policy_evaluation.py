"""Evaluation of a policy: mean reward of its answers to prompts, and its KL divergence from the reference.

    chainrule eval RUN PROMPTS.jsonl --reward REWARD [--reference RUN] [--answer-tokens N]

    KL(π, π_ref) = E over answers y drawn from π of  log π(y | x) - log π_ref(y | x)        in nats per answer

Both are what tuning trades against each other: the more reward, the further from the reference (Rafailov et al. 2023,
figure 2). Any language model can be the policy, whatever it was trained by.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chainrule.preferences.reinforce.task import Reinforce, environment_of, measure_answers, prompt_corpus
from chainrule.preferences.reinforce.training import ReinforceTraining
from chainrule.run import Run
from chainrule.settings import make
from chainrule.tasks.examples import held_out_examples

ROWS = 256    # answers that are drawn together


def evaluate_policy(
    run: Run, files: Sequence[str], reward: str, *, reference: str | None = None, tokens: int = 64, seed: int = 1
) -> dict[str, Any]:
    """Reward and KL with 95 % intervals. `reference`: none, the run that this one was tuned from, or else itself."""
    run.language_model.start(1)                            # refuses one that writes no text
    if reference is None and run.recipe.base is None:
        reference = str(run.path)
    given = {"reward": reward, "reference": reference, "answer_tokens": tokens, "seed": seed, "generations": 1,
             "prompts": ROWS, "method": "ppo", "precision": "float32"}
    recipe = replace(run.recipe, train=make(ReinforceTraining, given, "train"))
    task = Reinforce()
    examples = held_out_examples(task.read, files, task.text())
    corpus = prompt_corpus({"test": examples}, recipe, run.tokenizer, run.template)
    environment = environment_of(run.model, corpus, run.path)
    return measure_answers(environment, corpus.splits["test"], recipe.train)
