"""`chainrule demo`: `chainrule compare` on an embedded text, with so little time that it is over in a few minutes."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from chainrule.commands.compare import run_ladder, summary
from chainrule.compare.budgets import Budget, Compare
from chainrule.compare.ladder import Asked

TEXT = "python-docs"
KINDS = ("uniform", "unigram", "bigram", "ngram", "hmm", "feedforward", "gru", "lstm", "gpt")
MINUTES = 0.4

NEXT = """\
bits per byte: the fewer, the better a kind foretells text that it has not seen. All read the same characters, learned
from the same documents for the same time, and were measured on the same held-out documents. With so little time
counting is hard to beat; networks catch up when they are given more.

Open {report} in a browser: the same, drawn.

Try next:
  chainrule look {out}
  chainrule sample {out}/gpt --prompt "The " --rows 3
  echo "The quick brown fox" | chainrule score {out}/ngram
  chainrule compare YOUR.txt --minutes 2
  chainrule compare brackets --kinds bigram,ngram,hmm,lstm,gpt
  chainrule train YOUR.txt --kind gpt --minutes 10 --out runs/mine"""


def demo(args: Namespace) -> dict[str, Any]:
    budget = Budget.of(MINUTES, "cpu", Compare())
    answer = run_ladder(Asked((TEXT,), budget, {kind: {} for kind in KINDS}), Path(args.out), args.overwrite)
    if not args.json and not answer.get("interrupted"):
        print(f"\n{summary(answer)}\n\n{NEXT.format(**answer)}")
    return answer
