"""Vanishing and exploding gradients: how much of the loss at the last token reaches each token before it.

    |∂L_T/∂h_t| against t, where L_T = -log p(the last token | all before it)

Each model is shown twice: at initialisation (its recipe built again, with the recipe's seed) and trained. In an Elman
network every step back multiplies by Wᵀ, so the line falls or rises; the cell of an LSTM, c_t, is multiplied by its
forget gate; attention has a path of one step to any t. The factor of a step is measured, for h, for c and for x.

Shapes: T tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch

from chainrule.inference.analysis.gradients import factor, gradients_by_layer, gradients_of_cells
from chainrule.inference.forward import device_of, eval_mode
from chainrule.model import Batch, LanguageModel
from chainrule.tasks import build_for
from chainrule.viewer.subject import Subject
from chainrule.viewer.task_views.votes import class_scores, padded, read_row
from chainrule.viewer.views import Options, View

LIMIT = 128     # tokens


def _fits(subject: Subject) -> bool:
    whole = subject.classifies and not hasattr(subject.model, "models")
    return (subject.continues_text or whole) and subject.model.learns_by == "gradient" and subject.has("hidden")


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    return {"models": [model_gradients(subject, text) for subject in subjects]}


def model_gradients(subject: Subject, text: str) -> dict[str, Any]:
    read, batch, target = _read(subject, text)
    now, begun = gradient_norms(subject.model, batch), gradient_norms(initial_model(subject), batch)
    layers = [{"name": name, "before": line(begun[name]), "after": line(now[name])} for name in now]
    return {
        "name": subject.name, "kind": subject.run.recipe.kind, "tokens": subject.show(batch.tokens[0].tolist()),
        "target": target, "left_out": read, "layers": layers,
    }


def _read(subject: Subject, text: str) -> tuple[int, Batch, str]:
    """How many tokens are left out, the others with their target, and the name of the target: the last token, or the
    most probable class of a text."""
    if subject.classifies:
        row = read_row(subject, text)
        number = int(class_scores(subject, [row.ids])[0].argmax())
        return row.left_out, padded([row.ids], number).to(device_of(subject.model)), subject.run.labels[number]
    read = subject.read(text, LIMIT)
    batch = last_token(read.tokens)
    return read.left_out, batch, subject.show(batch.targets[0, -1:].tolist())[0]


def last_token(tokens: torch.Tensor) -> Batch:
    """All tokens but the last, which is the target; an empty text has the boundary as its target."""
    if tokens.shape[1] == 1:
        return Batch(tokens, tokens)
    return Batch(tokens[:, :-1], tokens[:, 1:])


def gradient_norms(model: LanguageModel, batch: Batch) -> dict[str, list[float]]:
    """At x, the embeddings; at h1, h2, … of each layer; at c1, c2, … of the layers that have a cell."""
    with eval_mode(model):
        (embedded, *hidden), cells = gradients_by_layer(model, batch), gradients_of_cells(model, batch)
    named = {"x": embedded}
    return named | {f"{letter}{number}": norms for letter, every in (("h", hidden), ("c", cells))
                    for number, norms in enumerate(every, 1)}


def initial_model(subject: Subject) -> LanguageModel:
    """The model before training, without vectors or weights that it took from elsewhere."""
    run = subject.run
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.recipe.train.seed)
        model: LanguageModel = build_for(run.recipe, len(run.tokenizer), run.labels)
    return model.to(device_of(subject.model))


def line(lengths: Sequence[float]) -> dict[str, Any]:
    """Norms from the first token to the last, and the factor by which they change with each step back."""
    finite = [length if torch.tensor(length).isfinite() else None for length in lengths]
    return {"lengths": finite[::-1], "factor": factor([length or 0.0 for length in finite])}


VIEW = View(
    "gradient", "Gradient by time step",
    "How much of the gradient of the loss at the last token reaches each token before it. Where the line falls "
    "steeply, the model cannot learn from tokens far back.",
    _fits, _make, several=True,
    needs="a neural language model of plain text, or a neural classifier",
)
