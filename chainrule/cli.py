"""The command line: the table of commands, how their words are parsed, and what an error of each sort prints.

A user's mistake is one line on stderr and exit code 2; a check that fails is 1; Ctrl-C is 130; an unexpected exception
keeps its traceback. Only the modules of the command that is asked for are imported, so that help needs no torch.
"""

import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn, TypeAlias

from chainrule import __version__, import_part
from chainrule.commands.json_output import Streamed, json_pieces
from chainrule.commands.machine_errors import machine_error
from chainrule.commands.standard_streams import discard_output, escape_unknown_characters, open_closed_streams
from chainrule.errors import UserError, did_you_mean
from chainrule.progress import set_quiet, speaks
from chainrule.settings import split_words

LONGEST_WORD = 300    # characters of a word in a message

Answer: TypeAlias = dict[str, Any] | Streamed


class Parser(ArgumentParser):
    """argparse, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        if "expected one argument" in message:
            message += " (a value that begins with - is written --option=-value)"
        raise UserError(f"{self.prog.partition(' ')[2]}: {message}. See `{self.prog} --help`.")


@dataclass(frozen=True)
class Command:
    where: str               # query:sample is sample_command of commands/query.py
    idea: str                # one line of help
    settings: bool = False   # whether it takes dotted key=value words

    def arguments(self, parser: ArgumentParser) -> None:
        """Adds its arguments: those of query:sample are sample_arguments of commands/arguments/query.py."""
        module, _, name = self.where.partition(":")
        getattr(import_module(f"chainrule.commands.arguments.{module}"), f"{name}_arguments")(parser)

    def run(self, args: Namespace) -> Answer:
        module, _, name = self.where.partition(":")
        with ctrl_c_waits():
            command: Callable[[Namespace], Answer] = getattr(import_part(f"commands.{module}"), f"{name}_command")
        return command(args)


COMMANDS = {
    "demo": Command("compare:demo", "train a ladder of models on a built-in text; a table and a page compare them"),
    "train": Command("train:train", "train a model on a text", settings=True),
    "sample": Command("query:sample", "sample text from a model", settings=True),
    "score": Command("query:score", "bits (-log2 p) of each token of a text", settings=True),
    "next": Command("words:next", "the next-word table: p(w | context) of the most probable tokens"),
    "eval": Command(
        "query:eval", "evaluate a model on held-out text: bits per byte, perplexity, task metrics", settings=True
    ),
    "predict": Command(
        "query:predict", "predict classes, tags or translations, or fill in blanks, one line for each text",
        settings=True,
    ),
    "analogy": Command("words:analogy", "words nearest to a − b + c, such as king − man + woman, by their vectors"),
    "compare": Command(
        "compare:compare", "compare kinds of models on one text, each with the same training time", settings=True
    ),
    "chat": Command(
        "chat:chat", "talk with a model in the terminal: /undo, /again, /save, /temperature", settings=True
    ),
    "look": Command("look:look", "look inside models: a live page, or a self-contained HTML file"),
    "serve": Command("serve:serve", "serve models: OpenAI's interface, and the live page beside it"),
    "prefer": Command(
        "prefer:prefer", "which of two answers is better? clicks into a file of pairs, and tuning by them",
        settings=True,
    ),
    "plan": Command("show:plan", "parameters, FLOPs, memory and days of training, before it starts", settings=True),
    "distance": Command("show:distance", "how far fine-tuning has moved the weights of a run, by layer"),
    "settings": Command("show:settings", "list all settings: default, meaning, allowed values"),
    "data": Command("show:data", "list known texts; `data get NAME` downloads one"),
    "export": Command("convert:export", "write a model in another program's format"),
    "import": Command("convert:import", "make a run from another program's model, or from one written by hand"),
    "exercise": Command("exercise:exercise", "list, copy and check the exercises for students"),
    "leaderboard": Command("exercise:leaderboard", "rank submissions by bits per byte on a hidden text"),
}


def main(words: Sequence[str] | None = None) -> int:
    open_closed_streams()
    escape_unknown_characters()
    try:
        return _answer(list(sys.argv[1:] if words is None else words))
    except UserError as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain("stopped.", 130)
    except BrokenPipeError:  # the reader of the pipe has closed it
        discard_output()
        return 1
    except (MemoryError, OSError, RuntimeError) as error:
        if line := machine_error(error):
            return _complain(line, 2)
        raise


def _answer(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"chainrule {__version__}")
        return 0
    args = parse(words)
    set_quiet(args.json)
    try:
        answer = COMMANDS[words[0]].run(args)
    finally:
        set_quiet(False)
    if args.json and speaks():
        for piece in json_pieces(answer):
            print(piece, end="")
        print()
    sys.stdout.flush()
    if isinstance(answer, Streamed):
        return 0
    return 130 if answer.get("interrupted") else int(bool(answer.get("failed")))


def parse(words: list[str]) -> Namespace:
    name, *rest = words
    if name not in COMMANDS:
        what, known = ("option", ["--help", "--version"]) if name.startswith("-") else ("command", list(COMMANDS))
        raise UserError(f"unknown {what} {name}.{did_you_mean(name, known) or ' Known: ' + ', '.join(known) + '.'}")
    command, settings = COMMANDS[name], dict[str, str]()
    parser = Parser(f"chainrule {name}", description=command.idea, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print one JSON object and no other output on stdout")
    command.arguments(parser)
    if command.settings:
        parser.epilog = "Settings are dotted key=value words, such as model.order=5; `chainrule settings` lists them."
        rest, settings = split_words(rest)
    for word in rest:
        if word.startswith("--") and word.endswith("=--"):     # which argparse takes for an empty list
            raise UserError(f"{name}: {word} has no value. See `{parser.prog} --help`.")
    args, unknown = parser.parse_known_intermixed_args(rest)
    for word in unknown:
        options = [option for action in parser._actions for option in action.option_strings]
        what, near = "option" if word.startswith("-") else "word", did_you_mean(word, options)
        raise UserError(f"{name}: unknown {what} {word}.{near} See `{parser.prog} --help`.")
    args.settings = settings
    return args


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block: a library that is interrupted during its import may stay incomplete."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def overview() -> str:
    commands = "\n".join(f"  {name:<12}{command.idea}" for name, command in COMMANDS.items())
    return f"""usage: chainrule COMMAND … [--json]

Every language model, from counting words to GPT, behind one small protocol.

{commands}

  chainrule COMMAND --help lists the options of a command; chainrule --version prints the version.

Start with:  chainrule demo
Or with:     chainrule train book.txt --kind ngram model.order=5 --out runs/five
             chainrule sample runs/five --prompt "The \""""


def _complain(line: str, code: int) -> int:
    if speaks():
        words = (word if len(word) <= LONGEST_WORD else f"{word[:LONGEST_WORD]}…" for word in line.split())
        print(f"chainrule: {' '.join(words)}", file=sys.stderr)
    return code
