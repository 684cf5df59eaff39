"""Sandbox for Jinja templates: a chat template is a program of strangers, so what it can reach and use up is bounded.

It has the syntax and the helpers that transformers gives to chat templates (raise_exception, strftime_now, tojson,
{% generation %}), on top of Jinja's own immutable sandbox. Beyond that, every loop, call and text counts against a
budget of work, and only those filters and methods exist whose result cannot be much larger than what they are given.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NoReturn

from chainrule.errors import UserError

CHARACTERS = 4_000_000     # of all texts that a template makes, those included that it does not print
WORK = 500_000             # rounds of loops, and calls
SECONDS = 3.0
SOURCE = 200_000           # characters of a template
FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "forceescape", "int",
    "items", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "round", "safe",
    "select", "selectattr", "sort", "title", "trim", "unique", "upper",
)
METHODS = (
    "capitalize", "count", "endswith", "find", "get", "isalnum", "isalpha", "isdigit", "islower", "isspace", "isupper",
    "items", "keys", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "rpartition", "rsplit", "rstrip",
    "split", "splitlines", "startswith", "strip", "title", "upper", "values",
)
FAILURES = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
BUILT_IN = (str, list, tuple, dict, int, float)
GENERATION = ("generation_begins", "generation_ends")
"""Values printed before and after a {% generation %} block; without them nothing is."""


class OutOfBounds(Exception):
    """The template does more work than any chat needs."""


class Refused(Exception):
    """The template itself refuses its messages: raise_exception."""


@dataclass
class Budget:
    """What one rendering may still use up."""

    characters: int = CHARACTERS
    work: int = WORK
    end: float = field(default_factory=lambda: time.monotonic() + SECONDS)

    def spend(self, characters: int) -> None:
        """One unit of work that makes a text of so many characters."""
        self.characters -= characters
        self.work -= 1
        if self.characters < 0:
            raise OutOfBounds(f"makes more than {CHARACTERS:,} characters")
        if self.work < 0 or (self.work % 256 == 0 and time.monotonic() > self.end):
            raise OutOfBounds("runs too long: it has too many rounds of loops, or calls")


_budget: ContextVar[Budget] = ContextVar("budget")


def render(source: str, values: dict[str, Any]) -> str:
    """The text that a template makes of its values."""
    template, before = parse(source), _budget.set(Budget())
    from jinja2 import TemplateError

    try:
        return str(template.render(values))
    except Refused as error:
        raise UserError(f"the chat template refuses these messages: {_line(error)}") from None
    except OutOfBounds as error:
        raise UserError(f"the chat template {error}. Use another: --chat-template FILE.") from None
    except (TemplateError, *FAILURES) as error:
        raise UserError(f"the chat template fails on these messages: {type(error).__name__}: {_line(error)}") from None
    finally:
        _budget.reset(before)


@lru_cache(maxsize=64)
def parse(source: str) -> Any:
    """The compiled template; a UserError where it does not parse."""
    if len(source) > SOURCE:
        raise UserError(f"the chat template has {len(source):,} characters, and {SOURCE:,} are the most.")
    return _made_by(_environment().from_string, source)


def check_syntax(source: str) -> None:
    """A UserError where a template does not parse; it may use filters that the sandbox does not have."""
    _made_by(_environment().parse, source)


def _made_by(make: Callable[[str], Any], source: str) -> Any:
    from jinja2 import TemplateError, TemplateSyntaxError

    try:
        return make(source)
    except TemplateSyntaxError as error:
        raise UserError(f"the chat template does not parse: line {error.lineno}: {_line(error)}") from None
    except (TemplateError, RecursionError, SyntaxError, ValueError, OverflowError, MemoryError) as error:
        raise UserError(f"the chat template does not parse: {type(error).__name__}: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") + "."


@lru_cache(maxsize=1)
def _environment() -> Any:
    try:
        from jinja2 import nodes, pass_context
        from jinja2.exceptions import SecurityError, TemplateSyntaxError
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from jinja2.utils import Namespace
    except ImportError:
        raise UserError("chat templates need jinja2: pip install 'chainrule[serve]'.") from None

    class Generation(Extension):
        """{% generation %} marks what training counts; the text is the same without it, unless GENERATION is given."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own name

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)
            begins, ends = (nodes.Output([nodes.Name(name, "load")]).set_lineno(line) for name in GENERATION)
            return [begins, body, ends]

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            tree = super()._parse(source, name, filename)
            _count_work(tree)
            return tree

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operands(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, called: Any, *args: Any, **kwargs: Any) -> Any:
            _budget.get().spend(0)
            made = super().call(context, called, *args, **kwargs)
            _budget.get().spend(len(made) if isinstance(made, str | list) else 0)
            return made

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            own = not isinstance(obj, BUILT_IN) or attr in METHODS
            return own and super().is_safe_attribute(obj, attr, value)

        def wrap_str_format(self, value: Any) -> Callable[..., Any] | None:
            """Of the methods of texts, those that could make a large text of small ones; `format` is not offered."""
            if not isinstance(getattr(value, "__self__", None), str):
                return None
            return {"replace": partial(_replace, value.__self__), "join": partial(_join_by, value.__self__)}.get(
                value.__name__)

    def _count_work(tree: Any) -> None:
        """Loops, constant texts and `~` go through filters that count them."""
        for loop in list(tree.find_all(nodes.For)):
            if loop.recursive:
                raise TemplateSyntaxError("recursive loops are not offered; use a macro", loop.lineno)
            loop.iter = nodes.Filter(loop.iter, " rounds", [], [], None, None, lineno=loop.lineno)
        for output in list(tree.find_all(nodes.Output)):
            output.nodes = [nodes.Filter(node, " text", [], [], None, None, lineno=output.lineno)
                            for node in output.nodes]
        for both in list(tree.find_all(nodes.Concat)):
            both.nodes = [nodes.Filter(node, " text", [], [], None, None, lineno=both.lineno) for node in both.nodes]

    class SafeNamespace(Namespace):
        """Jinja's, without names that begin with an underscore, as in transformers."""

        def __init__(*args: Any, **kwargs: Any) -> None:
            for name in dict(*args[1:], **kwargs):
                _check_name(name)
            Namespace.__init__(*args, **kwargs)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            Namespace.__setitem__(self, name, value)

    def _check_name(name: str) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no attribute {name!r}")

    # A filter that takes the context is not computed when a template is compiled, where no budget holds.
    counted: dict[str, Callable[..., Any]] = {
        " rounds": _rounds, " text": _text, "replace": _replace, "join": _join, "indent": _indent, "string": _string,
        "tojson": _tojson,
    }
    made = Sandbox(trim_blocks=True, lstrip_blocks=True, optimized=False,
                   extensions=[Generation, "jinja2.ext.loopcontrols"])
    made.filters = {name: made.filters[name] for name in FILTERS}
    made.filters |= {name: pass_context(_without_context(function)) for name, function in counted.items()}
    made.globals = {"range": made.globals["range"], "dict": _make_dict, "namespace": SafeNamespace,
                    "raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form[:100])}
    return made


def _without_context(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _context, *args, **kwargs: function(*args, **kwargs)


def _rounds(items: Any) -> Iterator[Any]:
    for item in items:
        _budget.get().spend(0)
        yield item


def _text(value: Any) -> Any:
    """A value that is printed, or joined with others by `~`."""
    _weigh(value)
    return value


def _string(value: Any) -> str:
    _weigh(value)
    return str(value)


def _weigh(value: Any) -> None:
    """Spends what a value takes as a text. A list may hold a long text many times."""
    if isinstance(value, list | tuple):
        for part in value:
            _weigh(part)
    elif isinstance(value, dict):
        _weigh([*value.keys(), *value.values()])
    else:
        _budget.get().spend(len(value) if isinstance(value, str) else 20)


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    times = text.count(old) if count is None else min(text.count(old), count)
    _budget.get().spend(len(text) + times * len(new))
    replaced: str = text.replace(old, new, -1 if count is None else count)
    return replaced


def _join(items: Iterable[Any], separator: str = "", attribute: str | int | None = None) -> str:
    return _join_by(str(separator), items if attribute is None else (item[attribute] for item in items))


def _join_by(separator: str, items: Iterable[Any]) -> str:
    texts = []
    for item in items:
        texts.append(_string(item))
        _budget.get().spend(len(separator))
    return separator.join(texts)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    space = width if isinstance(width, str) else " " * min(width, 100)
    lines = str(text).split("\n")
    _budget.get().spend(len(text) + len(lines) * len(space))
    rest = [space + line if line or blank else line for line in lines[1:]]
    return "\n".join([(space if first else "") + lines[0], *rest])


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As transformers writes it: nothing is escaped for HTML."""
    most = None if indent is None else min(indent, 16)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=most, separators=separators, sort_keys=sort_keys)
    return "".join(map(_text, encoder.iterencode(value)))


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise(message: Any = "") -> NoReturn:
    raise Refused(str(message))


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Before the operator makes a text, a list or a number that is too large."""
    sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
    if operator == "+":
        _budget.get().spend(sum(sizes))
    elif operator == "%" and isinstance(left, str):
        raise TypeError("texts are not formatted by %; use ~")
    elif operator == "*" and sizes:
        _budget.get().spend(sizes[0] * max(0, left if isinstance(left, int) else right))
    elif operator in ("*", "**") and (_large(left) or _large(right) or (operator == "**" and right > 64)):
        raise OutOfBounds("multiplies numbers that are too large")


def _large(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > 1 << 32
