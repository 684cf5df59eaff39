"""Pretrained once, fine-tuned many times: what comes along, what is new, what stays, and how fast the rest learns."""

import re
from dataclasses import asdict, replace

import pytest
import torch
from training.resume.test_resume import Killed, killed_at
from training.small import assert_same_bits
from training.topics import QUICK, SMALL, fine_tune, pretrained, weights

from chainrule import run
from chainrule.errors import UserError
from chainrule.layers.embedding import CharCNN
from chainrule.layers.lora import LoRA, NewTokenRows, add_parametrization, body_of, load_body
from chainrule.model import Batch
from chainrule.recipe import Gradient
from chainrule.tasks import build_for
from chainrule.training.finetune import finetune_recipe, initialise
from chainrule.training.log import Log
from chainrule.training.param_groups import freeze, lr_factors
from chainrule.training.pipeline import make_run, recipe_for
from chainrule.training.step import Step

MARKS = ("<|delimiter|>", "<|extract|>")


@pytest.fixture
def gpt(desk):
    return pretrained(desk, "gpt")


def body(path, prefix="body."):
    state = run.load(path).model.state_dict()
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def trained_on(desk, base, **given):
    """The changes that one step of plain descent makes, by name."""
    plain = {"train_optimizer": "sgd", "train_clip": 0, "train_schedule": "constant", "train_warmup": 0.0,
             "train_weight_decay": 0.0, "head_dropout": 0.0, "train_lr": 1.0, "train_keep_best": False, "steps": 1}
    after = weights(fine_tune(desk, base, "after", **plain, **given).path)
    before = weights(fine_tune(desk, base, "before", **(plain | {"train_lr": 1e-30})).path)
    return {name: after[name] - before[name] for name in after}


@pytest.mark.parametrize("kind", ["gpt", "gru"])
def test_what_was_read_helps_to_label_words_that_no_label_was_given_for(desk, kind):
    how = {"steps": 60, "train_lr": 3e-3, "train_tokens": 64}
    tuned = fine_tune(desk, pretrained(desk, kind, steps=150), **how)
    own = {name: value for name, value in SMALL[kind].items() if name.startswith("model.")}
    settings = {"text.tokenizer": "words", "text.min_count": 1, "train.steps": 60, "train.lr": 3e-3, "train.tokens": 64}
    recipe = recipe_for(kind, settings | QUICK | own, "classify")
    scratch = make_run([str(desk / "few.tsv")], recipe, desk / "scratch", valid=[str(desk / "others.tsv")],
                       overwrite=True)
    assert tuned.result["accuracy"] > 0.95
    assert scratch.result["accuracy"] < 0.8


def test_the_tokenizer_is_taken_and_grows_at_its_end(desk, gpt):
    base, tuned = run.load(gpt), run.load(fine_tune(desk, gpt).path)
    before = len(base.tokenizer)
    assert [tuned.tokenizer.token(id) for id in range(before)] == [base.tokenizer.token(id) for id in range(before)]
    assert [tuned.tokenizer.id(name) for name in MARKS] == [before, before + 1]
    assert tuned.model.body.embeddings.shape == (before + 2, 32)


def test_weights_are_taken_and_new_rows_are_like_the_others_and_not_alike(desk, gpt):
    base = run.load(gpt)
    recipe = finetune_recipe(gpt, task="classify")
    model = build_for(recipe, len(base.tokenizer) + 2, ("sea", "wood"))
    grown = load_body(model, base.model, len(base.tokenizer))
    assert grown == ["embedding.tokens.weight", "output.weight"]
    old, new = base.model.embeddings, model.body.embeddings
    assert torch.equal(new[:-2], old)
    assert not torch.equal(new[-1], new[-2])
    far = (new[-2:] - old.mean(0)).norm(dim=1)
    assert (far < 0.3 * (old - old.mean(0)).norm(dim=1).mean()).all()
    for name, weight in base.model.named_parameters():
        if name not in grown:
            assert torch.equal(model.body.get_parameter(name), weight), name


