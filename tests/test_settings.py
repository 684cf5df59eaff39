import math
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

import pytest

from chainrule.errors import UserError
from chainrule.settings import LIMIT, Range, Settings, default, flatten, make, meanings, range_of, read, split_words


@dataclass(frozen=True)
class Some:
    """Not a meaning: # this."""

    order: int = 5                            # tokens in one gram
    rate: float = 1e-3                        # highest learning rate; # warms up
    shuffle: bool = True
    name: str = "a # b"                       # text with a mark in it
    way: Literal["up", "down"] = "up"         # where to
    most: int | None = None                   # None: no limit
    cuts: tuple[int, ...] = (0, 1)            # one for each order
    where: Path = Path("here")                # a folder
    words: tuple[str, ...] = field(
        default_factory=tuple
    )                                         # over several lines
    pair: tuple[int, int] = (1, 2)            # a comment that goes on
                                              # in the next line

    def order_of(self) -> int:
        return self.order                     # not a field


def test_the_comment_of_a_field_is_its_help() -> None:
    assert meanings(Some) == {
        "order": "tokens in one gram",
        "rate": "highest learning rate; # warms up",
        "shuffle": "",
        "name": "text with a mark in it",
        "way": "where to",
        "most": "None: no limit",
        "cuts": "one for each order",
        "where": "a folder",
        "words": "over several lines",
        "pair": "a comment that goes on in the next line",
    }


@dataclass(frozen=True)
class More(Some):
    order: int = 6                            # tokens, otherwise
    heads: int = 2                            # side by side


def test_help_is_inherited_and_may_be_replaced() -> None:
    assert meanings(More) == {**meanings(Some), "order": "tokens, otherwise", "heads": "side by side"}


def test_a_default_is_found_also_where_it_is_made() -> None:
    assert {item.name: default(item) for item in fields(Some)} == Some().__dict__
    assert default(fields(make_bare())[0]) is MISSING


def make_bare() -> type:
    @dataclass
    class Bare:
        name: str

    return Bare


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("order", "7", 7),
        ("order", "1e6", 1_000_000),
        ("order", "16_384", 16_384),
        ("order", "9223372036854775807", 2**63 - 1),      # which no float holds
        ("order", 3, 3),
        ("order", 3.0, 3),
        ("rate", "3e-4", 3e-4),
        ("rate", 1, 1.0),
        ("rate", "inf", math.inf),
        *(("shuffle", word, True) for word in ("true", "Yes", "1", True)),
        *(("shuffle", word, False) for word in ("false", "NO", "0", False)),
        ("name", "none", "none"),
        ("name", "", ""),
        ("way", "down", "down"),
        ("most", "none", None),
        ("most", None, None),
        ("most", "12", 12),
        ("cuts", "0,1,2", (0, 1, 2)),
        ("cuts", [3, 4], (3, 4)),
        ("cuts", "5", (5,)),
        ("cuts", 5, (5,)),
        ("cuts", "", ()),
        ("where", "a/b", Path("a/b")),
        ("words", "x,y", ("x", "y")),
    ],
)
def test_a_value_is_read_by_the_type_of_its_field(name: str, given: object, value: object) -> None:
    made = getattr(make(Some, {name: given}, "model"), name)
    assert made == value
    assert type(made) is type(value) or isinstance(value, Path)


@pytest.mark.parametrize(
    ("name", "given", "line"),
    [
        ("order", "many", "model.order=many is not a whole number"),
        ("order", "1.5", "model.order=1.5 is not a whole number"),
        ("order", 1.5, "model.order=1.5 is not a whole number"),
        ("order", True, "model.order=True is not a whole number"),
        ("order", "inf", "model.order=inf is not a whole number"),
        ("order", "nan", "model.order=nan is not a whole number"),
        ("order", None, "model.order=None is not a whole number"),
        ("rate", "fast", "model.rate=fast is not a number"),
        ("shuffle", "maybe", "model.shuffle=maybe is not true or false"),
        ("way", "dawn", "model.way=dawn is not one of up, down. Did you mean down?"),
        ("most", "x", "model.most=x is not a whole number"),
        ("cuts", "1,x", "model.cuts=x is not a whole number"),
        ("cuts", [0, "x"], "model.cuts=x is not a whole number"),
        ("order", math.inf, "model.order=inf is not a whole number"),
        ("order", [3], "model.order=[3] is not a whole number"),
        ("pair", "1", "model.pair=1: it must be 2 values"),
        ("pair", [1, 2, 3], "model.pair=1,2,3: it must be 2 values"),
    ],
)
def test_a_value_of_another_type_is_one_clear_line(name: str, given: object, line: str) -> None:
    with pytest.raises(UserError) as error:
        make(Some, {name: given}, "model")
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown setting model.oder. Did you mean model.order\?"):
        make(Some, {"oder": 1}, "model")
    with pytest.raises(UserError, match=r"Known: model.order, model.rate"):
        make(Some, {"zzzzzzzzzzzzz": 1}, "model")
    with pytest.raises(UserError, match="has no model settings"):
        make(dataclass(type("Nothing", (), {})), {"zzzzzzzzzzzzz": 1}, "model")


