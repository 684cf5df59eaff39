"""Values of settings and options that make no sense, or are only unusual."""

import random
from typing import Any

from mangle_runs import Trained

NONSENSE = ("abc", "nan", "inf", "-inf", "1e999", "9" * 25, "-" + "9" * 25, "9" * 5000, "1e20", "-1e300", "[1]", "{}",
            "0x10", "½", "1 2", "--", "1e", "x" * 3000)  # fmt: skip
OTHERS = ("", "0", "-1", "1.5", "-0.0", "true", "none", "1,2,3", ",", "1e-320", "2147483648", "0.999999", "/dev/null",
          "..", "*", "٣", "1_0", " 1", "\u2028", "1e308", "1e15", "16777216", "100000", "1000")  # fmt: skip
WORK = ("steps", "epochs", "total_tokens", "minutes", "restarts", "prompts", "generations", "answer_tokens", "pairs",
        "inner_epochs", "mini_batches", "--tokens", "--rows", "--limit", "--samples", "--beam", "--top", "--positions",
        "layers", "encoder_layers", "decoder_layers", "experts", "states", "convolutions", "query_layers")  # fmt: skip
"""A large number of these is a large amount of work, which a user may ask for."""
RUNNABLE = 50


def settings_of(run: Trained) -> list[tuple[str, Any]]:
    from chainrule.recipe import TRAIN
    from chainrule.settings import hints
    from chainrule.tasks import find_task

    task = find_task(run.task)
    model = task.model_class(run.kind)
    parts = {"text": task.text, "model": model.Settings, "train": task.train.get(model.learns_by,
             TRAIN[model.learns_by]), "head": task.heads.get(model.learns_by)}
    return [(f"{part}.{name}", hint) for part, cls in parts.items() if cls for name, hint in hints(cls).items()]


def wrong_value(rng: random.Random, hint: Any, name: str) -> tuple[str, bool]:
    """A value, and whether it makes no sense for a setting of this type."""
    from chainrule.settings import range_of

    allowed = range_of(hint)
    is_text = "str" in str(hint) or "Path" in str(hint)
    if rng.random() < 0.5:
        return rng.choice(NONSENSE), not is_text and allowed is not None
    value = rng.choice(OTHERS)
    if name in WORK and _number(value) > RUNNABLE:
        return "-1", allowed is not None and -1 not in allowed
    return value, False


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
