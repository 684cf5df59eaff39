"""The command line: its commands, their options and help. torch is imported only by commands that need it.

A user's mistake is one line on stderr and exit code 2; a check that fails is 1; Ctrl-C is 130; an unexpected exception
keeps its traceback.
"""

import errno
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from chainrule import __version__, import_part
from chainrule.commands.json_output import Streamed, json_pieces
from chainrule.errors import UserError, did_you_mean, out_of_memory
from chainrule.progress import set_quiet, speaks
from chainrule.settings import split_words

EXPORTS = ("arpa", "word2vec", "word2vec-binary", "glove", "huggingface", "gguf", "onnx", "merged")
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_ENTRY = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
NAME = 80    # characters of a file's name in a message
WORD = 300   # characters of any word in it


class Parser(ArgumentParser):
    """argparse, with errors of one line."""

    def error(self, message: str) -> NoReturn:
        if "expected one argument" in message:
            message += " (a value that begins with - is written --option=-value)"
        raise UserError(f"{self.prog.partition(' ')[2]}: {message}. See `{self.prog} --help`.")


@dataclass(frozen=True)
class Command:
    where: str                                     # module:function in chainrule.commands
    idea: str                                      # one line of help
    arguments: Callable[[ArgumentParser], None]
    settings: bool = False                         # whether it takes dotted key=value words


def _demo(parser: ArgumentParser) -> None:
    parser.add_argument("--out", default="runs/demo", help="folder for the runs (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace existing runs")


def _train(parser: ArgumentParser) -> None:
    parser.add_argument("text", nargs="+", help="files, folders, globs, names from `chainrule data`, or - for stdin")
    parser.add_argument("--kind", help="kind of model (default: ngram); `chainrule settings` lists them")
    parser.add_argument("--task", help="lm (default), chat, classify, tag, translate, caption, answer, mask (BERT), "
                                       "span (T5), denoise (BART), preference (DPO …), reward or reinforce (PPO …)")
    parser.add_argument("--from", dest="base", metavar="RUN",
                        help="start from the weights of another run (fine-tuning)")
    parser.add_argument("--reward", metavar="R", help="what rewards answers (--task reinforce): RUN, RUN:LABEL of a "
                                                      "classifier, or python:MODULE.FUNCTION; the same as train.reward")
    parser.add_argument("--valid", action="append", default=[], metavar="F",
                        help="validation text (default: the last tenth)")
    parser.add_argument("--test", action="append", default=[], metavar="F",
                        help="test text, which training never reads")
    parser.add_argument("--out", metavar="RUN", help="run directory (default: runs/KIND-TEXT)")
    parser.add_argument("--overwrite", action="store_true",
                        help="replace an existing run; an unfinished run of the same recipe is resumed (to start it "
                             "again from the beginning, delete its folder)")
    parser.add_argument("--minutes", type=float, metavar="M",
                        help="training time; sizes are chosen to fit it (gradient descent)")
    parser.add_argument("--recipe", metavar="F.toml", help="file of settings; those on the command line override it")
    _device(parser)


def _sample(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("--prompt", default="", help="text to continue")
    parser.add_argument("--tokens", type=int, default=200, help="number of tokens at most (default: %(default)s)")
    _sampling(parser)
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT",
                        help="stop before this text; can be repeated")
    parser.add_argument("--past-end", action="store_true",
                        help="go on after the end of a text (for words: of a line, </s>), up to --tokens")
    parser.add_argument("--rows", type=int, default=1, help="number of texts (default: %(default)s)")
    _precision(parser)
    _device(parser)


def _sampling(parser: ArgumentParser, temperature: float = 1.0) -> None:
    parser.add_argument("--temperature", type=float, default=temperature,
                        help="0: greedy; inf: uniform (default: %(default)g)")
    parser.add_argument("--top-k", type=int, help="sample from the k most probable tokens only")
    parser.add_argument("--top-p", type=float, default=1.0,
                        help="sample from the most probable tokens with this total probability")
    parser.add_argument("--min-p", type=float, default=0.0,
                        help="only tokens with this fraction of the highest probability")
    parser.add_argument("--repetition-penalty", type=float, default=1.0,
                        help="divides the probability of tokens that the text already has")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: %(default)s)")


