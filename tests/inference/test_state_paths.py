"""Viterbi paths of many texts: decoded side by side, each is as it is alone; the first that is impossible is named."""

import numpy as np
import pytest
import torch

from chainrule.errors import UserError
from chainrule.inference import state_paths as decoding
from chainrule.inference.state_paths import state_paths
from chainrule.models.hmm.hmm import HMM, HMMSettings
from chainrule.recipe import Text
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import train_tokenizer

SYMBOLS = "abcd"


@pytest.fixture
def tokenizer():
    return train_tokenizer(Text(tokenizer="characters"), [SYMBOLS])


@pytest.fixture
def model(tokenizer):
    torch.manual_seed(1)
    return HMM(HMMSettings(states=3), len(tokenizer))


def texts(*lines):
    return [(line, Place("text", number)) for number, line in enumerate(lines, 1)]


def random_lines(count):
    random = np.random.default_rng(1)
    return ["".join(random.choice(list(SYMBOLS), size)) for size in random.integers(1, 12, count)]


@pytest.mark.parametrize("numbers", [1, 100, 1 << 22])
def test_each_text_has_the_answer_that_it_has_alone(model, tokenizer, monkeypatch, numbers):
    monkeypatch.setattr(decoding, "NUMBERS", numbers)
    lines = texts(*random_lines(30))
    together = state_paths(model, tokenizer, lines)
    assert [len(one["path"]) for one in together] == [len(text) for text, _ in lines]
    for line, one in zip(lines, together):
        (alone,) = state_paths(model, tokenizer, [line])
        assert (one["answer"], one["tokens"], one["states"]) == (alone["answer"], alone["tokens"], alone["states"])
        for name in ("path_log_prob", "log_likelihood", "likelihood"):
            assert one[name] == pytest.approx(alone[name], rel=1e-12)
        np.testing.assert_allclose(one["posteriors"], alone["posteriors"], atol=1e-12)
        assert np.sum(one["posteriors"], 1) == pytest.approx(1)


def test_the_first_text_with_a_symbol_that_no_state_emits_is_named(model, tokenizer):
    model.emission[:, tokenizer.encode("c")] = 0
    with pytest.raises(UserError, match=r"text line 2: no state emits 'c'\. The symbols are "):
        state_paths(model, tokenizer, texts("abba", "dddddddddc", "c"))


def test_the_first_text_that_no_path_emits_is_named(model, tokenizer):
    a, b = (int(tokenizer.encode(symbol)[0]) for symbol in "ab")
    model.initial.copy_(torch.tensor([1.0, 0.0, 0.0]))
    model.transition.copy_(torch.eye(3))
    model.emission[0, b] = model.emission[1, a] = 0
    with pytest.raises(UserError, match="text line 2: no path of states emits this text: its probability is 0"):
        state_paths(model, tokenizer, texts("aa", "aaaaab", "b"))