def test_what_was_taken_and_what_is_new_is_said(desk, gpt, capsys):
    fine_tune(desk, gpt)
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if line.startswith(str(gpt))]
    assert "10 weights taken" in line
    assert "2 new rows in embedding.tokens.weight and output.weight" in line
    assert line.endswith("the head is new: output.weight, output.bias")
    (told,) = [record for record in run.read_log(desk / "tuned") if record["event"] == "from"]
    assert (told["taken"], told["rows"], told["new"]) == (10, 2, ["output.weight", "output.bias"])


# The head


def relabelled(desk, **names):
    """The examples, under other names: a number of labels may be the same, and what they say not."""
    for name in ("few", "others"):
        lines = (desk / f"{name}.tsv").read_text()
        for old, new in names.items():
            lines = lines.replace(f"\t{old}\n", f"\t{new}\n")
        (desk / f"{name}-{'-'.join(names.values())}.tsv").write_text(lines)
    return {"text": f"few-{'-'.join(names.values())}.tsv", "valid": f"others-{'-'.join(names.values())}.tsv"}


def began(path):
    (told,) = [record for record in run.read_log(path) if record["event"] == "from"]
    return told


STILL = {"steps": 1, "train_lr": 1e-30}    # a step that moves nothing


@pytest.mark.parametrize("kind", ["gpt", "gru", "encoder"])
def test_the_head_of_a_run_with_the_same_labels_is_taken(desk, kind, capsys):
    base = fine_tune(desk, pretrained(desk, kind), "base", steps=30, train_lr=3e-3).path
    capsys.readouterr()
    again = fine_tune(desk, base, "again", **STILL)
    assert_same_bits(weights(base), weights(again.path))
    assert "; the head is taken too, since its labels are the same" in capsys.readouterr().err
    assert (began(again.path)["new"], began(again.path)["taken"]) == ([], len(list(run.load(base).model.parameters())))
    assert began(base)["new"] == ["output.weight", "output.bias"]


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_a_run_on_top_of_another_begins_with_its_answers(desk, task):
    texts = {"classify": ("few.tsv", "others.tsv"), "tag": ("tagged.tsv", "tagged.tsv")}[task]
    base = fine_tune(desk, pretrained(desk, "gpt", steps=150), "base", task, 60, *texts, train_lr=3e-3, train_tokens=64)
    again = fine_tune(desk, base.path, "again", task, 1, *texts, train_lr=1e-30)
    assert again.result["accuracy"] == base.result["accuracy"] > 0.9
    batch = Batch(torch.tensor([[0, 5, 9, 3, 12]]), torch.zeros(1, dtype=torch.long), torch.tensor([5]))
    before, after = (run.load(made.path).model.eval()(batch) for made in (base, again))
    assert torch.equal(before, after)
    assert before.abs().max() > 0.1


@pytest.mark.parametrize("names", [{"sea": "ocean"}, {"sea": "a", "wood": "b"}], ids=str)
def test_as_many_labels_of_other_names_have_a_new_head(desk, gpt, names, capsys):
    base = fine_tune(desk, gpt, "base", steps=10, train_lr=0.01).path
    capsys.readouterr()
    other = fine_tune(desk, base, "other", **STILL, **relabelled(desk, **names)).path
    before, after = weights(base), weights(other)
    assert before["output.weight"].shape == after["output.weight"].shape
    assert not torch.equal(before["output.weight"], after["output.weight"])
    assert after["output.bias"].abs().max() < 1e-20                            # as a new one begins
    told = capsys.readouterr().err
    assert "the head is new: output.weight, output.bias" in told
    assert "comes along" not in told
    assert_same_bits(body(base), body(other))


def test_one_label_more_has_a_new_head(desk, gpt):
    base = fine_tune(desk, gpt, "base", steps=1).path
    (desk / "more.tsv").write_text((desk / "few.tsv").read_text() + "s1 w1\tshore\n")
    more = fine_tune(desk, base, "more", text="more.tsv", **STILL).path
    assert run.load(more).labels == ("sea", "shore", "wood")
    assert began(more)["new"] == ["output.weight", "output.bias"]


