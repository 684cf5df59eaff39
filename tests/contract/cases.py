"""Every kind under the contract, one line each, small and trained on a small text.

Shapes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from contract.toy import Attentive, Recurrent, ToySettings
from torch import Tensor

from chainrule.model import LanguageModel
from chainrule.models import KINDS, build, kind, model_class
from chainrule.models.mixture import Mixture
from chainrule.recipe import make_recipe
from chainrule.testing import WithSource, example_batch, learn

VOCAB = 5
SEQ2SEQ = {"hidden": 8, "dropout": 0.0}
GPT = {"layers": 2, "width": 16, "heads": 2, "context": 16}
EVERY_KIND = "local", "compressed", "sliding", "full"


@dataclass(frozen=True)
class Case:
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)    # its `model.*`
    rounds: int = 1                                           # of counting, or steps of gradient descent
    network: Callable[..., LanguageModel] | None = None       # for networks that are not among KINDS
    source: Tensor | None = None                              # (1, S) or (1, S, F): what every text is about

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"{name}={value}" for name, value in self.settings.items())])

    def recipe(self) -> Any:
        given = {f"model.{name}": value for name, value in self.settings.items()}
        return make_recipe(self.kind, model_class(self.kind), given, kind(self.kind).preset)

    def make(self) -> LanguageModel:
        """The model before training, always the same."""
        torch.manual_seed(1)
        if self.network is not None:
            return self.network(ToySettings(**self.settings), VOCAB)
        model: LanguageModel = self.with_source(build(self.kind, self.recipe().model, VOCAB))
        if model.learns_by == "counting":
            model.forget(torch.Generator().manual_seed(1))
        return model

    def with_source(self, model: LanguageModel) -> LanguageModel:
        """The model, which gets the source of the case wherever it starts."""
        return model if self.source is None else WithSource(model, self.source, LENGTH)

    def train(self) -> LanguageModel:
        model = self.make()
        for _ in range(self.rounds):
            learn(model, TEXT)
        return model.eval()


def mixture(settings: ToySettings, vocab: int) -> Mixture:
    return Mixture([Recurrent(settings, vocab), Case("gpt", GPT).make()])


TOKENS = torch.tensor([[3, 1, 4, 1, 2]])
VECTORS = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(1))
LENGTH = torch.tensor([4])             # the last is padding
UNDROPPED = {"dropout": 0.0, "weight_dropout": 0.0}

CASES = [
    Case("uniform"),
    Case("unigram"),
    Case("bigram"),
    Case("ngram", {"order": 3}),
    Case("ngram", {"order": 3, "estimator": "mle"}),
    Case("ngram", {"order": 3, "estimator": "add-k", "k": 0.5}),
    Case("ngram", {"order": 3, "cutoffs": (0, 1)}),
    Case("ngram", {"order": 3, "prune": 0.01}),
    Case("hmm", {"states": 3}, rounds=5),
    Case("hmm", {"states": 6, "successors": 2, "smoothing": 0.0}, rounds=5),
    Case("feedforward", {"order": 3, "embedding": 8, "hidden": 16, "dropout": 0.0}, rounds=30),
    Case("feedforward", {"order": 4, "embedding": 8, "layers": 2, "direct": True, "tied": True, "dropout": 0.0}, 30),
    Case("rnn", {"layers": 2, "hidden": 8, "dropout": 0.0}, rounds=30),
    Case("rnn", {"nonlinearity": "relu", "hidden": 8, "tied": False, "dropout": 0.0}, rounds=30),
    Case("rnn", {"nonlinearity": "sigmoid", "hidden": 8, "start": "learned", "dropout": 0.0}, rounds=30),
    Case("gru", {"layers": 2, "hidden": 8, "start": "learned", **UNDROPPED}, rounds=30),
    Case("lstm", {"layers": 2, "hidden": 8, "embedding": 6, **UNDROPPED}, rounds=30),
    Case("gpt", GPT, rounds=30),
    Case("gpt", {**GPT, "kv_heads": 1, "window": 3, "activation": "swiglu", "positions": "relative"}, rounds=30),
    Case("gpt", {**GPT, "norm_first": False, "norm": "layer", "activation": "relu", "positions": "sinusoidal"}, 30),
    Case(
        "gpt",
        {**GPT, "activation": "gelu", "positions": "none", "logit_softcap": 5.0, "tied": True, "norm_scale": True},
        rounds=30,
    ),
    Case("gpt", {**GPT, "positions": "alibi", "heads": 4, "head_size": 6}, rounds=30),
    Case("gpt", {**GPT, "rope_scaling": "yarn", "rope_factor": 4.0, "norm": "layer"}, rounds=30),
    Case("gpt", {**GPT, "experts": 4, "active": 2}, rounds=30),
    Case("gpt", {**GPT, "attention": ("local",), "block": 4, "kv_heads": 1}, rounds=30),
    Case("gpt", {**GPT, "attention": ("compressed",), "positions": "relative"}, rounds=30),
    Case("gpt", {**GPT, "layers": 4, "attention": EVERY_KIND, "block": 5, "window": 4, "stride": 2}, rounds=30),
    Case("gpt", {**GPT, "qkv": False, "scaled": False, "positions": "learned"}, rounds=30),
    Case("gpt1", {**GPT, "dropout": 0.0}, rounds=30),
    Case("gpt2", {**GPT, "head_size": 6}, rounds=30),
    Case("seq2seq", SEQ2SEQ, 30, source=TOKENS),
    Case("seq2seq", {**SEQ2SEQ, "cell": "gru", "attention": "none"}, 30, source=TOKENS),
    Case("seq2seq", {**SEQ2SEQ, "cell": "tanh", "attention": "additive", "layers": 1}, 30, source=TOKENS),
    Case("seq2seq", {**SEQ2SEQ, "attention": "dot", "source_features": 3}, 30, source=VECTORS),
    Case("seq2seq", {**SEQ2SEQ, "encoder": "feedforward"}, 30, source=TOKENS),
    Case("transformer", GPT, 30, source=TOKENS),
    Case("transformer", {**GPT, "experts": 3, "active": 1, "shared_expert": True}, 30, source=TOKENS),
    Case("transformer", {**GPT, "norm_first": False, "norm": "layer", "positions": "sinusoidal"}, 30, source=TOKENS),
    Case("transformer", {**GPT, "positions": "relative", "kv_heads": 1, "source_features": 3}, 30, source=VECTORS),
    Case("transformer", {**GPT, "positions": "relative", "scaled": False, "activation": "geglu", "start_vector": True},
         30, source=TOKENS),
    Case("transformer", {**GPT, "attention": ("local", "compressed"), "block": 3, "stride": 2}, 30, source=TOKENS),
    Case("recurrent", rounds=30, network=Recurrent),
    Case("attentive", {"context": 16}, rounds=30, network=Attentive),
    Case("mixture", rounds=30, network=mixture),
]
assert {kind.where for name, kind in KINDS.items() if issubclass(model_class(name), LanguageModel)} <= {
    KINDS[case.kind].where for case in CASES if case.network is None
}, "a kind without a contract"


TEXT = example_batch(VOCAB)
