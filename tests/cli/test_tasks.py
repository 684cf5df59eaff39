"""Tasks from the command line: learned from examples, measured, used line by line; and what is said of wrong ones."""

import gzip
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from chainrule.errors import UserError
from chainrule.run import load

REVIEWS = [
    (f"{much} {word} {thing}", label)
    for much in ("a", "this", "the")
    for word, label in (("fine", "good"), ("lovely", "good"), ("dull", "bad"), ("dreadful", "bad"))
    for thing in ("film", "play", "book")
]
NUMBERS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
SMALL = ("train.epochs=40", "train.lr=0.01", "train.tokens=128")


@pytest.fixture
def asked(chainrule, monkeypatch):
    """`chainrule predict` of lines that come by stdin."""

    def call(lines, *words):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return chainrule("predict", *words)

    return call


@pytest.fixture
def reviews(tmp_path):
    lines = "".join(f"{text}\t{label}\n" for text, label in REVIEWS)
    (tmp_path / "reviews.tsv").write_text(f"sentence\tlabel\n{lines}")
    return "reviews.tsv"


@pytest.fixture
def tagged(tmp_path):
    words = {"the": "DET", "a": "DET", "cat": "NOUN", "dog": "NOUN", "sees": "VERB", "runs": "VERB"}
    sentences = [["the", "cat", "runs"], ["a", "dog", "sees", "the", "cat"], ["the", "dog", "runs"]] * 8
    rows = ("\n".join(f"{word}\t{words[word]}" for word in sentence) for sentence in sentences)
    (tmp_path / "tagged.txt").write_text("\n\n".join(rows) + "\n")
    return "tagged.txt"


@pytest.fixture
def numbers(tmp_path):
    rows = [(a, b, c) for a in NUMBERS for b in NUMBERS for c in ("one", "two")]
    (tmp_path / "n.en").write_text("".join(" ".join(row) + "\n" for row in rows))
    (tmp_path / "n.de").write_text("".join(" ".join(NUMBERS[word] for word in row) + "\n" for row in rows))
    return "n.en", "n.de"


CLASSIFIERS = {
    "unigram": [], "ngram": ["model.order=2"], "loglinear": [],
    "lstm": ["model.hidden=16", "model.layers=1", "model.bidirectional=true", "model.dropout=0", *SMALL],
    "gpt": ["model.layers=1", "model.width=16", "model.heads=2", "model.context=16", "head.auxiliary=0.5", *SMALL],
    "encoder": ["model.layers=1", "model.width=16", "model.heads=2", "model.context=16", *SMALL],
}  # fmt: skip


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_texts_are_classified(chainrule, asked, reviews, kind):
    words = ["text.tokenizer=words", "text.min_count=1", *CLASSIFIERS[kind]]
    made = chainrule("train", reviews, "--valid", reviews, "--task", "classify", "--kind", kind, "--out", "runs/c",
                     *words, "--json").json
    assert made["accuracy"] > 0.95
    assert made["accuracy_interval"][0] <= made["accuracy"] <= made["accuracy_interval"][1]
    measured = chainrule("eval", "runs/c", reviews, "--json").json
    assert measured["accuracy"] == made["accuracy"]
    assert measured["confusion"]["names"] == ["bad", "good"]
    assert "accuracy " in chainrule("eval", "runs/c", reviews).out
    answers = asked("a fine film\nthe dull play\n", "runs/c").out.splitlines()
    assert answers == ["good", "bad"]
    first = asked("a fine film\n", "runs/c", "--json").json["answers"][0]
    assert sum(first["probabilities"].values()) == pytest.approx(1)
    assert load("runs/c").labels == ("bad", "good")


TAGGERS = {
    "hmm": [],
    "gru": ["model.hidden=16", "model.layers=1", "model.bidirectional=true", "head.char_cnn=true", *SMALL],
    "encoder": ["model.layers=1", "model.width=16", "model.heads=2", "model.context=16", *SMALL],
}


