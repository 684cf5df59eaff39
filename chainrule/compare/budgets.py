"""One dial, `--minutes`: what of a network was left open is chosen to fit its text and its time, and said.

Depth, width, context, batch, learning rate and dropout are those that `fair` gives the kind; whatever was asked for by
name stays as asked, and a network whose size was asked for is left alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.plan import work_of
from chainrule.progress import say
from chainrule.recipe import Recipe, over
from chainrule.tasks.registry import recipe_for
from chainrule.text.corpus import prepare

# Sizes and budgets under which kinds may be set side by side: the same text, the same units, the same time or FLOPs.
#
# Networks are as large as the budget can teach (about EIGHT tokens a weight) and alike in what a token costs them, so
# with the same FLOPs they see the same tokens. All learn by Muon at one rate. Counting has no dial of time: an n-gram
# reads the text once, and EM has as many rounds as the budget holds. Every choice is said, and any can be made
# otherwise
# (`gpt.model.layers=4`).

LADDER = ("uniform", "unigram", "bigram", "ngram", "hmm", "feedforward", "rnn", "gru", "lstm", "gpt")
"""Kinds that foretell a text from nothing but what came before it."""

SPEED = {"cpu": 5e10, "cuda": 2e13}
"""FLOPs a second that small networks come to while they learn: to choose sizes by, never to measure by."""

EIGHT = 8               # tokens that a weight should see; more is a waste in so short a time
OFTEN = 4               # readings of the text beyond which a network is learning it by heart
ROUNDS = 60             # of EM that should fit into the budget; it decides the number of hidden states
MOST_ROUNDS = 500
ORDERS = {"bytes": 7, "characters": 7, "bpe": 4, "pretrained": 4}    # of n-grams; more was no better on 1 MB of prose
WIDTHS = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560,
          3072, 4096, 5120, 6144, 8192)


@dataclass(frozen=True)
class Compare:
    """`compare.*`"""

    by: Literal["minutes", "flops"] = "minutes"  # what every kind gets the same of
    flops: float | None = None     # how many, if by flops; none: what --minutes come to at the usual speed

    def __post_init__(self) -> None:
        if self.flops is not None and self.by == "minutes":
            raise UserError(f"compare.flops={self.flops:g} is for compare.by=flops.")
        if self.flops is not None and not 0 < self.flops < math.inf:
            raise UserError(f"compare.flops={self.flops:g}: it is more than 0.")


@dataclass(frozen=True)
class Share:
    """What each kind gets: seconds, or FLOPs."""

    by: str
    seconds: float
    flops: float            # by the clock: what the seconds usually come to
    gpu: bool = False

    @classmethod
    def of(cls, minutes: float, device: str, compare: Compare) -> "Share":
        if not 0 < minutes < math.inf:
            raise UserError(f"--minutes {minutes:g}: it is more than 0.")
        return cls(compare.by, 60 * minutes, compare.flops or 60 * minutes * SPEED[device], device == "cuda")

    @property
    def weights(self) -> float:
        """Weights of a network that sees EIGHT tokens for each while the budget lasts."""
        return math.sqrt(self.flops / (6 * EIGHT))

    @property
    def spoken(self) -> str:
        return f"{self.seconds:g} s" if self.by == "minutes" else f"{self.flops:.3g} FLOPs"


@dataclass(frozen=True)
class Ground:
    """The text that all kinds learn from, as far as sizes depend on it."""

    unit: str               # what a token is
    vocab: int
    tokens: int             # in the training text


Settings = Mapping[str, Any]


def choose(kind: str, ground: Ground, share: Share, given: Settings) -> Recipe:
    """The recipe of a rung; `given`: settings that the user wants otherwise."""
    chosen: Settings = {}
    if kind == "ngram":
        chosen = {"model.order": ORDERS.get(ground.unit, 5)}
    elif kind == "hmm":
        chosen = _hidden_markov(ground, share)
    elif kind in FAMILIES:
        chosen = _network(kind, ground, share, given)
    return recipe_for(kind, over(chosen, given))


def round_flops(states: int, tokens: int) -> float:
    """Of one round of EM: forward, backward and the expected moves are a product with the transitions each."""
    return 6.0 * states * states * tokens


def token_flops(recipe: Recipe, ground: Ground) -> float | None:
    """To learn from one token; None for kinds that only count."""
    if recipe.kind == "hmm":
        return round_flops(recipe.model.states, 1)
    if recipe.kind not in FAMILIES:
        return None
    return work_of(recipe, ground.vocab, recipe.train.length or getattr(recipe.model, "context", 0)).flops


def _hidden_markov(ground: Ground, share: Share) -> Settings:
    """As many states as leave room for ROUNDS, a power of two; rounds by FLOPs, which a clock may correct."""
    room = math.sqrt(share.flops / round_flops(1, ground.tokens) / ROUNDS)
    states = 1 << min(9, max(3, round(math.log2(max(1.0, room)))))
    return {"model.states": states, "train.steps": rounds_in(share.flops, round_flops(states, ground.tokens))}


def rounds_in(budget: float, each: float) -> int:
    return max(1, min(MOST_ROUNDS, round(budget / each)))


def _network(kind: str, ground: Ground, share: Share, given: Settings) -> Settings:
    """That width of the kind's family whose multiplying weights come nearest to what the budget can teach."""
    sizes = {width: over(FAMILIES[kind](width, share), _training(ground, share, given)) for width in WIDTHS}
    recipes = {width: recipe_for(kind, over(chosen, given)) for width, chosen in sizes.items()}
    flops = {width: token_flops(recipe, ground) or 1.0 for width, recipe in recipes.items()}
    width = min(WIDTHS, key=lambda width: abs(math.log(flops[width] / (6 * share.weights))))
    end = {"train.minutes": share.seconds / 60}
    if share.by == "flops":
        end = {"train.total_tokens": max(1, round(share.flops / flops[width]))}
    return {**sizes[width], **end}


