"""Evaluation on held-out text: bits per byte and perplexity, with a signature that says how they were measured.

    bits per byte = Σ -log2 p(token) / bytes        perplexity = exp(mean of -log p(token))

Bits per byte compares all models that read the same bytes. Perplexity is per token, so it compares only models with the
same tokenizer. A number that is undefined or infinite is None, and `why` gives the reason: JSON has no infinity.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

import torch

from chainrule import __version__
from chainrule.errors import UserError
from chainrule.inference.forward import device_of, eval_mode
from chainrule.inference.score import Tokens, score_documents, stream_pieces, stride_of
from chainrule.model import LanguageModel, Model
from chainrule.progress import track
from chainrule.text.corpus import Split
from chainrule.text.tokenizers.tokenizer import Tokenizer

ALIKE = {
    "bits_per_byte": ("text", "boundary"),
    "perplexity": ("text", "boundary", "unit", "tokenizer"),
}
"""What two signatures must have in common for a metric to compare their models."""

DIVERGED = "the model gives numbers that are not finite: it diverged; train again with a lower train.lr and --overwrite"


@dataclass(frozen=True)
class Signature:
    """How a number was measured, as sacreBLEU's does: `unit:words|tokenizer:…|…`"""

    unit: str         # what a token is
    tokenizer: str    # sha256 of the tokenizer, shortened
    context: str      # tokens of context that a prediction could use; all: the whole text; of a document: only its own
    stride: str       # targets counted in each window; none: no windows
    boundary: str     # whether the end of each line or of each document is a target
    text: str         # sha256 of the text, shortened
    chainrule: str    # version

    def __str__(self) -> str:
        return "|".join(f"{name}:{value}" for name, value in asdict(self).items())

    @classmethod
    def parse(cls, text: str) -> "Signature":
        parts = dict(part.partition(":")[::2] for part in text.split("|"))
        names = [field.name for field in fields(cls)]
        if list(parts) != names:
            raise UserError(f"{text!r} is not a signature; one is {'|'.join(f'{name}:…' for name in names)}.")
        return cls(**parts)


def sign(model: LanguageModel, tokenizer: Tokenizer, split: Split, stride: int | None = None) -> Signature:
    stride = stride_of(model, stride)
    return Signature(
        unit=tokenizer.unit,
        tokenizer=tokenizer.sha256[:12],
        context=("all" if model.context is None else str(model.context)) + " of a document" * split.packed,
        stride="none" if stride is None else str(stride),
        boundary=tokenizer.boundary,
        text=split.sha256[:12],
        chainrule=__version__,
    )


def require_alike(signatures: Sequence[str], metric: str = "bits_per_byte") -> None:
    """Refuses to compare results that were measured differently."""
    if metric not in ALIKE:
        raise UserError(f"{metric} does not compare models; {' and '.join(ALIKE)} do.")
    parsed = [Signature.parse(signature) for signature in signatures]
    for name in ALIKE[metric]:
        values = sorted({getattr(signature, name) for signature in parsed})
        if len(values) > 1:
            raise UserError(f"results cannot share a table of {metric} when their {name} differs: {', '.join(values)}.")


@dataclass(frozen=True)
class Result:
    nats: float | None             # mean cross-entropy of the tokens; None: infinite
    tokens: int                    # targets, the ends of texts included
    bytes: int                     # of the text before tokenization
    bits_per_byte: float | None
    perplexity: float | None       # exp(nats)
    seconds: float
    parameters: int                # of the model
    signature: str
    why: str = ""                  # why a number above is None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON; `why` only if it is not empty."""
        values = asdict(self)
        if not self.why:
            del values["why"]
        return values


TotalNats: TypeAlias = Callable[[LanguageModel, Tokens, int | None], float]


def _stream_nats(model: LanguageModel, tokens: Tokens, stride: int | None = None) -> float:
    return math.fsum(float(piece.sum()) for piece in stream_pieces(model, tokens, stride=stride))


def _document_nats(model: LanguageModel, tokens: Tokens, stride: int | None = None) -> float:
    return math.fsum(score_documents(model, tokens))


def evaluate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    split: Split,
    *,
    stride: int | None = None,
    total_nats: TotalNats | None = None,
) -> Result:
    """The model on every token of the split, each once. `total_nats`: another way to sum them, such as over ranks."""
    signature = str(sign(model, tokenizer, split, stride))
    tokens = len(split.tokens) - 1
    if tokens < 1:
        raise UserError("the text to evaluate on is empty.")
    began = time.perf_counter()
    total = (total_nats or (_document_nats if split.packed else _stream_nats))(model, split.tokens, stride)
    seconds = time.perf_counter() - began
    bits_per_byte = total / math.log(2) / split.bytes if tokenizer.lossless and split.bytes else None
    return Result(
        nats=_finite(total / tokens),
        tokens=tokens,
        bytes=split.bytes,
        bits_per_byte=_finite(bits_per_byte),
        perplexity=_finite(_exp(total / tokens)),
        seconds=seconds,
        parameters=count_parameters(model),
        signature=signature,
        why=why_no_number(total / tokens, tokenizer),
    )


@torch.inference_mode()
def losses_by_batch(model: Model, batches: Any, part: int = 0, parts: int = 1) -> Iterator[tuple[float, int]]:
    """The loss of each batch of an epoch, summed over its targets, and how many targets it has.

    Ranks share the batches: each gets one part of several. All parts run the model equally often, since ranks that hold
    shards of the weights gather them together: where no batch is left, the last is read again and adds zero.
    """
    device, steps = device_of(model), math.ceil(batches.epoch)
    turns = -(-steps // parts)
    with eval_mode(model):
        for turn in track(range(turns), "scoring", turns, "batches"):
            step = turn * parts + part
            nats, count, *_ = model.loss(batches.at(min(step, steps - 1)).to(device))
            yield (float(nats), int(count)) if step < steps else (0.0, 0)


def count_parameters(model: Model) -> int:
    """Numbers that a model stores: weights, or entries of tables. Tied weights count once, and adapters do not, since
    they are merged when a run is loaded."""
    every = model.state_dict(keep_vars=True).items()
    stored = {id(tensor): tensor.numel() for name, tensor in every
              if "parametrizations." not in name or name.endswith(".original")}
    return sum(stored.values())


def _exp(nats: float) -> float:
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def why_no_answer(model: Model, impossible: str) -> str:
    """Why there is no probability: a model trained by counting finds all `impossible`; any other has diverged."""
    return f"{impossible}; train it with smoothing" if model.learns_by == "counting" else DIVERGED


def why_no_number(nats: float, tokenizer: Tokenizer) -> str:
    """Why the mean nats, or a number computed from them, cannot be given; empty if all can."""
    reasons = []
    if math.isnan(nats):
        reasons.append(DIVERGED)
    elif not math.isfinite(nats):
        reasons.append("the model gives a token of this text probability 0, so its cross-entropy is infinite")
    elif not math.isfinite(_exp(nats)):
        reasons.append("the perplexity is beyond what a float can hold")
    if not tokenizer.lossless:
        reasons.append(f"{tokenizer.unit} do not give the text's bytes back, so there are no bits per byte")
    return "; ".join(reasons)