@pytest.mark.parametrize("kind", TAGGERS)
def test_words_are_tagged(chainrule, asked, tagged, kind):
    made = chainrule("train", tagged, "--valid", tagged, "--task", "tag", "--kind", kind, "--out", "runs/t",
                     *TAGGERS[kind], "--json").json
    assert made["accuracy"] > 0.95
    assert made["known_accuracy"] == made["accuracy"]
    assert chainrule("eval", "runs/t", tagged, "--json").json["accuracy"] == made["accuracy"]
    assert asked("the dog sees a cat\n", "runs/t").out == "DET NOUN VERB DET NOUN\n"


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


@pytest.mark.parametrize("letters", ["true", "false"])
@pytest.mark.parametrize(("truncate", "left"), [
    ("true", {"a": "DET", "dog": "NOUN", "sees": "VERB"}), ("ends", {"a": "DET", "dog": "NOUN", "cat": "NOUN"}),
])
def test_of_cut_sentences_what_is_left_is_measured_and_told(chainrule, asked, tagged, truncate, left, letters):
    given = [*TAGGERS["encoder"], "model.context=4", f"text.truncate={truncate}", f"head.char_cnn={letters}"]
    made = chainrule("train", tagged, "--valid", tagged, "--task", "tag", "--kind", "encoder", "--out", "runs/t",
                     *given, "--json").json
    assert made["accuracy"] == 1
    assert made["words"] == 24 * 3
    told = asked("the cat runs\na dog sees the cat\n", "runs/t", "--json").json["answers"]
    assert told[0] == {"answer": "DET NOUN VERB", "words": ["the", "cat", "runs"]}
    assert told[1] == {"answer": " ".join(left.values()), "words": list(left)}


def test_a_sentence_of_which_no_word_is_left_counts_nothing(chainrule, asked, tmp_path):
    (tmp_path / "long.txt").write_text("a\tX\nb\tY\n\nabcdefgh\tX\n\nb\tY\n")
    given = [*TAGGERS["encoder"], "model.context=4", "text.tokenizer=bytes", "text.truncate=true"]
    made = chainrule("train", "long.txt", "--valid", "long.txt", "--task", "tag", "--kind", "encoder",
                     "--out", "runs/t", *given, "--json").json
    assert made["words"] == 3
    told = asked("b\nabcdefgh\n", "runs/t", "--json").json["answers"]
    assert [answer["words"] for answer in told] == [["b"], []]


WRITERS = {
    "seq2seq": ["model.hidden=32", "model.layers=1", "model.dropout=0", "model.bidirectional=true", "train.lr=0.02"],
    "transformer": ["model.layers=1", "model.width=32", "model.heads=2", "model.context=16", "train.lr=0.01"],
    "gpt": ["model.layers=2", "model.width=32", "model.heads=2", "model.context=32", "train.lr=0.01"],
}


@pytest.mark.parametrize("kind", WRITERS)
def test_texts_are_translated(chainrule, asked, numbers, kind):
    given = ["text.tokenizer=words", "text.min_count=1", "train.epochs=100", "train.tokens=64", *WRITERS[kind]]
    chainrule("train", *numbers, "--valid", "n.en", "--valid", "n.de", "--task", "translate", "--kind", kind,
              "--out", "runs/m", *given, "--json")
    measured = chainrule("eval", "runs/m", *numbers, "--json").json
    assert measured["chrf"] > 90
    assert "tok:13a" in measured["signature"]
    assert asked("two four one\n", "runs/m").out == "zwei vier eins\n"
    greedy = asked("two four one\n", "runs/m", "--beam", "1", "--json").json["answers"]
    assert greedy[0]["answer"] == "zwei vier eins"


def test_writers_of_other_kinds_write_together(chainrule, asked, complaint, numbers):
    """One has learned, the other knows little: together they write what both make likely, whichever comes first."""
    words = ("text.tokenizer=words", "text.min_count=1", "train.tokens=64")
    for kind, epochs in ("transformer", 100), ("seq2seq", 3):
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


