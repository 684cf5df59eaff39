"""Conversations: the KV cache that is kept over turns gives what reading everything again would give."""

import json

import numpy as np
import pytest
import torch

from chainrule import models
from chainrule import run as runs
from chainrule.chat.conversation import Conversation, trimmed
from chainrule.chat.terminal import Leave, Terminal, save_chat
from chainrule.errors import UserError
from chainrule.files import append_line
from chainrule.inference.sampling import Sampling
from chainrule.model import Batch
from chainrule.recipe import Text
from chainrule.tasks import recipe_for
from chainrule.text.chat_template import CHATML, PLAIN
from chainrule.text.tokenizers.tokenizer import train_tokenizer

TEXT = "user system assistant: What is two and two? It is four, of course. Hello, who are you?\n" * 3
KINDS = {
    "gpt": {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 200},
    "lstm": {"model.layers": 1, "model.hidden": 16},
    "feedforward": {"model.order": 4, "model.hidden": 16},
    "ngram": {"model.order": 3},
}


def make_run(tmp_path, kind="gpt", template=None, **more):
    """A run with random weights: what it says is nonsense, and depends on everything that it has read."""
    torch.manual_seed(1)
    recipe = recipe_for(kind, {"text.tokenizer": "characters", **KINDS[kind], **more})
    tokenizer = train_tokenizer(Text(tokenizer="characters"), [TEXT]).with_special(["<|im_start|>", "<|im_end|>"])
    model = models.build(kind, recipe.model, len(tokenizer))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    if kind == "ngram":
        tokens = torch.from_numpy(tokenizer.framed(TEXT).astype(np.int64))[None]
        model.update(model.collect(Batch(tokens[:, :-1], tokens[:, 1:])))
    runs.save(tmp_path / "run", model, tokenizer, recipe, chat_template=template)
    return runs.load(tmp_path / "run")


def talk(conversation, *texts):
    return ["".join(conversation.say(text)) for text in texts]


def fresh(run, conversation, **more):
    """The last answer, drawn by a conversation that has read nothing yet."""
    other = Conversation(run, conversation.sampling, tokens=conversation.limit, **more)
    other.messages = [dict(message) for message in conversation.messages[:-1]]
    other.draws = conversation.draws - 1
    return "".join(other.answer())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", [PLAIN, CHATML])
def test_a_kept_cache_gives_what_reading_everything_again_gives(tmp_path, kind, template):
    run = make_run(tmp_path, kind, template)
    conversation = Conversation(run, Sampling(seed=5), tokens=12)
    for text in ("Hello", "who are you?", "two and two"):
        (answer,) = talk(conversation, text)
        assert answer == fresh(run, conversation) == conversation.messages[-1]["content"]


def test_only_new_tokens_are_read(tmp_path):
    conversation = Conversation(make_run(tmp_path, template=CHATML), Sampling(temperature=0), tokens=8)
    talk(conversation, "What is two and two?")
    before, (prompt, _) = conversation.cache.read_count, conversation.prompt_of(conversation.messages[:-1])
    assert before == len(prompt)
    talk(conversation, "Who?")
    whole, _ = conversation.prompt_of(conversation.messages[:-1])
    assert conversation.cache.read_count <= len(whole)       # the first prompt is not read again


def test_the_tokens_of_an_answer_are_not_read_again(tmp_path):
    """The model read them when it wrote them."""
    conversation = Conversation(make_run(tmp_path, template=PLAIN), Sampling(temperature=0), tokens=6)
    talk(conversation, "What?")
    cache = conversation.cache
    written = max(cache.readings, key=lambda one: len(one.tokens)).tokens
    before = cache.read_count
    more = np.append(written, [3, 4, 5])
    with torch.inference_mode():
        logits = cache.read(more).logits
        assert cache.read_count - before == 3
        again = conversation.model.step(torch.from_numpy(more[None]), conversation.model.start(1))[0][:, -1]
    torch.testing.assert_close(logits, again, rtol=1e-5, atol=1e-5)


