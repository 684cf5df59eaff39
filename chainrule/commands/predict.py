"""`chainrule predict` and the measuring of tasks: a run that labels or translates answers."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.run import Run, load
from chainrule.tasks import EXAMPLES, encoding
from chainrule.text.example_corpus import ExampleSplit, make_split
from chainrule.text.examples import Example, Tagged, Translated
from chainrule.text.tasks import held_out_examples, plain_examples
from chainrule.text.tokenizer import Tokenizer
from chainrule.use.answers import first_texts, label, tag, write
from chainrule.use.beam import Beam
from chainrule.use.labels import measure_labels
from chainrule.use.overlap import measure_overlap


def predict(args: Namespace) -> dict[str, Any]:
    run = load(args.run, choose_device(args.device))
    if run.recipe.task not in EXAMPLES:
        raise UserError(f"{args.run} was trained for {run.recipe.task}, which has nothing to predict. "
                        f"`chainrule sample {args.run}` lets it write.")
    if run.recipe.task == "caption":
        examples = held_out_examples("caption", [args.file], run.recipe.text)
    else:
        examples = plain_examples(run.recipe.task, lines_of(args.file), args.file)
    answers = answers_to(run, examples, Beam(args.beam, args.alpha, best=1))
    if not args.json:
        for answer in answers:
            print(answer["answer"])
    return {"run": args.run, "answers": answers}


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


def answers_to(run: Run, examples: Sequence[Example], beam: Beam) -> list[dict[str, Any]]:
    """The answer to each example, with how sure the model is."""
    if not examples:
        raise UserError("there is nothing to answer: no line came.")
    encoded: Any = encoding(run.recipe, run.tokenizer, run.labels)(examples)
    if run.recipe.task == "classify":
        return [
            {"answer": run.labels[int(row.argmax())], "probabilities": dict(zip(run.labels, row.tolist()))}
            for row in label(run.model, encoded)
        ]
    if run.recipe.task == "tag":
        pairs = zip(cast(Sequence[Tagged], examples), tag(run.model, encoded))
        return [
            {"answer": " ".join(run.labels[number] for number in told), "words": list(example.words)}
            for example, told in pairs
        ]
    written = write(run.model, encoded, run.tokenizer, beam)
    return [{"answer": texts[0][0] if texts else "", "score": texts[0][1] if texts else None} for texts in written]


def measure(run: Run, files: Sequence[str], beam: Beam) -> dict[str, Any]:
    """The task's metrics on held-out examples."""
    examples = held_out_examples(run.recipe.task, files, run.recipe.text)
    split = make_split(examples, encoding(run.recipe, run.tokenizer, run.labels))
    if run.labels:
        return measure_labels(run.model, split, run.labels, Vocabulary(run.tokenizer))
    return measure_texts(run, split, beam)


def measure_texts(run: Run, split: ExampleSplit, beam: Beam) -> dict[str, Any]:
    told = first_texts(write(run.model, split.encoded, run.tokenizer, beam))
    wanted = [list(example.targets) for example in cast(Sequence[Translated], split.examples)]
    return measure_overlap(told, wanted).as_dict() | {"beam": beam.width, "alpha": beam.alpha}


class Vocabulary:
    """The words that a tokenizer has a token for; of one that cuts words up, no word is known to be so."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def __contains__(self, word: object) -> bool:
        return self.tokenizer.lines and self.tokenizer.id(str(word)) is not None
