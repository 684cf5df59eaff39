"""The kinds. A new one is a file beside this and a line below.

Nothing is imported until it is asked for, so that naming the kinds costs nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from chainrule.errors import UserError, did_you_mean
from chainrule.models.published import PUBLISHED


@dataclass(frozen=True)
class Kind:
    where: str                                                   # module:class
    idea: str                                                    # one line for people
    preset: Mapping[str, Any] = field(default_factory=dict)      # dotted settings that make it what it is


KINDS: Mapping[str, Kind] = {
    "uniform": Kind("uniform:Uniform", "every token is as likely as any other"),
    "unigram": Kind("ngram.ngram:NGram", "tokens by how often they occur", {"model.order": 1}),
    "bigram": Kind("ngram.ngram:NGram", "each token given the one before it", {"model.order": 2}),
    "ngram": Kind("ngram.ngram:NGram", "each token given the order - 1 before it, by counting; modified Kneser–Ney"),
    "hmm": Kind("hmm.hmm:HMM", "hidden states that follow one another and emit tokens; Baum–Welch"),
    "feedforward": Kind("feedforward:FeedForward", "a neural network over a window of embedded tokens (Bengio)"),
    "rnn": Kind("rnn:Elman", "a hidden vector that every token changes (Elman)"),
    "gru": Kind("rnn:GRU", "the same, with gates that reset and update it"),
    "lstm": Kind("rnn:LSTM", "the same, with a cell that gates write, keep and read"),
    "gpt": Kind("gpt:GPT", "a Transformer that sees all that came before; model.size is its dial"),
    "seq2seq": Kind("seq2seq:Seq2Seq", "a recurrent network reads a source, another writes about it, with attention"),
    "encoder": Kind("encoder:TransformerEncoder", "a Transformer that sees the whole text: masked words, labels, tags"),
    "transformer": Kind("transformer:EncoderDecoder", "a Transformer reads a source, another writes about it"),
    "word2vec": Kind("word2vec:Word2Vec", "vectors of words that foretell their neighbours: skip-gram or CBOW"),
    "glove": Kind("glove:GloVe", "vectors of words whose products say how often they stand near each other"),
    **{name: Kind("gpt:GPT", size.idea, size.preset) for name, size in PUBLISHED.items()},
}


def kind(name: str) -> Kind:
    if name not in KINDS:
        raise UserError(f"unknown kind {name}.{did_you_mean(name, KINDS) or ' Known: ' + ', '.join(KINDS) + '.'}")
    return KINDS[name]


def model_class(name: str) -> Any:
    module, _, attribute = kind(name).where.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), attribute)


def build(name: str, settings: Any, vocab: int) -> Any:
    return model_class(name)(settings, vocab)
