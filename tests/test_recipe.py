import json
import re
from dataclasses import fields

import pytest

from chainrule.device import shapes_only
from chainrule.errors import UserError
from chainrule.models import KINDS, build, kind, model_class
from chainrule.recipe import TRAIN, Gradient, Text, make_recipe
from chainrule.settings import RENAMED, hints, meanings, range_of
from chainrule.tasks import TASKS, find_task


def recipe(given=None, preset=None, name="uniform"):
    return make_recipe(name, model_class(name), given or {}, preset or {})


def test_what_the_user_gave_wins_over_preset_kind_and_house() -> None:
    assert recipe().text.min_count is None
    assert recipe().text.tokenizer == "words"
    assert recipe(preset={"text.tokenizer": "bytes"}).text.tokenizer == "bytes"
    assert recipe({"text.tokenizer": "bpe"}, {"text.tokenizer": "bytes"}).text.tokenizer == "bpe"
    assert recipe({"train.seed": "7"}).train.seed == 7


def test_a_recipe_goes_through_json_and_back() -> None:
    first = recipe({"train.seed": 9, "text.vocab": 50})
    plain = json.loads(json.dumps(first.as_dict()))
    given = {f"{part}.{name}": value for part in ("text", "model", "train") for name, value in plain[part].items()}
    assert recipe(given) == first


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("modle.order", "unknown setting modle.order. Did you mean model"),
        ("xyzzy.order", "Settings begin with text., model. or train."),
        ("model", "unknown setting model"),
        ("text.tokeniser", "Did you mean text.tokenizer"),
        ("model.order", "This kind has no model settings"),
    ],
)
def test_an_unknown_setting_stops_at_once(name: str, line: str) -> None:
    with pytest.raises(UserError) as error:
        recipe({name: 1})
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "0") for name in ("steps", "restarts", "length", "tokens")),
        *((name, "-1") for name in ("seed", "tolerance")),
        ("tolerance", "nan"),
    ],
)
def test_counting_that_cannot_be_is_refused(name: str, value: str) -> None:
    with pytest.raises(UserError, match=f"^train.{name}={value}: it must be"):
        recipe({f"train.{name}": value})


TASK_SETTINGS = {settings for task in map(find_task, TASKS) for settings in (task.text, *task.heads.values())}
EVERY = TASK_SETTINGS | {*TRAIN.values(), *(model_class(name).Settings for name in KINDS)}


@pytest.mark.parametrize("settings", sorted(EVERY, key=lambda cls: cls.__name__))
def test_every_number_declares_its_range(settings: type) -> None:
    numbers = [name for name, hint in hints(settings).items() if re.search(r"\b(int|float)\b", str(hint))]
    assert [name for name in numbers if range_of(hints(settings)[name]) is None] == []


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("gpt", "model.zero", "model.zero_init"), ("gpt", "model.keys", "model.kv_heads"),
        ("gpt", "model.cap", "model.logit_softcap"), ("gpt", "model.wavelength", "model.rope_theta"),
        ("gpt", "model.gains", "model.norm_scale"), ("lstm", "train.rest_lr", "train.adamw_lr"),
        ("lstm", "train.rows", "train.micro_batch"), ("lstm", "train.order", "train.batching"),
        ("seq2seq", "model.smoothing", "model.label_smoothing"),
    ],
)
def test_an_old_name_is_answered_with_the_new_one(kind: str, old: str, new: str) -> None:
    with pytest.raises(UserError) as error:
        recipe({old: "1"}, name=kind)
    assert str(error.value) == f"unknown setting {old}: it is {new} now."


def test_a_new_name_that_a_kind_does_not_have_is_not_advised() -> None:
    with pytest.raises(UserError, match=r"^unknown setting model\.keys\."):
        recipe({"model.keys": "1"}, name="lstm")


def test_what_is_an_old_name_for_one_kind_may_be_a_name_of_another() -> None:
    assert "model.cap" in RENAMED
    assert recipe({"model.cap": "50"}, name="glove").model.cap == 50


