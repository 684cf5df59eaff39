"""Bits per byte by position: a loop over windows by hand, the context as the end, and what cannot be measured."""

import math

import numpy as np
import pytest
import torch

from chainrule.errors import UserError
from chainrule.inference.analysis.by_position import bucket_ends, score_by_position, window_length
from chainrule.model import LanguageModel
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.recipe import Text
from chainrule.text.corpus import Split
from chainrule.text.tokenizers.tokenizer import train_tokenizer

TEXT = "a rosé is a rosé is a röse, " * 12
TOKENIZER = train_tokenizer(Text(tokenizer="characters"), [TEXT])


def split(text: str = TEXT) -> Split:
    tokens = np.concatenate([[0], TOKENIZER.encode(text), [0]]).astype(np.uint16)
    return Split(tokens, len(text.encode()), 1, "0" * 64)


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(1)
    settings = GPTSettings(layers=1, width=16, heads=2, context=40, zero_init=False, positions="alibi")
    return GPT(settings, len(TOKENIZER)).eval()


def test_buckets_double() -> None:
    assert bucket_ends(128) == (16, 32, 64, 128)
    assert bucket_ends(100) == (16, 32, 64, 100)
    assert bucket_ends(16) == (16,)
    assert bucket_ends(3) == (3,)


@torch.inference_mode()
def test_each_bucket_is_a_loop_over_windows(model: GPT) -> None:
    measured = score_by_position(model, TOKENIZER, split(), 40)
    tokens = torch.from_numpy(split().tokens.astype(np.int64))
    bits, size = dict.fromkeys(measured.ends, 0.0), dict.fromkeys(measured.ends, 0)
    windows = (len(tokens) - 1) // 40
    for window in range(windows):
        for position in range(1, 41):    # one prediction at a time, from all tokens of the window before it
            state, now = model.start(1), 40 * window + position
            logits, _ = model.step(tokens[None, now - position : now], state)
            end = next(end for end in measured.ends if position <= end)
            bits[end] -= float(logits[0, -1].log_softmax(-1)[tokens[now]]) / math.log(2)
            size[end] += len(TOKENIZER.decode([int(tokens[now])]).encode()) if tokens[now] else 0
    assert measured.ends == (16, 32, 40)
    assert measured.windows == windows
    assert [score.value for score in measured.scores] == pytest.approx([bits[end] / size[end] for end in bits], 1e-4)
    assert all(score.low <= score.value <= score.high for score in measured.scores)


def test_a_model_is_measured_as_far_as_its_context(model: GPT) -> None:
    assert score_by_position(model, TOKENIZER, split(), 100).ends == (16, 32, 40)
    unlimited: list[LanguageModel] = [LanguageModel()]
    assert window_length([model, *unlimited], None) == 40
    assert window_length(unlimited, None) == 1024
    assert window_length([model], 7) == 7


def test_too_little_text_and_no_positions_are_refused(model: GPT) -> None:
    with pytest.raises(UserError, match="the text has 29 tokens, and two windows of 40 positions are needed"):
        score_by_position(model, TOKENIZER, split(TEXT[:28]), 40)
    with pytest.raises(UserError, match="--positions 0: ask for 1 or more"):
        window_length([model], 0)
