"""Preference tuning as a whole: the policy learns, the run is a language model, and nothing depends on the batching."""

import json
import shutil

import numpy as np
import pytest
import torch
from preferences.animals import ANIMALS, QUICK, SMALL, pairs, write_lines
from training.resume.test_resume import Killed, killed_at
from training.small import assert_same_bits

from chainrule import run
from chainrule.cli import main
from chainrule.errors import UserError
from chainrule.files import SEAL, seal_of
from chainrule.preferences import log_probs, reference
from chainrule.preferences.encoding import EncodedPairs, Rows
from chainrule.preferences.log_probs import answer_sums
from chainrule.preferences.objective import Objective
from chainrule.tasks import example_task
from chainrule.tasks.batching import ragged
from chainrule.training.finetune import finetune_recipe
from chainrule.training.pipeline import make_run, recipe_for
from chainrule.training.step import Step

METHODS = ("dpo", "ipo", "kto", "orpo", "simpo")


def weights(path):
    return run.load(path).model.state_dict()


def records(path, event):
    return [record for record in run.read_log(path) if record["event"] == event]


@pytest.mark.parametrize("method", METHODS)
def test_tuning_prefers_what_was_chosen(tune, bases, method):
    path = tune(train_method=method, train_steps=12, train_evaluate=6)
    made, before = run.load(path), run.load(bases / "gpt")
    result = made.evaluate(bases / "held.jsonl")
    assert result["rewards/chosen"] > result["rewards/rejected"]
    assert made.score("a cat runs fast").bits[-5] < before.score("a cat runs fast").bits[-5]      # the f
    evaluation = records(path, "evaluation")[-1]
    assert {"loss", "rewards/chosen", "rewards/rejected"} <= evaluation.keys()
    assert result["margin"] == pytest.approx(result["rewards/chosen"] - result["rewards/rejected"], abs=1e-6)
    assert evaluation["rewards/margins"] == pytest.approx(result["margin"], abs=1e-4)
    if method != "kto":
        assert result["accuracy"] == 1
        low, high = result["margin_interval"]
        assert 0 < low <= result["margin"] <= high


@pytest.mark.parametrize("kind", ["lstm", "feedforward"])
def test_other_networks_are_tuned_too(tune, kind):
    path = tune(base=kind, train_steps=10)
    assert records(path, "result")[-1]["margin"] > 0.05
    assert run.load(path).generate("a cat runs", tokens=5)


def test_a_mixture_of_experts_is_tuned(tune, bases, tmp_path, monkeypatch):
    given = {"text.tokenizer": "characters", "train.steps": 2, "model.experts": 2, **QUICK, **SMALL["gpt"]}
    base = make_run([str(bases / "text.txt")], recipe_for("gpt", given), tmp_path / "experts").path
    monkeypatch.setattr(log_probs, "MIN_GROUP", 1)           # rows would be computed by length
    write_lines(bases / "lengths.jsonl", [pair | {"chosen": " fast" + "er" * (place % 3)}
                                          for place, pair in enumerate(pairs(8))])
    path = tune(base=base, text="lengths.jsonl", train_pairs=5)
    assert records(path, "step")[-1]["load_balancing_loss"] > 0


