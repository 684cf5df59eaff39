import functools
import json
import math
import operator
import os
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from contract.toy import Attentive, Recurrent, ToySettings
from torch import nn

from chainrule import __version__
from chainrule.errors import UserError
from chainrule.inference.evaluate import DIVERGED, Signature, count_parameters, evaluate, require_alike
from chainrule.inference.score import score_stream
from chainrule.model import LanguageModel
from chainrule.models import build, model_class
from chainrule.models.uniform import Uniform, UniformSettings
from chainrule.recipe import make_recipe
from chainrule.text.batches import texts
from chainrule.text.corpus import prepare


@dataclass
class Unit:
    unit: str = "bytes"
    lossless: bool = True
    boundary: str = "document"
    sha256: str = "a" * 64


@dataclass
class Text:
    tokens: np.ndarray = field(default_factory=lambda: np.array([0, 1, 2, 0, 3, 0]))
    bytes: int = 3
    documents: int = 2
    sha256: str = "b" * 64
    packed: bool = False


class Certain(LanguageModel):
    """After anything comes the boundary, and nothing else can."""

    def start(self, rows, source=None, lengths=None):
        return torch.zeros(rows, 0)

    def step(self, tokens, state):
        return torch.tensor([0.0, -self.doubt, -self.doubt, -self.doubt]).expand(*tokens.shape, -1), state

    doubt = math.inf


def test_a_uniform_model_needs_log2_v_bits_a_token() -> None:
    result = evaluate(Uniform(UniformSettings(), 8), Unit(), Text())
    assert result.tokens == 5
    assert result.nats == pytest.approx(math.log(8))
    assert result.perplexity == pytest.approx(8)
    assert result.bits_per_byte == pytest.approx(3 * 5 / 3)
    assert result.parameters == 8
    assert result.seconds > 0


def test_the_names_are_those_of_the_contract_and_the_json_is_strict() -> None:
    numbers = evaluate(Uniform(UniformSettings(), 8), Unit(), Text()).as_dict()
    names = ["nats", "tokens", "bytes", "bits_per_byte", "perplexity", "seconds", "parameters", "signature"]
    assert list(numbers) == names
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers


def test_the_mean_is_over_tokens_not_over_pieces(monkeypatch) -> None:
    torch.manual_seed(1)
    model, tokens = Recurrent(ToySettings(), 6), np.array([0, 1, 5, 2, 0, 4, 3, 0])
    monkeypatch.setattr("chainrule.inference.forward.LOGITS", 4 * 6)
    assert evaluate(model, Unit(), Text(tokens)).nats == pytest.approx(score_stream(model, tokens).mean())


def test_a_lossy_tokenizer_has_no_bits_per_byte_and_says_why() -> None:
    numbers = evaluate(Uniform(UniformSettings(), 8), Unit("words", lossless=False, boundary="line"), Text()).as_dict()
    assert numbers["bits_per_byte"] is None
    assert numbers["perplexity"] == pytest.approx(8)
    assert "words" in numbers["why"]


def test_an_infinite_surprise_is_null_and_says_why() -> None:
    numbers = evaluate(Certain(), Unit(), Text()).as_dict()
    assert (numbers["nats"], numbers["perplexity"], numbers["bits_per_byte"]) == (None, None, None)
    assert "probability 0" in numbers["why"]
    json.dumps(numbers, allow_nan=False)


def test_a_model_that_diverged_is_not_said_to_give_probability_0() -> None:
    model = Certain()
    model.doubt = math.nan
    numbers = evaluate(model, Unit(), Text()).as_dict()
    assert (numbers["nats"], numbers["perplexity"], numbers["bits_per_byte"]) == (None, None, None)
    assert numbers["why"] == DIVERGED
    assert "lower train.lr and --overwrite" in DIVERGED


def test_a_perplexity_too_large_for_a_float_is_null_and_says_why() -> None:
    model = Certain()
    model.doubt = 1e4
    numbers = evaluate(model, Unit(), Text()).as_dict()
    assert numbers["nats"] == pytest.approx(6e3)
    assert numbers["perplexity"] is None
    assert "float" in numbers["why"]


def test_an_empty_text_cannot_be_evaluated() -> None:
    with pytest.raises(UserError, match="empty"):
        evaluate(Uniform(UniformSettings(), 8), Unit(), Text(np.array([0])))


def test_tied_weights_count_once_and_what_is_not_stored_not_at_all() -> None:
    model = Recurrent(ToySettings(width=4), 6)
    before = count_parameters(model)
    model.out.weight = model.embed.weight
    assert count_parameters(model) == before - 24
    model.register_buffer("mask", torch.zeros(99), persistent=False)
    assert count_parameters(model) == before - 24
    assert count_parameters(nn.Linear(2, 3)) == 9


def test_a_signature_says_how_the_number_was_measured() -> None:
    model = Attentive(ToySettings(context=4), 6)
    wanted = f"unit:bytes|tokenizer:{'a' * 12}|context:4|stride:2|boundary:document|text:{'b' * 12}"
    wanted += f"|chainrule:{__version__}"
    assert evaluate(model, Unit(), Text()).signature == wanted
    assert evaluate(model, Unit(), Text(), stride=1).signature == wanted.replace("stride:2", "stride:1")
    lines = evaluate(Uniform(UniformSettings(), 8), Unit("words", boundary="line"), Text()).signature
    assert "|context:all|stride:none|boundary:line|" in lines
    assert str(Signature.parse(wanted)) == wanted


def test_unlike_results_refuse_to_share_a_table() -> None:
    def signed(**changes: str) -> str:
        plain = Signature("bytes", "t1", "all", "none", "document", "x1", "0.1.0")
        return str(Signature(**{**plain.__dict__, **changes}))

    for metric in ("bits_per_byte", "perplexity"):
        require_alike([signed(), signed(context="64", stride="32"), signed(chainrule="0.2.0")], metric)
        for name in ("text", "boundary"):
            with pytest.raises(UserError, match=f"{metric} when their {name} differs"):
                require_alike([signed(), signed(), signed(**{name: "other"})], metric)
    for name in ("unit", "tokenizer"):
        require_alike([signed(), signed(**{name: "other"})])
        with pytest.raises(UserError, match=f"their {name} differs: "):
            require_alike([signed(), signed(**{name: "other"})], "perplexity")


def test_what_is_no_signature_or_no_metric_is_refused() -> None:
    with pytest.raises(UserError, match="not a signature"):
        require_alike(["unit:bytes|text:abc"])
    with pytest.raises(UserError, match="seconds does not compare"):
        require_alike([], "seconds")


@pytest.mark.data
def test_a_3_gram_on_ptb_has_the_published_perplexity(tmp_path) -> None:
    if not os.environ.get("CHAINRULE_DATA"):
        pytest.skip("$CHAINRULE_DATA is not set")
    recipe = make_recipe("ngram", model_class("ngram"), {"model.order": 3, "text.min_count": 1})
    corpus = prepare(["ptb"], recipe.text, cache=tmp_path)
    model = build("ngram", recipe.model, len(corpus.tokenizer))
    statistics = [model.collect(batch) for batch in texts(corpus.splits["train"].tokens, None, 1 << 22)]
    model.update(functools.reduce(operator.add, statistics))
    result = evaluate(model, corpus.tokenizer, corpus.splits["test"])
    assert result.tokens == 82_430
    assert result.perplexity == pytest.approx(148.2815, rel=1e-3)