def test_of_many_texts_the_one_most_like_the_others_is_told(chainrule, asked, complaint, numbers):
    given = ["text.tokenizer=words", "text.min_count=1", "train.epochs=100", "train.tokens=64", *WRITERS["seq2seq"]]
    chainrule("train", *numbers, "--task", "translate", "--kind", "seq2seq", "--out", "runs/m", *given, "--json")
    lines = "two four one\nfive five two\n"
    many = asked(lines, "runs/m", "--samples", "16", "--temperature", "0.5", "--json").json["answers"]
    assert [answer["answer"] for answer in many] == ["zwei vier eins", "fünf fünf zwei"]
    assert all(0.5 < answer["score"] <= 1 for answer in many)                    # how like the others it is
    assert asked(lines, "runs/m", "--samples", "16", "--temperature", "0.5").out == "zwei vier eins\nfünf fünf zwei\n"
    measured = chainrule("eval", "runs/m", *numbers, "--samples", "8", "--temperature", "0.5", "--json").json
    assert measured["chrf"] > 90
    assert (measured["samples"], measured["temperature"], measured["limit"]) == (8, 0.5, 256)
    by_beam = chainrule("eval", "runs/m", *numbers, "--beam", "3", "--alpha", "0.5", "--limit", "7", "--json").json
    assert (by_beam["beam"], by_beam["alpha"], by_beam["limit"]) == (3, 0.5, 7)
    assert not {"beam", "alpha"} & measured.keys()
    wild = chainrule("eval", "runs/m", *numbers, "--samples", "1", "--temperature", "inf", "--json").json
    assert wild["chrf"] < 60
    assert wild["temperature"] is None                                           # JSON knows no infinity
    for how in ([], ["--samples", "4"]):
        assert [len(line.split()) for line in asked(lines, "runs/m", *how, "--limit", "2").out.splitlines()] == [2, 2]
    assert "samples=0 is not valid" in complaint("eval", "runs/m", *numbers, "--samples", "0")
    assert "limit=0 is not valid" in complaint("eval", "runs/m", *numbers, "--limit", "0")
    cold = ["--samples", "1", "--temperature", "-1"]
    assert "temperature=-1.0 is not valid" in complaint("eval", "runs/m", *numbers, *cold)


def test_the_rows_of_a_table_are_answered(chainrule, asked, complaint, reviews, tmp_path):
    chainrule("train", reviews, "--task", "classify", "--kind", "unigram", "text.tokenizer=words", "text.min_count=1",
              "--out", "runs/c")
    objects = [{"id": 1, "text": "a fine\n\nfilm"}, {"id": 2, "text": "the dull play", "label": None}]
    packed = gzip.compress("".join(json.dumps(one) + "\n" for one in objects).encode())
    tables = {
        "a.tsv": b"index\tsentence\n0\ta fine film\n1\tthe dull play\n",
        "a.csv": b'sentence,label\n"a fine\nfilm",never seen\nthe dull play,\n',
        "a.jsonl.gz": packed, "a.jsonl": gzip.decompress(packed),
        "a.txt": b"a fine film\nthe dull play\n", "lines": b"a fine film\nthe dull play\n",
    }
    for name, table in tables.items():
        (tmp_path / name).write_bytes(table)
        assert chainrule("predict", "runs/c", name).out == "good\nbad\n", name
    (tmp_path / "unclear.tsv").write_text("text\tbody\na\tb\n")
    assert "more than one column that could be the text" in complaint("predict", "runs/c", "unclear.tsv")
    (tmp_path / "empty.jsonl").write_text("\n")
    assert "empty.jsonl is empty" in complaint("predict", "runs/c", "empty.jsonl")
    (tmp_path / "headed.tsv").write_text("sentence\n")
    assert "there is no input" in complaint("predict", "runs/c", "headed.tsv")
    for name in ("gone.jsonl", "gone.tsv.gz", "gone.csv"):
        assert complaint("predict", "runs/c", name) == f"chainrule: there is no file {name}."


