"""`--task chat` and `chainrule chat` on the command line: from scratch, from a base, with LoRA; scripts and pipes."""

import io
import json

import pytest

from chainrule import run as runs

WORDS = {"hot": "cold", "big": "small", "up": "down"}
ASKED = [[("user", f"Opposite of {one}?"), ("assistant", f"It is {other}.")] for one, other in WORDS.items()]
SMALL = ("model.layers=1", "model.width=32", "model.heads=2", "model.context=96", "text.tokenizer=characters")
SHORT = ("train.epochs=2", "text.held_out=0.2")


@pytest.fixture
def chats(tmp_path):
    """Each question alone, and after another."""
    rows = [turns + more for turns in ASKED for more in ([], ASKED[0], ASKED[2])] * 2
    lines = [json.dumps({"messages": [{"role": role, "content": content} for role, content in row]}) for row in rows]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines) + "\n")
    return "chats.jsonl"


@pytest.fixture
def tuned(chainrule, chats):
    answer = chainrule("train", chats, "--task", "chat", "--kind", "gpt", *SMALL, *SHORT, "--out", "runs/chat")
    assert answer.code == 0, answer.err
    assert "chat template: plain, since none is given" in answer.err
    assert "chainrule chat runs/chat" in answer.out + answer.err
    return "runs/chat"


def test_what_was_learned_is_measured_talked_with_and_exported(chainrule, tuned, chats, tmp_path):
    result = chainrule("eval", tuned, chats, "--json").json
    assert result["examples"] == 18
    assert result["perplexity"] > 1
    assert result["signature"].startswith("answers|template:")
    answer = chainrule("chat", tuned, "--prompt", "Opposite of hot?", "--prompt", "Opposite of up?", "--json").json
    assert [message["role"] for message in answer["messages"]] == ["user", "assistant"] * 2
    assert not answer["plain"]
    run = runs.load(tuned)
    assert run.chat_template is not None
    assert run.task.name == "chat"
    assert run.generate("user: ", tokens=5) is not None
    for form in ("huggingface", "onnx"):
        assert chainrule("export", tuned, form, "--to", form).code == 0
    assert (tmp_path / "huggingface" / "chat_template.jinja").read_text() == run.chat_template


def test_a_body_is_tuned_with_all_its_weights_or_with_adapters(chainrule, chats, book, tmp_path):
    assert chainrule("train", book, "--kind", "lstm", "model.hidden=8", "text.tokenizer=characters", "train.steps=2",
                     "train.length=16", "train.tokens=64", "--out", "runs/base").code == 0
    tuning = ("train", chats, "--task", "chat", "--from", "runs/base", *SHORT, "text.chat_template=chatml")
    answer = chainrule(*tuning, "--out", "runs/full")
    assert answer.code == 0, answer.err
    full = runs.load("runs/full")
    assert full.template.end_of_turn == full.tokenizer.special_tokens["<|im_end|>"]    # two new rows
    answer = chainrule(*tuning, "train.lora=2", "--out", "runs/lora")
    assert answer.code == 0, answer.err
    assert (tmp_path / "runs/lora/adapter.safetensors").exists()
    assert chainrule("chat", "runs/lora", "--prompt", "Hello", "--tokens", 4).code == 0


def test_the_learning_rate_and_the_epochs_depend_on_what_is_trained(chainrule, tuned, chats):
    made = runs.load(tuned).recipe.train
    assert (made.lr, made.epochs) == (1e-3, 2)
    answer = chainrule("train", chats, "--task", "chat", "--from", tuned, "train.lora=2", "--out", "runs/again")
    assert answer.code == 0, answer.err
    again = runs.load("runs/again")
    assert (again.recipe.train.lr, again.recipe.train.epochs) == (5e-4, 3)
    assert again.chat_template == runs.load(tuned).chat_template


def test_lines_through_a_pipe(chainrule, tuned, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdin", io.StringIO("Opposite of hot?\n/again\n/save said.jsonl\n"))
    answer = chainrule("chat", tuned, "--seed", 3, "--tokens", 20)
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) >= 2
    saved = json.loads((tmp_path / "said.jsonl").read_text())
    assert saved["messages"][0] == {"role": "user", "content": "Opposite of hot?"}
    monkeypatch.setattr("sys.stdin", io.StringIO("/nothing\n"))
    assert chainrule("chat", tuned).code == 2


def test_a_run_without_a_template_continues_plain_text_and_says_so(chainrule, trained, complaint):
    answer = chainrule("chat", trained, "--prompt", "the cat", "--tokens", 20)
    assert answer.code == 0
    assert "it has no chat template, so messages are written as plain text" in answer.err
    assert "cannot be set here: a conversation reads no text" in complaint("chat", trained, "text.errors=replace")
    assert "the chat template nowhere cannot be read" in complaint("chat", trained, "--chat-template", "nowhere")


def test_mistakes_of_training_are_one_line(chainrule, complaint, chats, tmp_path):
    task = ("--task", "chat", "--out", "runs/no")
    assert "--task chat is not for --kind ngram" in complaint("train", chats, *task, "--kind", "ngram")
    assert "--task chat is not for --kind seq2seq" in complaint("train", chats, *task, "--kind", "seq2seq")
    assert "train.batching=streams is for running text" in complaint(
        "train", chats, *task, "--kind", "gpt", "train.batching=streams")
    refused = chainrule("train", chats, *task, "--kind", "gpt", *SMALL, "train.length=8")
    assert refused.code == 2
    assert "must hold the longest chat" in refused.err.splitlines()[-1]
    (tmp_path / "bad.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    assert "bad.jsonl line 1 has no message of the assistant" in complaint("train", "bad.jsonl", *task, "--kind", "gpt")
    (tmp_path / "drops.jinja").write_text("{% for m in messages %}{% if m.role != 'user' %}{{ m.content }}{% endif %}"
                                          "{% endfor %}")
    assert "the chat template drops what the user says" in complaint(
        "train", chats, *task, "--kind", "gpt", "text.chat_template=drops.jinja")
