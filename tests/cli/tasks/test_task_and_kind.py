"""Which tasks, kinds and settings fit one another, and what is said where they do not."""

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--task", "clasify", "--kind", "lstm"], "unknown task clasify. Did you mean classify?"),
        (["--task", "classify", "--kind", "seq2seq"], "which is for translate or caption or answer or span or denoise"),
        (["--task", "tag", "--kind", "ngram"], "--task tag is not for --kind ngram"),
        (["--kind", "loglinear"], "--task lm is not for --kind loglinear, which is for classify."),
        (["--task", "classify", "--kind", "loglinear", "model.l2=-1"], "model.l2=-1: it must be 0 or more"),
        (["--task", "classify", "--kind", "loglinear", "model.l2=best"], "model.l2=best is not a number, nor auto"),
        (["--task", "classify", "--kind", "loglinear", "model.order=0"], "model.order=0: it must be from 1 to 100"),
        (["--task", "classify", "--kind", "loglinear", "model.alpha=0"], "model.alpha=0: it must be more than 0"),
        (["--task", "classify", "--kind", "loglinear", "train.steps=3"], "this kind learns in one round"),
        (["--task", "classify", "--kind", "loglinear", "text.input=frames"], "--kind loglinear reads words alone"),
        (["--task", "classify", "--kind", "loglinear", "head.length_normalisation=1"], "unknown setting head.length"),
        (["--task", "lm", "--kind", "encoder"], "which is for classify or tag or mask or reward. It"),
        (["--task", "classify", "--kind", "lstm", "train.batching=streams"], "an example has its own"),
        (["--task", "classify", "--kind", "lstm", "head.pool=top"], "head.pool"),
        (["--task", "classify", "--kind", "lstm", "head.dropout=1.5"], "head.dropout=1.5: it must be from 0 to less"),
        (["--task", "classify", "--kind", "unigram", "head.length_normalisation=-1"], "=-1: it must be from 0 to 1"),
        (["--task", "classify", "--kind", "lstm", "head.auxiliary=-1"], "head.auxiliary=-1: it must be 0 or more"),
        (["--task", "classify", "--kind", "lstm", "head.auxiliary=nan"], "head.auxiliary=nan: it must be finite"),
        (["--kind", "ngram", "head.pool=last"], "unknown setting head.pool"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(chainrule, reviews, words, said):
    answer = chainrule("train", reviews, *words)
    assert answer.code == 2
    assert said in answer.err.splitlines()[-1]


def test_examples_of_one_class_are_refused(chainrule, tmp_path):
    (tmp_path / "one.tsv").write_text("text\tlabel\n" + "a film\tgood\n" * 9)
    answer = chainrule("train", "one.tsv", "--task", "classify", "--kind", "unigram")
    assert answer.code == 2
    assert "two classes or more are wanted to learn from; here is good" in answer.err


def test_a_language_model_has_nothing_to_predict(chainrule, asked, book):
    chainrule("train", book, "--kind", "unigram", "--out", "runs/u")
    assert "chainrule sample runs/u" in asked("x\n", "runs/u").err


def test_what_was_trained_for_a_task_is_not_taken_for_a_language_model(chainrule, complaint, numbers, book):
    given = ["model.layers=1", "model.width=8", "model.heads=1", "model.context=16", "train.steps=1", "--json"]
    words = ["--task", "translate", "--kind", "transformer", "--out", "runs/m"]
    assert chainrule("train", *numbers, *words, *given).code == 0
    assert "chainrule predict runs/m" in complaint("sample", "runs/m")
    assert "chainrule predict runs/m" in complaint("score", "runs/m", book)
    assert chainrule("train", book, "--task", "span", "--kind", "transformer", "--out", "runs/s", *given).code == 0
    assert "chainrule predict runs/s" in complaint("sample", "runs/s")


def test_a_classifier_is_not_taken_for_a_language_model(chainrule, complaint, reviews, book):
    words = ["--task", "classify", "--kind", "gpt", "model.layers=1", "model.width=8", "model.heads=1",
             "model.context=64", "train.steps=1", "--out", "runs/c"]
    assert chainrule("train", reviews, *words).code == 0
    for verb in (["sample", "runs/c"], ["score", "runs/c", book]):
        assert "runs/c was trained for --task classify: `chainrule predict runs/c`" in complaint(*verb)


@pytest.mark.parametrize(("task", "kind", "target"), [
    ("classify", "lstm", "text"), ("tag", "gru", "word"), ("translate", "seq2seq", "token"),
])
def test_training_says_what_it_predicts(chainrule, reviews, tagged, numbers, task, kind, target):
    texts = {"classify": (reviews,), "tag": (tagged,), "translate": numbers}[task]
    valid = [word for text in texts for word in ("--valid", text)]
    told = chainrule("train", *texts, *valid, "--task", task, "--kind", kind, "--out", "runs/t", "model.hidden=8",
                     "model.layers=1", "train.steps=40", "train.evaluate=20").err
    assert f"nats per {target} of the validation text" in told


def test_settings_of_a_task_are_listed(chainrule):
    out = chainrule("settings", "lstm", "--task", "classify").out
    assert "head.pool" in out
    assert "text.label" in out
    assert "train.batching" in out
