"""What is trained on, what is held out, and where the tuned run goes."""

import json
import subprocess
import sys

import pytest
from prefer.made import save_words

from chainrule import progress
from chainrule.errors import UserError
from chainrule.prefer import tune_process
from chainrule.prefer.tuning import Tuning, defaults, next_folder, read_file, split_pairs


def pair(prompt):
    return {"prompt": prompt, "chosen": "a", "rejected": "b"}


def test_prompts_without_clicks_are_held_out_first():
    split = split_pairs([pair("a"), pair("b")], ["a", "b", *"cdefg"])
    assert (split.prompts, split.held_out, len(split.train), split.valid) == (list("cdefg"), True, 2, [])


def test_where_all_prompts_have_clicks_a_fifth_of_them_is_held_out_and_stays_so():
    prompts = [f"prompt {number}" for number in range(20)]
    split = split_pairs([pair(prompt) for prompt in prompts * 2], prompts)
    assert len(split.prompts) == 4
    assert {one["prompt"] for one in split.valid} == set(split.prompts)
    assert {one["prompt"] for one in split.train} == set(prompts) - set(split.prompts)
    assert set(split_pairs([pair(prompt) for prompt in reversed(prompts)], prompts).prompts) == set(split.prompts)


def test_a_prompt_that_an_earlier_tuning_was_trained_on_is_not_held_out_later():
    prompts = [f"prompt {number}" for number in range(20)]
    pairs = [pair(prompt) for prompt in prompts]
    first = split_pairs(pairs, prompts)
    trained = {json.dumps(one["prompt"]) for one in first.train}
    assert set(split_pairs(pairs, prompts, trained).prompts) == set(first.prompts)
    assert not split_pairs(pairs, prompts, {json.dumps(prompt) for prompt in prompts}).held_out


def test_with_few_prompts_the_comparison_is_on_those_that_were_trained_on_and_says_so():
    split = split_pairs([pair("a"), pair("b")], ["a", "b"])
    assert (split.prompts, split.held_out, len(split.train)) == (["a", "b"], False, 2)


def test_few_pairs_get_enough_steps_and_many_get_three_epochs():
    few = defaults([pair("a")] * 10, "ipo", True)
    assert few == {"train.method": "ipo", "train.pairs": 10, "train.steps": 50, "train.lora": 8}
    many = defaults([pair("a")] * 800, "dpo", False)
    assert many == {"train.method": "dpo", "train.pairs": 16, "train.steps": 150}


def test_a_folder_is_never_used_twice(tmp_path):
    path = tmp_path / "pairs.jsonl"
    assert next_folder(path).name == "pairs-tuned-1"
    (tmp_path / "pairs-tuned-1.train.jsonl").touch()
    (tmp_path / "pairs-tuned-2").mkdir()
    assert next_folder(path).name == "pairs-tuned-3"


def test_pairs_of_other_programs_count_and_torn_lines_do_not(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(pair("a")) + "\n   \n" + json.dumps(pair("b")) + '\n{"prompt": "c", "cho')
    assert [one["prompt"] for one in read_file(path)] == ["a", "b"]
    with pytest.raises(UserError, match="has 0 pairs, and tuning needs 2 or more"):
        Tuning(tmp_path / "none.jsonl").start(tmp_path, [], "dpo", True, {})


def test_a_tuning_is_alone_and_can_be_cancelled(tmp_path, monkeypatch):
    path, popen = tmp_path / "pairs.jsonl", subprocess.Popen
    path.write_text("".join(json.dumps(pair(prompt)) + "\n" for prompt in "ab"))
    slow = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(subprocess, "Popen", lambda words, **given: popen(slow, **given))
    tuning = Tuning(path)
    tuning.start(tmp_path, [], "dpo", True, {})
    assert tuning.describe()["state"] == "running"
    with pytest.raises(UserError, match="under way already"):
        tuning.start(tmp_path, [], "dpo", True, {})
    tuning.cancel()
    tuning.close()
    assert tuning.describe()["state"] == "cancelled"
    assert len(path.read_text().splitlines()) == 2


def test_a_model_that_cannot_be_tuned_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_quiet", False)    # what the process sets is undone here
    task = {"base": str(save_words(tmp_path)), "settings": {}, "texts": [], "valid": [], "out": str(tmp_path / "out"),
            "device": "cpu"}
    assert tune_process.tune(task) == 2
    record = json.loads(capsys.readouterr().out)
    assert "a ngram has no layers to fine-tune" in record["line"]
