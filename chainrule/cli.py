"""The command line: words to verbs. Nothing heavy is imported before the verb that needs it, so help is instant.

A user's mistake is one line on stderr and exit code 2; Ctrl-C is 130; an unexpected exception keeps its traceback.
"""

import errno
import json
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

from chainrule import __version__
from chainrule.errors import UserError, did_you_mean, out_of_memory
from chainrule.progress import set_quiet, speaks
from chainrule.settings import split_words

EXPORTS = ("arpa", "word2vec", "word2vec-binary", "glove", "merged")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_ENTRY = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR)


class Parser(ArgumentParser):
    """argparse, whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        if "expected one argument" in message:
            message += " (a value that begins with - is written --option=-value)"
        raise UserError(f"{self.prog.partition(' ')[2]}: {message}. `{self.prog} --help` says more.")


@dataclass(frozen=True)
class Verb:
    where: str                                     # module:function in chainrule.commands
    idea: str                                      # one line for people
    arguments: Callable[[ArgumentParser], None]
    settings: bool = False                         # takes dotted key=value words


def _demo(parser: ArgumentParser) -> None:
    parser.add_argument("--out", default="runs/demo", help="folder for the runs (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace runs that are there already")


def _train(parser: ArgumentParser) -> None:
    parser.add_argument("text", nargs="+", help="files, folders, globs, names of `chainrule data`, or - for stdin")
    parser.add_argument("--kind", help="kind of model (default: ngram); `chainrule settings` lists them")
    parser.add_argument("--task", help="lm (default), classify, tag, translate, caption, mask or span")
    parser.add_argument("--from", dest="base", metavar="RUN", help="begin with what another run learned, and its kind")
    parser.add_argument("--valid", action="append", default=[], metavar="F", help="text to validate on")
    parser.add_argument("--test", action="append", default=[], metavar="F", help="text to keep beside for a last test")
    parser.add_argument("--out", metavar="RUN", help="run directory (default: runs/KIND-TEXT)")
    parser.add_argument("--overwrite", action="store_true",
                        help="replace the run that is there already; one of the same recipe that is not finished goes "
                             "on (to begin it afresh, delete its folder)")
    parser.add_argument("--minutes", type=float, metavar="M", help="train for so long (kinds that learn by gradient)")
    parser.add_argument("--recipe", metavar="F.toml", help="settings from a file; those on the command line win")
    _device(parser)


def _sample(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("--prompt", default="", help="text to go on from")
    parser.add_argument("--tokens", type=int, default=200, help="most tokens to write (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0: the likeliest; inf: all alike")
    parser.add_argument("--top-k", type=int, help="draw from the k likeliest tokens only")
    parser.add_argument("--top-p", type=float, default=1.0, help="draw from the likeliest that together have this")
    parser.add_argument("--min-p", type=float, default=0.0, help="draw from tokens this many times the likeliest")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="how much less likely a token is again")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    parser.add_argument("--seed", type=int, default=1, help="the same seed writes the same text (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1, help="how many texts to write (default: %(default)s)")
    _device(parser)


def _score(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("file", nargs="?", default="-", help="text to score; - or nothing: stdin")
    _device(parser)


def _eval(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("file", nargs="+", help="held-out text, or examples of the task; for vectors: word tests")
    _beam(parser)
    _device(parser)


def _predict(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory of a task: classify, tag, translate, caption")
    parser.add_argument("file", nargs="?", default="-", help="a table, or one text a line; - or nothing: stdin")
    _beam(parser)
    _device(parser)


def _beam(parser: ArgumentParser) -> None:
    parser.add_argument("--beam", type=int, default=4, help="beginnings kept while writing; 1: greedy (default: 4)")
    parser.add_argument("--alpha", type=float, default=1.0, help="how much longer texts are favoured (default: 1)")
    parser.add_argument("--limit", type=int, default=256, metavar="N", help="most tokens in a text (default: 256)")
    parser.add_argument("--samples", type=int, metavar="N",
                        help="instead of a beam: of N texts written by chance, the one most like the others")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T",
                        help="how evenly these are drawn (default: 1)")


def _compare(parser: ArgumentParser) -> None:
    parser.add_argument("text", nargs="+", help="files, folders, globs, or names of `chainrule data`")
    parser.add_argument("--kinds", metavar="A,B,…", help="kinds to compare (default: the whole ladder)")
    parser.add_argument("--valid", action="append", default=[], metavar="F", help="text to measure on")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="M", help="for each kind (default: %(default)s)")
    parser.add_argument("--out", metavar="DIR", help="folder for the runs and the report (default: runs/compare-TEXT)")
    parser.add_argument("--overwrite", action="store_true", help="replace the comparison that is there already")
    _device(parser)


def _look(parser: ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", help="run directories; or a folder of runs, as `chainrule compare` makes one")
    parser.add_argument("--text", metavar="T", help="what the models read at first")
    parser.add_argument("--file", metavar="F", help="likewise, from a file; -: stdin")
    parser.add_argument("--view", metavar="NAME", help="show this one first; in a file: only this one")
    parser.add_argument("--out", metavar="PAGE.html", help="write one self-contained file instead of serving a page")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve at (default: %(default)s, this machine)")
    parser.add_argument("--port", type=int, metavar="N", help="port to serve at (default: the first free from 8000)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    _device(parser)


def _plan(parser: ArgumentParser) -> None:
    parser.add_argument("kind", help="kind of model, or a published size such as gpt3-175b")
    parser.add_argument("--gpus", type=int, default=1, help="how many (default: %(default)s)")
    parser.add_argument("--gpu", default="h200", help="which: h200, h100, a100, rtx4090, … (default: %(default)s)")


def _settings(parser: ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", help="kind of model; nothing: all of them")
    parser.add_argument("--task", help="what it is to learn (default: what the kind is made for)")


def _data(parser: ArgumentParser) -> None:
    parser.add_argument("get", nargs="?", help="the word get: fetch a text and say where it is")
    parser.add_argument("name", nargs="?", help="which one")


def _export(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("out", help="file to write; of merged: run directory")
    parser.add_argument("--to", required=True, choices=EXPORTS, help="format; merged: a run whole by itself")
    parser.add_argument("--overwrite", action="store_true", help="replace the file that is there already")


def _import(parser: ArgumentParser) -> None:
    parser.add_argument("path", help="file to read: an ARPA n-gram model, or word vectors")
    parser.add_argument("out", help="run directory to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the run that is there already")


DEVICES = ("auto", "cpu", "cuda")


def _device(parser: ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", choices=DEVICES, help="auto: a GPU when there is one")


VERBS = {
    "demo": Verb("demo:demo", "the ladder of models on an embedded text, in one table and one page", _demo),
    "train": Verb("train:train", "a text in, a model out", _train, settings=True),
    "sample": Verb("generate:sample", "let a model write", _sample),
    "score": Verb("generate:score", "bits of every token of a text, and the total", _score, settings=True),
    "eval": Verb("generate:evaluate", "how well a model does on held-out text, with a signature", _eval, settings=True),
    "predict": Verb("predict:predict", "classes, tags or translations, a line for each text", _predict, settings=True),
    "compare": Verb("compare:compare", "every kind on one text, each with the same time", _compare, settings=True),
    "look": Verb("look:look", "look inside models: a live page, or one self-contained file", _look),
    "plan": Verb("plan:plan", "parameters, FLOPs, memory and days, before it starts", _plan, settings=True),
    "settings": Verb("settings:settings", "every setting, its default and its meaning", _settings),
    "data": Verb("data:data", "known texts; `data get NAME` fetches one", _data),
    "export": Verb("convert:export", "write a model in another program's format", _export),
    "import": Verb("convert:import_", "make a run from another program's model", _import),
}


def main(words: Sequence[str] | None = None) -> int:
    try:
        return _answer(list(sys.argv[1:] if words is None else words))
    except UserError as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain("stopped.", 130)
    except BrokenPipeError:  # whoever was reading has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (MemoryError, OSError, RuntimeError) as error:
        if line := _machine_trouble(error):
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
    module, _, function = VERBS[words[0]].where.partition(":")
    with ctrl_c_waits():
        command = getattr(import_module(f"chainrule.commands.{module}"), function)
    set_quiet(args.json)
    try:
        answer = command(args)
    finally:
        set_quiet(False)
    if args.json and speaks():
        print(json.dumps(answer, allow_nan=False))
    sys.stdout.flush()
    return 130 if answer.get("interrupted") else 0


def parse(words: list[str]) -> Namespace:
    name, *rest = words
    if name not in VERBS:
        what, known = ("option", ["--help", "--version"]) if name.startswith("-") else ("verb", list(VERBS))
        raise UserError(f"unknown {what} {name}.{did_you_mean(name, known) or ' Known: ' + ', '.join(known) + '.'}")
    verb, settings = VERBS[name], dict[str, str]()
    parser = Parser(f"chainrule {name}", description=verb.idea, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, and nothing else there")
    verb.arguments(parser)
    if verb.settings:
        parser.epilog = "Settings are dotted key=value words, such as model.order=5; `chainrule settings` lists them."
        rest, settings = split_words(rest)
    args, unknown = parser.parse_known_intermixed_args(rest)
    for word in unknown:
        options = [option for action in parser._actions for option in action.option_strings]
        what, near = "option" if word.startswith("-") else "word", did_you_mean(word, options)
        raise UserError(f"{name}: unknown {what} {word}.{near} `{parser.prog} --help` says more.")
    args.settings = settings
    return args


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Until the end of the block: a library interrupted while it is imported may swallow that and stay half made."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def overview() -> str:
    verbs = "\n".join(f"  {name:<10}{verb.idea}" for name, verb in VERBS.items())
    return f"""usage: chainrule VERB … [--json]

Every language model, from counting words to GPT, behind one small protocol.

{verbs}

  chainrule VERB --help says more; chainrule --version says which this is.

Begin with:  chainrule demo
Or with:     chainrule train book.txt --kind ngram model.order=5 --out runs/five
             chainrule sample runs/five --prompt "The \""""


def _complain(line: str, code: int) -> int:
    if speaks():
        print(f"chainrule: {' '.join(line.split())}", file=sys.stderr)
    return code


def _machine_trouble(error: Exception) -> str:
    """A line where the machine, not the program, is at fault; nothing where it is a bug."""
    if out_of_memory(error):
        return "out of memory. A smaller model, a smaller train.tokens or a smaller text would fit."
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return f"no room to write {error.filename or 'a file'}: {error.strerror}. Free some space and run again."
    if isinstance(error, OSError) and error.errno in NO_ENTRY:
        return f"{error.filename}: {error.strerror}."
    return ""
