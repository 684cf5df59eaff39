"""Numbers worked by hand, and intervals against the bootstrap written out."""

import json

import numpy as np
import pytest

from chainrule.errors import UserError
from chainrule.inference.metrics import answer_f1, measure_answers, measure_classes, measure_tags, normalise_answer
from chainrule.inference.statistics import ROUNDS, SEED, bootstrap

TRUTH = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
PREDICTED = np.array([0, 0, 0, 1, 1, 1, 0, 2, 0, 2])


def test_accuracy_f1_and_confusion_are_those_worked_by_hand():
    found = measure_classes(TRUTH, PREDICTED, ("a", "b", "c"))
    assert found.accuracy.value == pytest.approx(7 / 10)
    assert found.confusion == ((3, 1, 0), (1, 2, 0), (1, 0, 2))
    a, b, c = found.classes.values()
    assert (a.precision, a.recall, a.f1, a.examples) == pytest.approx((3 / 5, 3 / 4, 2 / 3, 4))
    assert (b.precision, b.recall, b.f1, b.examples) == pytest.approx((2 / 3, 2 / 3, 2 / 3, 3))
    assert (c.precision, c.recall, c.f1, c.examples) == pytest.approx((1, 2 / 3, 4 / 5, 3))
    assert found.f1.value == pytest.approx((2 / 3 + 2 / 3 + 4 / 5) / 3)
    assert found.examples == 10


def test_a_class_that_is_only_predicted_counts_and_one_that_never_occurs_does_not():
    found = measure_classes(np.array([0, 0, 1]), np.array([0, 2, 1]), ("a", "b", "predicted", "never"))
    assert found.f1.value == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert found.classes["never"] == type(found.classes["never"])(0.0, 0.0, 0.0, 0)


