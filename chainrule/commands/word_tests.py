"""`chainrule eval` of a run of word vectors: analogies, or pairs of words that people have scored."""

from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chainrule.errors import UserError
from chainrule.inference.vectors import evaluate_analogies, evaluate_similarity, vectors_of
from chainrule.run import Run
from chainrule.text.sources import find_sources
from chainrule.text.word_tests import Analogies, Similarities, read_word_test


def evaluate(run: Run, args: Namespace) -> dict[str, Any]:
    if args.settings:
        raise UserError(f"{next(iter(args.settings))} cannot be set here: a test of words is read as it is.")
    vectors, test = vectors_of(run.model, run.tokenizer), _test(args.file)
    if isinstance(test, Analogies):
        result = evaluate_analogies(vectors, test).as_dict()
    else:
        result = evaluate_similarity(vectors, test).as_dict()
    if not args.json:
        print("\n".join([f"{args.run}: {line}" for line in _lines(result)] + [result["signature"]]))
    return {"run": args.run, **result}


def _test(words: list[str]) -> Analogies | Similarities:
    with TemporaryDirectory() as spool:
        sources = [source for word in words for source in find_sources(word, Path(spool))]
        if len(sources) != 1:
            raise UserError(f"{len(sources)} files at once: vectors are tested on one at a time.")
        return read_word_test(sources[0].path)


def _lines(result: dict[str, Any]) -> list[str]:
    if result["test"] == "similarity":
        return [f"Spearman {_share(result, 'spearman')} over {result['covered']:,} of {result['pairs']:,} pairs"]
    sections = [
        f"{name or 'no section'}: {'–' if part['accuracy'] is None else format(part['accuracy'], '.1%')} "
        f"of {part['covered']:,}, with inputs "
        f"{'–' if part['accuracy_with_inputs'] is None else format(part['accuracy_with_inputs'], '.1%')}"
        for name, part in result["sections"].items()
    ]
    whole = f"accuracy {_share(result, 'accuracy')} over {result['covered']:,} of {result['questions']:,} questions"
    return [*sections, whole, f"accuracy {_share(result, 'accuracy_with_inputs')} where the inputs are answers too"]


def _share(result: dict[str, Any], name: str) -> str:
    if result[name] is None:
        return "unknown (too few words have a vector)"
    low, high = result[f"{name}_interval"]
    return f"{result[name]:.4f} ({low:.4f} to {high:.4f})"