def test_where_things_stand_in_another_table_can_be_said(chainrule, complaint, reviews, tmp_path):
    chainrule("train", reviews, "--task", "classify", "--kind", "unigram", "text.tokenizer=words", "text.min_count=1",
              "--out", "runs/c")
    (tmp_path / "other.tsv").write_text("what\thow\twhy\na fine film\tgood\tx\nthe dull play\tbad\ty\n")
    assert "Choose: text.column=NAME" in complaint("predict", "runs/c", "other.tsv")
    assert chainrule("predict", "runs/c", "other.tsv", "text.column=what").out == "good\nbad\n"
    told = chainrule("eval", "runs/c", "other.tsv", "text.column=what", "text.label=how", "--json").json
    assert (told["accuracy"], told["examples"]) == (1.0, 2)
    (tmp_path / "bare.tsv").write_text("a fine film\nthe dull play\n")
    assert "text.header=false" in complaint("predict", "runs/c", "bare.tsv")
    assert chainrule("predict", "runs/c", "bare.tsv", "text.header=false", "text.column=1").out == "good\nbad\n"


def test_the_only_column_of_a_table_may_have_no_name(chainrule, complaint, numbers, tmp_path):
    given = ["model.layers=1", "model.width=8", "model.heads=1", "model.context=16", "train.steps=1", "--json"]
    chainrule("train", *numbers, "--task", "translate", "--kind", "transformer", "--out", "runs/m", *given)
    (tmp_path / "bare.tsv").write_text("one two\ntwo one\n")
    assert "first line is 'one two': if that is a text and no header" in complaint("predict", "runs/m", "bare.tsv")
    for words in (["bare.tsv", "text.header=false"], ["bare.tsv", "text.header=false", "text.source=1"]):
        assert len(chainrule("predict", "runs/m", *words).out.splitlines()) == 2
    assert len(chainrule("predict", "runs/m", "bare.tsv", "text.source=one two").out.splitlines()) == 1
    (tmp_path / "named.tsv").write_text("source\none two\n")
    assert len(chainrule("predict", "runs/m", "named.tsv").out.splitlines()) == 1


def test_a_text_of_many_lines_has_an_answer_of_one(chainrule, complaint, tmp_path):
    rows = [{"id": number, "body": f"{word}\n\n{word}", "subject": "x\ny"} for number, word in enumerate(NUMBERS)]
    (tmp_path / "mail.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chainrule("train", "mail.jsonl", "--valid", "mail.jsonl", "--task", "translate", "--kind", "seq2seq", "--out",
              "runs/m", "text.tokenizer=characters", "train.epochs=40", *WRITERS["seq2seq"], "--json")
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps({"id": 1, "body": row["body"]}) + "\n" for row in rows))
    for name in ("mail.jsonl", "asked.jsonl"):
        assert chainrule("predict", "runs/m", name).out == "x y\n" * 5
        answers = chainrule("predict", "runs/m", name, "--json").json["answers"]
        assert [answer["answer"] for answer in answers] == ["x\ny"] * 5
    (tmp_path / "unclear.tsv").write_text("a\tb\tc\n1\t2\t3\n")
    assert "has the columns a, b, c; which is the source" in complaint("predict", "runs/m", "unclear.tsv")


@pytest.mark.parametrize(("task", "kind", "target"), [
    ("classify", "lstm", "text"), ("tag", "gru", "word"), ("translate", "seq2seq", "token"),
])
def test_training_says_what_it_foretells(chainrule, reviews, tagged, numbers, task, kind, target):
    texts = {"classify": (reviews,), "tag": (tagged,), "translate": numbers}[task]
    valid = [word for text in texts for word in ("--valid", text)]
    told = chainrule("train", *texts, *valid, "--task", task, "--kind", kind, "--out", "runs/t", "model.hidden=8",
                     "model.layers=1", "train.steps=40", "train.evaluate=20").err
    assert f"nats per {target} of the validation text" in told


