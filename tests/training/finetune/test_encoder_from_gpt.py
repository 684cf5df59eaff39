"""An encoder that begins from a GPT: the same weights, without the causal mask, which learn to see both sides."""

import pytest
import torch
from training.topics import QUICK, pretrain, pretrained, weights

from chainrule import run
from chainrule.errors import UserError
from chainrule.model import Batch
from chainrule.tasks.denoise import MASK
from chainrule.training.finetune import finetune_recipe
from chainrule.training.pipeline import make_run


def begin(desk, base, task="mask", text="book.txt", out="both-sides", **given):
    """The run of an encoder on top of the GPT at `base`."""
    settings = {"train.steps": 1, **QUICK, **{name.replace("_", ".", 1): value for name, value in given.items()}}
    recipe = finetune_recipe(base, settings, task, "encoder")
    return run.load(make_run([str(desk / text)], recipe, desk / out, overwrite=True).path)


@pytest.fixture
def gpt(desk):
    return pretrained(desk, "gpt")


def test_it_has_the_weights_of_the_gpt_and_one_new_token(desk, gpt):
    made = begin(desk, gpt, train_lr=1e-30)
    taken, base = weights(made.path), weights(gpt)
    assert taken.keys() == base.keys()
    for name, weight in base.items():
        torch.testing.assert_close(taken[name][: len(weight)], weight, rtol=0, atol=1e-6)
    assert made.recipe.kind == "encoder"
    assert made.tokenizer.id(MASK) == len(run.load(gpt).tokenizer)


def test_it_reads_one_token_as_the_gpt_does_and_of_several_also_those_that_follow(desk, gpt):
    both, base = begin(desk, gpt, train_lr=1e-30).model, run.load(gpt).model
    first, more = torch.tensor([[3]]), torch.tensor([[3, 5, 7]])
    with torch.no_grad():
        torch.testing.assert_close(both.encode(first), base.encode(first))
        torch.testing.assert_close(base.encode(more)[:, :1], base.encode(first))
        assert not torch.allclose(both.encode(more)[:, 0], both.encode(first)[:, 0], atol=1e-3)


def test_masked_words_are_predicted_from_the_words_after_them(desk):
    """A text has words of one topic: a mask at its beginning gets one of the topic's words, which a GPT cannot do."""
    read = begin(desk, pretrained(desk, "gpt", steps=150), train_steps=250, train_lr=3e-3, train_tokens=128)
    mask = read.tokenizer.id(MASK)
    for topic, word in (("s", "s3"), ("w", "w3")):
        tokens = torch.tensor([[0, mask, *[read.tokenizer.id(word)] * 4, 0]])
        with torch.no_grad():
            p = read.model(Batch(tokens, tokens)).softmax(-1)[0, 1]
        own = sum(float(p[id]) for id in range(len(p)) if read.tokenizer.token(id).strip().startswith(topic))
        assert own > 0.9, topic


def test_labels_may_follow_without_masked_words_between(desk, gpt):
    made = begin(desk, gpt, "classify", "few.tsv", head_pool="mean")
    assert made.model.body.bidirectional
    assert made.predict(["s1 s2 s3"])[0]["answer"] in {"sea", "wood"}


@pytest.mark.parametrize(("base", "kind"), [("encoder", "gpt"), ("gru", "encoder"), ("gpt", "transformer")])
def test_other_kinds_have_other_bodies(desk, base, kind):
    with pytest.raises(UserError, match=f"its kind is {base}, and --kind {kind} has another body"):
        finetune_recipe(pretrained(desk, base), kind=kind)


def test_settings_that_only_a_gpt_has_are_left_behind(desk):
    base = pretrain(desk, "gpt", 1, "capped", **{"model.logit_softcap": 9.0})
    assert "logit_softcap" not in vars(finetune_recipe(base, {}, "mask", "encoder").model)


def test_what_an_encoder_cannot_be_is_refused_in_one_line(desk, gpt):
    with pytest.raises(UserError, match=r"model\.width is 32 there and 64 here"):
        finetune_recipe(gpt, {"model.width": 64}, "mask", "encoder")
    base = pretrain(desk, "gpt", 1, "sliding", **{"model.window": 4})
    with pytest.raises(UserError, match=r"model\.window=4: an encoder attends to all of its text"):
        finetune_recipe(base, {}, "mask", "encoder")
