"""`chainrule eval RUN EXAMPLES --shots K`: the table, the picture, JSON, and one line for each mistake."""

import pytest

ROWS = [("the cat", "saw"), ("the dog", "saw"), ("the cow", "ran"), ("the fox", "ran")]
TEMPLATE = ("--template", "{text} {label}")


@pytest.fixture
def examples(tmp_path):
    for name, rows in ("test.tsv", ROWS), ("train.tsv", [(f"{text} .", label) for text, label in ROWS]):
        (tmp_path / name).write_text("text\tlabel\n" + "".join("\t".join(row) + "\n" for row in rows))
    return "test.tsv"


def test_a_table_a_picture_and_a_signature(chainrule, trained, examples, tmp_path):
    answer = chainrule("eval", trained, examples, "--shots", "0,2,1", "--examples", "train.tsv", *TEMPLATE,
                       "--draws", 2, "--plot", "shots.svg")
    assert answer.code == 0, answer.err
    head, *rows, template, labels, signature = answer.out.splitlines()
    assert head.split()[:2] == ["shots", "accuracy"]
    assert [row.split()[0] for row in rows] == ["0", "1", "2"]
    assert [row.split()[-1] for row in rows] == ["1", "2", "2"]                # draws
    assert template == f'{trained}: 4 examples, template "{{text}} {{label}}"'
    assert labels.startswith("labels ran = ran, saw = saw; the most frequent one is 50.0% of the examples")
    assert signature.startswith("exam:few-shot|examples:4|unit:characters|")
    assert "|shots:0,1,2|draws:2|seed:1|drawn:balanced|" in signature
    drawn = (tmp_path / "shots.svg").read_text()
    assert "examples in the prompt" in drawn
    assert "most frequent label" in drawn


def test_the_channel_and_the_ensemble_are_named(chainrule, trained, examples):
    words = ("eval", trained, examples, "--shots", "2", "--examples", "train.tsv", "--template", "{label}: {text}",
             "--draws", 1, "--channel", "--ensemble")
    answer = chainrule(*words)
    assert answer.code == 0, answer.err
    *_, channel, ensemble, signature = answer.out.splitlines()
    assert channel == "channel: the text is scored after each label, p(text | examples, label)"
    assert ensemble.startswith("ensemble: each example is in a prompt of its own")
    assert signature.endswith("|direction:channel|demonstrations:ensemble")
    found = chainrule(*words, "--json").json
    assert (found["direction"], found["demonstrations"]) == ("channel", "ensemble")


def test_the_same_seed_gives_the_same_result(chainrule, trained, examples):
    def results(*more):
        found = chainrule("eval", trained, examples, "--shots", "2", "--examples", "train.tsv", *TEMPLATE, "--json",
                          *more).json
        assert found["run"] == trained
        return found["results"], found["signature"]

    assert results() == results("--seed", 1)
    assert results("--seed", 2)[1] != results()[1]
    assert results("--unbalanced")[1] != results()[1]


def test_a_second_table_for_translations(chainrule, trained, tmp_path):
    (tmp_path / "words.tsv").write_text("source\ttarget\nthe cat\tthe bird\nthe dog\tthe fox\n")
    answer = chainrule("eval", trained, "words.tsv", "--shots", "1", "--examples", "words.tsv", "--template",
                       "{source} saw {target}", "--draws", 1, "--beam", 2)
    assert answer.code == 0, answer.err
    assert answer.out.split()[:2] == ["shots", "BLEU"]


@pytest.mark.parametrize("way", ["--channel", "--ensemble"])
def test_a_translation_has_no_labels_to_score(complaint, trained, tmp_path, way):
    (tmp_path / "words.tsv").write_text("source\ttarget\nthe cat\tthe bird\nthe dog\tthe fox\n")
    line = complaint("eval", trained, "words.tsv", "--shots", "1", "--examples", "words.tsv", way)
    assert f"{way} is for labels, and these examples are of --task translate" in line


@pytest.mark.parametrize(("words", "said"), [
    (("--shots", "2"), "--shots 2 needs examples to draw from: --examples TRAIN.tsv"),
    (("--shots", "9", "--examples", "train.tsv"), "--shots 9: there are 4 examples to draw from"),
    (("--shots", "x"), "--shots x: ask for a number of examples"),
    (("--shots", "-1"), "shots"),
    (("--shots", "0", "--template", "Label: {label}"), "the template has no {text}"),
    (("--shots", "0", "--labels", "2=good"), "--labels names the label 2, and the examples have ran, saw"),
    (("--shots", "0", "--calibration", "platt"), "--calibration platt is not known: it is none, contextual, pmi"),
    (("--shots", "0", "--normalise", "words"), "--normalise words is not known"),
    (("--shots", "0", "--draws", "0"), "--draws 0"),
    (("--shots", "0", "--chat"), "has no chat template"),
    (("--shots", "0", "--task", "tag"), "--task tag has no prompts with examples"),
    (("--shots", "0", "text.separator=x"), "text.separator=x cannot be set here"),
    (("--shots", "0", "--samples", "4"), "--samples is not for --shots"),
    (("--shots", "0", "--channel"), "the template must have {label} once, and before a text"),
    (("--shots", "0", "--channel", "--calibration", "pmi"), "--channel scores the same text after each label"),
    (("--shots", "0", "--channel", "--normalise", "bytes"), "--channel scores the same text after each label"),
    (("--shots", "0", "--ensemble"), "--ensemble is the mean over prompts with one example each"),
    (("--channel", "--template", "{label} {text}"), "--template is for prompts with examples"),
    (("--template", "{text} {label}"), "--template is for prompts with examples: give --shots K too"),
])
def test_a_mistake_is_said_in_a_line(complaint, trained, examples, words, said):
    given = words if "--template" in words else (*words, *TEMPLATE)
    assert said in complaint("eval", trained, examples, *given)


def test_a_label_that_no_example_has(complaint, trained, examples, tmp_path):
    (tmp_path / "strange.tsv").write_text("text\tlabel\nthe cat\tflew\n")
    line = complaint("eval", trained, "strange.tsv", "--shots", 1, "--examples", "train.tsv", *TEMPLATE)
    assert "strange.tsv line 2 has the label 'flew'" in line


def test_a_run_that_is_no_language_model(chainrule, complaint, examples):
    made = chainrule("train", "train.tsv", "--valid", "train.tsv", "--task", "classify", "--kind", "unigram", "--out",
                     "runs/classes", "text.tokenizer=words", "text.min_count=1")
    assert made.code == 0, made.err
    assert "was trained for --task classify" in complaint("eval", "runs/classes", examples, "--shots", 0)
