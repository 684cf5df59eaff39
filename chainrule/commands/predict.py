"""`chainrule predict` and the measuring of tasks: a run that labels or translates answers."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from chainrule.commands.reading import reading
from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.inference.beam import Beam, ScoredText
from chainrule.inference.evaluate import DIVERGED, why_no_answer
from chainrule.inference.mbr import MinimumBayesRisk
from chainrule.inference.metrics import measure_overlap
from chainrule.inference.predict import IMPOSSIBLE, How, first_texts, label, measure_labels, tag, write
from chainrule.inference.sampling import Sampling
from chainrule.run import Run, load
from chainrule.tasks.corpus_of_examples import ExampleSplit, make_split
from chainrule.tasks.examples import Example, Translated
from chainrule.tasks.registry import EXAMPLES, encoding
from chainrule.tasks.splits_of_examples import held_out_examples, plain_examples, rows_to_answer
from chainrule.text.sources import Source
from chainrule.text.tables import format_of
from chainrule.text.tokenizers.tokenizer import Tokenizer


def predict(args: Namespace) -> dict[str, Any]:
    run = load(args.run, choose_device(args.device))
    if run.recipe.task not in EXAMPLES:
        use = "sample RUN` lets it write" if run.recipe.task == "lm" else "train … --from RUN` goes on from it"
        raise UserError(f"{args.run} was trained for {run.recipe.task}, which has nothing to predict. "
                        f"`chainrule {use.replace('RUN', args.run)}.")
    examples = examples_in(args.file, run.recipe.task, reading(run, args))
    answers = answers_to(run, examples, how_to_write(args))
    if not args.json:
        for answer in answers:
            print(" ".join(answer["answer"].splitlines()))
    return {"run": args.run, "answers": answers}


def how_to_write(args: Namespace) -> How:
    if args.samples is None:
        return Beam(args.beam, args.alpha, limit=args.limit)
    return MinimumBayesRisk(args.samples, Sampling(args.temperature), args.limit)


def examples_in(file: str, task: str, text: Any) -> Sequence[Example]:
    """The rows of a table, as in training; of any other file, lines."""
    if task == "caption":
        return held_out_examples("caption", [file], text)
    if task in ("classify", "translate") and format_of(Path(file)) and Path(file).exists():
        return rows_to_answer(task, Source(Path(file)), text)
    return plain_examples(task, lines_of(file), file)


def lines_of(file: str) -> Iterator[str]:
    if file == "-":
        yield from sys.stdin
        return
    try:
        with Path(file).open(encoding="utf-8") as lines:
            yield from lines
    except FileNotFoundError:
        raise UserError(f"there is no file {file}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8: {error.reason} at byte {error.start}.") from error


def answers_to(run: Run, examples: Sequence[Example], how: How) -> list[dict[str, Any]]:
    """The answer to each example, with how sure the model is."""
    if not examples:
        raise UserError("there is nothing to answer: no line came.")
    encoded: Any = encoding(run.recipe, run.tokenizer, run.labels)(examples)
    if run.recipe.task == "classify":
        rows = label(run.model, encoded)
        if not np.isfinite(rows).all():
            raise UserError(f"{why_no_answer(run.model, IMPOSSIBLE)}.")
        return [
            {"answer": run.labels[int(row.argmax())], "probabilities": dict(zip(run.labels, row.tolist()))}
            for row in rows
        ]
    if run.recipe.task == "tag":
        return [
            {"answer": " ".join(run.labels[number] for number in told), "words": list(words)}
            for words, told in zip(encoded.words, tag(run.model, encoded))
        ]
    return [{"answer": text, "score": score} for (text, score), *_ in texts_for(run, encoded, how)]


def texts_for(run: Run, encoded: Any, how: How) -> list[list[ScoredText]]:
    """Those for each source, the best first. Where numbers are finite there is one, if only that of no tokens."""
    written = write(run.model, encoded, run.tokenizer, how)
    if not all(written):
        raise UserError(f"{DIVERGED}.")
    return written


def measure(run: Run, files: Sequence[str], text: Any, how: How) -> dict[str, Any]:
    """The task's metrics on held-out examples, which are read as `text` says."""
    examples = held_out_examples(run.recipe.task, files, text)
    split = make_split(examples, encoding(run.recipe, run.tokenizer, run.labels))
    if run.labels:
        return measure_labels(run.model, split, run.labels, Vocabulary(run.tokenizer))
    return measure_texts(run, split, how)


def measure_texts(run: Run, split: ExampleSplit, how: How) -> dict[str, Any]:
    told = first_texts(texts_for(run, split.encoded, how))
    wanted = [list(example.targets) for example in cast(Sequence[Translated], split.examples)]
    return measure_overlap(told, wanted).as_dict() | how.as_dict()


class Vocabulary:
    """The words that a tokenizer has a token for; of one that cuts words up, no word is known to be so."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def __contains__(self, word: object) -> bool:
        return self.tokenizer.lines and self.tokenizer.id(str(word)) is not None
