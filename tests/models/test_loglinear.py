"""A log-linear classifier: against dense logistic regression by Newton's method, and n-grams counted in Python."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from chainrule.model import Batch, cross_entropy
from chainrule.models.loglinear.fitting import PENALTIES, Matrix, log_count_ratios
from chainrule.models.loglinear.lbfgs import minimise
from chainrule.models.loglinear.loglinear import LogLinear, LogLinearSettings
from chainrule.models.loglinear.table import build_tables

VOCAB, CLASSES = 7, 3


def made_texts(count: int = 60, seed: int = 1) -> tuple[list[list[int]], list[int]]:
    """Random texts `0 … 6`, whose class the tokens 1, 2 and the pair 3 4 make likely."""
    draw, texts, classes = random.Random(seed), [], []
    for _ in range(count):
        text = [draw.randint(1, 5) for _ in range(draw.randint(1, 8))]
        pairs = set(pairwise(text))
        score = [1.0 * (1 in text), 1.0 * (2 in text), 2.0 * ((3, 4) in pairs)]
        texts.append([0, *text, 6])
        classes.append(draw.choices(range(CLASSES), [math.exp(2 * each) for each in score])[0])
    return texts, classes


def batch_of(texts: list[list[int]], classes: list[int], filler: int = 0) -> Batch:
    width = max(map(len, texts))
    rows = [text + [filler] * (width - len(text)) for text in texts]
    return Batch(torch.tensor(rows), torch.tensor(classes), torch.tensor([len(text) for text in texts]))


TEXTS, TRUTH = made_texts()
BATCH = batch_of(TEXTS, TRUTH)


def learned(batch: Batch = BATCH, classes: int = CLASSES, **settings) -> LogLinear:
    model = LogLinear(LogLinearSettings(**{"order": 2, "l2": 1.0, "iterations": 500, **settings}), VOCAB, classes)
    model.forget(torch.Generator().manual_seed(1))
    model.update(model.collect(batch))
    return model


def ngrams(text: list[int], order: int) -> list[tuple[int, ...]]:
    return [tuple(text[end - size : end]) for size in range(1, order + 1) for end in range(size, len(text) + 1)]


def dense(order: int, min_count: int) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """The n-grams that enough texts have, and X."""
    each = [set(ngrams(text, order)) for text in TEXTS]
    every = sorted({ngram for some in each for ngram in some}, key=lambda ngram: (len(ngram), ngram))
    kept = [ngram for ngram in every if sum(ngram in some for some in each) >= min_count]
    return kept, np.array([[float(ngram in some) for ngram in kept] for some in each])


def ratios_by_hand(x: np.ndarray, alpha: float) -> np.ndarray:
    ratios = np.zeros((x.shape[1], CLASSES))
    for label in range(CLASSES):
        mine = np.array(TRUTH) == label
        inside, outside = alpha + x[mine].sum(0), (CLASSES - 1) * alpha + x[~mine].sum(0)
        ratios[:, label] = np.log(inside / inside.sum()) - np.log(outside / outside.sum())
    return ratios


def newton(x: np.ndarray, ratios: np.ndarray, l2: float) -> tuple[np.ndarray, np.ndarray]:
    """θ and b, by Newton's method on all F·C + C numbers at once."""
    texts, features = x.shape
    columns = [np.kron(x * ratios[:, label], np.eye(CLASSES)[label]) for label in range(CLASSES)]
    design = sum(columns).reshape(texts, features, CLASSES)                # (N, F, C): dz_c / dw_{f,c}
    w, b, truth = np.zeros((features, CLASSES)), np.zeros(CLASSES), np.eye(CLASSES)[TRUTH]
    for _ in range(30):
        z = np.einsum("nfc,fc->nc", design, w) + b
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        slope = np.concatenate([np.einsum("nfc,nc->fc", design, p - truth) + l2 * w, (p - truth).sum(0)[None]]).ravel()
        full = np.concatenate([design, np.ones((texts, 1, CLASSES))], 1)
        middle = np.einsum("nc,cd->ncd", p, np.eye(CLASSES)) - np.einsum("nc,nd->ncd", p, p)
        curve = np.einsum("nfc,ncd,ngd->fcgd", full, middle, full).reshape(len(slope), -1)
        curve += np.diag([l2] * w.size + [1e-9] * CLASSES)                  # biases may all rise together
        step = np.linalg.solve(curve, slope).reshape(features + 1, CLASSES)
        w, b = w - step[:-1], b - step[-1]
    return ratios * w, b


def test_the_features_are_the_ngrams_that_enough_texts_have() -> None:
    kept, x = dense(3, 4)
    model = learned(order=3, min_count=4)
    assert [tuple(model.ngram(feature)) for feature in range(len(model.weights))] == kept
    counts = np.stack([x[np.array(TRUTH) == label].sum(0) for label in range(CLASSES)], 1)
    assert model.counts.tolist() == counts.astype(int).tolist()