def by_hand(truth, predicted, classes, unit, units):
    """The bootstrap in lists: draw units, gather what is in them, measure."""
    generator, accuracies, f1s = np.random.default_rng(SEED), [], []
    for _ in range(ROUNDS):
        chosen = generator.choice(units, units)
        drawn = np.concatenate([np.flatnonzero(unit == one) for one in chosen])
        true, said = truth[drawn], predicted[drawn]
        accuracies.append((true == said).mean())
        parts = []
        for one in range(classes):
            right, both = ((true == one) & (said == one)).sum(), (true == one).sum() + (said == one).sum()
            parts += [2 * right / both] if both else []
        f1s.append(np.mean(parts))
    return [(np.sort(numbers)[ROUNDS // 40], np.sort(numbers)[-ROUNDS // 40 - 1]) for numbers in (accuracies, f1s)]


def test_intervals_are_those_of_the_bootstrap_written_out():
    generator = np.random.default_rng(1)
    truth = generator.integers(0, 3, 60)
    predicted = np.where(generator.random(60) < 0.7, truth, generator.integers(0, 3, 60))
    found = measure_classes(truth, predicted, ("a", "b", "c"))
    accuracy, f1 = by_hand(truth, predicted, 3, np.arange(60), 60)
    assert (found.accuracy.low, found.accuracy.high) == pytest.approx(accuracy)
    assert (found.f1.low, found.f1.high) == pytest.approx(f1)
    assert found.accuracy.low < found.accuracy.value < found.accuracy.high


def test_the_words_of_a_sentence_are_drawn_together():
    generator = np.random.default_rng(2)
    sizes = generator.integers(1, 9, 30)
    truth = [generator.integers(0, 4, size) for size in sizes]
    predicted = [np.where(generator.random() < 0.6, tags, (tags + 1) % 4) for tags in truth]    # whole sentences
    known = [np.ones(len(tags), bool) for tags in truth]
    found = measure_tags(truth, predicted, tuple("abcd"), known)
    unit = np.repeat(np.arange(30), sizes)
    accuracy, f1 = by_hand(np.concatenate(truth), np.concatenate(predicted), 4, unit, 30)
    assert (found.words.accuracy.low, found.words.accuracy.high) == pytest.approx(accuracy)
    assert (found.words.f1.low, found.words.f1.high) == pytest.approx(f1)
    alone = measure_classes(np.concatenate(truth), np.concatenate(predicted), tuple("abcd"))
    assert found.words.accuracy.high - found.words.accuracy.low > alone.accuracy.high - alone.accuracy.low


def test_known_and_unknown_words_have_their_own_accuracy():
    truth = [np.array([0, 1, 1]), np.array([1]), np.array([0, 0])]
    predicted = [np.array([0, 1, 0]), np.array([0]), np.array([0, 1])]
    known = [np.array([True, True, False]), np.array([False]), np.array([True, True])]
    found = measure_tags(truth, predicted, ("N", "V"), known)
    assert found.words.accuracy.value == pytest.approx(3 / 6)
    assert found.known.value == pytest.approx(3 / 4)
    assert found.unknown.value == 0
    assert (found.sentences, found.words.examples) == (3, 6)
    values = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert values["known_accuracy"] == 0.75
    assert (values["words"], values["sentences"]) == (6, 3)


def test_without_unknown_words_they_have_no_accuracy():
    found = measure_tags([np.array([0])], [np.array([0])], ("N",), [np.array([True])])
    assert found.unknown is None
    assert found.as_dict()["unknown_accuracy"] is None
    assert found.known.value == 1


def test_results_are_plain_values():
    values = json.loads(json.dumps(measure_classes(TRUTH, PREDICTED, ("a", "b", "c")).as_dict(), allow_nan=False))
    assert values["accuracy"] == pytest.approx(0.7)
    assert values["accuracy_interval"][0] < 0.7 < values["accuracy_interval"][1]
    assert values["confusion"] == {"names": ["a", "b", "c"], "rows": [[3, 1, 0], [1, 2, 0], [1, 0, 2]]}
    assert values["classes"]["c"]["recall"] == pytest.approx(2 / 3)
    assert "average:macro" in values["signature"]


def test_the_interval_of_a_share_is_about_two_deviations_wide():
    right = np.arange(400) < 300
    score = bootstrap(lambda weights: float(weights @ right / 400), 400)
    deviation = (0.75 * 0.25 / 400) ** 0.5
    assert score.value == 0.75
    assert score.low == pytest.approx(0.75 - 1.96 * deviation, abs=0.006)
    assert score.high == pytest.approx(0.75 + 1.96 * deviation, abs=0.006)
    assert score == bootstrap(lambda weights: float(weights @ right / 400), 400)
    assert score != bootstrap(lambda weights: float(weights @ right / 400), 400, seed=1)


def test_no_examples_are_refused():
    with pytest.raises(UserError, match="to measure"):
        measure_classes(np.empty(0, np.int64), np.empty(0, np.int64), ("a",))
    with pytest.raises(ValueError, match="1 true classes and 2 predicted"):
        measure_classes(np.array([0]), np.array([0, 0]), ("a",))


def test_answers_are_compared_as_squad_does():
    assert normalise_answer("  The Cat's  hat, an  A-1! ") == "cats hat a1"
    assert normalise_answer("theatre") == "theatre"
    assert answer_f1("in the big garden", "the garden") == pytest.approx(2 * 1 / (3 + 1))
    assert answer_f1("red red ball", "red red car") == pytest.approx(2 * 2 / 6)
    assert (answer_f1("", "the"), answer_f1("x", ""), answer_f1("x", "y")) == (1.0, 0.0, 0.0)
    result = measure_answers(["The kitchen.", "a ball", "Ben", ""], [["kitchen"], ["ball red", "drum"], ["Anna"], []])
    assert (result["exact"], result["texts"]) == (0.5, 4)
    assert result["f1"] == pytest.approx((1 + 2 / 3 + 0 + 1) / 4)