def test_undo_restores_the_conversation_and_its_cache(tmp_path):
    run = make_run(tmp_path, template=CHATML)
    conversation = Conversation(run, Sampling(seed=3), tokens=10)
    talk(conversation, "Hello", "who are you?")
    kept, read = [dict(message) for message in conversation.messages[:2]], conversation.cache.read_count
    assert conversation.undo() == "who are you?"
    assert conversation.messages == kept
    (answer,) = talk(conversation, "what is two?")
    assert answer == fresh(run, conversation)
    prompt, _ = conversation.prompt_of(conversation.messages[:-1])
    assert conversation.cache.read_count - read < len(prompt)
    conversation.undo()
    conversation.undo()
    with pytest.raises(UserError, match="nothing to undo"):
        conversation.undo()


def test_again_draws_another_answer_and_reads_no_token(tmp_path):
    conversation = Conversation(make_run(tmp_path), Sampling(seed=1), tokens=20)
    (first,) = talk(conversation, "Hello")
    read = conversation.cache.read_count
    second = "".join(conversation.again())
    assert second != first
    assert conversation.cache.read_count == read
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]
    assert conversation.messages[-1]["content"] == second
    other = Conversation(conversation.run, Sampling(seed=1), tokens=20)
    assert talk(other, "Hello") == [first]                    # a seed repeats a conversation
    assert "".join(other.again()) == second


def test_a_kept_state_is_not_changed_by_the_answers_that_are_drawn_from_it(tmp_path):
    """The ring of a sliding window is overwritten by each answer."""
    run = make_run(tmp_path, "gpt", PLAIN, **{"model.attention": "sliding", "model.window": 8})
    conversation = Conversation(run, Sampling(seed=1), tokens=12)
    talk(conversation, "Hello")
    for _ in range(2):
        assert "".join(conversation.again()) == fresh(run, conversation)


def test_a_full_context_drops_the_oldest_turns_and_says_so(tmp_path):
    conversation = Conversation(make_run(tmp_path, **{"model.context": 90}), Sampling(seed=1), system="Be.", tokens=10)
    talk(conversation, "Hello, who are you?", "What is two and two?", "who are you of course?")
    assert conversation.last.dropped > 0
    prompt, dropped = conversation.prompt_of(conversation.messages[:-1])
    text = conversation.run.tokenizer.decode(prompt.tolist())
    assert text.lstrip("\n").startswith("system: Be.\nuser: ")
    assert "Hello, who are you?" not in text
    assert "who are you of course?" in text
    assert dropped == conversation.last.dropped
    with pytest.raises(UserError, match=r"the message has \d+ tokens with its template, and the model holds 90"):
        conversation.say("What is two and two? " * 9)
    assert len(conversation.messages) == 7                    # what was refused is no message


def test_an_answer_ends_at_the_context_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr("chainrule.chat.conversation.has_end", lambda tokenizer, past: False)
    monkeypatch.setattr("chainrule.inference.generate.has_end", lambda tokenizer, past: False)
    conversation = Conversation(make_run(tmp_path, template=PLAIN, **{"model.context": 64}), Sampling(seed=2))
    (answer,) = talk(conversation, "Hello")
    prompt, _ = conversation.prompt_of(conversation.messages[:1])
    assert conversation.last.finish == "context"
    assert len(prompt) + conversation.last.tokens == 64
    assert answer


def test_an_answer_ends_where_the_user_s_turn_begins(tmp_path):
    """A model that was never taught to end one goes on with the next turn, which plain text begins by `user:`."""
    run = make_run(tmp_path, "ngram", None)
    conversation = Conversation(run, Sampling(seed=1), tokens=300)
    assert conversation.plain
    assert conversation.template.next_turn == "\nuser:"
    for answer in talk(conversation, "Hello", "who are you?"):
        assert "\nuser:" not in answer


def test_a_stream_has_no_space_at_its_ends():
    assert "".join(trimmed(iter([" ", " a", " ", "b ", "\n"]))) == "a b"
    assert list(trimmed(iter([" \n"]))) == []


