"""Agreement with TRL: loss and gradient of each method on the same tiny weights and the same rows, and the same tokens.

TRL's side is its own trainers (trl_trainers.py) on a Hugging Face folder that chainrule exported. Ours is the task as
`chainrule train` uses it: read, encode, begin, objective.
"""

import copy
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("trl", reason="trl is not installed: pip install 'chainrule[judges]'")

from formats.test_hugging_face_export import LLAMA, made
from preferences.losses.trl_trainers import Judge, Rollouts

from chainrule import run
from chainrule.api import training_recipe
from chainrule.formats.hugging_face_export import find_architecture
from chainrule.formats.hugging_face_folder import write_folder
from chainrule.model import Batch
from chainrule.preferences.reinforce.rollouts import find_ends
from chainrule.run import Run
from chainrule.tasks import find_task

pytestmark = pytest.mark.filterwarnings("ignore")     # TRL, datasets and accelerate warn of each other

SETTINGS = {**LLAMA, "qk_norm": False, "kv_heads": 1, "context": 96}
PAIRS = [
    {"prompt": "the cow", "chosen": " jumps over the moon", "rejected": " is"},
    {"prompt": "a", "chosen": "b", "rejected": "cde fg"},
    {"prompt": "the moon is", "chosen": " out.", "rejected": " a cow that jumps"},
]
BAR = 1e-5
Found = tuple[float, dict[str, Tensor]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run, Judge]:
    """A policy, a reference with other weights, and the same two as folders."""
    return make_runs(tmp_path_factory.mktemp("trl"))


def make_runs(folder: Path) -> tuple[Run, Run, Judge]:
    policy = made(folder / "policy", "gpt", SETTINGS)
    other = copy.deepcopy(policy.model)
    torch.manual_seed(2)
    for parameter in other.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    run.save(folder / "reference", other, policy.tokenizer, policy.recipe)
    reference = run.load(folder / "reference")
    for one in (policy, reference):
        write_folder(one, folder / f"{one.path.name}-folder")
    return policy, reference, Judge(folder / "policy-folder", folder / "reference-folder")


def tuned(runs: tuple[Run, Run, Judge], rows: list[dict[str, Any]], method: str, **settings: Any) -> Found:
    """Loss and gradient of a method as the trainer computes them in one step with all rows."""
    policy, reference, _ = runs
    given = {"train.method": method, **{f"train.{name}": value for name, value in settings.items()}}
    if method not in ("orpo", "simpo"):
        given["train.reference"] = str(reference.path)
    return one_step(policy, rows, "preference", given)


def one_step(policy: Run, rows: list[dict[str, Any]], task_name: str, given: dict[str, Any]) -> Found:
    task: Any = find_task(task_name)
    model, corpus = copy.deepcopy(policy.model), prepared(policy, rows, task_name, given)
    corpus = task.begin(model, corpus)
    objective = task.objective(model, corpus.recipe).train()
    return backward(objective, corpus), theirs(model)


def backward(objective: Any, corpus: Any) -> float:
    """The loss of all rows as one batch, and its gradient in the parameters."""
    encoded = corpus.splits["train"].encoded
    batch = encoded.batch(np.arange(len(encoded)), [int(sizes.max()) for sizes in encoded.sizes])
    objective.begin_step([batch], lambda sums: None)
    total, count, _ = objective.loss(batch)
    (total / count).backward()
    return float((total / count).detach())


def scored(runs: tuple[Run, Run, Judge], rows: list[dict[str, Any]], **settings: Any) -> tuple[Found, Tensor]:
    """Loss and gradient of a reward model on the policy's body, and the weight of its head."""
    policy = runs[0]
    corpus = prepared(policy, rows, "reward", {f"train.{name}": value for name, value in settings.items()})
    torch.manual_seed(4)
    model: Any = find_task("reward").build(corpus.recipe, len(policy.tokenizer)).train()
    model.body.load_state_dict(policy.model.state_dict())
    nn.init.normal_(model.output.weight)
    loss = backward(model, corpus)
    return (loss, {**theirs(model.body), "score.weight": model.output.weight.grad}), model.output.weight.detach()


