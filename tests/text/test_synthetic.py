"""The entropy that a language claims is the one that its texts have."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from chainrule.errors import UserError
from chainrule.text.synthetic import LANGUAGES, Brackets, Hidden, entropy, language

SYMBOLS = {
    "die": "123456", "markov": "abcd", "hidden": "abcd", "brackets": "()[]{}\n", "rhythm": "01",
    "sums": "0123456789=\n", "repeats": "abcdefghijkl \n",
}


@pytest.fixture(params=LANGUAGES)
def spoken(request):
    return language(request.param)


def test_a_text_costs_what_the_entropy_says(spoken):
    text = spoken.text(60_000, seed=7)
    assert len(text) == 60_000
    assert spoken.bits(text) / len(text) == pytest.approx(spoken.bits_per_character, rel=0.012)


def test_all_texts_of_a_length_have_probability_one(spoken):
    texts = map("".join, product(SYMBOLS[spoken.name], repeat=4))
    assert sum(2 ** -spoken.bits(text) for text in texts) == pytest.approx(1)


def test_a_seed_repeats_a_text(spoken):
    assert spoken.text(300, seed=1) == spoken.text(300, seed=1)
    assert spoken.text(300, seed=1) != spoken.text(300, seed=2)
    assert spoken.text(300, seed=1).startswith(spoken.text(100, seed=1))


def test_what_cannot_be_said_costs_without_end(spoken):
    assert spoken.bits("?") == math.inf


@pytest.mark.parametrize(("name", "bits"), [("die", 1.9375), ("rhythm", 0.25)])
def test_entropies_worked_by_hand(name, bits):
    assert language(name).bits_per_character == pytest.approx(bits, abs=1e-12)


def test_sums_by_renewal():
    """A line has 5 digits on average, each a choice of ten and whether to stop, and three characters without choice."""
    bits = 5 * (math.log2(10) + entropy((1 / 5, 4 / 5))) / (5 + 3)
    assert language("sums").bits_per_character == pytest.approx(bits, abs=1e-12)


def test_repeats_repeat():
    sizes = set()
    for line in language("repeats").text(5_000).splitlines()[:-1]:
        one, _, other = line.partition(" ")
        assert one == other
        assert len(set(one)) == len(one)
        sizes.add(len(one))
    assert sizes == set(range(4, 13))                      # so that a copy is not at a fixed distance


def test_sums_add_up():
    for line in language("sums").text(5_000).split("\n")[:-1]:
        digits, _, total = line.partition("=")
        assert sum(map(int, digits)) % 10 == int(total)


def test_brackets_by_walking_the_depths():
    """The same number from the stationary walk over depths 0 to 200."""
    made = Brackets()
    up = np.array([made.first] + [made.deeper] * 199 + [0.0])
    moves = np.diag(up[:-1], 1) + np.diag(1 - up[1:], -1)
    moves[0, 0] = 1 - made.first
    visits = np.linalg.matrix_power(moves, 1 << 14)[0]
    entropies = [entropy((p, 1 - p)) + p * math.log2(3) for p in up]
    assert made.bits_per_character == pytest.approx(float(visits @ entropies), abs=1e-9)


def test_brackets_are_closed_by_their_own_kind():
    text = Brackets().text(20_000)
    for line in text.split("\n")[:-1]:
        for _ in range(len(line)):
            line = line.replace("()", "").replace("[]", "").replace("{}", "")
            if not line:
                break
        assert not line


def test_the_bounds_close_in_on_the_entropy():
    low, high = Hidden().bounds()
    assert 0 <= high - low < 1e-6
    assert low <= Hidden().bits_per_character <= high
    loose_low, loose_high = Hidden().bounds(2)
    assert loose_low < low <= high < loose_high


def test_hidden_is_more_than_its_last_letters():
    """Conditioned on one letter alone it looks more random: a bigram cannot be exact."""
    assert Hidden().bounds(1)[1] > Hidden().bits_per_character + 0.02


def test_an_unknown_language_is_named():
    with pytest.raises(UserError, match="Did you mean markov"):
        language("markow")


def test_the_page_states_the_entropies():
    page = (Path(__file__).parents[2] / "docs/training/text.md").read_text()
    for name, made in LANGUAGES.items():
        assert f"| `{name}` | {made.bits_per_character:.4f} |" in page
