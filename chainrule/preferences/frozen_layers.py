"""Layers that are not trained are computed once: the residual stream behind them is kept for every row.

With `train.freeze=N` the embedding and the first N blocks of a GPT stay as they are, so for the same tokens they give
the same vectors under the reference, under the policy, and in every epoch. On a CPU, where a forward pass is most of
the time, the pass of the reference keeps them, and training begins behind them.

Shapes: B rows, T tokens, D width.
"""

from dataclasses import fields
from itertools import takewhile
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from chainrule.inference.forward import device_of
from chainrule.model import Model
from chainrule.models.gpt import GPT

LIMIT = 1 << 29      # bytes that are kept; rows beyond are computed each time


class FrozenLayers:
    """The residual stream behind the first blocks of one model, by the tokens of a row."""

    def __init__(self, blocks: int, limit: int = LIMIT):
        self.blocks, self.left = blocks, limit
        self.rows: dict[bytes, Tensor] = {}                # (T, D) each, without padding

    def encode(self, model: GPT, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, T), (B,) -> (B, T, D): as `model.encode`, and 0 is read in place of what is behind the frozen layers of
        padding, which no other token attends to."""
        positions = torch.arange(tokens.shape[1])[None]
        keys = [row[:length].numpy().tobytes() for row, length in zip(tokens, lengths.tolist())]
        if not all(key in self.rows for key in keys):
            with torch.no_grad():
                x, _ = model.stack(model.embedding(tokens, positions), positions, lengths, part=slice(self.blocks))
            self._keep(keys, x, lengths.tolist())
        if all(key in self.rows for key in keys):
            x = pad_sequence([self.rows[key] for key in keys], batch_first=True)
            x = nn.functional.pad(x, (0, 0, 0, tokens.shape[1] - x.shape[1]))
        hidden: Tensor = model.stack(x, positions, lengths, part=slice(self.blocks, None))[0]
        return hidden

    def _keep(self, keys: list[bytes], x: Tensor, lengths: list[int]) -> None:
        """All rows of a batch, or none where there is no room for all."""
        new = {key: row[:length] for key, row, length in zip(keys, x, lengths) if key not in self.rows}
        size = sum(row.numel() * row.element_size() for row in new.values())
        if size <= self.left:
            self.left -= size
            self.rows |= {key: row.clone() for key, row in new.items()}


KEPT: WeakKeyDictionary[Model, FrozenLayers] = WeakKeyDictionary()


def keep_frozen_layers(model: Model) -> None:
    """From now on, of a GPT on a CPU whose first blocks are frozen."""
    if isinstance(model, GPT) and device_of(model).type == "cpu" and (blocks := frozen_blocks(model)):
        KEPT[model] = FrozenLayers(blocks)


def frozen_layers(model: Model) -> FrozenLayers | None:
    """Those that are kept of this model, unless something in them is trained or random by now."""
    kept = KEPT.get(model)
    if kept is None or not isinstance(model, GPT) or frozen_blocks(model) < kept.blocks:
        return None
    return kept


def frozen_blocks(model: GPT) -> int:
    """How many blocks, from the first, have no parameter to train; none while dropout is drawn."""
    drops = any(getattr(model.settings, one.name) for one in fields(model.settings) if one.name.endswith("dropout"))
    before = [model.embedding] if model.stack.bias is None else [model.embedding, model.stack.bias]
    if (model.training and drops) or not all(map(_is_frozen, before)):
        return 0
    return len([*takewhile(_is_frozen, model.stack.blocks)])


def _is_frozen(module: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in module.parameters())