def test_what_was_stopped_is_kept(tmp_path):
    conversation = Conversation(make_run(tmp_path), Sampling(seed=4), tokens=50)
    pieces = conversation.say("Hello")
    begun = next(pieces)
    pieces.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": begun.strip()}
    assert conversation.last.finish == "interrupted"
    conversation.undo()
    assert talk(conversation, "Hello")[0] == fresh(conversation.run, conversation)


# The terminal


@pytest.fixture
def terminal(tmp_path):
    shown = []
    made = Terminal(Conversation(make_run(tmp_path, template=PLAIN), Sampling(seed=1), tokens=12), shown.append)
    made.shown = shown
    return made


def test_commands(terminal, tmp_path, capsys):
    conversation, file = terminal.conversation, tmp_path / "deep" / "chats.jsonl"
    terminal.run(["Hello", "/again", "/temperature 0", "who are you?", "", f"/save {file}", "/undo", f"/save {file}"])
    first, second = map(json.loads, file.read_text().splitlines())
    assert [message["role"] for message in first["messages"]] == ["user", "assistant"] * 2
    assert second["messages"] == first["messages"][:2] == conversation.messages
    assert conversation.sampling.temperature == 0
    assert "".join(terminal.shown).count("\n") >= 3
    terminal.run(["/system Be.", "Hello", "/reset"])
    assert conversation.messages == [{"role": "system", "content": "Be."}]
    terminal.run(["/help", "/quit", "Hello"])
    assert conversation.messages == [{"role": "system", "content": "Be."}]
    err = capsys.readouterr().err
    assert all(said in err for said in ("[undone: who are you?]", "2 messages appended to", "/temperature T"))


@pytest.mark.parametrize(("line", "said"), [
    ("/undone", "there is no command /undone. Did you mean /undo?"),
    ("/temperature warm", "/temperature takes a number, such as 0.7; it is 1 now."),
    ("/temperature -1", "temperature=-1.0 is not valid"),
    ("/undo", "there is nothing to undo."),
    ("/undo 2", "/undo takes no argument, and got '2'."),
    ("/again", "there is no answer yet to draw again."),
    ("/save", "/save takes the name of a file"),
    ("/save here.jsonl", "there is no answer yet, so there is nothing to save."),
])  # fmt: skip
def test_a_mistake_is_one_line_and_the_conversation_goes_on(terminal, capsys, monkeypatch, tmp_path, line, said):
    monkeypatch.chdir(tmp_path)
    terminal.run([line, "Hello"])
    assert said in capsys.readouterr().err.splitlines()[0]
    assert len(terminal.conversation.messages) == 2
    with pytest.raises(UserError):
        terminal.run([line.replace("Hello", ""), "/undo", "/undo", "/undo"], forgiving=False)


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal, capsys):
    def shown(piece):
        if piece != "\n":
            raise KeyboardInterrupt

    terminal.show = shown
    terminal.run(["Hello"])
    assert terminal.conversation.last.finish == "interrupted"
    assert "[stopped]" in capsys.readouterr().err
    terminal.show = lambda piece: None
    terminal.run(["/again"])
    assert terminal.conversation.last.finish != "interrupted"
    with pytest.raises(Leave):
        terminal.handle("/quit")


def test_saving_appends_whole_lines_and_loses_none(tmp_path, monkeypatch):
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "é\nb"}]
    file = tmp_path / "chats.jsonl"
    file.write_text('{"messages": []}')                      # without an end of line
    save_chat([*chat, {"role": "user", "content": "c"}], file)
    assert [json.loads(line) for line in file.read_text().splitlines()] == [{"messages": []}, {"messages": chat}]
    before = file.read_bytes()
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        save_chat(chat, file)
    assert file.read_bytes() == before
    monkeypatch.undo()
    with pytest.raises(UserError, match="is a folder"):
        save_chat(chat, tmp_path)
    append_line(tmp_path / "new.txt", "x")
    assert (tmp_path / "new.txt").read_text() == "x\n"