def test_the_same_labels_of_another_task_have_a_new_head(desk, gpt):
    """The words of a text have the names of its topic for tags."""
    base = fine_tune(desk, gpt, "base", steps=10, train_lr=0.01).path
    tagger = fine_tune(desk, base, "tagger", "tag", 1, "tagged.tsv", None, train_lr=1e-30).path
    assert run.load(base).labels == run.load(tagger).labels == ("sea", "wood")
    assert began(tagger)["new"] == ["output.weight", "output.bias"]
    assert not torch.equal(weights(base)["output.weight"], weights(tagger)["output.weight"])


def test_a_head_of_other_parts_is_new_as_a_whole(desk):
    base = fine_tune(desk, pretrained(desk, "gru"), "base", "tag", 5, "tagged.tsv", None, train_lr=0.01).path
    letters = fine_tune(desk, base, "letters", "tag", 1, "tagged.tsv", None, train_lr=1e-30, head_char_cnn=True).path
    assert {"output.weight", "output.bias"} < set(began(letters)["new"])
    assert not torch.equal(weights(base)["output.weight"], weights(letters)["output.weight"])


def test_characters_add_nothing_at_first_to_a_pretrained_body(desk):
    made = fine_tune(desk, pretrained(desk, "gru"), "base", "tag", 1, "tagged.tsv", None, train_lr=1e-30,
                     head_char_cnn=True)
    assert weights(made.path)["char_cnn.project.weight"].abs().max() < 1e-20
    assert CharCNN(4).project.weight.abs().min() > 0


def test_a_head_that_came_along_learns_on_and_over_adapters_too(desk, gpt):
    base = fine_tune(desk, gpt, "base", steps=30, train_lr=3e-3)
    adapted = fine_tune(desk, base.path, "adapted", train_lora=2, **STILL)
    assert adapted.result["accuracy"] == base.result["accuracy"]
    assert began(adapted.path)["new"] == []
    learned = weights(fine_tune(desk, base.path, "on", steps=3, train_freeze="all", train_lr=0.1).path)
    assert not torch.equal(learned["output.weight"], weights(base.path)["output.weight"])
    assert torch.equal(learned["body.embedding.tokens.weight"], weights(base.path)["body.embedding.tokens.weight"])


def test_weights_of_another_body_are_refused(gpt):
    base = run.load(gpt)
    wide = build_for(replace(base.recipe, model=replace(base.recipe.model, hidden=100)), len(base.tokenizer))
    with pytest.raises(UserError, match=r"feed_forward\.up\.weight is 128 x 32 there, and 100 x 32 here"):
        load_body(wide, base.model, len(base.tokenizer))
    biased = build_for(replace(base.recipe, model=replace(base.recipe.model, biases=True)), len(base.tokenizer))
    with pytest.raises(UserError, match="the run to start from lacks"):
        load_body(biased, base.model, len(base.tokenizer))


def test_an_output_is_not_tied_because_the_vocabulary_grew(desk):
    """By its size alone a vocabulary of 26 has an output of its own, and one of 28 has not."""
    border = {"model.layers": 1, "model.width": 4, "model.heads": 2, "model.hidden": 45, "model.context": 16}
    recipe = recipe_for("gpt", {"text.tokenizer": "words", "train.steps": 1, **QUICK, **border})
    base = make_run([str(desk / "book.txt")], recipe, desk / "border").path
    assert run.load(base).recipe.model.tied is None
    assert run.load(fine_tune(desk, base, steps=1).path).model.body.output is not None


