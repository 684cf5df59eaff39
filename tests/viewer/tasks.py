"""Small models of other tasks to look at, with weights that nothing has taught."""

from pathlib import Path

import torch
from viewer.subjects import TEXT

from chainrule.model import BOUNDARY, Batch
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


SAID = {"good": ("a fine film", "fine and warm", "not dull at all", "a warm play"),
        "bad": ("a dull film", "dull and cold", "not fine at all", "a cold play")}


def log_linear_subject(said=SAID, unit="words"):
    """A classifier of a few texts, each of which it has read twice: its n-grams have weights."""
    recipe = recipe_for("loglinear", {"text.tokenizer": unit, "model.order": 2, "model.l2": 0.1}, "classify")
    labels = tuple(sorted(said))
    pairs = [(text, labels.index(label)) for label, texts in said.items() for text in texts] * 2
    words = train_tokenizer(Text(tokenizer=unit, min_count=1), [text + "\n" for text, _ in pairs])
    tokenizer = words.with_special([DELIMITER, EXTRACT])
    rows = [[BOUNDARY, *tokenizer.encode(text).tolist(), tokenizer.id(EXTRACT)] for text, _ in pairs]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [BOUNDARY] * (width - len(row)) for row in rows])
    model = build_for(recipe, len(tokenizer), labels)
    truth, lengths = torch.tensor([label for _, label in pairs]), torch.tensor([len(row) for row in rows])
    model.update(model.collect(Batch(tokens, truth, lengths)))
    return Subject("loglinear", Run(Path("loglinear"), recipe, tokenizer, model.eval(), {}, labels))


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
