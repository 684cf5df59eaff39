"""`chainrule demo`: `chainrule compare` on a text of the package, with a budget of a few minutes."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from chainrule.commands.compare import run_ladder, table_and_verdicts
from chainrule.compare.budgets import Budget, Compare
from chainrule.compare.ladder import LadderPlan

TEXT = "python-docs"
KINDS = ("uniform", "unigram", "bigram", "ngram", "hmm", "feedforward", "gru", "lstm", "gpt")
MINUTES = 0.4

NEXT = """\
bits per byte: the fewer, the better a kind predicts text that it has not seen. All read the same characters, were
trained on the same documents for the same time, and evaluated on the same held-out documents. With so little time
n-gram counts are hard to beat; networks catch up when they are given more.

Open {report} in a browser to see the same as charts.

Try next:
  chainrule look {out}
  chainrule sample {out}/gpt --prompt "The " --rows 3
  echo "The quick brown fox" | chainrule score {out}/ngram
  chainrule compare YOUR.txt --minutes 2
  chainrule compare brackets --kinds bigram,ngram,hmm,lstm,gpt
  chainrule train YOUR.txt --kind gpt --minutes 10 --out runs/mine"""


def demo(args: Namespace) -> dict[str, Any]:
    budget = Budget.of(MINUTES, "cpu", Compare())
    answer = run_ladder(LadderPlan((TEXT,), budget, {kind: {} for kind in KINDS}), Path(args.out), args.overwrite)
    if not args.json and not answer.get("interrupted"):
        print(f"\n{table_and_verdicts(answer)}\n\n{NEXT.format(**answer)}")
    return answer