@pytest.mark.parametrize("settings", [Text, *TRAIN.values()])
def test_every_setting_of_the_house_has_a_meaning(settings: type) -> None:
    assert [name for name, meaning in meanings(settings).items() if not meaning] == []
    assert meanings(settings).keys() == {field.name for field in fields(settings)}


@pytest.mark.parametrize("name", KINDS)
def test_every_setting_of_a_kind_has_a_meaning(name: str) -> None:
    assert [field for field, meaning in meanings(model_class(name).Settings).items() if not meaning] == []


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_made_from_its_preset(name: str) -> None:
    made = recipe(preset=kind(name).preset, name=name)
    with shapes_only():    # the largest would not fit otherwise
        assert isinstance(build(name, made.model, 11), model_class(name))


def test_an_unknown_kind_names_the_nearest_or_all() -> None:
    with pytest.raises(UserError, match=r"unknown kind ngrma. Did you mean ngram\?"):
        kind("ngrma")
    with pytest.raises(UserError, match="Known: uniform, unigram"):
        model_class("zzz")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"steps": 5, "minutes": 1.0}, r"train\.steps and train\.minutes: training has one budget"),
        ({"steps": 0}, r"train\.steps=0: it must be 1 or more"),
        ({"epochs": 0.0}, r"train\.epochs=0: it must be more than 0"),
        ({"lr": float("inf")}, r"train\.lr=inf"),
        ({"clip": -1.0}, r"train\.clip=-1: it must be 0 or more"),
        ({"warmup": 1.5}, r"train\.warmup=1.5: it must be from 0 to 1"),
        ({"betas": (0.9, 1.0)}, r"train\.betas=1: it must be from 0 to less than 1"),
        ({"optimizer": "sgd", "momentum": 1.0}, r"train\.momentum=1: it must be from 0"),
        ({"momentum": 0.9}, "adamw has train.betas"),
        ({"adamw_lr": 0.1}, r"train\.adamw_lr is for muon"),
        ({"patience": 2, "evaluate": 0.0}, r"train\.patience needs evaluations"),
    ],
)
def test_settings_of_descent_that_make_no_sense_are_refused(given, line) -> None:
    with pytest.raises(UserError, match=line):
        Gradient(**given)


@pytest.mark.parametrize("settings", TRAIN.values())
def test_a_seed_is_one_that_generators_take(settings: type) -> None:
    assert settings(seed=2**63 - 1).seed == 2**63 - 1
    for seed, says in (-1, "0 or more"), (2**63, f"at most {2**63 - 1}"), (10**23, f"at most {2**63 - 1}"):
        with pytest.raises(UserError, match=rf"^train\.seed={seed}: it must be {says}\.$"):
            settings(seed=seed)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        *(("lstm", f"train.{name}") for name in ("lr", "weight_decay", "clip", "evaluate", "checkpoint")),
        ("lstm", "text.held_out"), ("hmm", "train.tolerance"), ("word2vec", "train.lr"), ("ngram", "text.held_out"),
    ],
)
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_what_json_cannot_write_down_is_refused(name: str, setting: str, value: str) -> None:
    with pytest.raises(UserError, match=f"^{setting}={value}: it "):
        recipe({setting: value}, name=name)


def test_a_budget_takes_the_place_of_any_other() -> None:
    made = recipe({"train.minutes": 2}, {"train.epochs": 40}, "lstm")
    assert made.train.budget == ("minutes", 2)
    assert recipe({}, {"train.epochs": 40}, "lstm").train.budget == ("epochs", 40)
    assert recipe({"train.lr": 1}, {"train.epochs": 40}, "lstm").train.budget == ("epochs", 40)
    assert Gradient().budget == ("epochs", 10)


def test_true_and_false_of_a_file_are_words_where_there_is_a_third() -> None:
    assert recipe({"train.compile": True}, name="lstm").train.compile == "true"
    assert recipe({"train.graph": "auto"}, name="lstm").train.graph == "auto"


@pytest.mark.parametrize("name", KINDS)
def test_the_sentence_of_a_kind_stands_alone(name):
    """A report shows it beside any other kinds: it refers to no other row, and to no setting."""
    assert not re.search(r"(?i)\bthe same\b|\babove\b|\bbelow\b|(model|train|text)\.[a-z]", KINDS[name].idea)
