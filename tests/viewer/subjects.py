"""Small models to look at. Most have learned nothing: what a view shows must be right for any weights."""

from pathlib import Path

import torch

from chainrule.model import BOUNDARY, Batch
from chainrule.recipe import Text
from chainrule.run import Run
from chainrule.tasks import build_for, recipe_for
from chainrule.testing import learn
from chainrule.text.tokenizers.tokenizer import train_tokenizer
from chainrule.viewer.subject import Subject

TEXT = 'the cat said "who (me)?"\nthe dog said "you (too)!"\n' * 8
SMALL = {
    "ngram": {"model.order": 3},
    "hmm": {"model.states": 4},
    "feedforward": {"model.embedding": 8, "model.hidden": 16},
    "rnn": {"model.hidden": 12, "model.layers": 1},
    "gru": {"model.hidden": 12, "model.layers": 1},
    "lstm": {"model.hidden": 12, "model.layers": 2},
    "gpt": {"model.layers": 2, "model.width": 16, "model.heads": 2, "model.context": 64},
}


def subject(kind, text=TEXT, name=None, unit="characters", **settings):
    """A model of characters (or of another unit); one that counts has counted the text."""
    given = SMALL.get(kind, {}) | {f"model.{key}": value for key, value in settings.items()}
    recipe = recipe_for(kind, given | {"text.tokenizer": unit})
    tokenizer = train_tokenizer(Text(tokenizer=unit), [text])
    torch.manual_seed(1)
    model = build_for(recipe, len(tokenizer), ())
    if model.learns_by == "counting":
        learn(model, batch(tokenizer, text))
    else:
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape)    # what begins at zero would show nothing
    return Subject(name or kind, Run(Path(name or kind), recipe, tokenizer, model.eval(), {}))


def batch(tokenizer, text):
    tokens = torch.tensor([[BOUNDARY, *tokenizer.encode(text).tolist(), BOUNDARY]])
    return Batch(tokens[:, :-1], tokens[:, 1:])
