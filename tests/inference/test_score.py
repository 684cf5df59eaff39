import math

import numpy as np
import pytest
import torch
from contract.toy import Attentive, Recurrent, ToySettings

from chainrule.errors import UserError
from chainrule.inference import forward
from chainrule.inference.score import (
    score_sentences,
    score_stream,
    score_texts,
    stream_pieces,
    token_bits,
    total_scores,
)
from chainrule.model import LanguageModel
from chainrule.models.uniform import Uniform, UniformSettings
from chainrule.recipe import Text
from chainrule.text.tokenizers.tokenizer import train_tokenizer

VOCAB = 7


@pytest.fixture
def recurrent() -> Recurrent:
    torch.manual_seed(3)
    return Recurrent(ToySettings(), VOCAB)


@pytest.fixture
def attentive() -> Attentive:
    torch.manual_seed(3)
    return Attentive(ToySettings(context=8), VOCAB)


@pytest.fixture
def stream() -> np.ndarray:
    tokens = np.random.default_rng(1).integers(VOCAB, size=101, dtype=np.uint16)
    tokens[[0, 30, 31, -1]] = 0
    return tokens


def nats_by_hand(model: LanguageModel, tokens: np.ndarray) -> list[float]:
    """One row from its start, everything at once."""
    row = torch.from_numpy(tokens.astype(np.int64))
    with torch.no_grad():
        logits, _ = model.step(row[None, :-1], model.start(1))
    return [-float(logits[0, place].log_softmax(-1)[token]) for place, token in enumerate(row[1:].tolist())]


@pytest.mark.parametrize("logits", [1 << 24, 50, VOCAB, 1])
def test_a_stream_cut_into_pieces_scores_as_it_does_whole(recurrent, stream, logits, monkeypatch) -> None:
    monkeypatch.setattr(forward, "LOGITS", logits)
    np.testing.assert_allclose(score_stream(recurrent, stream), nats_by_hand(recurrent, stream), atol=1e-5)
    assert len(list(stream_pieces(recurrent, stream))) == math.ceil(100 / max(1, logits // VOCAB))


@pytest.mark.parametrize("stride", [1, 3, 4, 8, None])
@pytest.mark.parametrize("targets", [1, 5, 8, 9, 12, 99])
@pytest.mark.parametrize("logits", [1 << 24, 3 * VOCAB])
def test_windows_count_every_target_once_and_give_it_at_least_context_minus_stride(
    attentive, stream, stride, targets, logits, monkeypatch
) -> None:
    monkeypatch.setattr(forward, "LOGITS", logits)
    tokens = stream[: targets + 1]
    expected = nats_by_hand(attentive, tokens[:9])
    while len(expected) < targets:
        end = min(len(expected) + (stride or 4), targets)
        expected += nats_by_hand(attentive, tokens[end - 8 : end + 1])[len(expected) - end :]
    np.testing.assert_allclose(score_stream(attentive, tokens, stride=stride), expected, atol=1e-5)


def test_a_stride_that_cannot_be_is_refused(attentive, recurrent, stream) -> None:
    for stride in (0, 9, -1):
        with pytest.raises(UserError, match="from 1 to 8"):
            score_stream(attentive, stream, stride=stride)
    with pytest.raises(UserError, match="Leave it out"):
        score_stream(recurrent, stream, stride=4)


def test_a_stream_without_targets_has_no_scores(recurrent) -> None:
    assert len(score_stream(recurrent, np.array([0]))) == 0
    assert len(score_stream(recurrent, np.array([], int))) == 0


def many_texts(count: int, longest: int) -> list[np.ndarray]:
    random = np.random.default_rng(2)
    return [random.integers(1, VOCAB, size=size, dtype=np.uint32) for size in random.integers(0, longest, size=count)]


@pytest.mark.parametrize("logits", [1 << 24, 100, 1])
@pytest.mark.parametrize("name", ["recurrent", "attentive"])
def test_texts_together_score_as_they_do_alone(name, logits, monkeypatch, request) -> None:
    model = request.getfixturevalue(name)
    texts = [text[:7] if model.context else text for text in many_texts(60, 20)]
    expected = [nats_by_hand(model, np.concatenate([[0], text, [0]])) for text in texts]
    monkeypatch.setattr(forward, "LOGITS", logits)
    for scores, wanted in zip(score_texts(model, texts), expected, strict=True):
        np.testing.assert_allclose(scores, wanted, atol=1e-5)
    np.testing.assert_allclose(total_scores(model, texts), [sum(wanted) for wanted in expected], atol=1e-4)


def test_texts_beyond_the_context_are_scored_by_windows(attentive) -> None:
    texts = [*many_texts(5, 6), np.arange(30) % (VOCAB - 1) + 1, *many_texts(5, 6)]
    scores = score_texts(attentive, texts)
    assert [len(nats) for nats in scores] == [len(text) + 1 for text in texts]
    np.testing.assert_allclose(scores[5], score_stream(attentive, np.concatenate([[0], texts[5], [0]])), atol=1e-6)
    np.testing.assert_allclose(scores[6], nats_by_hand(attentive, np.concatenate([[0], texts[6], [0]])), atol=1e-5)


def test_no_texts_have_no_scores(recurrent) -> None:
    assert score_texts(recurrent, []) == []
    assert total_scores(recurrent, []).tolist() == []


def test_a_model_is_at_rest_while_it_is_scored_and_as_before_afterwards(recurrent, stream) -> None:
    recurrent.out = torch.nn.Sequential(torch.nn.Dropout(0.5), recurrent.out)
    recurrent.start = lambda rows, source=None: torch.zeros(rows, 8)
    recurrent.train()
    first = score_stream(recurrent, stream)
    np.testing.assert_array_equal(first, score_stream(recurrent, stream))
    assert recurrent.training
    assert recurrent.out.training
    recurrent.out.eval()
    score_stream(recurrent, stream)
    assert recurrent.training
    assert not recurrent.out.training


def test_scoring_piece_by_piece_leaves_gradients_alone(recurrent, stream) -> None:
    for _ in stream_pieces(recurrent, stream):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


def test_every_token_is_shown_with_its_bits() -> None:
    words = train_tokenizer(Text(tokenizer="words", min_count=1), ["a b c d e f"])
    model = Uniform(UniformSettings(), len(words))
    shown = [(token, round(bits, 5)) for token, bits in token_bits(model, words, "a z\nb\n")]
    assert shown == [("a", 3), ("<unk>", 3), ("</s>", 3), ("b", 3), ("</s>", 3)]
    assert [token for token, _ in token_bits(model, words, "")] == ["</s>"]


@pytest.mark.parametrize("unit", ["words", "characters", "bpe"])
@pytest.mark.parametrize("sentences", [[], ["a b"], ["a b", "", "b a b", "c"], ["a b\n", "a\nb", ""]])
def test_sentences_are_scored_as_their_tokens_are(recurrent, unit, sentences) -> None:
    tokenizer = train_tokenizer(Text(tokenizer=unit, min_count=1), ["a b\nc b a\n" * 20])
    for model in (Uniform(UniformSettings(), len(tokenizer)), Recurrent(ToySettings(), len(tokenizer))):
        wanted = total_scores(model, tokenizer.encode_many(sentences))
        np.testing.assert_allclose(score_sentences(model, tokenizer, sentences), wanted, atol=1e-5)
