"""n-grams beside KenLM, in one run: learning, scoring, all next words. Same text, same machine, same order.

    KENLM_BIN=/folder/with/lmplz python benchmarks/speed/ngram.py TRAIN TEST [--order 5] [--device cpu] [--one-core]

Learning is timed from a text file to a model that has answered its first question: here after the imports, in a process
of its own; for KenLM `lmplz` then `build_binary` (probing), which its fast queries need. Scoring is from sentences as
strings to a number each: `kenlm.Model.score` in a loop beside `score_sentences`. <unk> in the text is an ordinary
word for both. Each figure is the best of several, the two sides by turns. Without KENLM_BIN only this side is measured.
On a machine that is busy with other things use --one-core: one thread, and its CPU time rather than the clock's; for
`lmplz` and `build_binary` the CPU time of all their threads.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Setup:
    order: int
    device: str
    one_core: bool      # one thread, and its CPU time
    turns: int          # of learning; the best counts

    def clock(self) -> float:
        return time.process_time() if self.one_core else time.perf_counter()

    def arguments(self) -> list[str]:
        return ["--order", str(self.order), "--device", self.device, *["--one-core"] * self.one_core]


def learn(train: Path, setup: Setup, cache: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Text → tokens on disk → counts → tables → the first answer."""
    from chainrule.inference.score import total_scores
    from chainrule.models import build, model_class
    from chainrule.recipe import make_recipe
    from chainrule.text.corpus import prepare
    from chainrule.training.log import Log
    from chainrule.training.pipeline import train_model

    recipe = make_recipe("ngram", model_class("ngram"), {"model.order": setup.order, "text.min_count": 1})
    (cache / "valid.txt").write_text("a line\n")
    began = setup.clock()
    corpus = prepare([str(train)], recipe.text, valid=[str(cache / "valid.txt")], cache=cache)
    read = setup.clock()
    model = build("ngram", recipe.model, len(corpus.tokenizer)).to(setup.device)
    train_model(model, corpus, recipe, Log())
    total_scores(model, [corpus.tokenizer.encode("the first question that it is asked")] * 100)
    seconds = setup.clock() - began
    grams = sum(len(buffer) for name, buffer in model.named_buffers() if name.startswith("log_prob"))
    return model, corpus.tokenizer, {"seconds": seconds, "reading": read - began, "grams": grams}


def learn_alone(train: Path, setup: Setup) -> dict[str, Any]:
    _, megabytes, out = process([sys.executable, __file__, str(train), "-", "--learn-only", *setup.arguments()], setup)
    return json.loads(out.splitlines()[-1]) | {"megabytes": megabytes}


def learn_kenlm(folder: Path, train: Path, setup: Setup, work: Path) -> dict[str, Any]:
    arpa, binary = work / "m.arpa", work / "m.bin"
    command = [str(folder / "lmplz"), "-o", str(setup.order), "--discount_fallback", "-S", "1G", "-T", str(work)]
    with train.open() as text, arpa.open("w") as out:
        counting, megabytes, _ = process(command, setup, stdin=text, stdout=out)
    building, more, _ = process([str(folder / "build_binary"), "probing", str(arpa), str(binary)], setup)
    return {"seconds": counting + building, "lmplz": counting, "megabytes": max(megabytes, more)}


