"""Spellings of tokens: every token by a name of its own, prompts with their special tokens, and where tokens begin.

A token is spelled by its text. One that is not a text by itself, such as half a character, is `bytes:\\xe2\\x82`; where
its bytes are unknown, or another token has the same, it is `token_id:N`. So no two tokens have the same spelling.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from chainrule.errors import UserError
from chainrule.model import BOUNDARY
from chainrule.text.tokenizers.tokenizer import Tokenizer

WORD = re.compile(r"[ \t\r\v\f]?[^ \t\r\v\f\n]+|\n")    # with the space before it
REPLACED = "\ufffd"


class Spelling:
    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def __getitem__(self, id: int) -> str:
        return self._names[id]

    @cached_property
    def _names(self) -> list[str]:
        taken, names = dict(self.special), list[str]()
        for id in range(len(self.tokenizer)):
            name = next(name for name in self._candidates(id) if taken.get(name, id) == id)
            taken[name] = id
            names.append(name)
        return names

    def _candidates(self, id: int) -> Iterable[str]:
        """From the one that is best to read to the one that is surely unique."""
        if id in self._special_names:
            yield self._special_names[id]
        text = self.tokenizer.decode([id])
        if text and REPLACED not in text and not self.tokenizer.token(id).startswith("<0x"):
            yield text
        spelling = self.tokenizer.bytes_of(id)
        if spelling:
            yield "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)
        yield f"token_id:{id}"

    @cached_property
    def special(self) -> dict[str, int]:
        """The boundary and the special tokens, by their names; without a boundary, id 0 is a token like any other."""
        return {} if self.tokenizer.boundary == "none" else self.tokenizer.special_tokens

    @cached_property
    def _special_names(self) -> dict[int, str]:
        return {id: name for name, id in self.special.items()}

    @cached_property
    def _spelled(self) -> re.Pattern[str]:
        longest_first = sorted(self.special, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first))})" if longest_first else r"((?!))")

    def encode(self, text: str) -> list[int]:
        """The ids of a text, in which the names of special tokens stand for them."""
        parts = [self.special[part] if place % 2 else part for place, part in enumerate(self._spelled.split(text))]
        if self.tokenizer.lines and text.endswith("\n"):    # a tokenizer drops it at the end of a file
            parts.append(BOUNDARY)
        ids: list[int] = self.tokenizer.encode_parts([part for part in parts if part != ""]).tolist()
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, in which special tokens are spelled by their names."""
        places = self.places()
        return "".join(map(places.feed, self.known(ids))) + places.finish()

    def known(self, ids: Sequence[int], what: str = "the vocabulary has the ids") -> Sequence[int]:
        for id in ids:
            if not 0 <= id < len(self.tokenizer):
                raise UserError(f"there is no token {id}: {what} from 0 to {len(self.tokenizer) - 1}.")
        return ids

    def places(self) -> "Places":
        return Places(self)

    def offsets(self, text: str, ids: Sequence[int]) -> list[int] | None:
        """Where each token begins in the text it was made from, where that differs from the text of the tokens."""
        if not self.tokenizer.lines:
            return None
        found = [match.start() for match in WORD.finditer(text)]
        return found if len(found) == len(ids) else None


class Places:
    """Decodes tokens one by one, special ones to their names, and counts characters."""

    def __init__(self, spelling: Spelling):
        tokenizer = spelling.tokenizer
        self.fresh, self.decoder = tokenizer.stream_decoder, tokenizer.stream_decoder()
        self.names = {} if tokenizer.lines else spelling._special_names    # where a line ends, there is a newline
        self.length = 0

    def feed(self, id: int) -> str:
        if id in self.names:
            text = self.decoder.finish() + self.names[id]
            self.decoder = self.fresh()
        else:
            text = self.decoder.feed(id)
        self.length += len(text)
        return text

    def finish(self) -> str:
        text = self.decoder.finish()
        self.length += len(text)
        return text
