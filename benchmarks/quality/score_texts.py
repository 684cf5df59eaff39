"""BLEU, chrF and ROUGE-L of texts in a file, with intervals, measured as `chainrule eval` measures them.

    python benchmarks/quality/score_texts.py TEXTS EXAMPLES... [--lowercase] [--json]

TEXTS has a line for each example, as `chainrule predict` writes them; EXAMPLES are files as `chainrule eval` takes
them: a table, JSON lines, or two parallel files. For texts that were written on a machine without sacreBLEU.
"""

import argparse
import json
from pathlib import Path

from chainrule.errors import UserError
from chainrule.inference.metrics import Overlap, measure_overlap
from chainrule.tasks.examples import held_out_examples
from chainrule.tasks.translate import TranslateText, read_translated


def score(texts: Path, files: list[str], *, lowercase: bool = False) -> Overlap:
    if not texts.is_file():
        raise UserError(f"there is no file {texts}.")
    lines = texts.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    references = [list(example.targets) for example in held_out_examples(read_translated, files, TranslateText())]
    if len(lines) != len(references):
        raise UserError(f"{texts} has {len(lines):,} lines for {len(references):,} examples; each needs one.")
    return measure_overlap(lines, references, lowercase=lowercase)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("examples", nargs="+")
    parser.add_argument("--lowercase", action="store_true", help="BLEU and chrF of lower-cased texts")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        found = score(given.texts, given.examples, lowercase=given.lowercase)
    except UserError as error:
        parser.error(str(error))
    if given.json:
        print(json.dumps(found.as_dict()))
        return
    for name, value in (("BLEU", found.bleu), ("chrF", found.chrf), ("ROUGE-L", found.rouge_l)):
        print(f"{name} {value.value:.2f} ({value.low:.2f}–{value.high:.2f})")
    print(found.signature)


if __name__ == "__main__":
    main()