def test_vectors_are_told_in_words(chainrule, tmp_path):
    rows = [f"{x},{y},{'left' if x < 0 else 'right'}\n" for x in (-2, -1, 1, 2) for y in (0, 1)]
    (tmp_path / "shapes.csv").write_text("x,y,text\n" + "".join(rows) * 4)
    chainrule("train", "shapes.csv", "--valid", "shapes.csv", "--task", "caption", "--kind", "seq2seq", "--out",
              "runs/v", "model.hidden=16", "model.layers=1", "model.dropout=0", "text.tokenizer=words", "train.lr=0.02",
              "text.min_count=1", "train.epochs=40", "train.tokens=64", "--json")
    assert chainrule("eval", "runs/v", "shapes.csv", "--json").json["rouge_l"] > 90


TINY = ("model.layers=1", "model.width=32", "model.heads=2", "model.context=32", "train.steps=60", "train.tokens=512",
        "train.lr=0.01")


@pytest.mark.parametrize(("task", "kind"), [("mask", "encoder"), ("span", "transformer"), ("denoise", "transformer")])
def test_texts_are_restored(chainrule, asked, book, task, kind):
    made = chainrule("train", book, "--task", task, "--kind", kind, "--out", "runs/r", *TINY, "text.tokenizer=words",
                     "--json").json
    records = [json.loads(line) for line in Path("runs/r/log.jsonl").read_text().splitlines()]
    losses = [record["nats_per_token"] for record in records if record["event"] == "step"]
    assert losses[-1] < losses[0] - 0.2
    assert made["nats"] < losses[0]
    assert np.isfinite(made["perplexity"])
    said = chainrule("eval", "runs/r", book, "--beam", "1")
    assert "bits per token" in said.out.splitlines()[0]
    assert "|seed:0|length:" in said.out.splitlines()[1]
    measured = chainrule("eval", "runs/r", book, "--beam", "1", "--json").json
    assert measured["bits_per_token_interval"][0] < measured["bits_per_token"] < measured["bits_per_token_interval"][1]
    assert measured["perplexity"] < 14                                    # of 15 tokens
    lines = "the cat saw the ___, and the bird ran.\nthe ___ saw [MASK] fox, and the fox ran.\n"
    answers = asked(lines, "runs/r", "--top", "2", "--json").json["answers"]
    assert [1 <= len(some) <= 2 for some in answers[0]["alternatives"]] == [True]
    printed = asked(lines, "runs/r", "--top", "2").out.splitlines()
    assert printed[0] == answers[0]["answer"]
    assert printed[1].startswith("  1: ")
    assert asked(lines, "runs/r").out.splitlines() == [answer["answer"] for answer in answers]
    if task == "mask":
        assert measured["accuracy"] > 0.15
        assert all(0 <= one["p"] <= 1 for some in answers[1]["alternatives"] for one in some)
        assert answers[1]["answer"].endswith(" fox, and the fox ran.")


def test_a_recurrent_network_restores_spans(chainrule, asked, book):
    chainrule("train", book, "--task", "span", "--kind", "seq2seq", "--out", "runs/s", "model.hidden=16",
              "model.layers=1", "text.tokenizer=words", "train.steps=4", "--json")
    assert asked("the cat ___ ran.\n", "runs/s").out.startswith("the cat ")
    assert "exact_spans_interval" in chainrule("eval", "runs/s", book, "--json").json


