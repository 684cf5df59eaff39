"""Small models of other tasks to look at, with weights that nothing has taught."""

from pathlib import Path

import torch
from viewer.subjects import TEXT

from chainrule.model import BOUNDARY
from chainrule.recipe import Text
from chainrule.run import Run
from chainrule.tasks import build_for, recipe_for
from chainrule.tasks.classify import DELIMITER, EXTRACT
from chainrule.text.tokenizers.tokenizer import train_tokenizer
from chainrule.viewer.subject import Subject

TRANSFORMER = {"model.layers": 2, "model.width": 16, "model.heads": 2, "model.context": 48}
SMALL = {
    "gpt": TRANSFORMER, "encoder": TRANSFORMER, "transformer": TRANSFORMER,
    "seq2seq": {"model.hidden": 12, "model.layers": 2},
}
LABELS = {"classify": ("bad", "good"), "tag": ("NOUN", "VERB")}


def task_subject(kind, task, unit="characters", text=TEXT, special=(), **settings):
    given = SMALL[kind] | {f"model.{name}": value for name, value in settings.items()}
    recipe = recipe_for(kind, given | {"text.tokenizer": unit}, task)
    tokenizer = train_tokenizer(Text(tokenizer=unit), [text])
    if task == "classify":
        tokenizer = tokenizer.with_special([DELIMITER, EXTRACT])
    if special:
        tokenizer = tokenizer.with_special(list(special))
    torch.manual_seed(2)
    model = build_for(recipe, len(tokenizer), LABELS.get(task, ()))
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)    # what begins at zero would show nothing
    if kind == "seq2seq":
        model.embedding.bias.data[BOUNDARY] += 4                        # so that texts come to an end
    run = Run(Path(f"{kind}-{task}"), recipe, tokenizer, model.eval(), {}, LABELS.get(task, ()))
    return Subject(f"{kind}-{task}", run)
