"""Synthetic languages of known entropy: they show how far a model is from the true distribution.

Each is an automaton: from a state, characters follow with given probabilities, and each leads to one next state. So a
text has one path, and its true cost in bits is a sum along it. The entropy per character is exact for automata with
finitely many states (their stationary distribution times the entropy of each state) and for brackets; for `hidden` it
lies between two bounds less than a millionth of a bit apart (Cover & Thomas, theorem 4.5.1).
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from random import Random
from typing import ClassVar, TypeAlias

import numpy as np

from chainrule.errors import UserError, did_you_mean

State: TypeAlias = Hashable
Choices: TypeAlias = Mapping[str, tuple[float, State]]
"""What may follow: character -> (probability, the state after it)."""


def entropy(probabilities: Iterable[float]) -> float:
    """The entropy of a distribution, in bits."""
    return -sum(p * math.log2(p) for p in probabilities if p > 0)


class Language:
    name: ClassVar[str]
    idea: ClassVar[str]                                # one line for the catalogue
    start: ClassVar[State] = ""

    def after(self, state: State) -> Choices:
        raise NotImplementedError

    def text(self, characters: int, seed: int = 1) -> str:
        uniform, state, written = Random(f"{self.name} {seed}").random, self.start, []
        for _ in range(characters):
            character, state = self._draw(state, uniform())
            written.append(character)
        return "".join(written)

    def _draw(self, state: State, left: float) -> tuple[str, State]:
        for character, (probability, follows) in self.after(state).items():
            left -= probability
            if left < 0:
                return character, follows
        return character, follows                      # probabilities that round to a little less than 1

    def bits(self, text: str) -> float:
        """-log2 p of a text by the true probabilities; infinite if the text is not in the language."""
        return sum(self.character_bits(text))

    def character_bits(self, text: str) -> Iterator[float]:
        """-log2 p of each character by the true probabilities; after an impossible one (infinite) no more follow."""
        state = self.start
        for character in text:
            probability, state = self.after(state).get(character, (0.0, None))
            if probability == 0:
                yield math.inf
                return
            yield -math.log2(probability)

    @cached_property
    def bits_per_character(self) -> float:
        """Exact for finitely many states: how often each is visited, times the entropy of what follows it."""
        states = self._reachable()
        moves = np.zeros((len(states), len(states)))
        for state, row in states.items():
            for probability, follows in self.after(state).values():
                moves[row, states[follows]] += probability
        balance = np.vstack([moves.T - np.eye(len(states)), np.ones(len(states))])   # visits stay, and sum to 1
        visits = np.linalg.lstsq(balance, np.append(np.zeros(len(states)), 1.0), rcond=None)[0]
        entropies = [entropy(probability for probability, _ in self.after(state).values()) for state in states]
        return float(visits @ entropies)

    def _reachable(self) -> dict[State, int]:
        found, waiting = {self.start: 0}, [self.start]
        while waiting:
            for _, follows in self.after(waiting.pop()).values():
                if follows not in found:
                    found[follows] = len(found)
                    waiting.append(follows)
        return found


class Die(Language):
    name = "die"
    idea = "a weighted die rolled again and again; characters are independent"
    weights: ClassVar[Mapping[str, float]] = {"1": 1 / 2, "2": 1 / 4, "3": 1 / 8, "4": 1 / 16, "5": 1 / 32, "6": 1 / 32}
    faces: ClassVar[Choices] = {face: (weight, "") for face, weight in weights.items()}

    def after(self, state: State) -> Choices:
        return self.faces


class Markov(Language):
    name = "markov"
    idea = "each letter depends on the one before it, and only on that; a bigram model can be exact"
    start = "a"
    chain: ClassVar[Mapping[State, Choices]] = {
        "a": {"b": (0.7, "b"), "c": (0.2, "c"), "a": (0.1, "a")},
        "b": {"a": (0.5, "a"), "d": (0.4, "d"), "b": (0.1, "b")},
        "c": {"d": (0.8, "d"), "a": (0.2, "a")},
        "d": {"a": (0.6, "a"), "c": (0.3, "c"), "d": (0.1, "d")},
    }

    def after(self, state: State) -> Choices:
        return self.chain[state]


class Rhythm(Language):
    name = "rhythm"
    idea = "bars of 1000 or 1010, a coin toss each; a model must count the beats to know where a bar begins"
    bars: ClassVar[Mapping[State, Choices]] = {
        "": {"1": (1.0, "1")},
        "1": {"0": (1.0, "10")},
        "10": {"0": (0.5, "10?"), "1": (0.5, "10?")},
        "10?": {"0": (1.0, "")},
    }

    def after(self, state: State) -> Choices:
        return self.bars[state]


class Sums(Language):
    name = "sums"
    idea = "digits, then their sum modulo 10, a line each; a model must add to know the last digit"
    start = (0, "first")
    stop: ClassVar[float] = 1 / 5                      # probability that a digit is the last of its line

    def after(self, state: State) -> Choices:
        assert isinstance(state, tuple)
        total, place = state
        if place == "=":
            return {str(total): (1.0, (0, "end"))}
        if place == "end":
            return {"\n": (1.0, (0, "first"))}
        more = 1.0 if place == "first" else 1 - self.stop
        digits = {str(digit): (more / 10, ((total + digit) % 10, "more")) for digit in range(10)}
        return digits if place == "first" else {"=": (self.stop, (total, "=")), **digits}


class Repeats(Language):
    """The state is the line so far. No letter comes twice in one half, so the copy follows from the last letter; the
    halves differ in length from line to line, so it does not follow from a distance."""

    name = "repeats"
    idea = "different letters, then the same again; a model must find where the last letter was, and what followed it"
    letters: ClassVar[str] = "abcdefghijkl"
    least: ClassVar[int] = 4                           # letters of a half; from here on it may end
    stop: ClassVar[float] = 1 / 5                      # with this probability

    def after(self, state: State) -> Choices:
        assert isinstance(state, str)
        first, space, copy = state.partition(" ")
        if space:
            follows = first[len(copy)] if len(copy) < len(first) else "\n"
            return {follows: (1.0, "" if follows == "\n" else state + follows)}
        left, stop = [letter for letter in self.letters if letter not in first], self._stop(len(first))
        ends = {" ": (stop, state + " ")} if stop else {}
        return ends | {letter: ((1 - stop) / len(left), state + letter) for letter in left}

    def _stop(self, size: int) -> float:
        """The probability that a half of so many letters is complete."""
        return 0.0 if size < self.least else self.stop if size < len(self.letters) else 1.0

    @cached_property
    def bits_per_character(self) -> float:
        """The bits of the first half over the characters of a line: the copy and the new line cost no bits."""
        reached, bits, characters = 1.0, 0.0, 0.0
        for size in range(len(self.letters) + 1):
            stop = self._stop(size)
            bits += reached * (entropy((stop, 1 - stop)) + (1 - stop) * math.log2(max(1, len(self.letters) - size)))
            characters += reached * stop * (2 * size + 2)
            reached *= 1 - stop
        return bits / characters


class Brackets(Language):
    """The depth is a random walk: up with `deeper`, down otherwise; at depth 0, a new line or up with `first`."""

    name = "brackets"
    idea = "brackets of three kinds, nested; each must be closed by its own kind, however far back it was opened"
    pairs: ClassVar[Mapping[str, str]] = {"(": ")", "[": "]", "{": "}"}
    first: ClassVar[float] = 0.75
    deeper: ClassVar[float] = 0.4

    def after(self, state: State) -> Choices:
        assert isinstance(state, str)                  # the brackets still to come, the nearest last
        up = self.deeper if state else self.first
        closing = state[-1:] or "\n"
        opened = {left: (up / len(self.pairs), state + right) for left, right in self.pairs.items()}
        return {closing: (1 - up, state[:-1]), **opened}

    @cached_property
    def bits_per_character(self) -> float:
        """Visits to depth d + 1 are visits to depth d times up / down: a geometric series."""
        down = 1 - self.deeper
        above = (self.first / down) / (1 - self.deeper / down)       # visits to all depths above 0, for each to depth 0
        ground = 1 / (1 + above)
        kinds = math.log2(len(self.pairs))
        on_ground = entropy((self.first, 1 - self.first)) + self.first * kinds
        on_top = entropy((self.deeper, down)) + self.deeper * kinds
        return ground * on_ground + (1 - ground) * on_top


class Hidden(Language):
    """A hidden Markov model. The state is the belief: how likely each hidden state is, given the text so far."""

    name = "hidden"
    idea = "three hidden states in turn emit noisy letters"
    letters: ClassVar[str] = "abcd"
    moves: ClassVar[np.ndarray] = np.array([[0.1, 0.85, 0.05], [0.05, 0.1, 0.85], [0.85, 0.05, 0.1]])
    emits: ClassVar[np.ndarray] = np.array([[0.85, 0.05, 0.05, 0.05], [0.05, 0.6, 0.3, 0.05], [0.1, 0.05, 0.1, 0.75]])
    start = (1 / 3, 1 / 3, 1 / 3)

    def after(self, state: State) -> Choices:
        joint = np.asarray(state)[:, None] * self.emits              # (hidden, letter)
        probabilities = joint.sum(0)
        beliefs = (joint / probabilities).T @ self.moves
        return {
            letter: (probability, tuple(belief))
            for letter, probability, belief in zip(self.letters, probabilities.tolist(), beliefs.tolist())
        }

    def text(self, characters: int, seed: int = 1) -> str:
        """The same distribution, by sampling the hidden states, which is faster than updating the belief."""
        random, written = Random(f"{self.name} {seed}"), []
        state = random.choices(range(3), self.start)[0]
        moves, emits = (np.cumsum(table, 1).tolist() for table in (self.moves, self.emits))
        for _ in range(characters):
            written += random.choices(self.letters, cum_weights=emits[state])
            state = random.choices(range(3), cum_weights=moves[state])[0]
        return "".join(written)

    @cached_property
    def bits_per_character(self) -> float:
        return sum(self.bounds()) / 2

    def bounds(self, length: int = 9) -> tuple[float, float]:
        """H(letter | `length` letters before, and the state before those) <= entropy <= H(letter | those letters)."""
        visits = np.linalg.matrix_power(self.moves, 1000)[0]
        known = sum(visit * self._conditional(np.eye(3)[state], length) for state, visit in enumerate(visits))
        return float(known), self._conditional(visits, length)

    def _conditional(self, belief: np.ndarray, length: int) -> float:
        """H(letter | length letters before it) from a belief, over all texts of that length."""
        weights = belief[None, :]                                    # (texts, hidden): p(text, next hidden state)
        for _ in range(length):
            weights = np.einsum("th,hl,hn->tln", weights, self.emits, self.moves).reshape(-1, 3)
        joint = weights @ self.emits                                 # (texts, letters)
        return float(-(joint * np.log2(joint / joint.sum(1, keepdims=True))).sum())


LANGUAGES: Mapping[str, Language] = {
    made.name: made for made in (Die(), Markov(), Hidden(), Brackets(), Rhythm(), Sums(), Repeats())
}


def language(name: str) -> Language:
    if name not in LANGUAGES:
        hint = did_you_mean(name, LANGUAGES) or f" Known: {', '.join(LANGUAGES)}."
        raise UserError(f"unknown language {name}.{hint}")
    return LANGUAGES[name]
