"""Log-probabilities of answers: log p of each answer token, and their sum, with gradient and in chunks.

    log π(y | x) = Σ_t log softmax(logits_t)[y_t]

Where a model makes its logits from hidden vectors, they are made a chunk at a time and made again in the backward pass
(activation checkpointing), so that the logits of a batch are never held all at once. Sums are in float32. On a CPU rows
of similar length are computed together, without the padding that the longest of a batch would give them.

Shapes: B rows, T tokens, N targets, D width, V vocabulary.
"""

from collections.abc import Callable
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from chainrule.layers.cross_entropy import chunk_rows
from chainrule.layers.embedding import NeuralLanguageModel
from chainrule.layers.experts import Experts
from chainrule.model import Batch, LanguageModel
from chainrule.models.gpt import GPT
from chainrule.preferences.frozen_layers import frozen_layers

Project = Callable[[Tensor], Tensor]

MIN_GROUP = 256      # tokens, from which a larger matrix product is hardly faster
SIMILAR = 0.85       # of the longest row of a group: rows that are shorter are computed with the next group


@runtime_checkable
class Decoder(Protocol):
    """A network whose hidden vectors become logits, as GPT's do."""

    def encode(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


def answer_log_probs(model: LanguageModel, batch: Batch, temperature: float = 1.0) -> Tensor:
    """(B, T) in float32: log p of each target that counts, and 0 elsewhere. `temperature` divides the logits."""
    mask = batch.loss_mask
    targets = batch.targets.where(mask, 0)
    found = hidden_and_projection(model, batch)
    if found is None and type(model).score is not LanguageModel.score:    # it looks probabilities up
        scored, _ = model.score(batch.tokens, targets, model.begin(batch))
        return scored.float().where(mask, 0)
    if found is None:
        logits: Tensor = model(batch).float() / temperature
        return logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0].where(mask, 0)
    hidden, project = found
    if hidden.is_cuda:                                   # selecting targets would wait for the GPU
        log_probs = target_log_probs(hidden.flatten(0, 1), targets.flatten(), project, temperature)
        return log_probs.view_as(targets).where(mask, 0)
    log_probs = target_log_probs(hidden[mask], targets[mask], project, temperature)
    return torch.zeros_like(targets, dtype=torch.float32).masked_scatter(mask, log_probs)


def answer_sums(model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """(B,) log p of each answer, and (B,) the number of its tokens."""
    counts = batch.loss_mask.sum(1)
    if batch.tokens.device.type != "cpu" or batch.lengths is None or balances_experts(model):
        return answer_log_probs(model, batch).sum(1), counts
    groups = similar_lengths(batch.lengths)
    sums = torch.cat([answer_log_probs(model, _narrow(batch, rows)).sum(1) for rows in groups])
    return sums[torch.cat(groups).argsort()], counts


def balances_experts(model: LanguageModel) -> bool:
    """Whether routers measure their load in this step, for which they know the rows of the whole batch."""
    return any(isinstance(module, Experts) and module.meter is not None for module in model.modules())


def similar_lengths(lengths: Tensor) -> list[Tensor]:
    """(B,) -> rows in groups, longest first: a group that is large enough ends where a row is much shorter."""
    order, ends, tokens = lengths.argsort(descending=True, stable=True), [0], 0
    longest = 0
    for place, length in enumerate(lengths[order].tolist()):
        if tokens >= MIN_GROUP and length < SIMILAR * longest:
            ends.append(place)
            tokens = 0
        longest = longest if tokens else length
        tokens += longest
    return list(torch.tensor_split(order, ends[1:]))


def _narrow(batch: Batch, rows: Tensor) -> Batch:
    """These rows, without columns in which all have padding."""
    assert batch.lengths is not None
    lengths = batch.lengths[rows]
    width = max(1, int(lengths.max()))
    return Batch(batch.tokens[rows, :width], batch.targets[rows, :width], lengths)


def hidden_and_projection(model: LanguageModel, batch: Batch) -> tuple[Tensor, Project] | None:
    """(B, T, D) hidden vectors, and what makes logits of them; None: the model makes its logits in another way."""
    if isinstance(model, NeuralLanguageModel):
        hidden, _ = model.hidden_states(batch.tokens, model.begin(batch))
        return hidden, model.embedding.logits
    if batch.lengths is not None and (kept := frozen_layers(model)):
        return kept.encode(cast(GPT, model), batch.tokens, batch.lengths), cast(GPT, model).logits
    if isinstance(model, Decoder) and not model.needs_source:
        return model.encode(batch.tokens, batch.lengths), model.logits
    return None


def target_log_probs(hidden: Tensor, targets: Tensor, project: Project, temperature: float = 1.0) -> Tensor:
    """(N, D), (N,) -> (N,) in float32, chunk by chunk."""
    if not len(hidden):
        return hidden.new_zeros(0, dtype=torch.float32) + hidden.sum()
    with torch.no_grad():
        vocab = project(hidden[:1]).shape[-1]
    size = chunk_rows(len(hidden), vocab, hidden.device.type)

    def chunk(some: Tensor, wanted: Tensor) -> Tensor:
        log_probs = (project(some).float() / temperature).log_softmax(-1)
        return log_probs.gather(-1, wanted[:, None])[:, 0]

    if size >= len(hidden) or not torch.is_grad_enabled():
        return torch.cat([chunk(*part) for part in zip(torch.split(hidden, size), torch.split(targets, size))])
    return torch.cat([
        checkpoint(chunk, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(torch.split(hidden, size), torch.split(targets, size))
    ])