def prepared(
    policy: Run, rows: list[dict[str, Any]], task_name: str = "preference", given: Mapping[str, Any] = {}
) -> Any:
    """The corpus that `chainrule train ROWS --task … --from POLICY` would read."""
    file = write_rows(policy, rows)
    recipe = training_recipe([file], kind=None, task=task_name, base=str(policy.path), recipe=None, valid=[file],
                             minutes=None, settings=given, device="cpu")
    task: Any = find_task(task_name)
    return task.prepare(task.complete(recipe, [file]), [file], [file], tokenizer=policy.tokenizer,
                        template=policy.template)


def write_rows(policy: Run, rows: list[dict[str, Any]]) -> str:
    file = policy.path.parent / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def theirs(model: Any) -> dict[str, Tensor]:
    """Our gradients by transformers' names and in its layout: those of the exporter."""
    of_gradients = copy.deepcopy(model)
    for ours, copied in zip(model.parameters(), of_gradients.parameters(), strict=True):
        copied.data = torch.zeros_like(ours) if ours.grad is None else ours.grad.clone()
    return {name: tensor.detach() for name, tensor in find_architecture(model.settings).tensors(of_gradients).items()}


def differences(ours: Found, judged: Found) -> tuple[float, float]:
    """Of the loss, relative to it where it is above 1; and of the gradient, relative to its norm."""
    (loss, gradients), (their_loss, their_gradients) = ours, judged
    assert their_gradients.keys() <= gradients.keys()
    assert all(float(gradients[name].abs().max()) == 0 for name in gradients.keys() - their_gradients.keys())
    apart = norm({name: gradients[name] - their_gradients[name] for name in their_gradients})
    assert norm(their_gradients) > 1e-6
    return abs(loss - their_loss) / max(1.0, abs(their_loss)), apart / norm(their_gradients)


def norm(gradients: dict[str, Tensor]) -> float:
    return float(nn.utils.get_total_norm([one.double() for one in gradients.values()]))


# ORPO's fine-tuning term is a mean over the tokens of each answer here, and over all tokens of the batch, prompts
# included, in TRL: the two are the same where prompts are empty and the chosen answers are as long as one another.
BARE = [{"prompt": "", "chosen": "the cow", "rejected": "moon"}, {"prompt": "", "chosen": "is out.", "rejected": "a"}]

CASES: dict[str, Any] = {
    "dpo": lambda runs: (tuned(runs, PAIRS, "dpo"), runs[2].dpo(PAIRS)),
    "dpo, beta 0.5": lambda runs: (tuned(runs, PAIRS, "dpo", beta=0.5), runs[2].dpo(PAIRS, beta=0.5)),
    "ipo": lambda runs: (tuned(runs, PAIRS, "ipo"), runs[2].dpo(PAIRS, loss_type="ipo")),
    "kto": lambda runs: (tuned(runs, PAIRS, "kto"), runs[2].kto(PAIRS)),
    "kto, weighted": lambda runs: (
        tuned(runs, PAIRS, "kto", beta=0.3, desirable=1.5, undesirable=0.5),
        runs[2].kto(PAIRS, beta=0.3, desirable_weight=1.5, undesirable_weight=0.5)),
    "orpo": lambda runs: (tuned(runs, BARE, "orpo"), runs[2].orpo(BARE)),
    "simpo": lambda runs: (
        tuned(runs, PAIRS, "simpo", beta=2.0, gamma=0.7),
        runs[2].cpo(PAIRS, loss_type="simpo", cpo_alpha=0.0, beta=2.0, simpo_gamma=0.7)),
    "simpo, smoothed": lambda runs: (
        tuned(runs, PAIRS, "simpo", label_smoothing=0.1),
        runs[2].cpo(PAIRS, loss_type="simpo", cpo_alpha=0.0, beta=2.0, simpo_gamma=0.5, label_smoothing=0.1)),
}


