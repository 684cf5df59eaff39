"""Texts that are longer than a model holds: refused, or cut at the end or in the middle, and how many were is said."""

from collections.abc import Sequence

import numpy as np

from chainrule.errors import UserError
from chainrule.recipe import Truncate
from chainrule.text.examples import Place
from chainrule.text.ragged import Places, Ragged

KEPT = {"true": "the beginning is", "ends": "both ends are"}


def fit(
    texts: list[Ragged], limit: int | None, special: int, truncate: Truncate, places: Sequence[Place]
) -> tuple[list[Ragged], tuple[str, ...]]:
    """The texts of each row, cut so that with `special` tokens more they are within `limit`; and what to say of it."""
    total = np.sum([text.lengths for text in texts], axis=0)
    if limit is None or not len(total) or total.max() + special <= limit:
        return texts, ()
    if truncate == "false":
        worst = int(total.argmax())
        raise UserError(
            f"{places[worst]} has {total[worst] + special} tokens, and the model holds {limit}. "
            "Take text.truncate=true to keep the beginning of long texts, or text.truncate=ends to keep both ends."
        )
    room = max(limit - special, 0)
    long, lost = int((total > room).sum()), float(np.maximum(total - room, 0).sum() / total.sum())
    note = f"{long:,} of {len(total):,} texts are longer than {limit} tokens: {KEPT[truncate]} kept, {lost:.1%} is lost"
    sizes = _shares([text.lengths for text in texts], room)
    return [text.kept(size, truncate == "ends") for text, size in zip(texts, sizes)], (note,)


def _shares(lengths: list[Places], room: int) -> list[Places]:
    """How much of each text stays: of two, the longer one gives way first."""
    if len(lengths) == 1:
        return [np.minimum(lengths[0], room)]
    first, second = lengths
    kept = np.minimum(second, np.maximum(room // 2, room - first))
    return [np.minimum(first, room - kept), kept]
