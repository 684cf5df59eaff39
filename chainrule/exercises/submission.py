"""A submission to the leaderboard in its own process: trained within the minutes, then evaluated on the hidden text.

    python -m chainrule.exercises.submission train FILE TEXT MINUTES OUT         writes OUT/model.pt
    python -m chainrule.exercises.submission evaluate FILE|RUN HIDDEN OUT        writes OUT/result.json, OUT/bits.npz

Training and evaluation are two processes, so that the code of a submission cannot find the hidden text while it trains.
The probabilities are the softmax of the logits of `step`, whatever `score` returns, so that they sum to one; and on the
hidden text itself the logits must be the same when the text is read token by token, so that no model sees the future.
What goes wrong is one line, the `problem` in OUT/result.json.
"""

import importlib.util
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:                    # torch is imported late: a submission that fails early costs little
    from chainrule.model import LanguageModel
    from chainrule.text.corpus import Split
    from chainrule.text.tokenizers.tokenizer import Tokenizer

MODEL, TOKENIZER, RESULT, BITS = "model.pt", "tokenizer.json", "result.json", "bits.npz"
GRACE = 0.1            # fraction of the minutes by which training may be late, and
GRACE_SECONDS = 5.0    # seconds in addition
READ = 40              # tokens of the hidden text that are read one by one, at each of
PLACES = 3             # so many places
LARGEST = 512          # vocabulary up to which the probabilities of all continuations are summed
TOLERANCE = 1e-3       # of logits


class Refusal(Exception):
    """Why a submission is not ranked, in one line."""


def main(words: Sequence[str]) -> int:
    stage, *rest = words
    out = Path(rest[-1])
    try:
        if stage == "train":
            train_stage(Path(rest[0]), rest[1], float(rest[2]), out)
        else:
            evaluate_stage(Path(rest[0]), rest[1], out)
    except (Exception, SystemExit) as error:
        write_result(out, {"problem": one_line(error, Path(rest[0]))})
        return 1
    return 0


def train_stage(file: Path, text: str, minutes: float, out: Path) -> None:
    """Calls `train(text, minutes)` of a Python file, and saves the model that it returns."""
    train = getattr(load_file(file), "train", None)
    if not callable(train):
        raise Refusal("has no function train(text_path, minutes)")
    limit = seconds_allowed(minutes)
    began = time.perf_counter()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)        # ends the process, wherever it is
    signal.setitimer(signal.ITIMER_REAL, limit)
    trained = train(text, minutes)
    seconds = time.perf_counter() - began
    signal.setitimer(signal.ITIMER_REAL, 0)
    if seconds > limit:
        raise Refusal(too_late(minutes))
    save_trained(trained, out)
    write_result(out, {"train_seconds": round(seconds, 2)})


def seconds_allowed(minutes: float) -> float:
    return minutes * 60 * (1 + GRACE) + GRACE_SECONDS


def too_late(minutes: float) -> str:
    return f"train had not returned after the {minutes:g} minutes, {GRACE:.0%} and {GRACE_SECONDS:g} seconds more"


def save_trained(trained: Any, out: Path) -> None:
    """A language model, a pair of model and tokenizer, or a Run."""
    import torch

    from chainrule.run import Run

    model, tokenizer = trained, None
    if isinstance(trained, Run):
        model, tokenizer = trained.language_model, trained.tokenizer
    elif isinstance(trained, tuple) and len(trained) == 2:
        model, tokenizer = trained
    require_language_model(model)
    if tokenizer is not None:
        tokenizer.save(out / TOKENIZER)
    try:
        torch.save(model.cpu(), out / MODEL)
    except Exception as error:
        raise Refusal(f"the model cannot be saved by torch.save: {error}") from error


def require_language_model(model: Any) -> None:
    from chainrule.model import LanguageModel

    if not isinstance(model, LanguageModel):
        raise Refusal(f"train returned a {type(model).__name__}, not a chainrule.model.LanguageModel (over bytes, or "
                      "with its tokenizer as a pair), nor a Run")


