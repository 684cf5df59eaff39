"""Files of preferences: TRL's formats are read, and bad records are refused in one line that says where."""

import pytest
from preferences.animals import write_lines

from chainrule.errors import UserError
from chainrule.preferences.records import Message, read_pairs, read_prompts, read_rated
from chainrule.text.sources import Source

USER, GOOD, BAD = (
    {"role": role, "content": content} for role, content in (("user", "hi"), ("assistant", "yes"), ("assistant", "no"))
)


def read(tmp_path, *records, by=read_pairs):
    return list(by([Source(write_lines(tmp_path / "p.jsonl", records))]))


def test_pairs_of_texts_and_of_messages(tmp_path):
    text, = read(tmp_path, {"prompt": "a", "chosen": " b", "rejected": " c", "rater": "x", "margin": 2})
    assert (text.prompt, text.chosen, text.rejected, text.margin) == ("a", " b", " c", 2.0)
    chat, = read(tmp_path, {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]})
    assert chat.prompt == (Message("user", "hi"),)
    assert chat.rejected == (Message("assistant", "no"),)


def test_a_prompt_that_is_not_given_is_what_both_answers_begin_with(tmp_path):
    text, = read(tmp_path, {"chosen": "The sky is blue", "rejected": "The sky is green"})
    assert (text.prompt, text.chosen, text.rejected) == ("The sky is", " blue", " green")
    chat, = read(tmp_path, {"chosen": [USER, GOOD], "rejected": [USER, BAD]})
    assert (chat.prompt, chat.chosen) == ((Message("user", "hi"),), (Message("assistant", "yes"),))


def test_pairs_are_read_as_rated_answers_the_chosen_ones_first(tmp_path):
    rated = read(tmp_path, {"prompt": "a", "chosen": "b", "rejected": "c"},
                 {"prompt": "d", "completion": "e", "label": False}, by=read_rated)
    assert [(one.prompt, one.completion, one.label) for one in rated] == [
        ("a", "b", True), ("d", "e", False), ("a", "c", False)]


def test_prompts_alone(tmp_path):
    found = read(tmp_path, {"prompt": "a"}, {"prompt": "b", "n": 1}, by=read_prompts)
    assert [one.prompt for one in found] == ["a", "b"]


@pytest.mark.parametrize(("record", "said"), [
    ({"prompt": "a", "chosen": "b", "rejected": "b"}, "line 2: chosen and rejected are equal"),
    ({"prompt": "a", "chosen": " ", "rejected": "b"}, "line 2: the answer in chosen is empty"),
    ({"prompt": [USER], "chosen": [GOOD], "rejected": []}, "line 2: the list of messages in rejected is empty"),
    ({"prompt": "a", "good": "b", "bad": "c"}, "line 2 has the keys prompt, good, bad; a pair has"),
    ({"prompt": "a", "completion": "b", "label": True}, "rated answers are for train.method=kto"),
    ({"prompt": [USER], "chosen": "b", "rejected": "c"}, "line 2 mixes two formats: prompt is a list of messages"),
    ({"prompt": "a", "chosen": 3, "rejected": "b"}, "line 2 has a number where chosen should be"),
    ({"prompt": [USER, GOOD], "chosen": [GOOD], "rejected": [BAD]}, "message of the prompt is the assistant's"),
    ({"prompt": ["hi"], "chosen": [GOOD], "rejected": [BAD]}, "there is a text without a role"),
    ({"prompt": [{"role": "user", "content": None}], "chosen": [GOOD], "rejected": [BAD]}, "is no value; it must be"),
    ({"prompt": "a", "chosen": "b", "rejected": "c", "margin": "much"}, "line 2 has the margin 'much'"),
    ({"chosen": "same start", "rejected": "same start and more"}, "line 2: the answer in chosen is empty"),
])
def test_bad_pairs_are_refused_in_one_line(tmp_path, record, said):
    with pytest.raises(UserError) as error:
        read(tmp_path, {"prompt": "a", "chosen": "b", "rejected": "c"}, record)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("record", "said"), [
    ({"prompt": "a", "completion": "b", "label": "good"}, "the label 'good'; a label is true or false"),
    ({"prompt": "a", "completion": "b"}, "a rated answer has prompt, completion and label"),
    ({"prompt": "a", "completion": "", "label": True}, "the answer in completion is empty"),
])
def test_bad_rated_answers_are_refused(tmp_path, record, said):
    with pytest.raises(UserError, match=said):
        read(tmp_path, record, by=read_rated)


def test_a_last_line_that_is_still_written_is_left_out_and_said(tmp_path, capsys):
    path = write_lines(tmp_path / "p.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    with path.open("a") as file:
        file.write('{"prompt": "d", "cho')
    assert len(list(read_pairs([Source(path)]))) == 1
    assert "line 2 has no end, so it is left out" in capsys.readouterr().err


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "p.jsonl").write_text("\n")
    with pytest.raises(UserError, match="there are no records in it"):
        list(read_pairs([Source(tmp_path / "p.jsonl")]))
