"""Hugging Face folders: the largest difference between transformers' log-probabilities and ours, for each setting.

    python benchmarks/agreement/exchange_agrees.py

Tiny models with random weights, one for each architecture and setting that can be exported, are written as folders and
opened by transformers. The cases are those of the tests (tests/formats/test_hugging_face_export.py and
test_hugging_face_heads.py); of classes and tags it is the difference for a batch of texts of different lengths, with
padding. Each case is a JSON line; the last lines are a Markdown table of the largest differences by architecture.
"""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.formats import test_hugging_face_export as decoders
from tests.formats import test_hugging_face_heads as heads

CASES = {**dict.fromkeys([*decoders.CASES, *decoders.VARIANTS], decoders.difference),
         **dict.fromkeys(heads.CASES, heads.difference)}  # fmt: skip


def main() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    largest: dict[str, tuple[int, float]] = {}
    for case, measure in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            found = measure(case, Path(folder))
        architecture, _, setting = case.partition(" ")
        print(json.dumps({"architecture": architecture, "setting": setting or "own", "difference": found}), flush=True)
        count, most = largest.get(architecture, (0, 0.0))
        largest[architecture] = count + 1, max(most, found)
    print("\n| architecture | settings | largest difference |\n|---|---|---|")
    for architecture, (count, most) in largest.items():
        print(f"| `{architecture}` | {count} | {most:.1e} |")


if __name__ == "__main__":
    main()
