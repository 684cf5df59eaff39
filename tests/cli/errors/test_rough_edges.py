"""Small things that a new user met: defaults that disagree, refusals without a reason, texts in the wrong alphabet."""

import re

import pytest

from chainrule import cli
from chainrule.commands import query
from chainrule.inference.beam import Beam
from chainrule.run import SEARCH, load
from chainrule.training import pipeline
from chainrule.viewer.notebook import TEXT, opening_text
from chainrule.viewer.views import alignment

RHYTHM = "10001010" * 40
TINY = ("--kind", "rnn", "text.tokenizer=symbols", "model.hidden=3", "model.embedding=onehot", "model.tied=false",
        "model.dropout=0", "train.steps=2", "train.tokens=64", "train.length=16")


@pytest.fixture
def rhythm(chainrule, tmp_path):
    (tmp_path / "rhythm.txt").write_text(RHYTHM)
    assert chainrule("train", "rhythm.txt", *TINY, "--out", "runs/rhythm").code == 0
    return "runs/rhythm"


def test_the_length_penalty_has_one_default(chainrule, monkeypatch):
    asked = []
    monkeypatch.setattr(query, "load", lambda *words: type("R", (), {"predict": lambda self, *_, search, **more: (
        asked.append(search), [])[1]})())
    assert chainrule("predict", "runs/x", "lines.txt").code == 0
    assert asked == [SEARCH] == [Beam()]
    assert alignment._beam({}).alpha == Beam().alpha
    parser = cli.Parser("predict")
    cli.COMMANDS["predict"].arguments(parser)
    help_of = {option: action.help for action in parser._actions for option in action.option_strings}
    for option, default in (("--alpha", Beam().alpha), ("--beam", Beam().width), ("--limit", Beam().limit)):
        assert f"(default: {default})" in help_of[option]


def test_a_view_that_does_not_fit_says_what_it_needs_and_what_the_model_is(complaint, trained):
    line = complaint("look", trained, "--view", "unrolled", "--out", "x.html")
    assert "the view unrolled does not fit: it needs a recurrent network or a gpt" in line
    assert "at most 2,000 parameters and a vocabulary of at most 16" in line
    assert re.search(r"and four is ngram with 0 parameters and a vocabulary of \d+\.$", line)


def test_a_page_opens_with_held_out_text_in_the_alphabet_of_the_run(chainrule, rhythm):
    assert chainrule("look", rhythm, "--view", "unrolled", "--out", "page.html").code == 0
    excerpt = load(rhythm).about["excerpt"]
    assert set(excerpt) == {"0", "1"}
    assert excerpt in RHYTHM[-len(RHYTHM) // 10 :]
    assert opening_text([{}, {"excerpt": "0110"}]) == "0110"
    assert opening_text([{}]) == TEXT


def test_a_run_keeps_300_held_out_characters_and_one_of_examples_the_first_input(chainrule, tmp_path):
    lines = [f"{number} cows eat grass" for number in range(900)]
    (tmp_path / "cows.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "sides.tsv").write_text("text\tlabel\n" + "".join(f"{line}\t{'ab'[len(line) % 2]}\n" for line in lines))
    chainrule("train", "cows.txt", "--kind", "bigram", "text.tokenizer=characters", "--out", "lm")
    excerpt = load("lm").about["excerpt"]
    assert 280 < len(excerpt) <= 300
    assert excerpt in "\n".join(lines[800:])
    chainrule("train", "sides.tsv", "--task", "classify", "--kind", "bigram", "--out", "sides")
    assert load("sides").about["excerpt"] in lines


def test_a_built_in_language_is_read_by_characters(chainrule, monkeypatch):
    from chainrule.text import datasets

    monkeypatch.setattr(datasets, "LANGUAGE_SIZES", {"train": 400, "valid": 100})
    assert chainrule("train", "rhythm", "--kind", "bigram", "--out", "runs/b").code == 0
    assert load("runs/b").tokenizer.unit == "characters"
    assert chainrule("train", "rhythm", "--kind", "bigram", "--out", "runs/c", "text.tokenizer=bytes").code == 0
    assert load("runs/c").tokenizer.unit == "bytes"


def test_a_certain_token_costs_no_bits_and_no_sign(chainrule, tmp_path):
    (tmp_path / "sure.txt").write_text("a b\n" * 3)
    words = ("--kind", "bigram", "model.estimator=mle", "text.tokenizer=words", "text.held_out=0")
    assert chainrule("train", "sure.txt", *words, "--out", "runs/sure").code == 0
    answer = chainrule("score", "runs/sure", "sure.txt")
    assert "-0.0" not in answer.out
    assert answer.out.count(" 0.000") >= 9


def test_a_run_is_there_before_its_evaluation_begins(chainrule, book, monkeypatch):
    seen = []

    def killed(*words):
        seen.append(chainrule("sample", "runs/x", "--tokens", "5").code)
        raise SystemExit                                                 # as if the process had ended here

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "evaluate_together", killed)
        with pytest.raises(SystemExit):
            chainrule("train", book, "--kind", "bigram", "--out", "runs/x")
    assert seen == [0]
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "train_model", killed)                 # the same command only evaluates it
        assert chainrule("train", book, "--kind", "bigram", "--out", "runs/x", "--json").json["perplexity"] > 0
    assert load("runs/x").result["perplexity"] > 0