def test_dotted_words_are_settings_and_the_rest_keeps_its_order() -> None:
    words = ["book.txt", "model.order=3", "a=b", "text.separator=a=b", "--out", "x.y", "MODEL.ORDER=3", "train.lr="]
    rest, settings = split_words(words)
    assert rest == ["book.txt", "a=b", "--out", "x.y", "MODEL.ORDER=3"]
    assert settings == {"model.order": "3", "text.separator": "a=b", "train.lr": ""}


def test_nested_tables_become_dotted_settings() -> None:
    assert flatten({"kind": "ngram", "model": {"order": 5, "deep": {"er": 1}}}) == {
        "kind": "ngram",
        "model.order": 5,
        "model.deep.er": 1,
    }


@pytest.mark.parametrize(
    ("allowed", "says", "inside", "outside"),
    [
        (Range(1), "1 or more", (1, 7, LIMIT), (0, -1)),
        (Range(0, 1), "from 0 to 1", (0, 0.5, 1), (-0.1, 1.1)),
        (Range(0, below=1), "from 0 to less than 1", (0, 0.999), (1, -1)),
        (Range(above=0), "more than 0", (1e-9, 5), (0, -1)),
        (Range(above=0, most=3), "more than 0, and at most 3", (3,), (0, 3.1)),
        (Range(above=0, below=3), "more than 0, and less than 3", (2.9,), (0, 3)),
    ],
)
def test_a_range_names_itself_and_holds_its_numbers(allowed, says, inside, outside) -> None:
    assert str(allowed) == says
    for value in inside:
        allowed.check("train.lr", value)
    for value in outside:
        with pytest.raises(UserError, match=rf"^train\.lr={value:g}: it must be {says}\.$"):
            allowed.check("train.lr", value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_number_is_finite(value: float) -> None:
    with pytest.raises(UserError, match=r"^train\.lr=-?(inf|nan): it must be finite\.$"):
        Range(0).check("train.lr", value)


@pytest.mark.parametrize("value", [10**400, -(10**400)])        # more than any float
def test_a_whole_number_of_any_length_is_refused_in_a_short_line(value: int) -> None:
    with pytest.raises(UserError, match=r"^train\.lr=-?10{30}") as refused:
        Range(above=0).check("train.lr", value)
    assert len(str(refused.value)) < 200



def test_where_a_range_states_no_end_there_is_a_limit() -> None:
    with pytest.raises(UserError, match=f"^train.steps={LIMIT + 1}: it must be at most {LIMIT}.$"):
        Range(1).check("train.steps", LIMIT + 1)


def test_an_end_that_only_guards_against_overflow_is_named_where_it_is_passed() -> None:
    assert str(Range(1, 1 << 24)) == "1 or more"
    with pytest.raises(UserError, match=f"^model.width={1 << 25}: it must be at most {1 << 24}.$"):
        Range(1, 1 << 24).check("model.width", 1 << 25)


@dataclass(frozen=True)
class Checked(Settings):
    order: Annotated[int, Range(1, 9)] = 5                 # tokens
    most: Annotated[int, Range(1)] | None = None           # none: no limit
    cuts: tuple[Annotated[float, Range(0)], ...] = (0, 1)  # one for each order
    name: str = ""                                         # no number

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most is not None and self.most % self.order:
            raise UserError("not a multiple")


@dataclass(frozen=True)
class CheckedElsewhere(Checked, part="train"):
    pass


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"order": 0, "most": 3}, "order=0: it must be from 1 to 9."),    # before fields are checked together
        ({"order": 10}, "order=10: it must be from 1 to 9."),
        ({"most": 0}, "most=0: it must be 1 or more."),
        ({"cuts": (0, -1)}, "cuts=-1: it must be 0 or more."),
    ],
)
def test_a_number_out_of_its_range_is_refused_however_settings_are_made(given, says) -> None:
    for cls, part in (Checked, "model"), (CheckedElsewhere, "train"):
        for make_it in (lambda cls=cls: cls(**given), lambda cls=cls, part=part: make(cls, given, part)):
            with pytest.raises(UserError) as error:
                make_it()
            assert str(error.value) == f"{part}.{says}"


def test_a_range_is_found_in_any_type() -> None:
    assert [str(range_of(hint)) for hint in Checked.__annotations__.values()] == [
        "from 1 to 9", "1 or more", "0 or more", "None",
    ]


def test_none_is_only_a_value_where_the_type_has_it() -> None:
    size = Annotated[int, Range(1)] | Literal["onehot"]
    assert read("onehot", size, "model.embedding") == "onehot"
    assert read("none", size | None, "model.embedding") is None
    with pytest.raises(UserError, match="=none is not a whole number, nor onehot"):
        read("none", size, "model.embedding")
