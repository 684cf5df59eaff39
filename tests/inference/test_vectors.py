"""Words and a matrix: neighbours and analogies by hand, and evaluations as gensim and SciPy make them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from chainrule.errors import UserError
from chainrule.inference.vectors import (
    Vectors,
    analogy,
    evaluate_analogies,
    evaluate_similarity,
    nearest,
    rank_correlation,
    similarity,
    vectors_of,
)
from chainrule.text.analogies import Analogies, Similarities

ROYAL = Vectors(
    ["man", "woman", "king", "queen", "apple"],
    np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 1, 1], [-1, -1, 0.1]], np.float32),
)


def made(words=200, size=12, seed=1):
    """Vectors in which four in a row make an analogy, more or less."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(words, size))
    matrix[3::4] = matrix[1::4] - matrix[::4] + matrix[2::4] + 0.9 * rng.normal(size=(words // 4, size))
    return Vectors([f"w{number}" for number in range(words)], matrix.astype(np.float32))


def questions(vectors):
    words = [tuple(vectors.words[place : place + 4]) for place in range(0, len(vectors), 4)]
    return Analogies(tuple("first" if place < 20 else "second" for place in range(len(words))), tuple(words))


def test_the_nearest_words_come_first_and_the_word_itself_does_not():
    found = nearest(ROYAL, "king", 2)
    assert [word for word, _ in found] == ["man", "queen"]
    assert found[0][1] == pytest.approx(1 / np.sqrt(2))
    assert len(nearest(ROYAL, "king", 99)) == 4


def test_a_minus_b_plus_c():
    assert analogy(ROYAL, "king", "man", "woman")[0][0] == "queen"
    assert [word for word, _ in analogy(ROYAL, "king", "man", "woman")] == ["queen", "apple"]


def test_the_inputs_are_answers_only_when_they_may_be():
    near = Vectors(["a", "b", "c", "d"], np.array([[1, 0.1], [1, 0], [1, 0.05], [0, 1]], np.float32))
    assert analogy(near, "a", "b", "c")[0][0] == "d"
    assert analogy(near, "a", "b", "c", exclude=False)[0][0] in "abc"


def test_similarity_is_the_cosine():
    assert similarity(ROYAL, "man", "woman") == 0
    assert similarity(ROYAL, "king", "queen") == pytest.approx(0.5)


def test_a_word_is_found_as_it_is_written_else_in_small_letters():
    vectors = Vectors(["Turkey", "turkey", "oslo"], np.eye(3, dtype=np.float32))
    assert [vectors.find(word) for word in ("Turkey", "turkey", "OSLO", "Oslo", "bergen")] == [0, 1, 2, 2, None]
    with pytest.raises(UserError, match="'bergen' is not among the 3 words"):
        nearest(vectors, "bergen")


def test_what_has_a_vector_of_zeros_is_left_out():
    tokenizer = SimpleNamespace(token=lambda id: f"t{id}")
    made = vectors_of(SimpleNamespace(embeddings=torch.tensor([[0.0, 0], [0, 0], [1, 2], [3, 4]])), tokenizer)
    assert made.words == ["t2", "t3"]
    assert made["t3"].tolist() == [3, 4]
    with pytest.raises(UserError, match="has no word vectors"):
        vectors_of(SimpleNamespace(), tokenizer)


def test_analogies_are_judged_as_gensim_judges_them(tmp_path):
    keyed = pytest.importorskip("gensim.models").KeyedVectors(12)
    vectors = made()
    keyed.add_vectors(list(vectors.words), vectors.matrix)
    test = questions(vectors)
    path = tmp_path / "questions.txt"
    lines = [f": {name}\n" + "".join(" ".join(words) + "\n" for section, words in zip(test.sections, test.questions)
                                      if section == name) for name in ("first", "second")]
    path.write_text("".join(lines))
    share, parts = keyed.evaluate_word_analogies(str(path))
    result = evaluate_analogies(vectors, test)
    assert 0.05 < share < 0.95
    assert result.accuracy.value == pytest.approx(share)
    for part in parts[:2]:
        right = len(part["correct"]) / (len(part["correct"]) + len(part["incorrect"]))
        assert result.sections[part["section"]]["accuracy"] == pytest.approx(right)


def test_with_the_inputs_among_the_answers_fewer_are_right():
    result = evaluate_analogies(made(), questions(made()))
    assert result.with_inputs.value < result.accuracy.value
    assert result.accuracy.low < result.accuracy.value < result.accuracy.high
    values = result.as_dict()
    assert values["sections"]["first"]["questions"] == 20
    assert values["accuracy_interval"] == [result.accuracy.low, result.accuracy.high]


def test_a_question_with_a_word_that_has_no_vector_is_not_covered():
    test = Analogies(("a", "a", "b"), (("man", "king", "woman", "queen"), ("man", "king", "x", "y"), ("x",) * 4))
    result = evaluate_analogies(ROYAL, test)
    assert (result.covered, result.questions, result.accuracy.value) == (1, 3, 1.0)
    assert result.sections["b"]["accuracy"] is None
    nothing = evaluate_analogies(ROYAL, Analogies(("b",), (("x",) * 4,)))
    assert nothing.as_dict()["accuracy"] is None


def test_ranks_correlate_as_scipy_says():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    for _ in range(20):
        one, other = rng.integers(0, 6, (2, 30)).astype(float)     # with many ties
        assert rank_correlation(one, other) == pytest.approx(stats.spearmanr(one, other)[0])
    assert np.isnan(rank_correlation(np.ones(5), np.arange(5.0)))


def test_similarities_are_judged_by_those_covered():
    test = Similarities((("man", "king"), ("man", "apple"), ("king", "queen"), ("man", "yeti")), (9.0, 1.0, 5.0, 7.0))
    result = evaluate_similarity(ROYAL, test)
    assert (result.spearman.value, result.covered, result.pairs) == (1.0, 3, 4)
    assert evaluate_similarity(ROYAL, Similarities((("a", "b"),), (1.0,))).as_dict()["spearman"] is None
    alike = Similarities(test.pairs, (5.0,) * 4)                 # of which none can be ranked before another
    assert evaluate_similarity(ROYAL, alike).as_dict()["spearman"] is None
