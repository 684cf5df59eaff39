"""`chainrule compare` and `chainrule demo`, end to end, with budgets of a blink."""

import json
from pathlib import Path

import pytest

from chainrule.commands import compare
from chainrule.models.hmm.hmm import HMM

BLINK = ("--minutes", "0.004")
KINDS = ("--kinds", "uniform,bigram,ngram,gpt")


@pytest.fixture
def long_book(book):
    book.write_text(book.read_text() * 5)
    return book


def test_the_table_says_who_is_better_and_whether_that_is_real(chainrule, long_book):
    answer = chainrule("compare", long_book, *KINDS, *BLINK)
    assert answer.code == 0, answer.err
    lines = answer.out.strip().splitlines()
    assert lines[0].split()[:3] == ["kind", "bits/byte", "95"]
    assert [line.split()[0] for line in lines[1:5]] == ["uniform", "bigram", "ngram", "gpt"]
    assert "ngram is better than" in answer.out
    assert "runs/compare-book/report.html" in lines[-1]
    assert "chosen: " in answer.err
    assert "model.width" in answer.err
    assert Path("runs/compare-book/report.html").stat().st_size < 8_000_000


def test_json_is_all_that_is_printed(chainrule, long_book):
    answer = chainrule("compare", long_book, *KINDS, *BLINK, "--out", "runs/c", "--json")
    assert answer.err == ""
    made = answer.json
    assert json.loads(Path("runs/c/results.json").read_text()) == made
    assert [row["kind"] for row in made["rows"]] == KINDS[1].split(",")
    for row in made["rows"]:
        low, high = row["bits_per_byte_interval"]
        assert low <= row["bits_per_byte"] <= high
        assert {"parameters", "train_seconds", "tokens_per_second", "state_bytes", "sample", "signature"} <= row.keys()
    assert len(made["differences"]) == 6
    assert made["entropy"] is None
    assert made["held_out"]["split"] == "valid"
    measured = chainrule("train", long_book, "--kind", "bigram", "text.tokenizer=characters", "--json").json
    bigram = made["rows"][1]
    assert bigram["bits_per_byte"] == pytest.approx(measured["bits_per_byte"], rel=1e-9)
    assert bigram["signature"] == measured["signature"]


def test_a_language_of_known_entropy_shows_its_gap(chainrule):
    answer = chainrule("compare", "markov", "--kinds", "unigram,bigram", *BLINK, "--json").json
    unigram, bigram = answer["rows"]
    assert abs(bigram["gap"]) < 0.01 * answer["entropy"]
    assert unigram["gap"] > 0.2
    assert bigram["gap"] == pytest.approx(bigram["bits_per_byte"] - answer["text_entropy"])
    assert " gap " in chainrule("compare", "markov", "--kinds", "unigram,bigram", *BLINK).out


def test_settings_go_to_all_or_to_the_kind_they_name(chainrule, long_book):
    words = ("ngram.model.order=3", "text.tokenizer=bytes", "gpt.text.tokenizer=characters", "train.seed=5")
    rows = chainrule("compare", long_book, *KINDS, *BLINK, *words, "compare.by=flops", "--json").json["rows"]
    assert [row["signature"].partition("|")[0] for row in rows] == ["unit:bytes"] * 3 + ["unit:characters"]
    assert "model.order=3" in rows[2]["settings"]
    assert "train.seed=5" in rows[3]["settings"]


@pytest.mark.parametrize(("words", "says"), [
    (["--kinds", "ngrm"], "ngrm is no kind. Did you mean ngram?"),
    (["--kinds", "encoder"], "encoder does not predict a text from what came before it alone"),
    (["--kinds", "ngram,gpt2"], "gpt2 is gpt with a fixed size, and here sizes follow the budget. Compare gpt."),
    (["--kinds", "gpt,gpt"], "each once"),
    (["--kinds", ","], "name one or more kinds"),
    (["--minutes", "0"], "--minutes 0: it must be more than 0"),
    (["model.order=3"], "of which kind? Write gpt.model.order=3"),
    (["gtp.model.layers=2"], "Did you mean gpt?"),
    (["gpt.train.steps=3"], "every kind gets the same budget"),
    (["gpt.model.layres=2"], "Did you mean model.layers?"),
    (["compare.by=tokens"], "compare.by=tokens is not one of minutes, flops"),
    (["compare.bye=flops"], "unknown setting compare.bye. Did you mean compare.by?"),
    (["text.tokenizer=words"], "do not give the text's bytes back"),
    (["--valid", "none.txt"], "none.txt"),
])
def test_mistakes_are_one_line(complaint, long_book, words, says):
    assert says in complaint("compare", long_book, *words)


def test_a_text_too_short_to_judge_by_is_one_line(complaint, book):
    book.write_text("too short " * 20)
    assert "an interval needs 512" in complaint("compare", book, "--kinds", "unigram")
    assert not Path("runs").exists()


def test_a_kind_that_holds_the_text_for_impossible_has_no_number_and_says_why(chainrule, long_book, tmp_path):
    (tmp_path / "v.txt").write_text("the zebra saw the cat. " * 40)
    words = ("--kinds", "bigram,ngram", "--valid", "v.txt", "ngram.model.estimator=mle")
    answer = chainrule("compare", long_book, *words)
    assert answer.code == 0, answer.err
    assert "infinite" in answer.out
    row = chainrule("compare", long_book, *words, "--json").json["rows"][1]
    assert row["bits_per_byte"] is None
    assert "probability 0" in row["why"]


# demo


@pytest.fixture
def short_demo(long_book, monkeypatch):
    monkeypatch.setattr(compare, "DEMO_TEXT", str(long_book))
    monkeypatch.setattr(compare, "DEMO_MINUTES", 0.004)
    monkeypatch.setattr(compare, "DEMO_KINDS", ("uniform", "unigram", "bigram", "ngram", "hmm", "gpt"))


def test_the_demo_is_the_ladder_in_one_table(chainrule, short_demo):
    answer = chainrule("demo")
    assert answer.code == 0, answer.err
    first = [line.split()[0] for line in answer.out.splitlines() if line.split()]
    assert [kind for kind in first if kind in compare.DEMO_KINDS][: len(compare.DEMO_KINDS)] == list(compare.DEMO_KINDS)
    assert "chainrule sample runs/demo/gpt" in answer.out
    assert Path("runs/demo/report.html").is_file()
    rows = chainrule("demo", "--json").json["rows"]
    bits = {row["kind"]: row["bits_per_byte"] for row in rows}
    assert bits["uniform"] > bits["unigram"] > bits["bigram"] > bits["ngram"]
    assert f"{bits['ngram']:.3f}" in answer.out


def test_a_demo_that_is_stopped_is_no_success_and_goes_on(chainrule, short_demo, monkeypatch):
    def stop(self, statistics):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(HMM, "update", stop)
        answer = chainrule("demo")
    assert (answer.code, answer.out) == (130, "")
    assert chainrule("demo").code == 0


def test_a_comparison_that_is_stopped_says_how_to_go_on(chainrule, long_book, monkeypatch):
    from chainrule.commands import compare

    def stop(*words):
        raise compare.Stopped

    monkeypatch.setattr(compare, "climb", stop)
    answer = chainrule("compare", long_book)
    assert (answer.code, answer.out) == (130, "")
    assert "the same command continues from it" in answer.err
