"""Tokenizer: one class for all units of text, saved as a tokenizer.json that Hugging Face's `tokenizers` reads.

Id 0 is the boundary, which begins and ends every text and which no text can spell; only `symbols` has none. A task may
add special tokens (a mask, a delimiter) after all others: the other ids stay the same, and no text can spell special
tokens either.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError, did_you_mean
from chainrule.files import write_text
from chainrule.model import BOUNDARY
from chainrule.recipe import Text
from chainrule.text.tokenizers.bpe import BPE
from chainrule.text.tokenizers.bytes import ByteLevel
from chainrule.text.tokenizers.characters import CharacterLevel
from chainrule.text.tokenizers.pretrained import (
    FALLBACK,
    Pretrained,
    first_name,
    renamed,
    with_boundary_at,
    with_boundary_first,
)
from chainrule.text.tokenizers.symbols import SymbolLevel
from chainrule.text.tokenizers.unit import SPECIAL, Ids, Spec, StreamDecoder, Unit, frame, refuse_vocab
from chainrule.text.tokenizers.words import WordLevel

Trainable: TypeAlias = type[ByteLevel] | type[CharacterLevel] | type[WordLevel] | type[BPE] | type[SymbolLevel]
UNITS: dict[str, Trainable] = {unit.name: unit for unit in (ByteLevel, CharacterLevel, WordLevel, BPE, SymbolLevel)}
KINDS = f"one of {', '.join(UNITS)}, or the path of a tokenizer.json"
CHUNK = 1 << 20   # characters encoded at a time, which bounds memory and changes no token


class Tokenizer:
    def __init__(self, file: str, unit: Unit):
        self._file = file                            # the tokenizer.json, as it is saved
        self._unit = unit
        self.unit = unit.name                        # bytes, characters, words, bpe or pretrained
        self.lossless = unit.lossless                # decoding gives back every text exactly
        self.boundary = unit.boundary                # what id 0 begins and ends: document, line or none
        self.lines = unit.boundary == "line"         # each line is a text of its own
        self.sha256 = hashlib.sha256(file.encode()).hexdigest()

    @classmethod
    def from_spec(cls, spec: Spec) -> "Tokenizer":
        return cls(json.dumps(spec, ensure_ascii=False, indent=1), _unit(spec))

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """A tokenizer.json: one that chainrule saved is used unchanged, any other with its boundary moved to id 0."""
        try:
            file = Path(path).read_bytes().decode()
            spec = json.loads(file)
            own = _is_own(spec)
            return cls(file, _unit(spec)) if own else cls.from_spec(with_boundary_first(spec))
        except FileNotFoundError:
            raise UserError(f"there is no tokenizer at {path}. text.tokenizer is {KINDS}.") from None
        except UserError:
            raise
        except Exception as error:                   # `tokenizers` raises bare Exception
            raise _unreadable(path, error) from error

    @classmethod
    def load_pretrained(
        cls, path: Path, begin: int | None, end: int | None, rename: Mapping[str, str] = {}
    ) -> "tuple[Tokenizer, int, int]":
        """A model's tokenizer.json, and the ids there of the tokens that begin and end a text; the first becomes id 0.

        Where the model does not say them, `begin` is as `end`, and both are those of a token with a usual name.
        `rename`: new names of tokens.
        """
        try:
            spec = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error
        return cls.adopt(spec, begin, end, path, rename)

    @classmethod
    def adopt(
        cls, spec: Spec, begin: int | None, end: int | None, path: Path, rename: Mapping[str, str] = {},
        said_in: str = "config.json",
    ) -> "tuple[Tokenizer, int, int]":  # fmt: skip
        """`load_pretrained` of a tokenizer.json that is parsed, or was made from the file at `path`."""
        begin, end = end if begin is None else begin, begin if end is None else end
        try:
            if _is_own(bare := {**spec, "post_processor": None}):
                return cls.from_spec(bare), BOUNDARY, BOUNDARY
            spec = renamed(spec, rename)
            ids = Pretrained(spec)
            for id in (begin, end):
                if id is not None and id >= len(ids.names):
                    raise UserError(f"{said_in} says that the token {id} begins or ends a text, and {path} has only "
                                    f"{len(ids.names):,} tokens.")
            made = with_boundary_first(spec, None if begin is None else ids.tokenizer.id_to_token(begin))
            if begin is None or end is None:
                name = next(token["content"] for token in made["added_tokens"] if token["id"] == BOUNDARY)
                begin = end = ids.tokenizer.token_to_id(name)
            if begin is None or end is None:
                raise UserError(f"{path} has no token that begins or ends a text; {said_in} can name it as "
                                "bos_token_id.")
            return cls.from_spec(made), begin, end
        except UserError:
            raise
        except Exception as error:                   # `tokenizers` raises bare Exception
            raise _unreadable(path, error) from error

    def save(self, path: Path) -> None:
        write_text(path, self._file)

    def config(self, context: int | None = None) -> dict[str, Any]:
        """A tokenizer_config.json, by which `AutoTokenizer` opens the tokenizer.json; `context`: the most tokens."""
        ends = {} if self.boundary == "none" else dict.fromkeys(("bos_token", "eos_token"), self.boundary_in_file)
        longest = {} if context is None else {"model_max_length": context}
        return {"tokenizer_class": "PreTrainedTokenizerFast", **ends, **longest, "clean_up_tokenization_spaces": False}

    @cached_property
    def boundary_in_file(self) -> str:
        """The name of id 0 in the tokenizer.json; of words it is a newline."""
        return first_name(self.spec())

    def with_special(self, names: Sequence[str]) -> "Tokenizer":
        """This tokenizer with those special tokens that it does not have yet, named like `<|mask|>`."""
        if wrong := [name for name in names if not SPECIAL.fullmatch(name)]:
            raise ValueError(f"{wrong[0]} is not a name of a special token; use names like <|mask|> or <|span12|>")
        spec = self.spec()
        more = type(self._unit).with_special(spec, list(dict.fromkeys(names)))
        return self if more == spec else Tokenizer.from_spec(more)

    def spec(self, boundary: int = BOUNDARY) -> Spec:
        """The tokenizer.json, parsed; with the boundary at another id, where an imported tokenizer had it."""
        spec: Spec = json.loads(self._file)
        return spec if boundary == BOUNDARY else with_boundary_at(spec, boundary)

    def __len__(self) -> int:
        return len(self._unit.names)

    def encode(self, text: str) -> Ids:
        """Ids without a boundary at the ends. For words a newline is id 0, and one at the end is dropped."""
        return np.concatenate([np.empty(0, np.uint32), *self.encode_chunks([text])])

    def framed(self, text: str) -> Ids:
        """`0 text 0`: the ids of a text between boundaries; without a boundary, `0 text`."""
        ids = self.encode(text)
        return np.concatenate([[BOUNDARY], ids, [BOUNDARY] * (self.boundary != "none")]).astype(np.uint32)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """The ids of the tokens that no text can spell, by name: the boundary, and those that were added."""
        return self._unit.special_tokens()

    def encode_parts(self, parts: Sequence[str | int]) -> Ids:
        """The ids of one text in parts, with special tokens between them, which are given by their ids."""
        with _unicode():
            return self._unit.encode_parts(parts)

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        if any(len(text) > CHUNK for text in texts):
            return [self.encode(text) for text in texts]
        with _unicode():
            return self._unit.encode_many(texts)

    def encode_stream(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """The stream `0 text 0 text 0`, and where each text ends."""
        if self.lines and texts and not any("\n" in text for text in texts):
            lines = self.encode("\n".join(texts) + "\n")     # newlines become boundaries; one look-up finds all words
            stream = np.concatenate([[BOUNDARY], lines, [BOUNDARY]]).astype(np.uint32)
            return stream, np.flatnonzero(stream == BOUNDARY)[1:]
        parts = self.encode_many(texts)
        ends = np.cumsum([len(part) + 1 for part in parts], dtype=np.int64)
        stream = np.zeros(int(ends[-1]) + 1 if len(ends) else 1, np.uint32)
        for part, end in zip(parts, ends.tolist()):
            stream[end - len(part) : end] = part
        return stream, ends

    def encode_chunks(self, chunks: Iterable[str]) -> Iterator[Ids]:
        """The ids of one text in chunks, cut anywhere. Memory is bounded by the longest part without a cut."""
        rest, enough = "", CHUNK
        with _unicode():
            for chunk in _bounded(chunks):
                rest += chunk
                if len(rest) < enough:
                    continue
                end = self._unit.cut(rest)
                if end:
                    yield self._unit.encode(rest[:end])
                    rest = rest[end:]
                enough = max(CHUNK, 2 * len(rest))   # do not search the same uncuttable text at every chunk
            yield self._unit.last(rest)

    def decode(self, tokens: Iterable[int]) -> str:
        return self._unit.decode(tokens)

    def stream_decoder(self) -> StreamDecoder:
        """Decodes ids one at a time: `feed` returns text as soon as it is complete, `finish` the rest."""
        return self._unit.stream_decoder()

    def token(self, id: int) -> str:
        """The name of a token in the vocabulary, without white space."""
        return self._unit.names[id]

    def show(self, id: int) -> str:
        """A token as it is displayed."""
        return self._unit.show(id)

    def bytes_of(self, id: int) -> bytes | None:
        """The bytes of a token, empty for a special one; None where they depend on the tokens around it."""
        return self._unit.bytes_of(id)

    def id(self, token: str) -> int | None:
        return self._ids.get(token)

    def span(self, text: str, begin: int, end: int) -> slice:
        """Where the tokens of the word text[begin:end] are among those of the text, with the space before it."""
        return slice(len(self.encode(text[:begin].rstrip(" "))), len(self.encode(text[:end])))

    def spelled(self) -> list[int]:
        """Tokens whose text is encoded as them again: not the boundary, nor the bytes of unknown characters."""
        texts = [self.decode([token]) for token in range(len(self))]
        same = (token for token, ids in enumerate(self.encode_many(texts)) if ids.tolist() == [token])
        return [token for token in same if not FALLBACK.fullmatch(self.token(token))]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: id for id, name in enumerate(self._unit.names)}


def train_tokenizer(settings: Text, chunks: Iterable[str]) -> Tokenizer:
    """The tokenizer of the settings: trained on chunks, none of which ends within a word, or loaded from a file."""
    if settings.tokenizer.endswith(".json"):
        refuse_vocab(settings, "a pretrained tokenizer has its own vocabulary")
        return Tokenizer.load(Path(settings.tokenizer))
    if settings.tokenizer not in UNITS:
        hint = did_you_mean(settings.tokenizer, UNITS) or f" It is {KINDS}."
        raise UserError(f"unknown tokenizer text.tokenizer={settings.tokenizer}.{hint}")
    return Tokenizer.from_spec(UNITS[settings.tokenizer].train(settings, chunks))


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    return UserError(f"{path} is not a tokenizer.json that can be read: {reason}")


def _is_own(spec: Spec) -> bool:
    return any(frame(spec) == frame(unit.spec()) for unit in UNITS.values())


def _unit(spec: Spec) -> Unit:
    for unit in UNITS.values():
        if frame(spec) == frame(unit.spec()):
            return unit(spec)
    return Pretrained(spec)


def _bounded(chunks: Iterable[str]) -> Iterator[str]:
    for chunk in chunks:
        for start in range(0, len(chunk), CHUNK):
            yield chunk[start : start + CHUNK]


@contextmanager
def _unicode() -> Iterator[None]:
    try:
        yield
    except UnicodeEncodeError as error:
        raise UserError(
            f"the text has half of a surrogate pair at character {error.start}, which is not Unicode. "
            f"Convert it to valid UTF-8."
        ) from None