def score_both(runs: tuple[Run, Run, Judge], center: float = 0.0) -> tuple[Found, Found]:
    ours, head = scored(runs, PAIRS, center=center)
    return ours, runs[2].reward(PAIRS, head, center_rewards_coefficient=center or None)


CASES |= {"reward": score_both, "reward, centred": lambda runs: score_both(runs, 0.1)}

# Answers that were drawn already: TRL's and our advantages, ratios, clipping, KL and means over tokens

ROLLOUTS = Rollouts(
    prompts=["the cow", "a"], group=3, answer_tokens=6, rewards=[1.0, 0.0, 0.5, 2.0, 1.0, -1.0],
    answers=[[98, 99, 100, 0], [33, 101, 0], [50, 51, 52, 53, 54, 55], [98, 0], [99, 98, 0], [120, 0]],
)


def rewarded(runs: tuple[Run, Run, Judge], rows: Rollouts, inner: int, method: str, **settings: Any) -> Found:
    """Loss and gradient of the first or a later step after a rollout whose answers are given."""
    policy, reference, _ = runs
    file = write_rows(policy, [{"prompt": prompt} for prompt in rows.prompts])
    given = {
        "train.method": method, "train.reference": str(reference.path), "train.prompts": len(rows.prompts),
        "train.generations": rows.group, "train.answer_tokens": rows.answer_tokens, "train.reward": "python:math.fsum",
        "train.inner_epochs": inner + 1, **{f"train.{name}": value for name, value in settings.items()},
    }
    recipe = training_recipe([file], kind=None, task="reinforce", base=str(policy.path), recipe=None, valid=[file],
                             minutes=None, settings=given, device="cpu")
    task: Any = find_task("reinforce")
    model = copy.deepcopy(policy.model)
    objective = task.objective(model, recipe).train()
    order = task.order(objective, task.prepare(recipe, [file], [file], tokenizer=policy.tokenizer), recipe.train)
    answers = np.zeros((len(rows.answers), rows.answer_tokens), np.int64)
    for row, ids in enumerate(rows.answers):
        answers[row, : len(ids)] = ids
    order.environment.sampler.draw = lambda prompts, seed: find_ends(answers)
    order.environment.reward = lambda prompts, texts: rows.rewards
    order.prompts_of = lambda number: list(range(len(rows.prompts)))
    batch = order.at(0)
    if inner:                                    # the policy has moved on since it drew the answers
        batch = order.at(inner)
        move(model)
    objective.begin_step([batch], lambda sums: None)
    total, count, _ = objective.loss(batch)
    loss = total / count
    loss.backward()
    return loss.item(), theirs(model)


def move(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=generator)


RULES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "grpo, dapo": ("grpo", {"kl": 0.1, "loss_type": "dapo"}, {"beta": 0.1, "loss_type": "dapo"}),
    "grpo, without KL": ("grpo", {}, {}),
    "grpo, grpo": ("grpo", {"kl": 0.1, "loss_type": "grpo"}, {"beta": 0.1, "loss_type": "grpo"}),
    "grpo, dr_grpo": ("grpo", {"kl": 0.1, "loss_type": "dr_grpo"},
                      {"beta": 0.1, "loss_type": "dr_grpo", "scale_rewards": "none"}),
    "grpo, scaled by all": ("grpo", {"scale_rewards": "batch"}, {"scale_rewards": "batch"}),
    "grpo, temperature": ("grpo", {"kl": 0.1, "temperature": 0.7}, {"beta": 0.1, "temperature": 0.7}),
    "grpo, without the correction": ("grpo", {"kl": 0.1, "kl_correction": False},
                                     {"beta": 0.1, "use_bias_correction_kl": False}),
    "rloo": ("rloo", {"kl": 0.2}, {"beta": 0.2}),
    "rloo, without KL": ("rloo", {"kl": 0.0}, {"beta": 0.0}),
}