def test_at_first_the_policy_is_the_reference(tune):
    first = records(tune(train_steps=1, train_lr=1e-9), "step")[0]
    assert first["loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert first["rewards/margins"] == pytest.approx(0, abs=1e-4)


def test_an_n_gram_can_be_the_reference(tune, bases, tmp_path):
    given = {"text.tokenizer": str(bases / "gpt" / "tokenizer.json"), "model.order": 3}
    counted = make_run([str(bases / "text.txt")], recipe_for("ngram", given), tmp_path / "ngram").path
    path = tune(train_reference=str(counted), train_steps=1, train_lr=1e-9)
    made, table = run.load(path), run.load(counted)
    tokens = made.tokenizer.encode(" fast").tolist()
    expected = []
    for pair in pairs(8, 2):
        prompt = made.tokenizer.encode(pair["prompt"]).tolist()
        expected.append(-sum(table.score(pair["prompt"] + " fast").bits[len(prompt):]) * np.log(2))
    assert len(tokens) == 5
    logged = records(path, "result")[-1]
    assert logged["logps/chosen"] - logged["rewards/chosen"] / 0.1 == pytest.approx(np.mean(expected), abs=1e-3)


def test_the_reference_is_computed_once_and_without_dropout(tune, monkeypatch):
    calls = []
    real = reference.score_answers
    monkeypatch.setattr(reference, "score_answers",
                        lambda model, *given: calls.append(model.training) or real(model, *given))
    path = tune(base="lstm", train_steps=3)
    assert len(calls) == 2                       # train and valid
    assert run.load(path).recipe.model.dropout == 0
    assert run.load(path).recipe.model.weight_dropout == 0


def test_the_reference_does_not_depend_on_the_size_of_batches(bases, monkeypatch):
    made, generator = run.load(bases / "gpt"), np.random.default_rng(1)
    rows = [made.tokenizer.encode("".join(generator.choice(list("abc "), size))).tolist() for size in range(2, 12)]
    prompts = ragged([[0, *row] for row in rows])
    encoded = EncodedPairs([Rows(prompts, ragged([[*row, 0] for row in answers])) for answers in (rows, rows[::-1])])
    found = []
    for tokens in (8, 1 << 12):
        monkeypatch.setitem(example_task.TOKENS, "cpu", tokens)
        found.append(reference.score_answers(made.model, encoded)[0])
    assert np.allclose(*found, atol=1e-4)
    with torch.no_grad():
        alone = [float(answer_sums(made.model, encoded.batch(np.array([row]), [30]).joined())[0][0])
                 for row in range(len(rows))]
    assert np.allclose(found[0][:, 0], alone, atol=1e-4)


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_micro_batches_change_nothing(tune, method):
    whole = tune("whole", train_method=method, train_optimizer="sgd")
    cut = tune("cut", train_method=method, train_optimizer="sgd", train_micro_batch=3)
    for name, weight in weights(whole).items():
        assert torch.allclose(weight, weights(cut)[name], atol=1e-6), name
    first, second = (records(path, "step")[-1] for path in (whole, cut))
    assert {name: first[name] for name in first if "/" in name or name == "kl"} == pytest.approx(
        {name: second[name] for name in second if "/" in name or name == "kl"}, abs=1e-4)


@pytest.mark.parametrize("given", [{}, {"train_method": "kto"}, {"train_lora": 2}], ids=str)
def test_a_tuning_killed_at_any_step_ends_where_it_would_have_ended(tune, tmp_path, monkeypatch, given):
    given = {"train_steps": 5, "train_checkpoint": 0.0, "train_evaluate": 2, **given}
    tune("whole", **given)
    for number in (2, 3):
        with monkeypatch.context() as patched:
            patched.setattr(Step, "take", killed_at(number, Step.take))
            with pytest.raises(Killed):
                tune("killed", **given)
        torch.manual_seed(number)
    tune("killed", **given)
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    first, second = ([{name: value for name, value in record.items() if "/" in name or name in ("loss", "kl")}
                      for record in records(tmp_path / path, "step")] for path in ("whole", "killed"))
    assert first == second


def test_lora_leaves_the_base_where_it_is(tune, bases):
    path = tune(train_lora=2, train_steps=10)
    assert (path / run.ADAPTER).exists()
    assert records(path, "result")[-1]["margin"] > 0
    assert run.load(path).recipe.train.lr == 3e-3


@pytest.mark.parametrize("given", [{}, {"train_lora": 2}], ids=str)
def test_a_run_whose_recipe_lost_its_base_is_damaged(tune, bases, given):
    path = tune(train_steps=1, **given)
    about = json.loads((path / run.RECIPE).read_text())
    del about["base"], about[SEAL]
    (path / run.RECIPE).write_text(json.dumps(about | {SEAL: seal_of(about)}))
    with pytest.raises(UserError, match=r"recipe\.json is damaged: it has no `base`"):
        run.load(path).evaluate(bases / "held.jsonl")


def test_the_learning_rate_is_chosen_by_what_is_trained(bases):
    def lr(**given):
        return finetune_recipe(bases / "gpt", {f"train.{name}": value for name, value in given.items()},
                               "preference").train.lr

    assert (lr(), lr(lora=4), lr(lr=1e-5)) == (1e-6, 1e-4, 1e-5)


def test_a_tuned_run_is_a_plain_language_model(tune, bases, tmp_path, capsys):
    chats = [{"prompt": [{"role": "user", "content": animal}], "chosen": [{"role": "assistant", "content": "fast"}],
              "rejected": [{"role": "assistant", "content": "slow"}]} for animal in ANIMALS]
    write_lines(bases / "chats.jsonl", chats)
    path = tune(text="chats.jsonl", valid=None, train_pairs=4)
    made = run.load(path)
    assert not isinstance(made.model, Objective)
    assert made.chat_template is not None
    assert type(made.model) is type(run.load(bases / "gpt").model)
    assert main(["sample", str(path), "--prompt", "a cat", "--tokens", "4"]) == 0
    assert main(["eval", str(path), str(bases / "chats.jsonl"), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1])["examples"] == 4
    assert made.evaluate(bases / "text.txt")["bits_per_byte"] > 0
    again = tune("again", base=path, text="chats.jsonl", valid=None)      # a tuned run can be tuned
    assert run.load(again).chat_template == made.chat_template
    main(["export", str(path), str(tmp_path / "hf"), "--to", "huggingface"])
    assert (tmp_path / "hf" / "config.json").exists()


def test_an_end_that_is_not_known_is_not_learned(tune):
    def lengths(**given):
        return records(tune(f"run{len(given)}", train_steps=1, **given), "step")[0]["completions/mean_length"]

    assert (lengths(), lengths(text_end="false")) == (6, 5)


def refusal(tune, **given):
    with pytest.raises(UserError) as error:
        tune(**given)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_cannot_be_tuned_is_refused(tune, bases, tmp_path):
    assert "train.reference" in refusal(tune, train_method="orpo", train_reference="x")
    assert "train.label_smoothing is for dpo" in refusal(tune, train_method="ipo", train_label_smoothing=0.1)
    assert "for train.method=kto" in refusal(tune, train_desirable=2)
    assert "needs the whole model on each rank" in refusal(tune, train_shard="true")
    assert "there is no run at" in refusal(tune, train_reference=str(tmp_path / "none"))
    write_lines(bases / "long.jsonl", [{"prompt": "a " * 40, "chosen": "b", "rejected": "c"}])
    said = refusal(tune, text="long.jsonl", valid=None)
    assert "long.jsonl line 1: prompt and answer have 82 tokens (81 of the prompt), and the model holds 32" in said
    mixed = [pairs(1)[0], {"prompt": [{"role": "user", "content": "a"}],
                           "chosen": [{"role": "assistant", "content": "b"}],
                           "rejected": [{"role": "assistant", "content": "c"}]}]
    write_lines(bases / "mixed.jsonl", mixed)
    assert "mixed.jsonl line 2 has messages, and" in refusal(tune, text="mixed.jsonl", valid=None)


def test_a_reference_with_another_tokenizer_is_refused(tune, bases, tmp_path):
    other = make_run([str(bases / "text.txt")], recipe_for("ngram", {"text.tokenizer": "bytes"}), tmp_path / "o").path
    assert "has another tokenizer" in refusal(tune, train_reference=str(other))


def test_a_base_that_continues_no_text_is_refused(bases, tmp_path, tune):
    (tmp_path / "c.tsv").write_text("text\tlabel\n" + "a cat\tx\na dog\ty\n" * 4)
    given = {"train.steps": 1, "train.precision": "float32"}
    made = make_run([str(tmp_path / "c.tsv")], finetune_recipe(bases / "gpt", given, "classify"), tmp_path / "c").path
    assert "was trained for --task classify, so it continues no text" in refusal(tune, base=made)


def test_a_base_without_a_tokenizer_is_refused(bases, tmp_path, tune):
    copied = shutil.copytree(bases / "gpt", tmp_path / "copy")
    (copied / "tokenizer.json").unlink()
    assert "has no tokenizer.json, so it cannot read a text" in refusal(tune, base=copied)


def test_without_a_base_it_says_what_is_missing(capsys, bases):
    assert main(["train", str(bases / "pairs.jsonl"), "--task", "preference"]) != 0
    assert "--from RUN says which" in capsys.readouterr().err


def test_kinds_that_count_cannot_be_tuned(tmp_path, bases, tune):
    counted = make_run([str(bases / "text.txt")], recipe_for("ngram", {}), tmp_path / "n").path
    assert "a ngram has no layers to fine-tune" in refusal(tune, base=counted)
