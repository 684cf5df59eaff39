"""Classifiers and taggers from the command line: trained on examples, measured, used line by line."""

import pytest
from cli.tasks.small import CLASSIFIERS, TAGGERS

from chainrule.run import load


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


@pytest.mark.parametrize("kind", TAGGERS)
def test_words_are_tagged(chainrule, asked, tagged, kind):
    made = chainrule("train", tagged, "--valid", tagged, "--task", "tag", "--kind", kind, "--out", "runs/t",
                     *TAGGERS[kind], "--json").json
    assert made["accuracy"] > 0.95
    assert made["known_accuracy"] == made["accuracy"]
    assert chainrule("eval", "runs/t", tagged, "--json").json["accuracy"] == made["accuracy"]
    assert asked("the dog sees a cat\n", "runs/t").out == "DET NOUN VERB DET NOUN\n"


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