@pytest.mark.parametrize(
    ("kind", "task", "text", "valid"),
    [("gpt", "lm", "book.txt", None), ("gpt", "tag", "tagged.tsv", None), ("gru", "tag", "tagged.tsv", None),
     ("encoder", "mask", "book.txt", None), ("encoder", "classify", "few.tsv", "others.tsv"),
     ("encoder", "tag", "tagged.tsv", None), ("transformer", "translate", "pairs.tsv", None),
     ("transformer", "span", "long.txt", None), ("gpt", "translate", "pairs.tsv", None)],
)  # fmt: skip
def test_any_task_of_the_body_can_begin_there(desk, kind, task, text, valid):
    frozen = run.load(fine_tune(desk, pretrained(desk, kind), "any", task, 1, text, valid, train_freeze="0").path)
    words = body_of(frozen.model).embeddings if kind != "transformer" else frozen.model.embedding.tokens.weight
    base = run.load(pretrained(desk, kind))
    before = base.model.embeddings if kind != "transformer" else base.model.embedding.tokens.weight
    assert torch.equal(words[: len(before)], before)
    assert frozen.recipe.base.sha256 == base.about["files"]["model.safetensors"]["sha256"]


def test_a_language_model_can_begin_from_a_classifier(desk, gpt):
    classifier = fine_tune(desk, gpt, "classifier").path
    back = run.load(fine_tune(desk, classifier, "back", "lm", 1, "book.txt", None, train_freeze="stack").path)
    assert_same_bits(
        {name: tensor for name, tensor in body(classifier).items() if name.startswith("stack")},
        {name: tensor for name, tensor in back.model.state_dict().items() if name.startswith("stack")},
    )


# Settings


def test_the_bodys_settings_are_the_runs_and_others_are_refused_one_by_one(gpt):
    assert finetune_recipe(gpt, task="classify").model.width == 32
    with pytest.raises(UserError) as caught:
        finetune_recipe(gpt, {"model.width": "64", "model.layers": 3, "model.dropout": 0.5}, "classify")
    assert "model.width is 32 there and 64 here" in str(caught.value)
    assert "model.layers is 2 there and 3 here" in str(caught.value)
    assert "dropout" not in str(caught.value)


def test_settings_that_change_no_weight_may_differ(gpt):
    recipe = finetune_recipe(gpt, {"model.dropout": "0.25", "model.context": "64"}, "classify")
    assert (recipe.model.dropout, recipe.model.context) == (0.25, 64)


def test_a_text_may_be_learned_by_smoothed_targets_from_a_body_that_was_not(desk):
    recipe = finetune_recipe(pretrained(desk, "transformer"), {"model.label_smoothing": 0.1}, "translate")
    assert recipe.model.label_smoothing == 0.1


def test_a_context_whose_places_have_vectors_may_not_differ(desk):
    recipe = recipe_for("gpt", {"text.tokenizer": "words", "train.steps": 1, **QUICK, **SMALL["gpt"],
                                "model.positions": "learned"})
    base = make_run([str(desk / "book.txt")], recipe, desk / "learned").path
    with pytest.raises(UserError, match=r"model\.context is 16 there and 64 here"):
        finetune_recipe(base, {"model.context": 64})


def test_vectors_that_the_run_began_with_are_not_put_in_again(desk):
    (desk / "vectors.txt").write_text("1 32\ns1 " + " ".join(["9"] * 32) + "\n")
    given = {"text.tokenizer": "words", "train.steps": 3, "model.vectors": str(desk / "vectors.txt")}
    recipe = recipe_for("gpt", given | QUICK | SMALL["gpt"] | {"train.lr": 0.1})
    base = make_run([str(desk / "book.txt")], recipe, desk / "vectored").path
    tuned = run.load(fine_tune(desk, base, train_freeze="all").path)
    word = tuned.tokenizer.id("s1")
    assert torch.equal(tuned.model.body.embeddings[word], run.load(base).model.embeddings[word])
    assert tuned.recipe.model.vectors is None


def test_a_head_can_have_vectors_under_it(desk):
    (desk / "vectors.txt").write_text("1 32\ns1 " + " ".join(["9"] * 32) + "\n")
    own = {name: value for name, value in SMALL["gru"].items() if name.startswith("model.")}
    given = {"text.tokenizer": "words", "model.vectors": str(desk / "vectors.txt"), "model.vectors_frozen": True,
             "train.steps": 1}
    recipe = recipe_for("gru", given | QUICK | own, "classify")
    made = run.load(make_run([str(desk / "few.tsv")], recipe, desk / "headed", overwrite=True).path)
    assert (made.model.body.embeddings[made.tokenizer.id("s1")] == 9).all()