def test_no_ngram_goes_from_one_text_into_the_next() -> None:
    tokens, texts = np.array([1, 2, 2, 1], np.int32), np.array([0, 0, 1, 1], np.int32)
    tables, presence = build_tables(tokens, texts, 2, 4, VOCAB, 1)
    assert [table.tolist() for table in tables] == [[1, 2], [0 * VOCAB + 2, 1 * VOCAB + 1], [], []]
    assert [presence.features.tolist(), presence.texts.tolist()] == [[0, 0, 1, 1, 2, 3], [0, 1, 0, 1, 0, 1]]


def test_features_are_found_where_they_are() -> None:
    model = learned(order=3, min_count=4)
    texts, classes = made_texts(9, seed=2)
    found = model.find(batch_of(texts, classes, filler=3))
    kept, _ = dense(3, 4)
    spots = [(row, end, tuple(text[end - size : end])) for row, text in enumerate(texts) for size in (1, 2, 3)
             for end in range(size, len(text) + 1)]
    places = [(row, end - 1, len(ngram), kept.index(ngram)) for row, end, ngram in spots if ngram in kept]
    assert sorted(zip(*(part.tolist() for part in found))) == sorted(places)


@pytest.mark.parametrize(("alpha", "l2"), [(1.0, 1.0), (0.5, 0.3), (2.0, 10.0)])
@pytest.mark.parametrize("ratios", [True, False])
def test_the_weights_are_those_of_dense_logistic_regression(alpha: float, l2: float, ratios: bool) -> None:
    _, x = dense(2, 3)
    scales = ratios_by_hand(x, alpha) if ratios else np.ones((x.shape[1], CLASSES))
    theta, b = newton(x, scales, l2)
    model = learned(alpha=alpha, l2=l2, ratios=ratios, min_count=3)
    assert_close(model.log_count_ratios.numpy(), ratios_by_hand(x, alpha).astype(np.float32))
    wanted = x @ theta + b
    assert_close(model(BATCH).log_softmax(1).numpy(), wanted - np.log(np.exp(wanted).sum(1, keepdims=True)), atol=0.02,
                 rtol=0, check_dtype=False)
    assert_close(model.weights.numpy(), theta, atol=0.02, rtol=0, check_dtype=False)


def test_an_ngram_counts_once_in_a_text() -> None:
    model = learned(order=1)
    once, often = batch_of([[0, 1, 6]], [0]), batch_of([[0, 1, 1, 1, 6]], [0])
    assert_close(model(once), model(often))
    assert_close(model(once), (model.bias + model.weights[[0, 1, 6]].sum(0))[None])    # all 7 tokens are features


def test_padding_changes_nothing() -> None:
    model, other = learned(), batch_of(TEXTS, TRUTH, filler=3)
    assert_close(model(other), model(BATCH))
    assert_close(learned(other).weights, model.weights)
    alone = [model(batch_of([text], [label])) for text, label in zip(TEXTS, TRUTH)]
    assert_close(torch.cat(alone), model(BATCH))


def test_statistics_add_over_batches_and_ranks() -> None:
    model, whole = learned(), learned()
    parts = [model.collect(BATCH.rows(slice(row, row + 20))) for row in (0, 20, 40)]
    total = parts[0] + parts[0].of(list((parts[1] + parts[2]).tensors()))
    model.update(total)
    assert_close(model(BATCH), whole(BATCH))
    assert math.isnan(total.nats)


def test_texts_without_a_class_are_not_learned_from() -> None:
    half = batch_of(TEXTS[:30], TRUTH[:30])
    unknown = Batch(BATCH.tokens, torch.tensor(TRUTH[:30] + [-1] * 30), BATCH.lengths)
    assert_close(learned(unknown)(BATCH), learned(half)(BATCH))


def test_what_no_text_had_leaves_the_prior() -> None:
    classes = [0] * 30 + [1] * 10
    model = learned(batch_of([[0, 1, 6]] * 40, classes), classes=2, l2=1e6)
    p = model(batch_of([[4, 5]], [0])).softmax(1)
    assert_close(p, torch.tensor([[0.75, 0.25]]), atol=1e-3, rtol=0)


def test_texts_too_few_for_any_ngram_leave_the_prior_alone() -> None:
    model = learned(batch_of([[0, 1, 6], [0, 2, 6], [0, 3, 6]], [0, 1, 1]), classes=2, min_count=9)
    assert model.weights.shape == (0, 2)
    assert_close(model(BATCH).softmax(1)[0], torch.tensor([1 / 3, 2 / 3]), atol=1e-3, rtol=0)


