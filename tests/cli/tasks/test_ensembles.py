"""`--with RUN`: runs of any kinds that answer together, in weighted means."""

import pytest
from cli.tasks.small import TAGGERS, WRITERS

from chainrule.errors import UserError
from chainrule.run import load


def test_taggers_of_other_kinds_are_averaged(chainrule, asked, tagged):
    for kind in ("hmm", "gru"):
        more = [] if kind == "hmm" else ["train.epochs=1"]
        chainrule("train", tagged, "--task", "tag", "--kind", kind, "--out", f"runs/{kind}", *TAGGERS[kind], *more)
    each = [chainrule("eval", f"runs/{kind}", tagged, "--json").json for kind in ("hmm", "gru")]
    both = [chainrule("eval", f"runs/{one}", tagged, "--with", f"runs/{other}", "--json").json
            for one, other in (("hmm", "gru"), ("gru", "hmm"))]
    assert both[0]["confusion"] == both[1]["confusion"]
    assert both[0]["parameters"] == sum(one["parameters"] for one in each)
    assert both[0]["signature"] == each[0]["signature"] + "|mean-of-runs:2"
    assert both[0]["accuracy"] > each[1]["accuracy"]
    assert asked("the dog sees a cat\n", "runs/gru", "--with", "runs/hmm").out == "DET NOUN VERB DET NOUN\n"


def test_a_run_of_an_ensemble_may_have_a_weight(chainrule, asked, complaint, reviews, tmp_path):
    for kind in ("loglinear", "unigram"):
        chainrule("train", reviews, "--task", "classify", "--kind", kind, "--out", f"runs/{kind}", "text.min_count=1")
    pair = ("runs/loglinear", "--with", "runs/unigram")
    one, other, both, weighed = (
        asked("a fine film\n", *words, "--json").json["answers"][0]["probabilities"]["good"]
        for words in (["runs/loglinear"], ["runs/unigram"], pair, (*pair[:2], "runs/unigram:3")))
    assert abs(one - other) > 0.01
    assert both == pytest.approx((one + other) / 2)
    assert weighed == pytest.approx((one + 3 * other) / 4)
    measured = [chainrule("eval", *pair[:1], reviews, "--with", f"runs/unigram{more}", "--json").json["signature"]
                for more in ("", ":1", ":0.25")]
    assert measured[0] == measured[1]
    assert measured[0].endswith("|mean-of-runs:2")
    assert measured[2] == measured[0] + "|weights:1,0.25"
    assert load(pair[0]).averaged_with(load(pair[2]), weights=[3]).predict(["a fine film"])[0]["probabilities"] == {
        "bad": pytest.approx(1 - weighed), "good": pytest.approx(weighed)}
    for weight in ("half", "0", "-1", "nan", "inf", ""):
        said = complaint("predict", *pair[:2], f"runs/unigram:{weight}")
        assert f"--with runs/unigram:{weight}: the weight" in said
        assert "more than 0, as in --with runs/unigram:0.5." in said
    assert "runs/gone" in complaint("predict", *pair[:2], "runs/gone:2")
    (tmp_path / "runs" / "unigram").rename(tmp_path / "runs" / "uni:2")
    assert asked("a fine film\n", *pair[:2], "runs/uni:2", "--json").json["answers"][0]["probabilities"][
        "good"] == pytest.approx(both)


def test_weights_in_python_are_one_for_each_run(chainrule, reviews):
    chainrule("train", reviews, "--task", "classify", "--kind", "loglinear", "--out", "runs/a")
    run = load("runs/a")
    for weights, said in ([1, 2], "1 other runs and 2 weights"), ([-1], "the weight -1 of runs/a"):
        with pytest.raises(UserError, match=said):
            run.averaged_with(run, weights=weights)


def test_what_answers_otherwise_is_not_averaged(chainrule, complaint, tagged, reviews):
    chainrule("train", tagged, "--task", "tag", "--kind", "hmm", "--out", "runs/t")
    for name, more in ("c", []), ("other", ["text.min_count=1"]):
        chainrule("train", reviews, "--task", "classify", "--kind", "unigram", "--out", f"runs/{name}", *more)
    both = chainrule("eval", "runs/c", reviews, "--with", "runs/other", "--json").json
    assert both["signature"].endswith("|mean-of-runs:2")
    assert "runs/c does not answer as runs/t does" in complaint("eval", "runs/t", tagged, "--with", "runs/c")
    by_position = complaint("eval", "runs/t", tagged, "--by-position", "--with", "runs/c")
    assert "--with averages the answers to examples of a task" in by_position
    chainrule("train", reviews, "--kind", "unigram", "text.tokenizer=words", "--out", "runs/lm")
    assert "whose answers are not averaged" in complaint("eval", "runs/lm", reviews, "--with", "runs/lm")


def test_writers_of_other_kinds_write_together(chainrule, asked, complaint, numbers):
    """One has learned, the other knows little: together they write what both make likely, whichever comes first."""
    words = ("text.tokenizer=words", "text.min_count=1", "train.tokens=64")
    for kind, epochs in ("transformer", 50), ("seq2seq", 3):
        chainrule("train", *numbers, "--task", "translate", "--kind", kind, "--out", f"runs/{kind}", *words,
                  *WRITERS[kind], f"train.epochs={epochs}")
    files = ("runs/transformer", "runs/seq2seq")
    each = [chainrule("eval", run, *numbers, "--json").json for run in files]
    both = [chainrule("eval", run, *numbers, "--with", other, "--json").json for run, other in (files, files[::-1])]
    assert both[0]["chrf"] == both[1]["chrf"] > each[1]["chrf"] + 10
    assert both[0]["signature"] == each[0]["signature"] + "|mean-of-runs:2"
    many = ("--samples", "16", "--temperature", "0.2")
    assert asked("two four one\n", "runs/seq2seq", *many, "--with", "runs/transformer").out == "zwei vier eins\n"
    chainrule("train", *numbers, "--task", "translate", "--kind", "seq2seq", "--out", "runs/bytes",
              "text.tokenizer=bytes", *WRITERS["seq2seq"], "train.epochs=1")
    other = complaint("eval", "runs/seq2seq", *numbers, "--with", "runs/bytes")
    assert "runs/bytes has another tokenizer than runs/seq2seq" in other