@pytest.mark.parametrize(
    ("kind", "given", "task", "says"),
    [
        ("gpt", {"text.tokenizer": "bytes"}, "lm", "text.tokenizer is words there and bytes here"),
        ("gpt", {"model.vectors": "x.txt"}, "lm", "model.vectors is None there and x.txt here"),
        ("gpt", {"model.wdth": 3}, "lm", "Did you mean model.width"),
        ("gpt", {}, "caption", "--task caption is not for --kind gpt"),
        ("gpt", {"train.body_lr": 0.1}, "lm", "--task lm has none"),
        ("gpt", {"train.lora": 2, "train.shard": True}, "lm", "leave out train.shard=true"),
        ("gpt", {"train.lora_alpha": 2}, "lm", "add them with train.lora=8"),
        ("gpt", {"train.lora": 0}, "lm", "1 or more"),
        ("gpt", {"train.layer_decay": 0}, "lm", "more than 0"),
    ],
)
def test_mistakes_are_one_line_each(desk, kind, given, task, says):
    with pytest.raises(UserError) as caught:
        finetune_recipe(pretrained(desk, kind), given, task)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_of_another_kind_or_size_is_refused(gpt):
    with pytest.raises(UserError, match="its kind is gpt, and --kind lstm has another body"):
        finetune_recipe(gpt, kind="lstm")
    with pytest.raises(UserError, match=r"and with them these settings: model\.layers is 2 there and 12 here"):
        finetune_recipe(gpt, kind="gpt2")
    assert finetune_recipe(gpt, kind="gpt").kind == "gpt"


def test_a_decoder_in_two_parts_is_one_stack():
    model = build_for(recipe_for("seq2seq", {"model.layers": 3, "model.hidden": 8}, "translate"), 20)
    given = lr_factors(model, Gradient(layer_decay=0.5))
    for below in ("encoder.layers.0.", "encoder.layers.1.", "encoder.layers.2."):
        assert {given[name] for name in given if name.startswith(below)} == {0.5 ** (3 - int(below[-2]))}
    decoder = {name: rate for name, rate in given.items() if name.startswith(("below.layers", "above.layers"))}
    assert sorted(set(decoder.values())) == [0.125, 0.25, 0.5]
    assert {rate for name, rate in decoder.items() if name.startswith("below.layers.0")} == {0.125}
    freeze(model, ["1"])
    learns = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert not any(name.startswith(("below.layers.0", "encoder.layers.0")) for name in learns)
    assert any(name.startswith("above.layers.0") for name in learns)


def test_relative_positions_are_below_all_layers_and_the_last_norm_is_above():
    recipe = recipe_for("transformer", {"model.layers": 2, "model.width": 8, "model.heads": 2,
                                        "model.positions": "relative", "model.norm_scale": True}, "translate")
    model = build_for(recipe, 20)
    given = lr_factors(model, Gradient(layer_decay=0.5))
    for name in ("stack.bias.weight", "encoder.bias.weight"):
        assert given[name] == 0.5**3
    freeze(model, ["1"])
    assert not model.stack.bias.weight.requires_grad
    assert model.stack.norm.weight.requires_grad           # the last norm is above all layers
    assert given["stack.norm.weight"] == 1


@pytest.mark.parametrize(("kind", "says"), [("bigram", "learns by counting"), ("word2vec", "model.vectors")])
def test_what_has_no_layers_is_refused(desk, kind, says):
    given = {"text.tokenizer": "words"} | ({"train.epochs": 1} if kind == "word2vec" else {})
    made = make_run([str(desk / "book.txt")], recipe_for(kind, given), desk / kind, overwrite=True)
    with pytest.raises(UserError, match=says):
        finetune_recipe(made.path)