def _training(ground: Ground, share: Share, given: Settings) -> Settings:
    """How networks learn: alike. What is read again is dropped from; read often, looks find the best weights."""
    small = share.weights < 1e6
    readings = EIGHT * share.weights / ground.tokens
    muon = {"train.optimizer": "muon", "train.lr": 2e-2 if small else 6e-3, "train.momentum": 0.9 if small else 0.95}
    return {
        **(muon if given.get("train.optimizer", "muon") == "muon" else {}),    # another has its own rate
        "train.tokens": min(1024, max(64, ground.tokens // 16)) if small else min(8192, max(256, ground.tokens // 16)),
        "train.schedule": "linear", "train.final_lr": 0.0, "train.checkpoint": 30.0,
        "train.evaluate": 0.05 if readings > OFTEN or "train.patience" in given else 0.0,
        "model.dropout": 0.2 if readings > OFTEN else 0.1 if readings > 1 else 0.0,
    }


def _feedforward(width: int, share: Share) -> Settings:
    return {"model.order": 9, "model.embedding": max(16, width // 8), "model.hidden": width}


def _recurrent(width: int, share: Share) -> Settings:
    """In float32 on a CPU: the kernel of its loop has no quick bfloat16 there."""
    size = {"model.layers": 1, "model.hidden": width, "train.length": 32 if share.weights < 1e6 else 128}
    return size if share.gpu else {**size, "train.precision": "float32"}


def _gated(width: int, share: Share) -> Settings:
    return {**_recurrent(width, share), "model.weight_dropout": 0.0}


def _gpt(width: int, share: Share) -> Settings:
    layers, context = (2, 64) if share.weights < 5e5 else (4, 128) if share.weights < 5e6 else (6, 256)
    heads = width // (32 if width < 256 else 64)
    return {"model.layers": layers, "model.width": width, "model.heads": heads, "model.context": context}


FAMILIES: Mapping[str, Callable[[int, Share], Settings]] = {
    "feedforward": _feedforward, "rnn": _recurrent, "gru": _gated, "lstm": _gated, "gpt": _gpt,
}
"""What a network of some width is, by kind."""


SIZES = ("size", "layers", "width", "hidden", "heads", "context", "embedding", "order")
SAID = ("model.layers", "model.width", "model.hidden", "model.context", "model.dropout", "train.tokens", "train.lr")


def turned(
    recipe: Recipe, given: Mapping[str, Any], texts: Sequence[str], valid: Sequence[str], minutes: float, device: str
) -> Recipe:
    """The recipe with its open settings chosen; as it is, where there is nothing to choose."""
    if recipe.task != "lm" or recipe.kind not in FAMILIES or any(f"model.{size}" in given for size in SIZES):
        return recipe
    corpus = prepare(texts, recipe.text, valid=valid)
    ground = Ground(corpus.tokenizer.unit, len(corpus.tokenizer), len(corpus.splits["train"].tokens))
    chosen = choose(recipe.kind, ground, Share.of(minutes, choose_device(device).type, Compare()), given)
    parts = ((name, *name.split(".")) for name in SAID)
    made = [f"{name}={getattr(getattr(chosen, part), field):g}" for name, part, field in parts
            if getattr(getattr(chosen, part), field, None) is not None]
    say(f"for {minutes:g} minutes: {', '.join(made)} (each can be given instead)")
    return chosen
