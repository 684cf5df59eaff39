"""Models written by hand: a TOML file that states every number of a model, in the letters of the lectures.

    kind = "hmm"    states, symbols; pi, A, B: π_s, a_{s,s'}, b_{s,o}, as tables by name or as lists in that order
    kind = "rnn"    W, U, b_h, V, b_y of h' = σ(Wh + Ux + b_h), y = Vh' + b_y; activation: σ
                    symbols: x is the one-hot vector of a character; or inputs: how many numbers x has

A number may be a fraction, "4/11". The examples of the lectures lie in examples/, each under its name.

Shapes: S states, V symbols, H hidden units, D inputs, K outputs.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor

from chainrule.errors import UserError, did_you_mean
from chainrule.models.heads import TokenClassifier
from chainrule.models.hmm.hmm import HMM
from chainrule.models.rnn import Elman, ElmanSettings
from chainrule.recipe import Recipe
from chainrule.settings import hints
from chainrule.tasks import build_for, recipe_for
from chainrule.text.tokenizers.bytes import ByteLevel
from chainrule.text.tokenizers.symbols import SymbolLevel
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.words import RESERVED, WordLevel

HMM_KEYS = ("kind", "states", "symbols", "text", "pi", "A", "B")
RNN_KEYS = ("kind", "symbols", "inputs", "labels", "activation", "text", "W", "U", "V", "b_h", "b_y")
ROUNDING = 1e-6    # by which the sum of a distribution may differ from one


@dataclass(frozen=True)
class HandWritten:
    """A model, and all that a run of it needs."""

    model: Any
    tokenizer: Tokenizer
    recipe: Recipe
    what: str                          # for people
    labels: tuple[str, ...] = ()       # names of its states or classes
    excerpt: str = ""                  # a text that shows it, with which pages open


def find_hand_written(name: str) -> Path | None:
    """The TOML file of that name, or the built-in model; None: it is neither."""
    path = Path(name)
    if path.suffix == ".toml":
        return path
    return None if path.exists() else built_in_models().get(name)


def built_in_models() -> dict[str, Path]:
    """The models of the lectures, by name."""
    folder = Path(str(files("chainrule.formats") / "examples"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_hand_written(path: Path) -> HandWritten:
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        built_in = ", ".join(built_in_models())
        raise UserError(f"cannot read {path}: {error.strerror}. Models that are built in: {built_in}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}.") from error
    page = _Page(path, given)
    kind = page.text("kind", "hmm or rnn")
    if kind == "hmm":
        return _hmm(page)
    if kind == "rnn":
        return _rnn(page)
    raise page.error(f"kind is {kind!r}, and models that can be written by hand are hmm and rnn")


# A hidden Markov model

def _hmm(page: "_Page") -> HandWritten:
    page.refuse_others(HMM_KEYS)
    states, symbols = page.names("states"), page.names("symbols")
    if wrong := [symbol for symbol in symbols if symbol in RESERVED or symbol.split() != [symbol]]:
        raise page.error(f"the symbol {wrong[0]!r} cannot be used: a symbol is one word, and none of {RESERVED}")
    settings = {"text.tokenizer": "words", "text.min_count": 1, "model.states": len(states)}
    recipe, tokenizer = recipe_for("hmm", settings), Tokenizer.from_spec(WordLevel.spec(symbols))
    model: HMM = build_for(recipe, len(tokenizer))
    model.initial.copy_(page.distribution("pi", page.given.get("pi"), states, "state"))
    model.transition.copy_(page.distributions("A", states, states, "state"))
    model.emission.zero_()                                                # the boundary and <unk> are never emitted
    model.emission[:, [cast(int, tokenizer.id(symbol)) for symbol in symbols]] = page.distributions(
        "B", states, symbols, "symbol")
    what = f"an HMM of {len(states)} states ({', '.join(states)}) and {len(symbols)} symbols ({', '.join(symbols)})"
    return HandWritten(model, tokenizer, recipe, what, states, page.excerpt)


# A recurrent network

def _rnn(page: "_Page") -> HandWritten:
    page.refuse_others(RNN_KEYS)
    if ("symbols" in page.given) == ("inputs" in page.given):
        raise page.error("give either symbols, of which x is the one-hot vector, or inputs, how many numbers x has")
    hidden = len(page.rows("W"))
    page.check("W", (hidden, hidden), "H x H, where H is the number of hidden units")
    return _rnn_of_symbols(page, hidden) if "symbols" in page.given else _rnn_of_numbers(page, hidden)


def _rnn_of_symbols(page: "_Page", hidden: int) -> HandWritten:
    symbols = page.names("symbols")
    if wrong := [symbol for symbol in symbols if len(symbol) != 1]:
        raise page.error(f"the symbol {wrong[0]!r} has {len(wrong[0])} characters; symbols of an rnn have one each")
    tokenizer = Tokenizer.from_spec(SymbolLevel.spec(symbols))
    recipe = recipe_for("rnn", {
        "text.tokenizer": "symbols", "model.embedding": "onehot", "model.tied": False, **_settings(page, hidden),
    })
    model: Elman = build_for(recipe, len(tokenizer))
    with torch.no_grad():
        _set_cell(page, model, hidden, len(symbols))
        assert model.embedding.output is not None
        assert model.embedding.bias is not None
        model.embedding.output.weight.copy_(page.matrix("V", (len(symbols), hidden), "symbols by hidden units"))
        model.embedding.bias.copy_(page.vector("b_y", len(symbols), "one for each symbol"))
    what = f"a network of {hidden} hidden units over the symbols {' '.join(symbols)}"
    return HandWritten(model, tokenizer, recipe, what, (), page.excerpt)


def _rnn_of_numbers(page: "_Page", hidden: int) -> HandWritten:
    """A tagger of frames; without labels its answers are the numbers y_t."""
    inputs, labels = page.size("inputs"), page.names("labels") if "labels" in page.given else ()
    outputs = len(page.rows("V"))
    logistic = outputs == 1 and len(labels) == 2               # y = σ(Vh + b_y) is p(the second label)
    if labels and not logistic and outputs != len(labels):
        raise page.error(f"V has {outputs} rows, and there are {len(labels)} labels: {', '.join(labels)}. Each has a "
                         "row; two labels may share one, whose logistic function is the probability of the second")
    recipe = recipe_for("rnn", {
        "text.tokenizer": "bytes", "text.input": "frames", "model.features": inputs, "head.dropout": 0.0,
        **({} if labels else {"head.outputs": outputs}), **_settings(page, hidden),
    }, task="tag")
    tokenizer = Tokenizer.from_spec(ByteLevel.spec())          # there is no text, but every run has a tokenizer
    model: TokenClassifier = build_for(recipe, len(tokenizer), labels)
    V = page.matrix("V", (outputs, hidden), "outputs by hidden units")
    b_y = page.vector("b_y", outputs, "one for each output")
    with torch.no_grad():
        _set_cell(page, cast(Elman, model.body), hidden, inputs)
        model.output.weight.copy_(torch.cat([torch.zeros_like(V), V]) if logistic else V)
        model.output.bias.copy_(torch.cat([torch.zeros_like(b_y), b_y]) if logistic else b_y)
    gives = f"one of the labels {', '.join(labels)}" if labels else "1 number" if outputs == 1 else f"{outputs} numbers"
    units = f"{hidden} hidden unit{'s' * (hidden > 1)}"
    what = f"a network of {units} over vectors of {inputs}, which gives {gives} for each"
    return HandWritten(model, tokenizer, recipe, what, labels)


def _settings(page: "_Page", hidden: int) -> dict[str, Any]:
    activation, known = page.given.get("activation", "tanh"), get_args(hints(ElmanSettings)["nonlinearity"])
    if activation not in known:
        raise page.error(f"activation is {activation!r}, and it should be one of {', '.join(known)}")
    return {"model.layers": 1, "model.hidden": hidden, "model.nonlinearity": activation, "model.dropout": 0.0}


def _set_cell(page: "_Page", model: Elman, hidden: int, inputs: int) -> None:
    """W, U and b_h of the one layer."""
    U, W, b_U, b_W = model.stack.layers[0].rnn.all_weights[0]             # type: ignore[union-attr, index]
    U.copy_(page.matrix("U", (hidden, inputs), "hidden units by inputs"))
    W.copy_(page.matrix("W", (hidden, hidden), "hidden units by hidden units"))
    b_U.copy_(page.vector("b_h", hidden, "one for each hidden unit"))
    b_W.zero_()


# The numbers of a file, each checked, with messages that name it

class _Page:
    def __init__(self, path: Path, given: Mapping[str, Any]):
        self.path, self.given = path, given

    def error(self, line: str) -> UserError:
        return UserError(f"{self.path}: {line}.")

    def refuse_others(self, known: Sequence[str]) -> None:
        for name in self.given:
            if name not in known:
                near = did_you_mean(name, known) or f" It may have {', '.join(known)}."
                raise UserError(f"{self.path}: {name} has no meaning in a model of kind {self.given['kind']}.{near}")

    @property
    def excerpt(self) -> str:
        return self.text("text", "a text that the model reads") if "text" in self.given else ""

    def text(self, name: str, meaning: str) -> str:
        value = self.given.get(name)
        if not isinstance(value, str):
            raise self.error(f"{name} is missing: {name} = \"…\", {meaning}" if value is None else
                             f"{name} is {value!r}, and it should be {meaning}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        found = self.given.get(name)
        if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
            raise self.error(f"{name} should be a list of names, such as {name} = [\"a\", \"b\"]")
        if twice := [one for one in found if found.count(one) > 1]:
            raise self.error(f"{name} has {twice[0]!r} twice")
        return tuple(found)

    def size(self, name: str) -> int:
        value = self.given[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{name} is {value!r}, and it should be a whole number, 1 or more")
        return value

    def number(self, value: Any, where: str) -> float:
        try:
            number = float(Fraction(value)) if isinstance(value, str) else float(value)
        except (ValueError, TypeError, ZeroDivisionError):
            number = math.nan
        if isinstance(value, bool) or not math.isfinite(number):
            raise self.error(f"{where} is {value!r}, and it should be a number, or a fraction such as \"1/3\"")
        return number

    # Distributions

    def distributions(self, name: str, states: Sequence[str], outcomes: Sequence[str], what: str) -> Tensor:
        """(S, outcomes): the distribution of each state, by its name or in order."""
        given = self.given.get(name)
        if isinstance(given, list):
            if len(given) != len(states):
                raise self.error(f"{name} has {len(given)} rows, and there are {len(states)} states: "
                                 f"{', '.join(states)}")
            given = dict(zip(states, given))
        if not isinstance(given, Mapping):
            raise self.error(f"{name} is missing: a table with a distribution over {what}s for each state")
        if unknown := [state for state in given if state not in states]:
            raise self.error(f"{name} has a row for {unknown[0]!r}, which is not a state. The states are "
                             f"{', '.join(states)}")
        return torch.stack([self.distribution(f"{name}.{state}", given.get(state), outcomes, what) for state in states])

    def distribution(self, name: str, given: Any, outcomes: Sequence[str], what: str) -> Tensor:
        """(outcomes,): probabilities that sum to one; those that a table leaves out are 0."""
        if isinstance(given, list):
            if len(given) != len(outcomes):
                raise self.error(f"{name} has {len(given)} numbers, and there are {len(outcomes)} {what}s: "
                                 f"{', '.join(outcomes)}")
            given = dict(zip(outcomes, given))
        if not isinstance(given, Mapping):
            raise self.error(f"{name} is missing: a probability for each {what}")
        if unknown := [one for one in given if one not in outcomes]:
            raise self.error(f"{name} has {unknown[0]!r}, which is not a {what}. The {what}s are {', '.join(outcomes)}")
        numbers = [self.number(given.get(one, 0), f"{name}.{one}") for one in outcomes]
        if min(numbers) < 0:
            raise self.error(f"{name}.{outcomes[numbers.index(min(numbers))]} is {min(numbers):g}, and a probability "
                             "is 0 or more")
        if abs(math.fsum(numbers) - 1) > ROUNDING:
            raise self.error(f"{name} sums to {math.fsum(numbers):.6g}, and a distribution sums to 1")
        table = torch.tensor(numbers, dtype=torch.float64)
        return table / table.sum()

    # Matrices

    def rows(self, name: str) -> list[Any]:
        rows = self.given.get(name)
        if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
            raise self.error(f"{name} should be a matrix, a list of rows, such as {name} = [[1, 0], [0, 1]]")
        return rows

    def check(self, name: str, shape: tuple[int, int], meaning: str) -> None:
        rows = self.rows(name)
        for number, row in enumerate(rows, 1):
            if len(row) != shape[1] or len(rows) != shape[0]:
                found = f"{len(rows)} x {len(row)}" + (f" (row {number})" if len(row) != shape[1] else "")
                raise self.error(f"{name} is {found}, and it should be {shape[0]} x {shape[1]}: {meaning}")

    def matrix(self, name: str, shape: tuple[int, int], meaning: str) -> Tensor:
        self.check(name, shape, meaning)
        return torch.tensor([[self.number(value, name) for value in row] for row in self.rows(name)])

    def vector(self, name: str, size: int, meaning: str) -> Tensor:
        """A bias; zeros where none is given."""
        given = self.given.get(name, [0] * size)
        if not isinstance(given, list) or len(given) != size:
            raise self.error(f"{name} has {len(given) if isinstance(given, list) else 'no'} numbers, and it should "
                             f"have {size}: {meaning}")
        return torch.tensor([self.number(value, name) for value in given])


__all__ = ["HandWritten", "built_in_models", "find_hand_written", "read_hand_written"]