@pytest.mark.parametrize(("lines", "more", "said"), [
    ("the cat\n", [], "stdin line 1 has no blank: write ___ or [MASK] where something is missing."),
    ("the ___\n\n", [], "stdin line 2 has no blank"),
    ("", [], "there is no input"),
    ("the ___ " * 9, [], "stdin line 1 has 9 blanks, and the run learned from rows with at most 2."),
    ("___ " + "the " * 40, [], "stdin line 1 has 43 tokens with its boundaries, and the model holds 32. Shorten it."),
    ("the ___", ["--top", "0"], "--top 0: ask for 1 to 20 alternatives."),
])
def test_lines_that_cannot_be_filled_are_said(chainrule, asked, book, lines, more, said):
    given = [word for word in TINY if not word.startswith("train.")]
    chainrule("train", book, "--task", "span", "--kind", "transformer", "--out", "runs/s", *given, "train.steps=1",
              "text.tokenizer=words", "--json")
    answer = asked(lines, "runs/s", *more)
    assert answer.code == 2
    assert said in answer.err.splitlines()[-1]


def test_alternatives_are_for_blanks(chainrule, asked, reviews):
    chainrule("train", reviews, "--task", "classify", "--kind", "unigram", "--out", "runs/c", "--json")
    assert "--top is for runs that fill in blanks" in asked("a film\n", "runs/c", "--top", "3").err


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


def test_a_log_linear_model_has_many_classes_and_pairs_of_texts(chainrule, asked, tmp_path):
    things = {"film": "seen", "book": "read", "song": "heard", "cake": "eaten"}
    rows = [f"{much} {thing}\tit was {'not ' * no}{done}\t{'none' if no else done}\n"
            for much in ("a", "the", "one") for thing, done in things.items() for no in (0, 1)]
    (tmp_path / "pairs.tsv").write_text("premise\thypothesis\tlabel\n" + "".join(rows))
    chainrule("train", "pairs.tsv", "--valid", "pairs.tsv", "--task", "classify", "--kind", "loglinear",
              "--out", "runs/p", "text.tokenizer=words", "text.min_count=1")
    assert chainrule("eval", "runs/p", "pairs.tsv", "--json").json["accuracy"] == 1
    lines = "the song\tit was heard\nthe song\tit was not heard\na cake\tit was eaten\n"
    assert asked(lines, "runs/p").out.split() == ["heard", "none", "eaten"]
    first = asked(lines, "runs/p", "--json").json["answers"][0]["probabilities"]
    assert list(first) == ["eaten", "heard", "none", "read", "seen"]
    assert sum(first.values()) == pytest.approx(1)


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


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["rnn", "model.nonlinearity=relu", "model.hidden=16", "train.warmup=0", "train.lr=1e15", "train.steps=1"],
         "it diverged; train again with a lower train.lr"),
        (["bigram", "model.estimator=mle"], "probability 0 in every class"),
    ],
)
def test_classes_without_a_probability_are_not_told(chainrule, complaint, reviews, tmp_path, given, told):
    words = ["--task", "classify", "--valid", reviews, "text.tokenizer=characters", "--json", "--out", "runs/c"]
    assert chainrule("train", reviews, *words, "--kind", *given).code == 0
    for truth in ("good", "bad"):
        (tmp_path / "new.tsv").write_text(f"sentence\tlabel\nzzz\t{truth}\n")
        for words in ([], ["--json"]):
            assert told in complaint("predict", "runs/c", "new.tsv", *words)
        assert told in chainrule("eval", "runs/c", "new.tsv").out
        answer = chainrule("eval", "runs/c", "new.tsv", "--json").json
        assert (answer["nats"], answer["accuracy"]) == (None, 0.0)
        assert told in answer["why"]


def test_a_network_that_diverged_writes_no_empty_texts(chainrule, complaint, numbers):
    words = ["--task", "translate", "--kind", "transformer", "model.layers=1", "model.width=16", "model.heads=2",
             "model.context=64", "model.zero_init=false", "train.warmup=0", "train.lr=1e15", "train.weight_decay=1e15",
             "train.optimizer=adamw", "train.steps=1", "--out", "runs/t"]
    assert chainrule("train", *numbers, *words).code == 0
    assert "it diverged; train again with a lower train.lr" in complaint("predict", "runs/t", numbers[0])
    assert "it diverged; train again with a lower train.lr" in complaint("eval", "runs/t", *numbers)


