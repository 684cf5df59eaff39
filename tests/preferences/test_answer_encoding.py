"""Rows of prompts and answers: which tokens are read, which are targets, and what a chat template may not do."""

import numpy as np
import pytest

from chainrule import run
from chainrule.errors import UserError
from chainrule.model import BOUNDARY, IGNORE
from chainrule.preferences.encoding import encode_answer, encode_prompt, fit_rows, refuse_dropped
from chainrule.preferences.records import Message
from chainrule.text.chat_template import CHATML, PLAIN, ChatTemplate
from chainrule.text.tables import Place

ASKED, ANSWERED = (Message("user", "a cat"),), (Message("assistant", "runs"),)


@pytest.fixture
def tokenizer(bases):
    return run.load(bases / "gpt").tokenizer


def test_a_text_begins_and_ends_with_the_boundary(tokenizer):
    assert encode_prompt(tokenizer, None, "a cat") == [BOUNDARY, *tokenizer.encode("a cat").tolist()]
    answer = tokenizer.encode(" runs").tolist()
    assert encode_answer(tokenizer, None, "a cat", " runs") == [*answer, BOUNDARY]
    assert encode_answer(tokenizer, None, "a cat", " runs", end=False) == answer


def test_a_chat_is_written_by_its_template_up_to_the_end_of_the_answer(tokenizer):
    marked = tokenizer.with_special(["<|im_start|>", "<|im_end|>"])
    template = ChatTemplate.of(CHATML, marked)
    prompt, answer = encode_prompt(marked, template, ASKED), encode_answer(marked, template, ASKED, ANSWERED)
    start, end = marked.id("<|im_start|>"), marked.id("<|im_end|>")
    assert prompt[:2] == [BOUNDARY, start]
    assert marked.decode([id for id in prompt if id not in (start, end, BOUNDARY)]) == "user\na cat\nassistant\n"
    assert answer == [*marked.encode("runs").tolist(), end]
    assert answer == encode_answer(marked, template, ASKED, "runs")


def test_a_template_without_an_end_ends_with_the_boundary(tokenizer):
    template = ChatTemplate.of(PLAIN, tokenizer)
    assert encode_answer(tokenizer, template, ASKED, ANSWERED) == [*tokenizer.encode(" runs\n").tolist(), BOUNDARY]


def test_a_template_that_drops_the_prompt_is_refused(tokenizer):
    template = ChatTemplate.of("{% for m in messages %}{{ m['role'] }}{% endfor %}", tokenizer)
    with pytest.raises(UserError, match=r"p line 3: the chat template drops the prompt: 'a cat'"):
        refuse_dropped(template, ASKED, Place("p", 3))


def test_a_template_that_changes_the_prompt_when_it_is_answered_is_refused(tokenizer):
    counts = "{{ messages|length }}{{ messages[0]['content'] }}{{ messages[-1]['content'] }}"
    template = ChatTemplate.of(counts, tokenizer)
    with pytest.raises(UserError, match="does not write the prompt as it is before an answer"):
        encode_answer(tokenizer, template, ASKED, ANSWERED)


PLACES = [Place("p", 1), Place("p", 2)]


def test_targets_are_the_answer_alone():
    (rows,), _ = fit_rows([[0, 5, 6], [0, 7]], [[[8, 9, 0], [4, 0]]], None, "false", PLACES)
    tokens, targets, lengths = rows.batch(np.array([0, 1]), 6)
    assert tokens.tolist() == [[0, 5, 6, 8, 9, 0], [0, 7, 4, 0, 0, 0]]
    assert targets.tolist() == [[IGNORE, IGNORE, 8, 9, 0, IGNORE], [IGNORE, 4, 0, IGNORE, IGNORE, IGNORE]]
    assert lengths.tolist() == [5, 3]


def test_a_mismatched_row_has_the_answer_before_it():
    (rows,), _ = fit_rows([[0, 5, 6], [0, 7]], [[[8, 9, 0], [4, 0]]], None, "false", PLACES)
    rolled = rows.rolled(limit=4)
    assert [rolled.whole[row].tolist() for row in (0, 1)] == [[0, 5, 6, 4, 0], [0, 7, 8, 9, 0]]
    assert rows.rolled(limit=3).whole[1].tolist() == [0, 7, 8, 9]


def test_a_prompt_that_is_too_long_is_refused_or_loses_its_beginning():
    prompts, answers = [[0, 5, 6, 7, 8], [0, 7]], [[[3, 0], [4, 0]]]
    with pytest.raises(UserError, match=r"p line 1: prompt and answer have 6 tokens \(5 of the prompt\), and the model "
                                        r"holds 4\. Take text\.truncate=true"):
        fit_rows(prompts, answers, 4, "false", PLACES)
    (rows,), notes = fit_rows(prompts, answers, 4, "true", PLACES)
    assert [rows.whole[row].tolist() for row in (0, 1)] == [[0, 7, 8, 3, 0], [0, 7, 4, 0]]
    assert "1 of 2 prompts are longer" in notes[0]
    (rows,), _ = fit_rows(prompts, answers, 5, "ends", PLACES)
    assert rows.whole[0].tolist() == [0, 5, 7, 8, 3, 0]


def test_an_answer_that_is_too_long_is_refused_whatever_is_cut():
    with pytest.raises(UserError, match="The longest answer alone has 5"):
        fit_rows([[0, 1]], [[[2, 3, 4, 5, 0]]], 4, "true", PLACES)
