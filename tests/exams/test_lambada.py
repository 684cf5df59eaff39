"""LAMBADA: against lm-eval's definition, written out one passage at a time, for every kind."""

import json
import math

import numpy as np
import pytest
import torch
from contract.cases import CASES

import chainrule
from chainrule.errors import UserError
from chainrule.exams import take_exam
from chainrule.exams.lambada import Ending, encode_endings, read_passages, score_endings
from chainrule.exams.wording import choose_wording, penn, separated
from chainrule.model import BOUNDARY
from chainrule.recipe import Text
from chainrule.text.tokenizers.tokenizer import train_tokenizer

KINDS = [case for case in CASES if case.source is None and case.network is None]
SOME = [next(case for case in KINDS if case.kind == kind and (kind != "gpt" or "attention" not in case.settings))
        for kind in ("uniform", "unigram", "bigram", "ngram", "hmm", "feedforward", "rnn", "lstm", "gpt")]


def one_by_one(model, ending):
    """lm-eval: the log-softmax after each token; greedy where the argmax is the token, for all of the last word."""
    tokens = ending.tokens[-(model.context + 1):] if model.context else ending.tokens
    logits, _ = model.step(torch.from_numpy(tokens[None, :-1]), model.start(1))
    log_p = logits[0].double().log_softmax(-1)[-ending.size:]
    word = tokens[-ending.size:].tolist()
    nats = -sum(float(row[token]) for row, token in zip(log_p, word))
    return nats, all(int(row.argmax()) == token for row, token in zip(log_p, word))


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.kind)
def test_last_words_are_scored_as_one_by_one(case):
    model, generator = case.train(), np.random.default_rng(1)
    endings = []
    for length in [3, 5, 5, 5, 9, 12, 20, 24, 24]:
        tokens = np.append(BOUNDARY, generator.integers(1, 5, length))
        endings.append(Ending(tokens, len(tokens) - int(generator.integers(1, 3))))
    with torch.inference_mode():
        wanted = [one_by_one(model, ending) for ending in endings]
    nats, right = score_endings(model, endings)
    assert nats == pytest.approx([nats for nats, _ in wanted], rel=1e-4, abs=1e-5)
    assert right.tolist() == [greedy for _, greedy in wanted]


@pytest.mark.parametrize("unit", ["characters", "bpe", "bytes", "words"])
def test_the_last_word_is_what_the_whole_has_more_than_the_context(unit):
    passages = ["one two three", "he said:\n\n\"I know", "a  b"]
    tokenizer = train_tokenizer(Text(tokenizer=unit, vocab=270 if unit == "bpe" else None, min_count=1),
                                ["one two three he said: \"I know a b\n"])
    for passage, ending in zip(passages, encode_endings(tokenizer, passages)):
        context, word = passage.rsplit(" ", 1)
        whole = tokenizer.encode(context + " " + word).tolist()
        assert ending.tokens.tolist() == [BOUNDARY, *whole]
        assert ending.tokens[ending.begin :].tolist() == whole[len(tokenizer.encode(context.rstrip())) :]
        assert tokenizer.decode(ending.tokens[ending.begin :].tolist()).strip() == word


def test_accuracy_and_perplexity_by_hand(exam_data, bigram):
    """After the, cat is the most probable; after dog, sleeps; after cats, sleep; sings is unknown."""
    result = take_exam(bigram, "lambada")
    assert result["accuracy"] == 0.75
    assert (result["passages"], result["unknown"]) == (4, 1)
    words = [3 / 13, 2 / 10, 2 / 10]                                 # p(cat | the), p(sleeps | dog), p(sleep | cats)
    assert result["perplexity"] == pytest.approx(math.prod(words) ** (-1 / 3), rel=1e-5)
    low, high = result["perplexity_interval"]
    assert low <= result["perplexity"] <= high
    assert "exam:lambada|examples:4|unit:words" in result["signature"]
    assert take_exam(bigram, "lambada", limit=2)["passages"] == 2
    json.dumps(result, allow_nan=False)


def test_an_unknown_last_word_is_a_mistake(exam_data, tmp_path):
    """Even where <unk> is the most probable token."""
    (tmp_path / "text.txt").write_text("the cat the cat the rare the odd the new the\n")
    run = chainrule.train(tmp_path / "text.txt", kind="ngram", valid=tmp_path / "text.txt", out=tmp_path / "unknown",
                          settings={"model.order": 2, "model.estimator": "mle", "text.tokenizer": "words"})
    (exam_data / "lambada/lambada_test.jsonl").write_text('{"text": "the sofa"}\n{"text": "cat the"}\n')
    assert int(run.model.step(torch.tensor([[run.tokenizer.id("the")]]), run.model.start(1))[0].argmax()) == 1
    result = take_exam(run, "lambada")
    assert (result["accuracy"], result["unknown"]) == (0.5, 1)


def test_a_word_of_probability_0_has_no_perplexity(exam_data, tmp_path):
    (tmp_path / "text.txt").write_text("the cat sleeps\ndog\n")
    run = chainrule.train(tmp_path / "text.txt", kind="ngram", valid=tmp_path / "text.txt", out=tmp_path / "mle",
                          settings={"model.order": 2, "model.estimator": "mle", "text.tokenizer": "words",
                                    "text.min_count": 1})
    result = take_exam(run, "lambada")
    assert result["perplexity"] is None
    assert result["why"] == "the model gives a last word probability 0"
    json.dumps(result, allow_nan=False)


def test_a_word_longer_than_the_context_is_refused():
    model = next(case for case in SOME if case.kind == "gpt").make()
    with pytest.raises(UserError, match="a last word has 17 tokens, and the context of the model holds 16"):
        score_endings(model, [Ending(np.ones(20, np.int64), 3)])


DAMAGED = ["{", "[]", '{"text": 1}', '{"text": "word"}', '{"text": "word "}', '{"words": "a b"}']


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_named(exam_data, line):
    (exam_data / "lambada/lambada_test.jsonl").write_text('{"text": "two words"}\n' + line + "\n")
    assert read_passages(limit=1) == ["two words"]
    with pytest.raises(UserError, match=r"lambada_test\.jsonl line 2 is damaged"):
        read_passages()


def test_an_empty_file_and_wrong_names_are_refused(exam_data, bigram):
    (exam_data / "lambada/lambada_test.jsonl").write_text("")
    with pytest.raises(UserError, match="is empty: there are no passages"):
        take_exam(bigram, "lambada")
    with pytest.raises(UserError, match=r"unknown exam glue\. Known: blimp, lambada"):
        take_exam(bigram, "glue")
    with pytest.raises(UserError, match="--limit 0: ask for 1 or more"):
        take_exam(bigram, "lambada", limit=0)


def test_wordings():
    assert separated("Don't! Derek's (cat).").split() == ["Don", "'t", "!", "Derek", "'s", "(", "cat", ")", "."]
    assert penn("Don't! Derek's cat.").split() == ["do", "n't", "!", "derek", "'s", "cat", "."]


@pytest.mark.parametrize(("text", "wording"), [
    ("Who isn't Derek hugging?", "plain"), ("Who isn 't Derek hugging ?", "separated"),
    ("who is n't derek hugging ?", "penn"),
])
def test_the_wording_is_the_one_with_the_fewest_unknown_words(text, wording):
    tokenizer = train_tokenizer(Text(tokenizer="words", min_count=1), [text + "\n"])
    assert choose_wording(tokenizer, ["Who isn't Derek hugging?"]) == wording
    letters = train_tokenizer(Text(tokenizer="characters"), [text])
    assert choose_wording(letters, ["Who isn't Derek hugging?"]) == "plain"