def test_a_sample_of_words_stops_at_the_end_of_a_line_unless_it_is_told_to_go_on(chainrule, book):
    assert chainrule("train", book, "--kind", "ngram", "model.order=3", "--out", "runs/w").code == 0
    sample = ("sample", "runs/w", "--tokens", "60", "--rows", "3", "--json")
    assert all("\n" not in text and text.endswith("ran.") for text in chainrule(*sample).json["texts"])
    assert all(text.count("\n") > 2 for text in chainrule(*sample, "--past-end").json["texts"])
    run = load("runs/w")
    assert "".join(run.stream("the cat", 60, seed=2)) == run.generate("the cat", 60, seed=2)
    assert "\n" in run.generate("the cat", 60, past_end=True)


def test_a_sample_of_characters_can_go_on_after_the_end_of_a_document(chainrule, tmp_path):
    (tmp_path / "short.txt").write_text("ab\n<|endoftext|>\n" * 30)
    words = ("--kind", "bigram", "text.tokenizer=characters", "text.held_out=0", "model.estimator=mle")
    assert chainrule("train", "short.txt", *words, "--out", "runs/s").code == 0
    run = load("runs/s")
    assert run.generate("", 40) == "ab\n"
    assert run.generate("", 12, past_end=True).startswith("ab\n\nab\n\nab")


def test_the_tiny_binary_network_has_exactly_the_lectures_shape(chainrule, complaint, rhythm):
    run = load(rhythm)
    U, W, *_ = run.model.stack.layers[0].weights()[0]
    assert (tuple(U.shape), tuple(W.shape), tuple(run.model.embedding.output.weight.shape)) == ((3, 2), (3, 3), (2, 3))
    assert len(run.tokenizer) == 2
    assert run.evaluate("rhythm.txt")["tokens"] == len(RHYTHM)           # no boundary is counted
    assert set(chainrule("sample", rhythm, "--tokens", "30", "--json").json["texts"][0]) <= {"0", "1"}
    assert len(chainrule("sample", rhythm, "--tokens", "30", "--json").json["texts"][0]) == 30
    assert "'2' is not one of the 2 symbols" in complaint("sample", rhythm, "--prompt", "12")
    assert "has no boundary token, and bigram starts again at it" in complaint(
        "train", "rhythm.txt", "--kind", "bigram", "text.tokenizer=symbols", "--out", "runs/b")
    assert "model.embedding=oneshot is not a whole number, nor onehot" in complaint(
        "train", "rhythm.txt", "--kind", "rnn", "model.embedding=oneshot")