def process(command: list[str], setup: Setup, **files: Any) -> tuple[float, float, str]:
    """Seconds, peak MB, and what it printed."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        child = subprocess.Popen(command, **({"stdout": out, "stderr": errors} | files))
        _, status, usage = os.wait4(child.pid, 0)
        seconds = usage.ru_utime + usage.ru_stime if setup.one_core else time.perf_counter() - began
        child.returncode = status
        errors.seek(0)
        if status:
            raise SystemExit(f"{' '.join(command)} failed:\n{errors.read()[-2000:]}")
        out.seek(0)
        return seconds, usage.ru_maxrss / 1024, out.read()


def best(setup: Setup, *ways: Callable[[], Any], turns: int) -> list[float]:
    """The shortest time of each way, measured by turns so that a noisy moment hits all alike."""
    times = [math.inf] * len(ways)
    for _ in range(turns):
        for number, way in enumerate(ways):
            began = setup.clock()
            way()
            times[number] = min(times[number], setup.clock() - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one-core", action="store_true", help="one thread, by its CPU time")
    parser.add_argument("--turns", type=int, default=3, help="how often each side learns; the best counts")
    parser.add_argument("--learn-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    import torch

    from chainrule.progress import set_quiet

    set_quiet(True)
    if args.one_core:
        torch.set_num_threads(1)
    setup = Setup(args.order, args.device, args.one_core, args.turns)
    with tempfile.TemporaryDirectory() as name:
        if args.learn_only:
            print(json.dumps(learn(args.train, setup, Path(name))[2]))
            return
        train, test = as_ordinary_words(args.train, Path(name)), as_ordinary_words(Path(args.test), Path(name))
        compare(train, test, setup, Path(name))


def as_ordinary_words(path: Path, work: Path) -> Path:
    copy = work / path.name
    copy.write_text(path.read_text().replace("<unk>", "UNKNOWN"))
    return copy


def compare(train: Path, test: Path, setup: Setup, work: Path) -> None:
    folder = Path(os.environ["KENLM_BIN"]) if "KENLM_BIN" in os.environ else None
    print(f"{train.name}, {train.stat().st_size / 1e6:.1f} MB, order {setup.order}, {setup.device}"
          f"{', CPU seconds of one thread' * setup.one_core}")
    ours, theirs = [], []
    for _ in range(setup.turns):
        ours.append(learn_alone(train, setup))
        if folder:
            theirs.append(learn_kenlm(folder, train, setup, work))
    mine = min(ours, key=lambda one: one["seconds"])
    line("learn, s", mine["seconds"], min((one["seconds"] for one in theirs), default=None))
    line("  of which reading, s / lmplz, s", mine["reading"], min((one["lmplz"] for one in theirs), default=None))
    line("  peak memory, MB", mine["megabytes"], min((one["megabytes"] for one in theirs), default=None))
    query(train, test, setup, work, bool(folder))


def query(train: Path, test: Path, setup: Setup, work: Path, judge: bool) -> None:
    import numpy as np
    import torch

    from chainrule.inference.score import score_sentences, score_stream

    model, tokenizer, _ = learn(train, setup, work)
    sentences = test.read_text().splitlines()
    words = sum(len(sentence.split()) + 1 for sentence in sentences)
    stream = np.concatenate([[0], tokenizer.encode("\n".join(sentences)), [0]])
    ways = [lambda: score_sentences(model, tokenizer, sentences), lambda: score_stream(model, stream)]
    totals = score_sentences(model, tokenizer, sentences)
    history = torch.from_numpy(stream[:1000].astype(np.int64)).to(setup.device)[:, None]
    (step,) = best(setup, lambda: [model.step(token[None], model.start(1)) for token in history[:200]], turns=10)
    if not judge:
        strings, tokens = best(setup, *ways, turns=20)
        scored = word_by_word = perplexity = None
    else:
        import kenlm

        other = kenlm.Model(str(work / "m.bin"))
        strings, tokens, scored = best(setup, *ways, lambda: [*map(other.score, sentences)], turns=20)
        names = [tokenizer.token(id) for id in range(1, len(tokenizer))]
        start, out = kenlm.State(), kenlm.State()
        other.BeginSentenceWrite(start)
        (word_by_word,) = best(setup, lambda: [other.BaseScore(start, name, out) for name in names], turns=10)
        perplexity = 10 ** (-sum(other.score(sentence) for sentence in sentences) / words)
    line("test perplexity", float(np.exp(totals.sum() / words)), perplexity)
    line("score sentences, M words/s", words / strings / 1e6, scored and words / scored / 1e6, higher=True)
    line("score tokens, M words/s", words / tokens / 1e6, scored and words / scored / 1e6, higher=True)
    line("all next words, ms", step / 200 * 1e3, word_by_word and word_by_word * 1e3)


def line(what: str, here: float, there: float | None, higher: bool = False) -> None:
    ratio = "" if there is None else f"{(here / there if higher else there / here):8.2f}x"
    print(f"{what:36}{here:12.4f}{'' if there is None else f'{there:12.4f}'}{ratio}", flush=True)


if __name__ == "__main__":
    main()
