"""The gradient by time step: how much of what the last token teaches comes back to each token before it.

    |∂L_T/∂h_t| against t, where L_T = -log p(the last token | all before it)

Each model twice: as it began (its recipe built anew, with the recipe's seed) and as it is. Along an Elman network every
step back multiplies by Wᵀ, so the line falls or rises; along an LSTM it falls less; attention goes straight to any t.

Shapes: T tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch

from chainrule.inference.forward import device_of, eval_mode
from chainrule.inference.gradients import factor, gradients_by_layer
from chainrule.model import Batch, Model
from chainrule.tasks.registry import build_for
from chainrule.viewer.subject import Subject
from chainrule.viewer.view import Options, View

LIMIT = 128     # tokens


def fits(subject: Subject) -> bool:
    return subject.speaks and subject.model.learns_by == "gradient" and subject.has("hidden")


def make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    return {"models": [one_model(subject, text) for subject in subjects]}


def one_model(subject: Subject, text: str) -> dict[str, Any]:
    reading = subject.read(text, LIMIT)
    batch = last_token(reading.tokens)
    now, begun = followed(subject.model, batch), followed(as_it_began(subject), batch)
    layers = [
        {"name": "x" if number == 0 else f"h{number}", "before": line(before), "after": line(after)}
        for number, (before, after) in enumerate(zip(begun, now, strict=True))
    ]
    return {
        "name": subject.name, "kind": subject.run.recipe.kind, "tokens": subject.show(batch.tokens[0].tolist()),
        "target": subject.show(batch.targets[0, -1:].tolist())[0], "left_out": reading.left_out, "layers": layers,
    }


def last_token(tokens: torch.Tensor) -> Batch:
    """All but the last, of which the last is foretold; a text of nothing is foretold to end."""
    if tokens.shape[1] == 1:
        return Batch(tokens, tokens)
    return Batch(tokens[:, :-1], tokens[:, 1:])


def followed(model: Any, batch: Batch) -> list[list[float]]:
    with eval_mode(model):
        return gradients_by_layer(model, batch)


def as_it_began(subject: Subject) -> Model:
    """What training began with, but for vectors or weights that it took from elsewhere."""
    run = subject.run
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.recipe.train.seed)
        model: Model = build_for(run.recipe, len(run.tokenizer), run.labels)
    return model.to(device_of(subject.model))


def line(lengths: Sequence[float]) -> dict[str, Any]:
    """Lengths from the first token to the last, and by how much they are multiplied with each step back."""
    told = [length if torch.tensor(length).isfinite() else None for length in lengths]
    return {"lengths": told[::-1], "factor": factor([length or 0.0 for length in told])}


VIEW = View(
    "gradient", "Gradient by time step",
    "How much of the loss at the last token comes back to each token before it. Where the line falls steeply, what is "
    "far behind cannot be learned from.",
    fits, make, several=True, plots=True,
)
