"""A ladder with tiny budgets: all kinds on the same bytes, continued after an interrupt, refused if not comparable."""

import json
from pathlib import Path

import pytest

from chainrule.compare import ladder
from chainrule.compare.ladder import LadderPlan, Stopped, chosen_settings, climb, held_out
from chainrule.defaults.budgets import Budget, Compare, ladder_kinds
from chainrule.errors import UserError
from chainrule.inference.statistics import compare_scores
from chainrule.models.hmm.hmm import HMM
from chainrule.run import load

ANIMALS = [(one, other) for one in ("cat", "dog", "cow", "hen") for other in ("bird", "mouse", "fox", "bee")]
BOOK = "".join(f"the {one} saw the {other}, and the {other} ran — away.\n" for one, other in ANIMALS) * 14
LADDER = ladder_kinds()
BLINK = 0.004           # minutes


@pytest.fixture
def book(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / ".cache"))
    (tmp_path / "book.txt").write_text(BOOK)
    return "book.txt"


def plan_for(text, kinds, minutes=BLINK, valid=(), given=None, **compare):
    settings = {kind: dict((given or {}).get(kind, {})) for kind in kinds}
    return LadderPlan((text,), Budget.of(minutes, "cpu", Compare(**compare)), settings, tuple(valid))


def test_every_kind_of_the_ladder_climbs(book):
    rungs = climb(plan_for(book, LADDER), Path("out"))
    assert [rung.kind for rung in rungs] == list(LADDER)
    made = compare_scores({rung.kind: rung.scored for rung in rungs})
    bits = {kind: made.row(kind)["bits_per_byte"] for kind in LADDER}
    assert bits["uniform"] > bits["unigram"] > bits["bigram"] > bits["ngram"] > 0
    for rung in rungs:
        facts = rung.facts
        assert load(facts["run"]).recipe.kind == rung.kind
        assert facts["train_tokens"] > 0
        assert facts["train_seconds"] > 0
        assert facts["parameters"] > 0
        assert (facts["flops"] is None) == (rung.kind in ("uniform", "unigram", "bigram", "ngram"))
        assert len(facts["sample"]) > 10
        assert BOOK.find(facts["prompt"]) >= 0
        assert "".join(piece for piece, _ in rung.strip.pieces) in BOOK
    grows = {rung.kind for rung in rungs if rung.facts["state_bytes_per_token"]}
    assert grows == {"gpt"}


def test_all_learn_from_the_same_bytes_and_are_measured_on_the_same(book):
    given = {"gpt": {"text.tokenizer": "bpe", "text.vocab": 300}}
    rungs = climb(plan_for(book, ("bigram", "gpt"), given=given), Path("out"))
    one, other = (load(rung.facts["run"]).about["splits"] for rung in rungs)
    assert {name: split["sha256"] for name, split in one.items()} == {name: other[name]["sha256"] for name in other}
    assert one["train"]["tokens"] != other["train"]["tokens"]
    assert rungs[0].scored.result.bytes == rungs[1].scored.result.bytes == one["valid"]["bytes"]
    assert rungs[0].scored.ends[-1] == rungs[1].scored.ends[-1]


def test_by_flops_networks_spend_the_same_flops(book):
    kinds = ("feedforward", "gru", "gpt")
    rungs = climb(plan_for(book, kinds, by="flops", flops=2e9), Path("out"))
    assert [rung.facts["flops"] for rung in rungs] == pytest.approx([2e9] * 3, rel=0.1)