def test_a_model_before_training_knows_no_class() -> None:
    model = LogLinear(LogLinearSettings(), VOCAB, CLASSES)
    assert_close(model(BATCH), torch.zeros(60, CLASSES))
    nats, count = cross_entropy(model(BATCH), BATCH)
    assert float(nats / count) == pytest.approx(math.log(CLASSES))


def test_the_penalty_is_weaker_where_texts_say_their_class() -> None:
    """Chosen on the texts: labels by chance are best ignored, and a token that says the class is best believed."""
    draw = random.Random(3)
    classes = [draw.randrange(2) for _ in range(200)]
    noise = [[0, *(draw.randint(1, 5) for _ in range(6)), 6] for _ in classes]
    signs = [[0, 1 + label, *text[1:]] for label, text in zip(classes, [[0, 3, 4, 6]] * 200)]
    strong, weak = (learned(batch_of(texts, classes), classes=2, l2="auto").l2 for texts in (noise, signs))
    assert float(strong) == max(PENALTIES)
    assert float(weak) == pytest.approx(min(PENALTIES))


def test_a_chosen_penalty_is_then_used_on_all_texts() -> None:
    chosen = learned(l2="auto")
    assert float(chosen.l2) in [pytest.approx(l2) for l2 in PENALTIES]
    assert_close(chosen(BATCH), learned(l2=float(chosen.l2))(BATCH), atol=1e-3, rtol=0)


def test_a_matrix_of_ones_multiplies_as_a_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.array([token for text in TEXTS for token in text], np.int32)
    texts = np.repeat(np.arange(60, dtype=np.int32), [len(text) for text in TEXTS])
    _, presence = build_tables(tokens, texts, 60, 2, VOCAB, 2)
    _, x = dense(2, 2)
    right, left = torch.randn(x.shape[1], 3), torch.randn(60, 3)
    for mkl in (True, False):
        monkeypatch.setattr(torch.backends.mkl, "is_available", lambda mkl=mkl: mkl)
        matrix = Matrix(presence)
        assert_close(matrix.times(right), torch.tensor(x).float() @ right)
        assert_close(matrix.transposed_times(left), torch.tensor(x).float().T @ left)
    chosen = np.arange(60) % 3 == 0
    assert_close(Matrix(presence.among(chosen)).times(right), torch.tensor(x[chosen]).float() @ right)


def test_ratios_of_two_classes_are_opposite() -> None:
    ratios = log_count_ratios(torch.tensor([[3, 0], [1, 1]]), 1.0)
    first = math.log(4 / 6) - math.log(1 / 3)
    assert_close(ratios, torch.tensor([[first, -first], [math.log(2 / 6 / (2 / 3)), math.log(2 / 3 / (2 / 6))]]))


def test_the_minimum_of_a_quadratic_function_is_found() -> None:
    torch.manual_seed(1)
    root = torch.randn(20, 20, dtype=torch.double)
    a, b, told = root @ root.T + torch.eye(20), torch.randn(20, dtype=torch.double), []
    x, steps = minimise(lambda x: (float(x @ a @ x / 2 - b @ x), a @ x - b), torch.zeros(20, dtype=torch.double), 200,
                        told.append)
    assert_close(x, torch.linalg.solve(a, b), atol=0.01, rtol=0)
    assert told == sorted(told, reverse=True)
    assert len(told) == steps < 200
    assert float(x @ a @ x / 2 - b @ x) == told[-1]


def test_a_step_that_is_too_long_is_halved() -> None:
    """√(1 + x²) is nearly a straight line far from 0, so that a step made for its middle goes too far."""
    told: list[float] = []

    def function(x: torch.Tensor) -> tuple[float, torch.Tensor]:
        root = (1 + (40 * x) ** 2).sqrt()
        return float(root.sum()), 1600 * x / root

    x, _ = minimise(function, torch.tensor([3.0], dtype=torch.double), 100, told.append)
    assert told == sorted(told, reverse=True)
    assert abs(float(x)) < 1e-3


def test_a_damaged_file_is_refused() -> None:
    model = learned(order=3)
    good = model.state_dict()
    fresh = LogLinear(model.settings, VOCAB, CLASSES)
    fresh.load_state_dict(good)
    assert_close(fresh(BATCH), model(BATCH))
    for name, tensor, said in [
        ("keys_2", good["keys_2"].flip(0), "order 2"), ("keys_3", good["keys_3"] + 10**6, "order 3"),
        ("weights", good["weights"][1:], "weights"), ("counts", good["counts"][:, :1], "counts"),
        ("bias", torch.zeros(2), "biases"), ("l2", torch.zeros(2), "penalty"),
    ]:
        with pytest.raises(ValueError, match=said):
            LogLinear(model.settings, VOCAB, CLASSES).load_state_dict({**good, name: tensor})
    with pytest.raises(RuntimeError, match="keys_2"):
        LogLinear(model.settings, VOCAB, CLASSES).load_state_dict({k: v for k, v in good.items() if k != "keys_2"})
