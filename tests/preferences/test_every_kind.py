"""Which kind can take which part in preference tuning: the table of the docs is what the code says."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import chainrule
from chainrule import models
from chainrule.cli import main
from chainrule.errors import UserError
from chainrule.model import LanguageModel
from chainrule.models.published import PUBLISHED
from chainrule.preferences.reference import load_reference, reference_log_probs
from chainrule.preferences.reinforce.rewards import load_reward
from chainrule.run import load
from chainrule.tasks import find_task, refuse_unfit
from chainrule.training.finetune import finetune_recipe

PAGE = Path(__file__).parents[2] / "docs" / "training" / "preferences.md"
KINDS = [kind for kind in models.KINDS if kind not in PUBLISHED]
TRAINED = {
    "policy (DPO, …)": "preference", "policy (PPO, GRPO, …)": "reinforce", "chat": "chat", "reward model": "reward",
}  # fmt: skip
FIXED = ("reference", "reward")
LANGUAGE = [kind for kind in KINDS if issubclass(models.model_class(kind), LanguageModel)
            and not models.model_class(kind).needs_source]
TEXT = "the cat saw the dog.\nthe dog ran.\na cat ran to the dog.\n" * 20
PAIR = '{"prompt": "the cat", "chosen": " ran.", "rejected": " saw the dog."}\n'
SMALL = {
    "hmm": {"model.states": 3, "train.steps": 1},
    "feedforward": {"model.embedding": 4, "model.hidden": 8, "model.order": 3, "train.steps": 1},
    "gpt": {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 64, "train.steps": 1},
    **{kind: {"model.hidden": 8, "train.steps": 1} for kind in ("rnn", "gru", "lstm")},
}


def takes_part(kind, role):
    if role in FIXED:    # any model that continues texts
        return kind in LANGUAGE
    return find_task(TRAINED[role]).suits(models.model_class(kind))


def matrix():
    roles = [*TRAINED, *FIXED]
    rows = [f"| {' | '.join(['kind', *roles])} |", "|" + "---|" * (1 + len(roles))]
    for kind in KINDS:
        cells = ["yes" if takes_part(kind, role) else "no" for role in roles]
        rows.append(f"| {' | '.join([f'`{kind}`', *cells])} |")
    return "\n".join(rows)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A small language model of each kind, all with the same tokenizer."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    (folder / "pairs.jsonl").write_text(PAIR, encoding="utf-8")
    for kind in LANGUAGE:
        chainrule.train(str(folder / "text.txt"), kind=kind, out=folder / kind, text_tokenizer="characters",
                        settings=SMALL.get(kind, {}))
    return folder


def test_the_table_of_the_page_is_what_the_code_says():
    assert matrix() in PAGE.read_text(encoding="utf-8"), f"the table of {PAGE.name} should be:\n{matrix()}"


@pytest.mark.parametrize("kind", LANGUAGE)
def test_any_language_model_is_a_reference_and_a_reward(runs, kind):
    task, recipe = find_task("preference"), finetune_recipe(runs / "gpt", {"train.reference": str(runs / kind)},
                                                            "preference")
    corpus = task.prepare(recipe, [str(runs / "pairs.jsonl")], [str(runs / "pairs.jsonl")],
                          tokenizer=load(runs / "gpt").tokenizer)
    reference = load_reference(recipe, corpus.tokenizer).language_model
    found = reference_log_probs(reference, corpus.splits["train"], "float32")
    expected = [chainrule.load(runs / kind).score(text).total_bits for text in ("the cat ran.", "the cat saw the dog.")]
    prompt = prefix_nats(runs / kind, "the cat")
    np.testing.assert_allclose(-found[0], np.array(expected) * math.log(2) - prompt, rtol=1e-3)
    rewards = load_reward(str(runs / kind))(["the cat"], [" ran."])
    said = prefix_nats(runs / kind, "the cat ran.") - prompt    # the mean of the answer's tokens, without its end
    assert rewards == pytest.approx([-said / len(" ran.")], rel=1e-3)


def prefix_nats(path, text):
    """-log p of the tokens of a text, without its end, one by one."""
    made = load(path)
    model, nats = made.language_model, 0.0
    state = model.start(1)
    with torch.inference_mode():
        for token, following in zip([0, *made.tokenizer.encode(text)], made.tokenizer.encode(text)):
            logits, state = model.step(torch.tensor([[int(token)]]), state)
            nats -= float(logits[0, -1].float().log_softmax(-1)[int(following)])
    return nats


@pytest.mark.parametrize("kind", [kind for kind in LANGUAGE if takes_part(kind, "policy (DPO, …)")])
def test_a_network_that_continues_texts_is_tuned_by_dpo_and_stays_a_language_model(runs, kind):
    tuned = chainrule.train(str(runs / "pairs.jsonl"), task="preference", base=runs / kind, out=runs / f"{kind}-dpo",
                            valid=str(runs / "pairs.jsonl"), train_steps=1, train_lr=1e-2)
    before = load(runs / kind)
    margins = [made.score("the cat saw the dog.").total_bits - made.score("the cat ran.").total_bits
               for made in (before, tuned)]
    assert margins[1] > margins[0], "the chosen answer has become more probable than the rejected one"
    assert isinstance(tuned.generate("the cat", tokens=3), str)


@pytest.mark.parametrize("kind", [kind for kind in LANGUAGE if models.model_class(kind).learns_by == "counting"])
@pytest.mark.parametrize("task", ["preference", "reinforce"])
def test_what_was_counted_has_nothing_to_tune(runs, kind, task, capsys):
    assert main(["train", str(runs / "pairs.jsonl"), "--task", task, "--from", str(runs / kind)]) != 0
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "has no layers to fine-tune: it learns by counting" in line
    assert "has no layers to fine-tune: it learns by counting" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in LANGUAGE])
@pytest.mark.parametrize("task", ["preference", "reinforce"])
def test_a_kind_that_does_not_continue_texts_is_refused_in_one_line(kind, task):
    with pytest.raises(UserError, match=f"^--task {task} is not for --kind {kind}, which is for .+ It is for .+gpt"):
        refuse_unfit(kind, find_task(task))
    assert f"--task {task} is not for --kind" in PAGE.read_text(encoding="utf-8").replace("TASK", task)