def _chat(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT",
                        help="a message, answered without a terminal; can be repeated (default: type, or pipe lines)")
    parser.add_argument("--system", default="", metavar="TEXT", help="instruction to the model, before all messages")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of an answer at most (default: %(default)s)")
    parser.add_argument("--chat-template", metavar="FILE",
                        help="Jinja template by which the messages are read, or chatml or plain (default: that of the "
                             "run; plain where it has none)")
    _sampling(parser, 0.7)
    _precision(parser)
    _device(parser)


def _score(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("file", nargs="?", default="-", help="text to score (default: stdin)")
    _device(parser)


def _next(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory of a language model")
    parser.add_argument("--prompt", default="", help="the context (default: the beginning of a text)")
    parser.add_argument("--top", type=int, default=10, metavar="K", help="tokens in the table (default: %(default)s)")
    _device(parser)


def _analogy(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory of word vectors, or of a model with embeddings")
    parser.add_argument("words", nargs="+", help="three words a b c, for a − b + c; or one, for its neighbours")
    parser.add_argument("--top", type=int, default=10, metavar="K", help="words in the list (default: %(default)s)")
    _device(parser)


def _eval(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("file", nargs="+",
                        help="held-out text, or examples of the task; for word vectors: a test of words; for a "
                             "language model also an exam: blimp or lambada")
    parser.add_argument("--by-position", action="store_true",
                        help="bits per byte by the tokens of context before; several runs may come before the text, "
                             "each with settings of its own: RUN:model.rope_scaling=yarn,model.rope_factor=8")
    parser.add_argument("--positions", type=int, metavar="N",
                        help="tokens of a window of --by-position (default: the longest context of the runs)")
    parser.add_argument("--plot", metavar="F.svg", help="draw --by-position or --shots into this file")
    _ensemble(parser)
    _policy(parser)
    _shots(parser)
    _beam(parser)
    _device(parser)


def _ensemble(parser: ArgumentParser) -> None:
    parser.add_argument("--with", action="append", default=[], metavar="RUN", dest="others",
                        help="an ensemble: average the probabilities of this run too, of the same task and labels; for "
                             "texts that are written, of the same tokenizer; may be repeated")


def _policy(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("answers to prompts")
    group.add_argument("--reward", metavar="R",
                       help="mean reward of the answers to prompts, and KL from a reference: RUN, RUN:LABEL of a "
                            "classifier, or python:MODULE.FUNCTION")
    group.add_argument("--reference", metavar="RUN", help="the reference (default: the run that RUN was tuned from)")
    group.add_argument("--answer-tokens", type=int, metavar="N", help="most tokens of an answer (default: 64)")


def _shots(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("prompts with examples")
    group.add_argument("--shots", metavar="K,…",
                       help="classify or translate with a language model, by K examples in its prompt; 0: none")
    group.add_argument("--examples", action="append", default=[], metavar="F",
                       help="file that the examples are drawn from (default: the training split of a known corpus)")
    group.add_argument("--template", metavar="T",
                       help=r'an example, as "Review: {text}\nSentiment: {label}" (default: by the columns)')
    group.add_argument("--separator", metavar="S",
                       help="text between two examples (default: an empty line, or a line end)")
    group.add_argument("--labels", metavar="L=WORD,…", help="words of the labels, as 0=negative,1=positive")
    group.add_argument("--draws", type=int, metavar="N", help="draws of the examples (default: 3)")
    group.add_argument("--seed", type=int, metavar="N", help="random seed of the draws (default: 1)")
    group.add_argument("--unbalanced", action="store_true",
                       help="draw examples whatever their label (default: as many of each)")
    group.add_argument("--calibration", metavar="C",
                       help="none (default); contextual: against a text without content; pmi: against the end of the "
                            "template alone")
    group.add_argument("--normalise", metavar="N",
                       help="divide log p of a label's word by its tokens or bytes (default: none)")
    group.add_argument("--channel", action="store_true",
                       help="noisy channel: score the text after each label, p(text | label); the template has the "
                            r'label first, as "Sentiment: {label}\nReview: {text}"')
    group.add_argument("--ensemble", action="store_true",
                       help="ensemble of demonstrations: each example in a prompt of its own, and the mean of log p")
    group.add_argument("--chat", action="store_true", help="examples as turns of a chat, by the run's chat template")
    group.add_argument("--task", metavar="T", help="classify or translate (default: by the columns)")


def _predict(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory of any task but lm, or of an hmm")
    parser.add_argument("file", nargs="?", default="-",
                        help="a table, or a text on each line, with ___ for a blank (default: stdin)")
    parser.add_argument("--top", type=int, metavar="K", help="print K alternatives for each blank")
    _ensemble(parser)
    _beam(parser)
    _device(parser)


def _beam(parser: ArgumentParser) -> None:
    parser.add_argument("--beam", type=int, metavar="W", help="beam size of beam search; 1: greedy (default: 4)")
    parser.add_argument("--alpha", type=float, metavar="A",
                        help="length penalty: log p / ((5 + n) / 6)^alpha (default: 0.6)")
    parser.add_argument("--limit", type=int, metavar="N",
                        help="tokens in a text at most (default: 256); in an exam or with --shots: so many examples, "
                             "of blimp in each paradigm (default: all)")
    parser.add_argument("--samples", type=int, metavar="N",
                        help="minimum Bayes risk instead of a beam: of N samples, the one most like the others")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T",
                        help="temperature of these samples (default: 1)")


def _compare(parser: ArgumentParser) -> None:
    parser.add_argument("text", nargs="+", help="files, folders, globs, or names from `chainrule data`")
    parser.add_argument("--kinds", metavar="A,B,…", help="kinds to compare (default: the whole ladder)")
    parser.add_argument("--valid", action="append", default=[], metavar="F",
                        help="validation text (default: the last tenth)")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="M",
                        help="training time of each kind (default: %(default)s)")
    parser.add_argument("--out", metavar="DIR", help="folder for the runs and the report (default: runs/compare-TEXT)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing comparison")
    _device(parser)


def _look(parser: ArgumentParser) -> None:
    parser.add_argument("run", nargs="+",
                        help="run directories, or a folder of runs such as one from `chainrule compare`")
    parser.add_argument("--text", metavar="T", help="text that the models read first")
    parser.add_argument("--file", metavar="F", help="the same from a file; -: stdin")
    parser.add_argument("--view", metavar="NAME", help="the first view; with --out: the only one")
    parser.add_argument("--word", metavar="W", help="the word of --view contextual (default: the most frequent one)")
    parser.add_argument("--table", action="store_true",
                        help="print the numbers of --view attention or contextual instead of a page")
    parser.add_argument("--out", metavar="PAGE.html", help="write a self-contained file instead of serving a page")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve at (default: %(default)s, this machine)")
    parser.add_argument("--port", type=int, metavar="N", help="port to serve at (default: the first free from 8000)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    _device(parser)


def _serve(parser: ArgumentParser) -> None:
    parser.add_argument("run", nargs="+",
                        help="run directories, or a folder of runs; a run's name is that of its folder, and a request "
                             "that names no model gets the first")
    parser.add_argument("--host", default="127.0.0.1",
                        help="address to serve at (default: %(default)s, this machine); any other needs --key")
    parser.add_argument("--port", type=int, metavar="N", help="port to serve at (default: the first free from 8000)")
    parser.add_argument("--key", metavar="K",
                        help="bearer token that clients must send (default: the environment's CHAINRULE_KEY); a "
                             "browser asks for it as a password")
    parser.add_argument("--cors", action="append", default=[], metavar="ORIGIN",
                        help="web pages from here may use the server, as https://example.org; can be repeated")
    parser.add_argument("--chat-template", metavar="FILE",
                        help="Jinja template by which the messages of a chat are read, or chatml or plain (default: "
                             "that of the run)")
    parser.add_argument("--rows", type=int, default=64, metavar="N",
                        help="texts that a model generates at a time (default: %(default)s)")
    parser.add_argument("--queue", type=int, default=1024, metavar="N",
                        help="texts that may wait for a model; more are answered with 429 (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, metavar="S",
                        help="time limit of a request, then it is answered with 504 (default: %(default)g)")
    parser.add_argument("--grace", type=float, default=30.0, metavar="S",
                        help="time for requests under way after SIGTERM or Ctrl-C (default: %(default)g)")
    _precision(parser)
    _device(parser)


def _prefer(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory of a language model")
    parser.add_argument("prompts", nargs="?",
                        help="file with a prompt on each line, or JSON lines with `prompt` (a text, or messages); "
                             "without it, and at any time, prompts can be typed on the page")
    parser.add_argument("--out", default="pairs.jsonl", metavar="F.jsonl",
                        help="file of pairs that clicks are appended to (default: %(default)s)")
    parser.add_argument("--judge", metavar="J",
                        help="rate without a page: shorter, longer, or python:module.function, which scores answers")
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs to rate (default: one for each prompt)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer at most (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the sampling (default: 1)")
    parser.add_argument("--top-p", type=float, default=1.0,
                        help="sample from the most probable tokens with this total probability")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: %(default)s)")
    parser.add_argument("--overlap", type=float, default=0.25, metavar="S",
                        help="share of the pairs that every rater sees, to measure agreement (default: %(default)s)")
    parser.add_argument("--plain", action="store_true", help="prompts are texts to continue, even with a chat template")
    parser.add_argument("--port", type=int, metavar="N", help="port of the page (default: the first free from 8000)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    _device(parser)


def _plan(parser: ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", help="kind of model, or a published one such as gpt3-175b")
    parser.add_argument("--published", action="store_true", help="the table of all published models")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs (default: %(default)s)")
    parser.add_argument("--gpu", default="h200", help="h200, h100, a100, rtx4090, … (default: %(default)s)")
    parser.add_argument("--source", type=int, metavar="N",
                        help="tokens in the source of a row, for seq2seq and transformer (default: as in the row)")


def _distance(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory of a fine-tuned model (train --from)")
    parser.add_argument("base", nargs="?", help="run to measure from (default: the one it was trained from)")


def _settings(parser: ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", help="kind of model (default: all)")
    parser.add_argument("--task", help="task of the model (default: the kind's own)")


def _data(parser: ArgumentParser) -> None:
    parser.add_argument("get", nargs="?", help="the word get: download a text and print its path")
    parser.add_argument("name", nargs="?", help="name of the text")


def _export(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("out", help="file to write; for huggingface and onnx: folder; for merged: run directory")
    parser.add_argument("--to", required=True, choices=EXPORTS,
                        help="format; huggingface: a folder for transformers; gguf: a file for llama.cpp; onnx: a "
                             "folder for onnxruntime; merged: LoRA adapters merged")
    parser.add_argument("--precision", choices=("f32", "f16", "q8_0"), help="of a gguf's matrices (default: f32)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file or folder")


def _import(parser: ArgumentParser) -> None:
    parser.add_argument("path", help="Hugging Face folder; or a file: GGUF, an ARPA n-gram model, word vectors, a "
                                     "model written by hand (TOML); or a built-in one: comparison, rhythm, summation, "
                                     "weather")
    parser.add_argument("out", help="run directory to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing run")


def _exercise(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="an exercise or a lesson to copy, or the word check (default: list)")
    parser.add_argument("folder", nargs="?", help="new folder to copy to; with check: the folder to check")
    parser.add_argument("--seed", type=int, metavar="N",
                        help="with check: make the tests' data again from this seed (default: as in the folder)")


def _leaderboard(parser: ArgumentParser) -> None:
    parser.add_argument("submission", nargs="+", help="run directories, or Python files with train(text, minutes)")
    parser.add_argument("--hidden", required=True, metavar="F", help="the hidden text that all are evaluated on")
    parser.add_argument("--train", required=True, metavar="F", help="the text that Python files train on")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="M",
                        help="training time of each Python file (default: %(default)s)")
    parser.add_argument("--out", default="leaderboard", metavar="DIR",
                        help="folder of the table (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing table")


DEVICES = ("auto", "cpu", "cuda")


def _precision(parser: ArgumentParser) -> None:
    parser.add_argument("--precision", choices=["auto", "float32", "bfloat16", "int8"], default="auto",
                        help="of the weights; int8: faster on a CPU, and not quite the same probabilities; auto: "
                             "bfloat16 on GPUs that have it, else float32")


def _device(parser: ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", choices=DEVICES, help="auto: a GPU if there is one")


COMMANDS = {
    "demo": Command(
        "compare:demo_command", "train a ladder of models on a built-in text; a table and a page compare them", _demo
    ),
    "train": Command("train:train_command", "train a model on a text", _train, settings=True),
    "sample": Command("query:sample_command", "sample text from a model", _sample, settings=True),
    "score": Command(
        "query:score_command", "bits (-log2 p) of each token of a text", _score, settings=True
    ),
    "next": Command("words:next_command", "the next-word table: p(w | context) of the most probable tokens", _next),
    "eval": Command(
        "query:eval_command", "evaluate a model on held-out text: bits per byte, perplexity, task metrics",
        _eval, settings=True,
    ),
    "predict": Command(
        "query:predict_command", "predict classes, tags or translations, or fill in blanks, one line for each text",
        _predict, settings=True,
    ),
    "analogy": Command(
        "words:analogy_command", "words nearest to a − b + c, such as king − man + woman, by their vectors", _analogy
    ),
    "compare": Command(
        "compare:compare_command", "compare kinds of models on one text, each with the same training time",
        _compare, settings=True,
    ),
    "chat": Command(
        "chat:chat_command", "talk with a model in the terminal: /undo, /again, /save, /temperature", _chat,
        settings=True,
    ),
    "look": Command("look:look_command", "look inside models: a live page, or a self-contained HTML file", _look),
    "serve": Command(
        "serve:serve_command", "serve models: OpenAI's interface, and the live page beside it", _serve
    ),
    "prefer": Command(
        "prefer:prefer_command", "which of two answers is better? clicks into a file of pairs, and tuning by them",
        _prefer, settings=True,
    ),
    "plan": Command(
        "show:plan_command", "parameters, FLOPs, memory and days of training, before it starts",
        _plan, settings=True,
    ),
    "distance": Command(
        "show:distance_command", "how far fine-tuning has moved the weights of a run, by layer", _distance
    ),
    "settings": Command("show:settings_command", "list all settings: default, meaning, allowed values", _settings),
    "data": Command("show:data_command", "list known texts; `data get NAME` downloads one", _data),
    "export": Command("convert:export_command", "write a model in another program's format", _export),
    "import": Command(
        "convert:import_command", "make a run from another program's model, or from one written by hand", _import
    ),
    "exercise": Command("exercise:exercise_command", "list, copy and check the exercises for students", _exercise),
    "leaderboard": Command(
        "exercise:leaderboard_command", "rank submissions by bits per byte on a hidden text", _leaderboard
    ),
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (MemoryError, OSError, RuntimeError) as error:
        if line := _machine_trouble(error):
            return _complain(line, 2)
        raise


def open_closed_streams() -> None:
    """A stream that the caller has closed (`>&-`) is empty, or goes nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open to the end


def escape_unknown_characters() -> None:
    """In a terminal that is not UTF-8, a character that it does not have is written as \\u2026."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="backslashreplace")


def _answer(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"chainrule {__version__}")
        return 0
    args = parse(words)
    module, _, function = COMMANDS[words[0]].where.partition(":")
    with ctrl_c_waits():
        command = getattr(import_part(f"commands.{module}"), function)
    set_quiet(args.json)
    try:
        answer = command(args)
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
        words = (word if len(word) <= WORD else f"{word[:WORD]}…" for word in line.split())
        print(f"chainrule: {' '.join(words)}", file=sys.stderr)
    return code


def _machine_trouble(error: Exception) -> str:
    """A message where the cause is the machine: memory, disk, permissions. Empty where it is a bug."""
    if out_of_memory(error):
        return "out of memory. Try a smaller model, a smaller train.tokens or a smaller text."
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return f"no space to write {error.filename or 'a file'}: {error.strerror}. Free some space and run again."
    if isinstance(error, OSError) and error.errno in NO_ENTRY:
        return f"{_shortened(str(error.filename))}: {error.strerror}."
    if str(error).startswith("Symlink loop"):              # how pathlib says it
        return f"{_shortened(str(error))}: it leads back to itself. Name the file or the folder."
    if isinstance(error, RecursionError) and _raised_in(error) & {"json", "tomllib"}:
        return "a JSON or TOML file that is read here is nested too deeply. It is damaged, or another file is meant."
    return ""


def _shortened(name: str) -> str:
    return name if len(name) <= NAME else f"{name[:NAME]}…"


def _raised_in(error: BaseException) -> set[str]:
    """The packages whose functions the error came through."""
    frames, trace = set[str](), error.__traceback__
    while trace is not None:
        frames.add(str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0])
        trace = trace.tb_next
    return frames
