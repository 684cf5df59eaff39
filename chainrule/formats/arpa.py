"""ARPA files: back-off n-gram models as text, the format of KenLM, SRILM and speech recognisers.

    \\data\\                       for each order a line with its number of n-grams
    ngram 1=10001
    \\1-grams:
    -2.35<TAB>the<TAB>-0.72        log10 p(the), the n-gram, log10 of its back-off weight (none at the highest order)

The boundary is one token here and two words in the file: <s> where it begins an n-gram, </s> where it ends one.
"""

import math
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.files import write_aside
from chainrule.model import BOUNDARY
from chainrule.models.ngram.lookup import Lookup
from chainrule.models.ngram.ngram import NGram, NGramSettings
from chainrule.models.ngram.smoothing import BackoffTable, Floats
from chainrule.progress import bar
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.words import UNKNOWN, WordLevel

BEGIN, END = "<s>", "</s>"
UNKNOWN_ID = 1           # of <unk>, as read here; before a context it leaves this the longest that is known
NEVER = -99.0            # how ARPA files write log10 0
ROUNDED = 1e-6           # log10 p of a probability of 1, as other programs may round it
MOST = 1.05              # what the probabilities after a context may sum to, as other programs round and prune
CHECKED = 16             # contexts of each order whose sum is checked: so many with the largest weights, so many others
DIGITS = 19              # that no number of n-grams has
LINES = 1 << 18          # lines written or read at a time
GAP = re.compile(r"[ \t\n\r\v\f]+")
WIDER = re.compile(r"[\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
"""White space that separates fields; and other white space, at which Python splits but which may be in a word."""
Text = np.dtypes.StringDType()


def write_arpa(model: NGram, tokenizer: Tokenizer, path: Path) -> None:
    if not isinstance(model, NGram):
        raise UserError(f"an ARPA file holds an n-gram model; this is {type(model).__name__}. Use --kind ngram.")
    total = sum(len(model.table("log_prob", order)) for order in range(1, model.order + 1))
    with bar("writing ARPA", total, "n-grams") as advance, write_aside(path) as aside, _open(aside) as file:
        file.write("\\data\\\n")
        for order in range(1, model.order + 1):
            file.write(f"ngram {order}={len(model.table('log_prob', order)) + (order == 1)}\n")
        for lines in _sections(model, _names(tokenizer)):
            file.write("\n".join(lines) + "\n")
            advance(len(lines))
        file.write("\n\\end\\\n")


def _open(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="\n")


def _names(tokenizer: Tokenizer) -> NDArray[Any]:
    names = [END] + [tokenizer.token(id) for id in range(1, len(tokenizer))]
    if clash := {BEGIN, END} & set(names[1:]):
        raise UserError(f"the vocabulary has {clash.pop()}, which ARPA files reserve for the ends of a sentence.")
    return np.array(names, dtype=Text)


def _sections(model: NGram, names: NDArray[Any]) -> Iterator[list[str]]:
    """The lines of all orders, in blocks."""
    texts = names.copy()                                         # the n-grams one shorter, as contexts
    texts[BOUNDARY] = BEGIN
    ngrams = names
    for order in range(1, model.order + 1):
        yield ["", f"\\{order}-grams:"]
        prob = _log10(model.table("log_prob", order))
        backoff = _log10(model.table("backoff", order)) if order < model.order else None
        if order == 1:
            yield ["\t".join([f"{NEVER:g}", BEGIN, *([] if backoff is None else _number(backoff[:1]))])]
        else:
            sizes = np.diff(model.table("starts", order).cpu().numpy())
            words = names[model.table("words", order).cpu().numpy()]
            texts = ngrams = np.strings.add(np.repeat(np.strings.add(texts, " "), sizes), words)
        if backoff is not None and order == 1:
            backoff[BOUNDARY] = 0                                # that was the weight of <s>; no word follows </s>
        for at in range(0, len(ngrams), LINES):
            part = slice(at, at + LINES)
            columns = [_number(prob[part]), ngrams[part], *([] if backoff is None else [_number(backoff[part])])]
            yield ["\t".join(line) for line in zip(*(column.tolist() for column in columns))]


def _log10(logs: torch.Tensor) -> Floats:
    return np.maximum(logs.double().cpu().numpy() / math.log(10), NEVER)


def _number(values: Floats) -> NDArray[Any]:
    return values.astype(np.float32).astype(Text)


def read_arpa(path: Path) -> tuple[NGram, Tokenizer]:
    """The model of an ARPA file and the tokenizer of its words."""
    try:
        file = path.open(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from None
    with file, _Reader(path, file) as reader:
        sizes = reader.header()
        with bar("reading ARPA", sum(sizes), "n-grams") as advance:
            words, first, backoffs = _unigrams(*reader.section(1, sizes, advance))
            tables = [first]
            lookups: list[Lookup] = []
            for order in range(2, len(sizes) + 1):
                table, lookup, backoffs = _table(reader, order, sizes, words, lookups, backoffs, advance)
                tables.append(table)
                lookups.append(lookup)
        reader.end()
    model = NGram(NGramSettings(order=len(sizes)), len(words))
    model.set_tables(tables)
    _refuse_no_distribution(path, model, list(words))
    return model, Tokenizer.from_spec(WordLevel.spec(list(words)[2:]))


def _refuse_no_distribution(path: Path, model: NGram, words: list[str]) -> None:
    """The probabilities after a context sum to 1: checked of no context, and of some of each order."""
    for order in range(1, model.order + 1):
        contexts = torch.zeros(1, 0, dtype=torch.long) if order == 1 else _contexts(model, order - 1)
        for context in contexts:
            total = _total(model, context)
            if not total <= MOST:
                after = f"after {' '.join(words[word] for word in context)!r}" if order > 1 else "of the 1-grams"
                raise UserError(f"{path}: the probabilities {after} sum to {total:.3g}, and not to 1. A probability or "
                                "a back-off weight is wrong; export the model again.")


def _contexts(model: NGram, length: int) -> torch.Tensor:
    """(N, length) n-grams of a length that are checked as contexts: those with large back-off weights, and others."""
    weights = model.table("backoff", length)
    count = min(CHECKED, len(weights))
    spread = torch.linspace(0, len(weights) - 1, count).round().long()
    place = torch.tensor(sorted({*weights.topk(count).indices.tolist(), *spread.tolist()}))
    columns = []
    for order in range(length, 1, -1):                           # from the last word to the first
        columns.append(model.table("words", order)[place].long())
        place = torch.searchsorted(model.table("starts", order).long(), place, right=True) - 1
    return torch.stack([place, *reversed(columns)], 1)


def _total(model: NGram, context: torch.Tensor) -> float:
    """The sum of all probabilities after a context."""
    if not len(context):
        return float(model.log_prob_1.double().exp().sum())
    padded = torch.full((1, model.order), UNKNOWN_ID)
    padded[0, model.order - len(context) :] = context
    logits, _ = model.step(padded[:, -1:], padded[:, :-1])
    return float(logits.double().exp().sum())


class _Reader:
    """Lines with their numbers, so that messages can name the line."""

    def __init__(self, path: Path, file: TextIO):
        self.path, self.file, self.line = path, file, 0

    def __enter__(self) -> "_Reader":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, UnicodeDecodeError):
            byte = f"{error.object[error.start]:#04x}"
            raise self.wrong(f"after this line is a byte that is not UTF-8 text, {byte}. Export a binary model as "
                             "ARPA; convert a text to UTF-8") from None

    def wrong(self, what: str) -> UserError:
        return UserError(f"{self.path}, line {self.line}: {what}.")

    def next(self) -> str:
        """The next line that is not blank."""
        for line in self.file:
            self.line += 1
            if stripped := line.strip(" \t\n\r\v\f"):
                return stripped
        raise self.wrong("the file ends here, before \\end\\; it is truncated")

    def header(self) -> list[int]:
        if (found := self.next()) != "\\data\\":
            raise self.wrong(f"an ARPA file begins with \\data\\, and this begins with {found[:40]!r}")
        sizes: list[int] = []
        while (line := self.next()).startswith("ngram "):
            order, _, size = line[6:].partition("=")
            if order.strip() != str(len(sizes) + 1) or not (size.strip().isdecimal() and len(size) < DIGITS):
                raise self.wrong(f"{line[:60]!r} should be ngram {len(sizes) + 1}=<a number>")
            sizes.append(int(size))
        if not sizes or line != "\\1-grams:":
            raise self.wrong(f"{line[:40]!r} where \\1-grams: was expected")
        return sizes

    def section(self, order: int, sizes: list[int], advance: Any) -> tuple[Floats, list[list[str]], Floats]:
        """log10 p (N,), a list of words for each position of the n-gram, log10 back-off (N,)."""
        if order > 1 and (found := self.next()) != f"\\{order}-grams:":
            more = f"the header gives order {order - 1} {sizes[order - 2]:,} n-grams"
            raise self.wrong(f"{found[:60]!r} where \\{order}-grams: was expected; {more}")
        probs, backoffs, columns = [], [], [[] for _ in range(order)]  # type: ignore[var-annotated]
        for at in range(0, sizes[order - 1], LINES):
            want = min(LINES, sizes[order - 1] - at)
            fields = self._fields(list(islice(self.file, want)), order, want, at, sizes[order - 1])
            probs.append(self._log_probs(fields[0]))
            for column, words in zip(columns, fields[1 : order + 1]):
                column.extend(words)
            backoffs.append(self._floats(fields[order + 1]))
            self.line += want
            advance(want)
        empty = np.zeros(0)
        return np.concatenate([empty, *probs]), columns, np.concatenate([empty, *backoffs])

    def _fields(self, lines: list[str], order: int, want: int, at: int, size: int) -> list[list[str]]:
        """The lines as columns: probability, words, back-off (0 where a line has none)."""
        odd = any(map(WIDER.search, lines))
        rows = [GAP.split(line.strip(" \t\n\r\v\f")) if odd else line.split() for line in lines]
        for offset, row in enumerate(rows):
            if len(row) == order + 1:
                row.append("0")
            elif len(row) != order + 2:
                self.line += offset + 1
                if not row or row[0].startswith("\\"):
                    raise self.wrong(f"order {order} ends after {at + offset:,} n-grams, and the header says {size:,}")
                wanted = f"a number, {order} words, perhaps a number"
                raise self.wrong(f"an n-gram of order {order} is {wanted}; not {len(row)} fields")
        if len(rows) < want:
            self.line += len(rows)
            raise self.wrong(f"order {order} ends after {at + len(rows):,} n-grams, and the header says {size:,}")
        return [list(column) for column in zip(*rows)]

    def _log_probs(self, words: list[str]) -> Floats:
        logs = self._floats(words)
        for row in np.flatnonzero(~(logs <= ROUNDED)):
            self.line += int(row) + 1
            raise self.wrong(f"log10 p is {words[row]}, and a probability is at most 1, so this is at most 0")
        return logs

    def _floats(self, words: list[str]) -> Floats:
        try:
            return np.array(words, dtype=np.float64)
        except ValueError:
            raise self.wrong("a probability or back-off weight below this line is not a number") from None

    def end(self) -> None:
        if (found := self.next()) != "\\end\\":
            more = "the last order has more n-grams than the header says"
            raise self.wrong(f"{found[:60]!r} where \\end\\ was expected; {more}")


def _unigrams(prob: Floats, columns: list[list[str]], backoff: Floats) -> tuple[dict[str, int], BackoffTable, Floats]:
    """Ids for the words, the boundary at 0 and <unk> at 1; their table; and their back-off weights."""
    own = (BEGIN, END, UNKNOWN)
    order = {word: row for row, word in enumerate(columns[0])}
    words = {word: id for id, word in enumerate([END, UNKNOWN, *(word for word in order if word not in own)])}
    everything = np.arange(len(words))
    table = BackoffTable(everything, np.array([0, len(words)]), np.zeros(len(words)), np.ones(1), everything)
    backoffs = np.ones(len(words))
    known = [word for word in words if word in order]
    rows, ids = [order[word] for word in known], [words[word] for word in known]
    table.prob[ids] = _linear(prob[rows])
    backoffs[ids] = _linear(backoff[rows])
    if BEGIN in order:
        backoffs[BOUNDARY] = _linear(backoff[[order[BEGIN]]])[0]
    return words, table, backoffs


def _table(
    reader: _Reader,
    order: int,
    sizes: list[int],
    words: dict[str, int],
    lookups: list[Lookup],
    backoffs: Floats,
    advance: Any,
) -> tuple[BackoffTable, Lookup, Floats]:
    """The n-grams of one order, sorted by context and word; their look-up table; and their own back-off weights."""
    prob, columns, backoff = reader.section(order, sizes, advance)
    ids = {**words, BEGIN: BOUNDARY}
    try:
        ids_of = [np.fromiter(map(ids.__getitem__, column), np.int64, len(column)) for column in columns]
    except KeyError as error:
        word = error.args[0]
        raise reader.wrong(f"order {order} has the word {word!r}, which is not among the 1-grams") from None
    context = torch.from_numpy(ids_of[0])
    for lookup, column in zip(lookups, ids_of[1:-1]):
        context = lookup.find(context * len(words) + torch.from_numpy(column)).long()
        if bool((context < 0).any()):
            ngram = " ".join(column[int((context < 0).nonzero()[0])] for column in columns)
            raise reader.wrong(f"the n-gram {ngram!r} has a context that order {order - 1} does not list")
    keys, row = (context * len(words) + torch.from_numpy(ids_of[-1])).sort()
    if bool((keys[1:] == keys[:-1]).any()):
        raise reader.wrong(f"order {order} lists an n-gram twice")
    contexts = len(lookups[-1].keys) if lookups else len(words)
    starts = torch.searchsorted(keys, torch.arange(contexts + 1) * len(words)).numpy()
    no_suffixes = np.zeros(len(keys), np.int32)                  # they are needed only for estimation
    place = row.numpy()
    table = BackoffTable(ids_of[-1][place], starts, _linear(prob[place]), backoffs, no_suffixes)
    return table, Lookup(keys), _linear(backoff[place])


def _linear(log10: Floats) -> Floats:
    return np.where(log10 <= NEVER, 0, 10.0 ** np.maximum(log10, NEVER))
