"""The reference of preference tuning: log p of every answer under a model that stays as it is, computed once.

It is the run that tuning starts from, or any language model with the same tokenizer (train.reference): an n-gram, an
HMM, another network. Dropout is off, and the precision is that of training.

Shapes: N examples, B rows.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule import run
from chainrule.device import choose_precision
from chainrule.errors import UserError
from chainrule.inference.forward import device_of, eval_mode
from chainrule.model import LanguageModel
from chainrule.preferences.encoding import EncodedAnswers
from chainrule.preferences.log_probs import answer_sums
from chainrule.recipe import Recipe
from chainrule.run import Run
from chainrule.tasks.example_task import ExampleSplit, evaluation_batches
from chainrule.text.tokenizers.tokenizer import Tokenizer

Scores = NDArray[np.float64]


@torch.inference_mode()
def score_answers(
    model: LanguageModel, encoded: EncodedAnswers, precision: str = "float32", title: str = "scoring answers"
) -> tuple[Scores, Scores]:
    """(N, 2) log p of both answers of each example, and (N, 2) the number of their tokens."""
    log_probs, tokens = np.zeros((len(encoded), 2)), np.zeros((len(encoded), 2))
    with eval_mode(model), choose_precision(precision, device_of(model))():
        for ids, batch in evaluation_batches(model, encoded, title):  # type: ignore[arg-type]
            sums, counts = answer_sums(model, batch.joined())  # type: ignore[attr-defined]
            log_probs[ids] = sums.view(2, -1).T.double().cpu().numpy()
            tokens[ids] = counts.view(2, -1).T.cpu().numpy()
    return log_probs, tokens


def reference_log_probs(model: LanguageModel, split: ExampleSplit, precision: str) -> NDArray[np.float32]:
    """(N, 2) log p of both answers of each example."""
    sizes, context = split.encoded.sizes[0], getattr(model, "context", None)
    if context is not None and sizes.max() > context:
        worst = int(sizes.argmax())
        raise UserError(f"{split.examples[worst].place} has {sizes[worst]} tokens, and the reference holds {context}. "
                        "Remove it, or take another train.reference.")
    log_probs, _ = score_answers(model, split.encoded, precision, "reference")
    if not np.isfinite(log_probs).all():
        worst = int(np.flatnonzero(~np.isfinite(log_probs).all(1))[0])
        raise UserError(f"{split.examples[worst].place}: the reference gives an answer probability 0, and a ratio to "
                        "it is not finite. Take a smoothed model as train.reference.")
    return log_probs.astype(np.float32)


def load_reference(recipe: Recipe, tokenizer: Tokenizer, near: Path | None = None) -> Run:
    """The run of train.reference, or the one that was tuned; `near`: the tuned run, beside which its base may be."""
    if recipe.train.reference is None:
        base = recipe.base
        return run.load(run.find_base(base, near or Path(base.path if base else "")))
    made = run.load(recipe.train.reference)
    made.language_model.start(1)                            # refuses one that reads a source, or both ways
    if made.tokenizer.sha256 != tokenizer.sha256:
        raise UserError(f"train.reference={recipe.train.reference} has another tokenizer than the model that is tuned, "
                        "so their probabilities do not compare. Train it with the tokenizer of --from: "
                        "text.tokenizer=RUN/tokenizer.json.")
    return made


def with_reference(split: Any, log_probs: NDArray[np.float32]) -> Any:
    return replace(split, encoded=replace(split.encoded, reference=log_probs))
