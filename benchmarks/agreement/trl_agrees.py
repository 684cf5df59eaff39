"""TRL: how far loss and gradient of each method are from TRL's, on the same tiny weights and the same rows.

    python benchmarks/agreement/trl_agrees.py

The cases are those of the tests (tests/preferences/losses/test_trl.py): a Llama of two layers with random weights is
written as a Hugging Face folder, a TRL trainer computes the loss of a batch and its gradient, and so does the task of
chainrule. Both are in float32. Each case is a JSON line: the difference of the loss (relative to it where it is above
1), that of the gradient (relative to its norm), and the largest of any element of it. The last lines are a Markdown
table.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(1, str(Path(__file__).parents[2] / "tests"))

from tests.preferences.losses import test_trl as cases


def main() -> None:
    warnings.simplefilter("ignore")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        runs = cases.make_runs(Path(folder))
        for case, compute in cases.CASES.items():
            ours, judged = compute(runs)
            loss, gradient = cases.differences(ours, judged)
            element = max(float((ours[1][name] - judged[1][name]).abs().max()) for name in judged[1])
            found = {"case": case, "loss": judged[0], "difference": loss, "gradient": gradient, "element": element}
            print(json.dumps(found), flush=True)
            rows.append(f"| {case} | {judged[0]:.4f} | {loss:.0e} | {gradient:.0e} | {element:.0e} |")
    print("\n| case | loss | difference | of the gradient | largest element |\n|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