def test_adapters_want_a_run_to_adapt():
    with pytest.raises(UserError, match="--from RUN says which"):
        recipe_for("gpt", {"train.lora": 8})


def test_a_run_does_not_begin_from_itself(desk, gpt):
    recipe = finetune_recipe(gpt, {"train.steps": 1})
    with pytest.raises(UserError, match="would be written to"):
        make_run([str(desk / "book.txt")], recipe, gpt, overwrite=True)


# What stays


FROZEN = [
    ("gpt", "all", ""),
    ("gpt", "0", r"embedding\."),
    ("gpt", "1", r"embedding\.|stack\.blocks\.0\."),
    ("gpt", "stack.blocks.1,output", r"stack\.blocks\.1\.|output\."),
    ("gru", "1", r"embedding\.weight$|stack\.layers\.0\."),
    ("gru", "stack", r"stack\."),
]


@pytest.mark.parametrize(("kind", "wanted", "names"), FROZEN, ids=[f"{kind}-{wanted}" for kind, wanted, _ in FROZEN])
def test_what_is_frozen_does_not_move_and_the_rest_does(desk, kind, wanted, names):
    base = run.load(pretrained(desk, kind)).model.state_dict()
    tuned = body(fine_tune(desk, pretrained(desk, kind), train_freeze=wanted, train_lr=0.05, head_auxiliary=1.0).path)
    for name, weight in base.items():
        stays = re.match(names, name) is not None
        assert torch.equal(tuned[name][: len(weight)], weight) == stays, name


def test_new_tokens_learn_where_the_others_stay(desk, gpt):
    rows = [body(fine_tune(desk, gpt, steps=steps, train_freeze="all", train_keep_best=False).path)
            ["embedding.tokens.weight"] for steps in (1, 8)]
    assert torch.equal(rows[0][:-2], rows[1][:-2])
    assert not torch.equal(rows[0][-1], rows[1][-1])       # <|extract|> ends every text


def test_new_rows_of_shards_cannot_learn_alone(desk, gpt):
    recipe = finetune_recipe(gpt, {"train.freeze": "embedding", "train.shard": True}, "classify")
    vocab = len(run.load(gpt).tokenizer) + 2
    with pytest.raises(UserError, match=r"shards embedding\.tokens\.weight as a whole, so its 2 new rows cannot"):
        initialise(build_for(recipe, vocab, ("sea", "wood")), recipe, vocab, desk / "shards", Log())


def test_the_number_of_trained_parameters_is_said(desk, gpt, capsys):
    fine_tune(desk, gpt, train_freeze="all")
    assert "194 of 26.6k parameters are trained, the others are frozen" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("stack.block.0", "Did you mean stack.blocks.0?"),
        ("embeddings", "Did you mean embedding?"),
        ("xyzzy", "It has embedding, output, stack."),
        ("3", "the body has 2 layers"),
        ("stack.blocks.00", "Did you mean stack.blocks.0"),
    ],
)
def test_names_that_match_no_parameter_are_refused_with_the_nearest(desk, gpt, wanted, says):
    with pytest.raises(UserError) as caught:
        fine_tune(desk, gpt, train_freeze=wanted)
    assert f"train.freeze={wanted}" in str(caught.value)
    assert says in str(caught.value)


def test_some_parameter_must_be_trained(desk, gpt):
    with pytest.raises(UserError, match="leaves no parameter to train"):
        fine_tune(desk, gpt, task="lm", text="book.txt", valid=None, train_freeze="all")


# How fast the rest learns


def test_the_body_learns_at_its_share_of_the_rate_and_the_head_at_all_of_it(desk, gpt):
    full, slow = trained_on(desk, gpt), trained_on(desk, gpt, train_body_lr=0.125)
    moved = 0
    for name, change in full.items():
        share = 0.125 if name.startswith("body.") else 1.0
        torch.testing.assert_close(slow[name], share * change, rtol=1e-3, atol=1e-6)
        moved += change.abs().max() > 1e-3
    assert moved >= 8


