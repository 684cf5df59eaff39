"""A conversation in the terminal: the answer streams, Ctrl-C stops it, and lines that begin with / are commands.

The same loop reads a script: lines that come through a pipe, or those of --prompt.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from chainrule.chat.conversation import Conversation
from chainrule.errors import UserError, did_you_mean
from chainrule.files import append_line
from chainrule.progress import say

PROMPT = "> "
HELP = {
    "/undo": "take back your last message and its answer",
    "/again": "draw another answer to your last message",
    "/temperature T": "0: always the most probable token; 1: as the model says",
    "/system TEXT": "begin again with this instruction to the model; without TEXT: with none",
    "/reset": "begin again",
    "/save FILE": "append the conversation to FILE as a line of JSON, which --task chat learns from",
    "/help": "these commands",
    "/quit": "leave, as Ctrl-D does",
}
COMMANDS = [name.split()[0] for name in HELP]


class Leave(Exception):
    """The user is done."""


class Terminal:
    def __init__(self, conversation: Conversation, show: Callable[[str], object]) -> None:
        """`show`: writes a piece of an answer; in a script with --json it writes nothing."""
        self.conversation, self.show = conversation, show
        self.answers: list[dict[str, Any]] = []

    def run(self, lines: Iterable[str], forgiving: bool = True) -> None:
        """Answers each line until they end. A `forgiving` loop, that of a person, goes on after a mistake."""
        for line in lines:
            try:
                self.handle(line)
            except Leave:
                return
            except UserError as error:
                if not forgiving:
                    raise
                say(str(error))

    def handle(self, line: str) -> None:
        """A message, or a command."""
        text = line.strip()
        if text.startswith("/"):
            self.command(*text.split(maxsplit=1))
        elif text:
            self.stream(self.conversation.say(text))

    def stream(self, pieces: Iterator[str]) -> None:
        """Shows an answer as it is drawn, and how it ended where that is not its own end."""
        try:
            for piece in pieces:
                self.show(piece)
        except KeyboardInterrupt:                            # while a piece was shown
            pieces.close()                                   # type: ignore[attr-defined]
        self.show("\n")
        last = self.conversation.last
        self.answers.append({"text": self.conversation.messages[-1]["content"], "tokens": last.tokens,
                             "finish": last.finish, "dropped": last.dropped})
        if note := self._note():
            say(note)

    def _note(self) -> str:
        last, context = self.conversation.last, self.conversation.model.context
        notes = {
            "length": f"[stopped after {last.tokens} tokens: --tokens N allows more]",
            "context": f"[stopped: the model's context of {context} tokens is full]",
            "interrupted": "[stopped]",
        }
        dropped = f"[the context of {context} tokens is full: the first {last.dropped} messages are no longer read]"
        return " ".join([*([dropped] if last.dropped else []), *([notes[last.finish]] if last.finish in notes else [])])

    # Commands

    def command(self, name: str, rest: str = "") -> None:
        if name not in COMMANDS:
            hint = did_you_mean(name, COMMANDS) or f" There are {', '.join(COMMANDS)}."
            raise UserError(f"there is no command {name}.{hint}")
        takes = {"/temperature": self.temperature, "/system": self.system, "/save": self.save}
        if name in takes:
            takes[name](rest)
        elif rest:
            raise UserError(f"{name} takes no argument, and got {rest!r}.")
        else:
            {"/undo": self.undo, "/again": self.again, "/reset": self.reset, "/help": self.help,
             "/quit": self.quit}[name]()

    def undo(self) -> None:
        say(f"[undone: {self.conversation.undo()}]")

    def again(self) -> None:
        self.stream(self.conversation.again())

    def reset(self) -> None:
        self.conversation.reset()
        say("[a new conversation]")

    def help(self) -> None:
        say("\n".join(f"  {name:<16}{meaning}" for name, meaning in HELP.items()))

    def quit(self) -> NoReturn:
        raise Leave

    def temperature(self, given: str) -> None:
        try:
            value = float(given)
        except ValueError:
            now = self.conversation.sampling.temperature
            raise UserError(f"/temperature takes a number, such as 0.7; it is {now:g} now.") from None
        self.conversation.sampling = replace(self.conversation.sampling, temperature=value)
        say(f"[temperature {value:g}]")

    def system(self, text: str) -> None:
        if text:
            self.conversation.template.check_roles({"system"})
        self.conversation.reset(text)
        say("[a new conversation with this instruction]" if text else "[a new conversation without an instruction]")

    def save(self, file: str) -> None:
        if not file:
            raise UserError("/save takes the name of a file, as in /save chats.jsonl.")
        say(f"[{save_chat(self.conversation.messages, Path(file))}]")


def save_chat(messages: list[dict[str, str]], path: Path) -> str:
    """Appends a chat to a file of JSON lines, up to its last answer that is not empty. Returns what was done."""
    while messages and (messages[-1]["role"] != "assistant" or not messages[-1]["content"]):
        messages = messages[:-1]
    if not messages:
        raise UserError("there is no answer yet, so there is nothing to save.")
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file, as in /save {path / 'chats.jsonl'}.")
    try:
        append_line(path, json.dumps({"messages": messages}, ensure_ascii=False))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}. The conversation is still here.") from None
    return f"{len(messages)} messages appended to {path}"


def typed_lines() -> Iterator[str]:
    """Lines of a person at the terminal, until Ctrl-D; arrow keys and history where there is readline."""
    with suppress(ImportError):
        import readline  # noqa: F401 - `input` uses it once it is imported
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            say("\n[Ctrl-D leaves]")
