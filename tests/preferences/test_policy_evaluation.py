"""Evaluation of a policy: `chainrule eval RUN PROMPTS --reward R` gives mean reward and KL from a reference."""

import json
import math

import pytest

import chainrule
from chainrule.cli import main
from chainrule.preferences.policy_evaluation import evaluate_policy

TEXT = "aab abb aba bab abc cab bca " * 12


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n' * 400)
    (tmp_path / "likes_b.py").write_text(
        "def quarter(prompts, answers):\n    return [0.25] * len(answers)\n\n"
        "def likes_b(prompts, answers):\n    return [float('b' in answer) for answer in answers]\n"
    )
    for kind in ("bigram", "unigram"):
        chainrule.train("text.txt", kind=kind, out=kind, text_tokenizer="characters")
    return tmp_path


def test_reward_and_kl_are_those_of_the_next_token_distributions(desk):
    """One token after "a": both are sums over the vocabulary."""
    policy, reference = chainrule.load("bigram"), chainrule.load("unigram")
    p, q = ({token: prob(run, token) for token in range(len(run.tokenizer))} for run in (policy, reference))
    exact_kl = sum(p[token] * math.log(p[token] / q[token]) for token in p if p[token])
    exact_reward = sum(p[token] for token in p if policy.tokenizer.decode([token]) == "b")
    result = evaluate_policy(policy, ["prompts.jsonl"], "python:likes_b.likes_b", reference="unigram", tokens=1)
    (low, high), (least, most) = result["kl_interval"], result["reward_interval"]
    assert low - 0.05 < exact_kl < high + 0.05
    assert least - 0.05 < exact_reward < most + 0.05
    assert exact_kl > 0.1
    assert result["examples"] == 400


def prob(run, token):
    import torch

    logits, _ = run.model.step(torch.tensor([[0, *run.tokenizer.encode("a").tolist()]]), run.model.start(1))
    return float(logits[0, -1].double().softmax(-1)[token])


def test_a_model_that_was_not_tuned_has_no_kl_from_itself(desk, capsys):
    assert main(["eval", "bigram", "prompts.jsonl", "--reward", "python:likes_b.quarter", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["kl"], result["reward"], result["reward_interval"]) == (0, 0.25, [0.25, 0.25])


def test_the_line_names_reward_and_kl(desk, capsys):
    assert main(["eval", "bigram", "prompts.jsonl", "--reward", "python:likes_b.quarter", "--answer-tokens", "3"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("bigram: reward 0.2500 (0.2500 to 0.2500), KL 0.0000 (0.0000 to 0.0000), tokens of an ")
    assert line.endswith("400 prompts")


@pytest.mark.parametrize(("words", "message"), [
    (["--reference", "unigram"], "--reference is for answers to prompts: give --reward R too."),
    (["--answer-tokens", "4"], "--answer-tokens is for answers to prompts: give --reward R too."),
    (["--reward", "python:likes_b.no"], "likes_b has no function no."),
    (["--reward", "python:likes_b.quarter", "--answer-tokens", "0"], "answer_tokens"),
    (["--reward", "python:likes_b.quarter", "text.errors=replace"], "text.errors cannot be set here"),
])
def test_what_cannot_be_evaluated_is_refused_in_one_line(desk, capsys, words, message):
    assert main(["eval", "bigram", "prompts.jsonl", *words]) != 0
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
