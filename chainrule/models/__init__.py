"""KINDS, the registry of models: a new kind is a file in this folder and a line below.

A class declares all that the rest of the toolkit needs to know of it: settings, defaults, tasks, sizes (model.py).
Modules are imported on first use, so that listing the kinds is fast.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from chainrule.errors import UserError, did_you_mean
from chainrule.models.published import PUBLISHED

if TYPE_CHECKING:
    from chainrule.model import Model


@dataclass(frozen=True)
class Kind:
    where: str                                                   # module:class
    idea: str                                                    # one line of help
    preset: Mapping[str, Any] = field(default_factory=dict)      # dotted settings that define the kind


KINDS: Mapping[str, Kind] = {
    "uniform": Kind("uniform:Uniform", "all tokens are equally likely: the baseline"),
    "unigram": Kind("ngram.ngram:NGram", "each token by its relative frequency", {"model.order": 1}),
    "bigram": Kind("ngram.ngram:NGram", "each token given the one before it", {"model.order": 2}),
    "ngram": Kind("ngram.ngram:NGram", "n-gram model with modified Kneser–Ney smoothing, learned by counting"),
    "hmm": Kind("hmm.hmm:HMM", "hidden Markov model, trained by EM (Baum–Welch)"),
    "feedforward": Kind("feedforward:FeedForward", "feed-forward network over a window of embedded tokens (Bengio)"),
    "loglinear": Kind("loglinear.loglinear:LogLinear", "log-linear classifier over n-grams (logistic regression)"),
    "rnn": Kind("rnn:Elman", "recurrent network with a hidden state (Elman)"),
    "gru": Kind("rnn:GRU", "recurrent network with reset and update gates"),
    "lstm": Kind("rnn:LSTM", "recurrent network with a memory cell and input, forget and output gates"),
    "gpt": Kind("gpt:GPT", "decoder-only Transformer: attention over all tokens before the next"),
    "seq2seq": Kind("seq2seq:Seq2Seq", "recurrent encoder-decoder with attention, for translation and captions"),
    "encoder": Kind("encoder:TransformerEncoder", "bidirectional Transformer (BERT): masked words, classes, tags"),
    "transformer": Kind("transformer:EncoderDecoder", "Transformer encoder-decoder, for translation and captions"),
    "word2vec": Kind("word2vec:Word2Vec", "word vectors that predict neighbouring words: skip-gram or CBOW"),
    "glove": Kind("glove:GloVe", "word vectors fitted to co-occurrence counts"),
    **{name: Kind(size.where, size.idea, size.preset) for name, size in PUBLISHED.items()},
}


def kind(name: str) -> Kind:
    if name not in KINDS:
        raise UserError(f"unknown kind {name}.{did_you_mean(name, KINDS) or ' Known: ' + ', '.join(KINDS) + '.'}")
    return KINDS[name]


def model_class(name: str) -> "type[Model]":
    module, _, attribute = kind(name).where.partition(":")
    cls: type[Model] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return cls


def build(name: str, settings: Any, vocab: int) -> Any:
    """A model of a kind. The caller knows which methods the kind has, so its type is left open."""
    cls: Any = model_class(name)
    return cls(settings, vocab)