def judged(runs: tuple[Run, Run, Judge], case: str, later: bool) -> tuple[Found, Found]:
    method, ours, settings = RULES[case]
    judge, rows = moved(runs, ours.get("temperature", 1.0)) if later else (runs[2], ROLLOUTS)
    return rewarded(runs, ROLLOUTS, int(later), method, **ours), getattr(judge, method)(rows, **settings)


def moved(runs: tuple[Run, Run, Judge], temperature: float) -> tuple[Judge, Rollouts]:
    """The policy after a step as a folder, and the rollout with the log-probabilities from before it."""
    policy, _, judge = runs
    other = copy.deepcopy(policy.model)
    move(other)
    folder = policy.path.parent / "moved-folder"
    write_folder(dataclasses.replace(policy, model=other), folder, overwrite=True)
    old = torch.zeros(len(ROLLOUTS.answers), ROLLOUTS.answer_tokens)
    for row, answer in enumerate(ROLLOUTS.answers):
        prompt = [0, *policy.tokenizer.encode(ROLLOUTS.prompts[row // ROLLOUTS.group]).tolist()]
        tokens = torch.tensor([[*prompt, *answer]])
        with torch.no_grad():
            logits = policy.model(Batch(tokens[:, :-1], tokens[:, 1:]))[0, len(prompt) - 1 :] / temperature
        old[row, : len(answer)] = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
    return Judge(folder, judge.reference), dataclasses.replace(ROLLOUTS, old=old)


# a penalty in the reward belongs to the policy that drew the answers, and TRL's trainer here knows only the later one
LATER = [case for case in RULES if not case.startswith("rloo")] + ["rloo, without KL"]
CASES |= {case: lambda runs, case=case: judged(runs, case, False) for case in RULES}
CASES |= {f"{case}, later": lambda runs, case=case: judged(runs, case, True) for case in LATER}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_those_of_trl(case: str, runs: tuple[Run, Run, Judge]) -> None:
    loss, gradient = differences(*CASES[case](runs))
    assert loss <= BAR
    assert gradient <= BAR


TEMPLATE = """\
{{ bos_token }}{% for message in messages %}{{ message.role + ': ' + message.content }}\
{% if message.role == 'assistant' %}{{ eos_token }}{% else %}|{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""
USER = [{"role": "user", "content": "a cow?"}]
CHATS = [{"prompt": USER, "chosen": [{"role": "assistant", "content": "yes"}],
          "rejected": [{"role": "assistant", "content": "the moon"}]},
         {"prompt": [{"role": "system", "content": "be short"}, *USER, {"role": "assistant", "content": "no"}, *USER],
          "chosen": [{"role": "assistant", "content": "out"}], "rejected": [{"role": "assistant", "content": "in"}]}]
FILES = {
    "strings": PAIRS,
    "strings without a prompt": [{"chosen": "the cow jumps", "rejected": "the cow is"}],
    "messages": CHATS,
    "messages without a prompt": [{name: row["prompt"] + row[name] for name in ("chosen", "rejected")}
                                  for row in CHATS],
}


@pytest.mark.parametrize("rows", FILES.values(), ids=FILES.keys())
def test_the_same_file_becomes_the_same_tokens(rows: list[dict[str, Any]], runs: tuple[Run, Run, Judge]) -> None:
    policy = dataclasses.replace(runs[0], chat_template=TEMPLATE)
    folder = policy.path.parent / "chat-folder"
    write_folder(policy, folder, overwrite=True)
    assert our_tokens(policy, rows) == Judge(folder).tokenised(rows)


def our_tokens(policy: Run, rows: list[dict[str, Any]]) -> list[dict[str, list[int]]]:
    chosen, rejected = prepared(policy, rows).splits["train"].encoded.rows
    return [{"prompt": chosen.prompts[row].tolist(), "chosen": chosen.answers[row].tolist(),
             "rejected": rejected.answers[row].tolist()} for row in range(len(rows))]