def evaluate_stage(submission: Path, hidden: str, out: Path) -> None:
    """The result on the hidden text, and the bits of each token, of a run or of what `train_stage` saved."""
    import numpy as np

    from chainrule.inference.statistics import score_split
    from chainrule.recipe import Text
    from chainrule.text.corpus import read_split

    model, tokenizer = load_trained(submission, out)
    model.eval()
    require_laws(model, tokenizer)
    with tempfile.TemporaryDirectory() as cache:
        split = read_split([hidden], Text(), tokenizer, Path(cache))
        require_causal(model, split)
        scored = score_split(by_steps(model), tokenizer, split)
    result = scored.result.as_dict()
    if result["bits_per_byte"] is None:
        raise Refusal(result["why"])
    np.savez_compressed(out / BITS, nats=scored.nats, ends=scored.ends)
    write_result(out, result)


def load_trained(submission: Path, out: Path) -> tuple["LanguageModel", "Tokenizer"]:
    from chainrule.run import load

    if submission.is_dir():
        run = load(submission)
        return run.language_model, run.tokenizer
    import torch

    from chainrule.text.tokenizers.bytes import ByteLevel
    from chainrule.text.tokenizers.tokenizer import Tokenizer

    load_file(submission)
    model = torch.load(out / MODEL, weights_only=False)
    kept = out / TOKENIZER
    return model, Tokenizer.load(kept) if kept.exists() else Tokenizer.from_spec(ByteLevel.spec())


def require_laws(model: "LanguageModel", tokenizer: "Tokenizer") -> None:
    """The laws on which the figure rests: the future is not seen, rows do not mix, probabilities sum to one."""
    import torch

    from chainrule import testing
    from chainrule.inference.forward import vocabulary_size

    vocab = vocabulary_size(model)
    if vocab != len(tokenizer):
        raise Refusal(f"the model has {vocab} logits, and its tokenizer ({tokenizer.unit}) {len(tokenizer)} tokens")
    with torch.inference_mode():
        tokens = testing.some_tokens(model, 2, testing.CONTEXT // 2)
        if model.step(tokens, model.start(2))[0].isnan().any():
            raise Refusal("the model gives numbers that are not finite: it diverged")
    laws: list[Callable[[LanguageModel], None]] = [
        testing.check_future_is_not_seen, testing.check_chunks_do_not_matter, testing.check_rows_are_independent,
        testing.check_scores_agree_with_steps,
    ]
    laws += [testing.check_probabilities_sum_to_one] if vocab <= LARGEST else []
    try:
        testing.check_language_model(model, laws=laws)
    except testing.ContractError as error:
        broken = [line for line in str(error).splitlines() if line.startswith("check_")]
        raise Refusal(f"breaks a law of the protocol: {broken[0] if broken else error}") from error


def by_steps(model: "LanguageModel") -> "LanguageModel":
    """The same model, whose probabilities are the softmax of its logits."""
    from chainrule.model import LanguageModel

    class BySteps(LanguageModel):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.context, self.receptive_field = model, model.context, model.receptive_field
            self.resets_at_boundary = model.resets_at_boundary

        def start(self, rows: int, source: Any = None, lengths: Any = None) -> Any:
            return self.model.start(rows, source, lengths)

        def step(self, tokens: Any, state: Any) -> Any:
            return self.model.step(tokens, state)

    return BySteps()


def require_causal(model: "LanguageModel", split: "Split") -> None:
    """Some of the hidden text, read at once and token by token: the logits must agree."""
    import torch

    from chainrule.inference.forward import on_device

    read = min(READ, model.context or READ)
    with torch.inference_mode():
        for place in range(PLACES):
            begin = place * max(0, len(split.tokens) - read) // PLACES
            tokens = on_device(model, split.tokens[None, begin : begin + read])
            whole, _ = model.step(tokens, model.start(1))
            state, pieces = model.start(1), []
            for column in torch.split(tokens, 1, 1):
                logits, state = model.step(column, state)
                pieces.append(logits)
            if not torch.allclose(torch.cat(pieces, 1), whole, atol=TOLERANCE, rtol=TOLERANCE, equal_nan=True):
                raise Refusal("breaks a law of the protocol: read token by token, the hidden text has other logits "
                              "than read at once")


def load_file(file: Path) -> ModuleType:
    """A Python file as the module `submission`, by which name its classes are saved and loaded."""
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location("submission", file)
    if spec is None or spec.loader is None:
        raise Refusal("is not a Python file")
    module = sys.modules["submission"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one_line(error: BaseException, file: Path) -> str:
    """What went wrong, and the last line of the submission where it did."""
    if isinstance(error, Refusal):
        return " ".join(str(error).split())
    import traceback

    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    place = f" ({file.name} line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{place}"


def write_result(out: Path, result: dict[str, Any]) -> None:
    (out / RESULT).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