def test_a_ladder_that_is_there_is_not_climbed_twice(book, monkeypatch):
    wanted = plan_for(book, ("bigram", "hmm", "lstm"))
    first = climb(wanted, Path("out"))
    written = Path("out/lstm/model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(ladder, "recipe_for_budget", None)                    # recipes are chosen once
    second = climb(wanted, Path("out"))
    assert Path("out/lstm/model.safetensors").stat().st_mtime_ns == written
    assert [rung.recipe for rung in first] == [rung.recipe for rung in second]
    assert [rung.scored.result.bits_per_byte for rung in first] == [rung.scored.result.bits_per_byte for rung in second]


def test_kinds_can_be_added_later(book):
    climb(plan_for(book, ("bigram",)), Path("out"))
    assert [rung.kind for rung in climb(plan_for(book, ("bigram", "unigram")), Path("out"))] == ["bigram", "unigram"]
    assert json.loads(Path("out/comparison.json").read_text())["kinds"].keys() == {"bigram", "unigram"}


def test_a_ladder_that_is_stopped_goes_on_where_it_was(book, monkeypatch):
    wanted = plan_for(book, ("bigram", "hmm", "ngram"))
    monkeypatch.setattr(ladder, "_seconds", lambda model, batch: 0.06)    # so four rounds fit
    update, rounds = HMM.update, []

    def stop_in_the_third_round(self, statistics):
        rounds.append(1)
        if len(rounds) == 3:
            raise KeyboardInterrupt
        update(self, statistics)

    with monkeypatch.context() as patched:
        patched.setattr(HMM, "update", stop_in_the_third_round)
        with pytest.raises(Stopped):
            climb(wanted, Path("out"))
    assert load("out/hmm").about["done"] | {"nats": None} == {"rounds": 2, "finished": False, "nats": None}
    assert not Path("out/ngram").exists()
    before = Path("out/bigram/model.safetensors").stat().st_mtime_ns
    assert [rung.kind for rung in climb(wanted, Path("out"))] == ["bigram", "hmm", "ngram"]
    assert Path("out/bigram/model.safetensors").stat().st_mtime_ns == before
    assert load("out/hmm").about["done"]["finished"]


def test_em_has_the_rounds_that_fit_into_the_time(book, monkeypatch):
    monkeypatch.setattr(ladder, "_seconds", lambda model, batch: 2.0)
    recipes = ladder.choose_all(
        wanted := plan_for(book, ("hmm",), minutes=1), {"hmm": ladder.corpus_for("hmm", wanted)}, Path("out"), False
    )
    assert recipes["hmm"].train.steps == 30


def test_a_network_has_the_rate_for_the_steps_that_fit_into_the_time(book, monkeypatch):
    made = {}
    for speed in (100.0, 1e6):    # tokens a second
        monkeypatch.setattr(ladder, "measure_step", lambda recipe, corpus, seconds, speed=speed: speed)
        wanted = plan_for(book, ("lstm",), minutes=1)
        corpora = {"lstm": ladder.corpus_for("lstm", wanted)}
        made[speed] = ladder.choose_all(wanted, corpora, Path(f"out{speed:.0f}"), False)["lstm"]
    slow, fast = made.values()
    assert slow.model.hidden == fast.model.hidden
    assert (slow.train.lr, fast.train.lr) == (0.04, 0.02)
    assert slow.model.dropout < fast.model.dropout    # which reads the text more often
    given = plan_for(book, ("lstm",), minutes=1, given={"lstm": {"train.lr": "0.5", "train.optimizer": "sgd"}})
    train = ladder.choose_all(given, corpora, Path("own"), False)["lstm"].train
    assert (train.lr, train.optimizer) == (0.5, "sgd")


def test_another_comparison_in_the_same_folder_is_refused_and_can_be_overwritten(book, tmp_path):
    climb(plan_for(book, ("bigram", "ngram")), Path("out"))
    for other, says in [
        (plan_for(book, ("bigram",), minutes=2), "seconds is 0.24 there and 120"),
        (plan_for(book, ("ngram",), given={"ngram": {"model.order": "3"}}), "model.order is None there and 3 here"),
        (plan_for("book.txt", ("bigram",), valid=["book.txt"]), r"valid is \[\] there"),
    ]:
        with pytest.raises(UserError, match=says):
            climb(other, Path("out"))
    (rung,) = climb(plan_for(book, ("ngram",), given={"ngram": {"model.order": "3"}}), Path("out"), overwrite=True)
    assert rung.recipe.model.order == 3


def test_a_text_that_has_changed_is_refused(book, tmp_path):
    climb(plan_for(book, ("bigram",)), Path("out"))
    (tmp_path / "book.txt").write_text(BOOK.replace("cat", "rat"))
    with pytest.raises(UserError, match="the same recipe on other text"):
        climb(plan_for(book, ("bigram",)), Path("out"))


def test_a_folder_that_holds_something_else_is_never_written_to(book, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear")
    with pytest.raises(UserError, match="holds files that are no comparison"):
        climb(plan_for(book, ("bigram",)), Path("mine"))
    with pytest.raises(UserError, match="is a file"):
        climb(plan_for(book, ("bigram",)), Path("book.txt"))


def test_units_that_give_no_bytes_back_are_refused_before_anything_is_learned(book):
    with pytest.raises(UserError, match="words do not give the text's bytes back, so ngram would have no bits"):
        climb(plan_for(book, ("bigram", "ngram"), given={"ngram": {"text.tokenizer": "words"}}), Path("out"))
    assert not Path("out").exists()


def test_kinds_that_would_not_read_the_same_bytes_are_refused_before_any_is_trained(book, tmp_path):
    given = {"unigram": {}, "bigram": {"text.held_out": "0.4"}}
    with pytest.raises(UserError, match=r"compared on the same bytes, .*: give text\.held_out, .* for all of them"):
        climb(plan_for(book, ("unigram", "bigram"), given=given), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_held_out_text_or_a_text_that_can_be_read_again_there_is_nothing_to_compare(book):
    with pytest.raises(UserError, match="no held-out text"):
        climb(plan_for(book, ("bigram",), given={"bigram": {"text.held_out": "0"}}), Path("out"))
    with pytest.raises(UserError, match="stdin"):
        climb(plan_for("-", ("bigram",)), Path("out"))


def test_a_text_too_short_to_judge_by_is_refused_before_anything_is_learned(book, tmp_path):
    (tmp_path / "book.txt").write_text(BOOK[:4000])
    with pytest.raises(UserError, match=r"an interval needs 512 or more\. Give more text, a longer --valid F"):
        climb(plan_for(book, ("bigram",)), Path("out"))
    assert not Path("out").exists()


def test_a_test_text_comes_before_a_validation_text(book, monkeypatch):
    corpus = ladder.corpus_for("bigram", plan_for("die", ("bigram",)))
    assert held_out(corpus) == ("test", corpus.splits["test"])
    (rung,) = climb(plan_for("die", ("bigram",)), Path("out"))
    assert rung.scored.result.bytes == corpus.splits["test"].bytes


def test_the_language_of_a_text_is_known_only_if_it_is_all_of_it(book):
    assert plan_for("brackets", ("bigram",)).language.name == "brackets"
    assert plan_for(book, ("bigram",)).language is None
    assert plan_for("python-docs", ("bigram",)).language is None
    assert plan_for("brackets", ("bigram",), valid=[book]).language is None


def test_what_was_chosen_makes_the_same_recipe_again(book):
    from chainrule.settings import split_words
    from chainrule.tasks import recipe_for

    for rung in climb(plan_for(book, ("ngram", "hmm", "gpt")), Path("out")):
        _, settings = split_words(chosen_settings(rung.recipe))
        assert recipe_for(rung.kind, settings) == rung.recipe
