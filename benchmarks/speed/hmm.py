"""Baum–Welch and Viterbi beside hmmlearn (`scaling`), in one run, from one random start, on one text.

    python benchmarks/speed/hmm.py [TEXT] [--states 8 64 256] [--rows 2048] [--one-core] [--device cuda] [--json]

TEXT (default: tinyshakespeare in $CHAINRULE_DATA) is lower-cased, all but a–z made one space, and repeated or cut to
rows of 512 symbols. hmmlearn reads fewer rows where it is slow; its time is scaled up in proportion, and that is said.
Both sides take the best of several runs, by turns. Viterbi is timed at the random start and again after ten rounds.
On a machine that is busy with other things use --one-core: one thread, and its CPU time rather than the clock's.
Without hmmlearn only this side is measured. With --device cuda ours runs there, hmmlearn on one core of the host.
"""

import argparse
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.model import Batch
from chainrule.models.hmm.hmm import HMM, HMMSettings

try:
    from hmmlearn.hmm import CategoricalHMM
except ImportError:
    CategoricalHMM = None

LENGTH = 512
PATIENCE = 2.5e8    # states² · symbols that hmmlearn is given at once: a second or two


def symbols(path: Path, rows: int) -> Tensor:
    """(rows, 512) of 1 … 27; 0 is the boundary, which does not occur here."""
    text = re.sub("[^a-z]+", " ", path.read_text(encoding="utf-8").lower())
    text = (text * (1 + rows * LENGTH // len(text)))[: rows * LENGTH]
    codes = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    return torch.from_numpy(np.where(codes == ord(" "), 1, codes - ord("a") + 2)).view(rows, LENGTH)


def made(states: int) -> HMM:
    model = HMM(HMMSettings(states), vocab=28)
    model.forget(torch.Generator().manual_seed(1))
    model.emission[:, 0] = 0
    model.emission /= model.emission.sum(1, keepdim=True)
    return model


def copied(model: HMM) -> Any:
    theirs = CategoricalHMM(len(model.initial), n_features=27, n_iter=1, init_params="", implementation="scaling")
    initial, transition, emission = (table.cpu().numpy().copy()
                                     for table in (model.initial, model.transition, model.emission[:, 1:]))
    theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = initial, transition, emission
    return theirs


def seconds(action: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - began


def by_turns(ours: Callable[[], Any], theirs: Callable[[], Any], turns: int) -> tuple[float, float]:
    clock = time.perf_counter if torch.get_num_threads() > 1 else time.process_time
    times = [(seconds(ours, clock), seconds(theirs, clock) if CategoricalHMM else math.nan) for _ in range(turns)]
    return min(mine for mine, _ in times), min(yours for _, yours in times)


def measure(states: int, rows: Tensor, turns: int) -> dict[str, Any]:
    model = made(states).to(rows.device)
    start = {name: table.clone() for name, table in model.state_dict().items()}
    few = rows[: max(1, min(len(rows), int(PATIENCE / states**2 / LENGTH)))]
    flat, lengths = few.reshape(-1, 1).cpu().numpy() - 1, [LENGTH] * len(few)
    batch = Batch(torch.cat([torch.zeros_like(rows[:, :1]), rows[:, :-1]], 1), rows)
    share = len(rows) / len(few)

    def one_round() -> None:
        model.update(model.collect(batch))

    learn, learn_theirs = by_turns(one_round, lambda: copied(model).fit(flat, lengths), turns)
    for _ in range(10 - turns):
        one_round()
    learned, learned_theirs = by_turns(lambda: model.viterbi(rows), lambda: copied(model).predict(flat, lengths), turns)
    model.load_state_dict(start)
    found, found_theirs = by_turns(lambda: model.viterbi(rows), lambda: copied(model).predict(flat, lengths), turns)
    return {
        "states": states, "symbols": rows.numel(), "hmmlearn_symbols": few.numel(),
        "em_seconds": learn, "em_seconds_hmmlearn": learn_theirs * share,
        "viterbi_per_second": rows.numel() / found, "viterbi_per_second_hmmlearn": few.numel() / found_theirs,
        "viterbi_learned_per_second": rows.numel() / learned,
        "viterbi_learned_per_second_hmmlearn": few.numel() / learned_theirs,
    }


def row(name: str, ours: float, theirs: float, ratio: float, note: str) -> str:
    return f"{name:<46}{ours:>14,.3g}{theirs:>14,.3g}{ratio:>9.1f}x   {note}"


def table(result: dict[str, Any]) -> list[str]:
    states, note = result["states"], f"hmmlearn on {result['hmmlearn_symbols']:,} symbols"
    ours, theirs = result["em_seconds"], result["em_seconds_hmmlearn"]
    lines = [row(f"{states} states, seconds a round of Baum–Welch", ours, theirs, theirs / ours, note)]
    for key, when in ("viterbi", "random start"), ("viterbi_learned", "after 10 rounds"):
        ours, theirs = result[f"{key}_per_second"], result[f"{key}_per_second_hmmlearn"]
        lines.append(row(f"{states} states, Viterbi symbols/s, {when}", ours, theirs, ours / theirs, note))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("CHAINRULE_DATA", "data")) / "tinyshakespeare" / "input.txt"
    parser.add_argument("text", nargs="?", type=Path, default=default)
    parser.add_argument("--states", nargs="+", type=int, default=[8, 64, 256])
    parser.add_argument("--rows", type=int, default=2048, help="rows of 512 symbols")
    parser.add_argument("--turns", type=int, default=4, help="runs of each side, of which the best counts")
    parser.add_argument("--one-core", action="store_true", help="one thread, by its CPU time")
    parser.add_argument("--device", default="cpu", help="where ours runs")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    arguments = parser.parse_args()
    logging.getLogger("hmmlearn").setLevel(logging.ERROR)     # it warns of few symbols for so many states
    rows = symbols(arguments.text, arguments.rows).to(arguments.device)
    if arguments.one_core:
        torch.set_num_threads(1)
    if not arguments.json:
        print(f"{rows.numel():,} symbols, threads: {torch.get_num_threads()}")
        print(f"{'':<46}{'chainrule':>14}{'hmmlearn':>14}{'ratio':>10}")
    for states in arguments.states:
        result = measure(states, rows, arguments.turns)
        print(json.dumps(result) if arguments.json else "\n".join(table(result)), flush=True)


if __name__ == "__main__":
    main()