def test_predict_says_what_is_wrong_with_its_lines(chainrule, asked, complaint, reviews, tmp_path):
    chainrule("train", reviews, "--task", "classify", "--kind", "unigram", "text.tokenizer=words", "--out", "runs/c")
    assert "there is no file gone.txt" in complaint("predict", "runs/c", "gone.txt")
    (tmp_path / "bad.txt").write_bytes(b"a \xff film\n")
    assert "bad.txt is not UTF-8" in complaint("predict", "runs/c", "bad.txt")
    assert "no line came" in asked("", "runs/c").err
    said = complaint("eval", "runs/c", reviews, "text.vocab=9")
    assert "text.vocab=9 cannot be set here: the run has its own. Only text.errors, text.header, text.column" in said
    said = complaint("predict", "runs/c", reviews, "model.order=3")
    assert "model.order=3 cannot be set here: the run has its own." in said


def test_settings_of_a_task_are_listed(chainrule):
    out = chainrule("settings", "lstm", "--task", "classify").out
    assert "head.pool" in out
    assert "text.label" in out
    assert "train.batching" in out


def test_entities_are_tagged_and_measured_as_spans(chainrule, tmp_path):
    words = {"Anna": "B-PER", "Smith": "I-PER", "lives": "O", "in": "O", "York": "B-LOC"}
    rows = "\n".join(f"{word}\t{tag}" for word, tag in words.items())
    (tmp_path / "ner.txt").write_text("\n\n".join([rows] * 20) + "\n")
    made = chainrule("train", "ner.txt", "--valid", "ner.txt", "--task", "tag", "--kind", "feedforward",
                     "model.hidden=16", "model.order=3", "model.dropout=0", "head.hidden=8", "train.epochs=20",
                     "train.tokens=30", "train.lr=0.02", "--out", "runs/n", "--json").json
    assert (made["entity_f1"], made["entities"], made["accuracy"]) == (1.0, 40, 1.0)
    assert set(made["entity_types"]) == {"PER", "LOC"}
    assert "entity f1 100.00 (100.00–100.00)" in chainrule("eval", "runs/n", "ner.txt").out


def test_questions_are_answered(chainrule, asked, complaint, tmp_path):
    rows = [{"question": f"where is {name} ?", "context": f"{name} is in {place} .", "answers": [f"in {place}"]}
            for name in ("Anna", "Ben", "Clara") for place in ("York", "Rome", "Oslo")]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    chainrule("train", "qa.jsonl", "--valid", "qa.jsonl", "--task", "answer", "--kind", "seq2seq", "model.hidden=24",
              "model.layers=1", "model.dropout=0", "model.encoder=feedforward", "text.tokenizer=words",
              "train.epochs=30", "train.tokens=128", "train.lr=0.02", "--out", "runs/q")
    measured = chainrule("eval", "runs/q", "qa.jsonl", "--json").json
    assert (measured["exact"], measured["f1"], measured["texts"]) == (1.0, 1.0, 36)
    assert asked("where is Ben ?\tBen is in Rome .\n", "runs/q").out == "in Rome\n"
    (tmp_path / "new.tsv").write_text("question\tcontext\nwhere is Anna ?\tAnna is in Oslo .\n")
    assert chainrule("predict", "runs/q", "new.tsv").out == "in Oslo\n"
    assert "none is known as the answers" in complaint("eval", "runs/q", "new.tsv")
    (tmp_path / "bare.tsv").write_text("question\tcontext\twhy\na ?\t\tx\n")
    assert "bare.tsv line 2 is empty where the context should be" in complaint("predict", "runs/q", "bare.tsv")
    (tmp_path / "lines.txt").write_text("where is Ben ?\n")
    assert "lines.txt line 1 has no tab" in complaint("predict", "runs/q", "lines.txt")
