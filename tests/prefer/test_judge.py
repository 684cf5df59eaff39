"""Pairs without a page: what is drawn is repeated by its seed, and a judge fills the file."""

import asyncio
import json

import pytest
from prefer.made import PROMPTS, make_judge, make_session, save_classifier, save_words

from chainrule.cli import main
from chainrule.inference.sampling import Sampling
from chainrule.prefer.drawing import load_policy


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return save_words(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS) + "\n")
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def prefer(capsys, *words):
    code = main(["prefer", *map(str, words)])
    return code, capsys.readouterr()


def test_a_judge_fills_the_file_and_the_same_command_adds_no_pair_twice(words, prompts, tmp_path, capsys):
    out = tmp_path / "pairs.jsonl"
    given = (words, prompts, "--out", out, "--judge", "shorter", "--pairs", 10, "--tokens", 12, "--json")
    code, told = prefer(capsys, *given)
    answer = json.loads(told.out)
    assert code == 0
    assert answer["pairs"] + answer["ties"] + answer["dropped"] == 10
    pairs = lines(out)
    assert len(pairs) == answer["pairs"] > 0
    assert all(len(pair["chosen"]) < len(pair["rejected"]) for pair in pairs)
    assert {pair["position"] for pair in pairs} == {"left", "right"}
    assert json.loads(prefer(capsys, *given)[1].out)["pairs"] == 0
    assert lines(out) == pairs


def test_a_pair_is_repeated_by_run_prompt_and_seed_alone_and_among_others(words, tmp_path, prompts, capsys):
    out = tmp_path / "pairs.jsonl"
    prefer(capsys, words, prompts, "--out", out, "--judge", "longer", "--pairs", 8, "--tokens", 12)
    policy = load_policy(words, Sampling(), 12)
    for pair in lines(out):
        again = asyncio.run(policy.draw_pair(pair["prompt"], pair["seed"]))
        assert {answer.text for answer in again.answers} == {pair["chosen"], pair["rejected"]}
        assert again.id == pair["pair"]
    policy.close()


def test_no_pair_has_equal_or_empty_answers(words, tmp_path):
    session = make_session(words, tmp_path / "pairs.jsonl", pairs=40)
    pairs = asyncio.run(session.next_pairs("ann", 40))
    assert len(pairs) + len(session.dropped) == 40
    for pair in pairs:
        one, other = (answer.text for answer in pair.answers)
        assert one != other
        assert one.strip()
        assert other.strip()
    session.policy.close()


def test_a_prompt_to_which_there_is_one_answer_is_left_out_and_said(tmp_path, words, capsys):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the cat"}\n')
    code, told = prefer(capsys, words, prompts, "--out", tmp_path / "p.jsonl", "--judge", "shorter",
                        "--temperature", "1e-6")
    assert code == 0
    assert "16 answers to 'the cat' are all equal or empty" in told.err
    assert lines(tmp_path / "p.jsonl") == []


def test_a_function_of_python_is_a_judge_and_equal_scores_are_ties(words, prompts, tmp_path, capsys, monkeypatch):
    make_judge(monkeypatch, lambda prompts, answers: [answer.count("dog") for answer in answers])
    out = tmp_path / "pairs.jsonl"
    given = ("--out", out, "--judge", "python:opinion.score", "--pairs", 12, "--json")
    code, told = prefer(capsys, words, prompts, *given)
    assert code == 0
    assert json.loads(told.out)["ties"] > 0
    assert all(pair["chosen"].count("dog") > pair["rejected"].count("dog") for pair in lines(out))


@pytest.mark.parametrize(("given", "line"), [
    (["--judge", "shortest"], "there is no judge shortest. Did you mean shorter?"),
    (["--judge", "python:opinion"], "--judge python:opinion does not name a function"),
    (["--judge", "python:nowhere.score"], "there is no module nowhere here"),
    (["--judge", "python:opinion.other"], "opinion has no function other"),
    (["--judge", "python:opinion.number"], "number of opinion is not a function"),
    (["--judge", "python:opinion.score"], "must give a finite number for each"),
    (["--judge", "shorter", "--temperature", "0"], "--temperature 0 is not valid"),
    (["--judge", "shorter", "--tokens", "0"], "--tokens 0 is not valid"),
    (["--judge", "shorter", "--pairs", "0"], "--pairs 0 is not valid"),
    (["--judge", "shorter", "--overlap", "2"], "--overlap 2 is not valid"),
])
def test_a_wrong_option_is_one_line(words, prompts, tmp_path, capsys, monkeypatch, given, line):
    make_judge(monkeypatch, lambda prompts, answers: [float("nan")] * len(answers))
    code, told = prefer(capsys, words, prompts, "--out", tmp_path / "p.jsonl", *given)
    assert code == 2
    assert line in told.err
    assert told.err.count("\n") == 1


@pytest.mark.parametrize(("content", "line"), [
    ("", "has no prompts. Give a file with a prompt on each line"),
    ("\n \n", "has no prompts"),
    ('{"prompt": "a"}\n{"prompt"\n', "prompts.txt line 2"),
    ('{"text": "a"}\n', "line 1 has the keys text; a prompt is"),
    ('{"prompt": " "}\n', "line 1: the prompt is empty"),
    ('{"prompt": 3}\n', "line 1 has a number where prompt should be: a text, or a list of messages"),
    ('{"prompt": [{"role": "assistant", "content": "a"}]}\n', "line 1: the last message of the prompt is the"),
])
def test_a_wrong_file_of_prompts_is_one_line(words, tmp_path, capsys, content, line):
    path = tmp_path / "prompts.txt"
    path.write_text(content)
    code, told = prefer(capsys, words, path, "--out", tmp_path / "p.jsonl", "--judge", "shorter")
    assert code == 2
    assert line in told.err
    assert told.err.count("\n") == 1
    assert not (tmp_path / "p.jsonl").exists()


def test_a_run_without_answers_no_prompts_and_a_missing_file_are_one_line(words, tmp_path, prompts, capsys):
    classifier = save_classifier(tmp_path)
    for given, line in (
        ((classifier, prompts, "--judge", "shorter"), "--task classify, which does not continue a text"),
        ((words, "--judge", "shorter"), "needs a file of prompts"),
        ((words, tmp_path / "none.txt", "--judge", "shorter"), "there is no file"),
    ):
        code, told = prefer(capsys, *given, "--out", tmp_path / "p.jsonl")
        assert code == 2
        assert line in told.err


def test_messages_are_answered_by_a_template_and_do_not_mix_with_texts(words, tmp_path, capsys, prompts):
    chats, out = tmp_path / "chats.jsonl", tmp_path / "pairs.jsonl"
    chats.write_text('{"prompt": [{"role": "user", "content": "the cat"}]}\n')
    code, _ = prefer(capsys, words, chats, "--out", out, "--judge", "longer", "--pairs", 3)
    assert code == 0
    for pair in lines(out):
        assert pair["prompt"] == [{"role": "user", "content": "the cat"}]
        assert [message["role"] for message in pair["chosen"] + pair["rejected"]] == ["assistant"] * 2
    code, told = prefer(capsys, words, prompts, "--out", out, "--judge", "longer")
    assert code == 2
    assert "holds answers to chats, and words answers plain text here. Choose another --out." in told.err