def test_each_layer_learns_at_a_share_of_the_one_above(desk, gpt):
    full, slow = trained_on(desk, gpt), trained_on(desk, gpt, train_layer_decay=0.5)
    shares = {"body.embedding": 0.125, "body.stack.blocks.0": 0.25, "body.stack.blocks.1": 0.5, "output": 1.0}
    for begin, share in shares.items():
        for name, change in full.items():
            if name.startswith(begin):
                torch.testing.assert_close(slow[name], share * change, rtol=1e-3, atol=1e-6)


def test_adapters_and_new_rows_have_the_learning_rate_of_their_layer():
    recipe = recipe_for("gru", {"model.layers": 2, "model.hidden": 8}, "classify")
    model = build_for(recipe, 20, ("a", "b"))
    add_parametrization(model.body, "embedding.weight", NewTokenRows(model.body.embedding.weight, 18))
    rnn = "stack.layers.1.rnn.weight_hh_l0"
    add_parametrization(model.body, rnn, LoRA(model.body.get_parameter(rnn), 2, 1.0))
    shares = lr_factors(model, Gradient(layer_decay=0.5))
    assert shares["body.embedding.parametrizations.weight.0.rows"] == 0.125
    assert shares["body.stack.layers.1.rnn.parametrizations.weight_hh_l0.0.up"] == 0.5
    assert "output.weight" not in shares


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_every_optimizer_heeds_the_rates(desk, gpt, optimizer):
    given = {"train_optimizer": optimizer, "train_lr": 0.01, "train_freeze": "embedding", "steps": 2}
    slow = body(fine_tune(desk, gpt, train_body_lr=1e-3, **given).path)
    fast = body(fine_tune(desk, gpt, **given).path)
    base, name = run.load(gpt).model.state_dict(), "stack.blocks.1.feed_forward.up.weight"
    assert (fast[name] - base[name]).norm() > 100 * (slow[name] - base[name]).norm() > 0


# Going on


@pytest.mark.parametrize(
    "given",
    [{}, {"train_lora": 2, "train_layer_decay": 0.5}, {"train_freeze": "1", "train_body_lr": 0.5},
     {"train_freeze": "all", "head_dropout": 0.3}],
    ids=str,
)  # fmt: skip
def test_a_run_killed_at_any_step_ends_where_it_would_have_ended(desk, gpt, monkeypatch, given):
    given = {"train_checkpoint": 0, "train_evaluate": 3, "model_dropout": 0.1, "train_lr": 0.01, "steps": 8, **given}
    whole = weights(fine_tune(desk, gpt, "whole", **given).path)
    recipe = run.load(desk / "whole").recipe
    again = [str(desk / "few.tsv")], recipe, desk / "killed"
    run.remove(desk / "killed")
    for number in (2, 4):
        with monkeypatch.context() as patched:
            patched.setattr(Step, "take", killed_at(number, Step.take))
            with pytest.raises(Killed):
                make_run(*again, valid=[str(desk / "others.tsv")])
        torch.manual_seed(number)                          # another process has had other chances
    assert make_run(*again, valid=[str(desk / "others.tsv")]).finished
    assert_same_bits(whole, weights(desk / "killed"))


def test_a_run_is_taken_for_the_same_only_if_it_began_from_the_same(desk, gpt):
    given = {"train.steps": 2, **QUICK}
    text, out = [str(desk / "book.txt")], desk / "same"
    make_run(text, finetune_recipe(gpt, given), out)
    assert make_run(text, finetune_recipe(gpt, given), out).before
    alone = replace(finetune_recipe(gpt, given), base=None)
    with pytest.raises(UserError, match=r"base\.sha256 is [0-9a-f]+ there and None here"):
        make_run(text, alone, out)
    moved = replace(finetune_recipe(gpt, given).base, path="/elsewhere/gpt")
    assert run.differences(run.read_about(out), asdict(replace(finetune_recipe(gpt, given), base=moved))) == []
