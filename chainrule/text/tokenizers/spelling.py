"""Spellings of tokens: every token by a name of its own, prompts with their special tokens, and where tokens begin.

A token is spelled by its text, if that text is encoded as this token. Any other, such as half a character, is spelled
by its bytes, `bytes:\\xe2\\x82`, or where they are unknown `token_id:N`. So no two tokens have the same spelling.
"""

import re
from collections.abc import Sequence
from functools import cached_property

from chainrule.errors import UserError
from chainrule.model import BOUNDARY
from chainrule.text.tokenizers.tokenizer import Tokenizer

WORD = re.compile(r"[ \t\r\v\f]?[^ \t\r\v\f\n]+|\n")    # with the space before it
REPLACED = "\ufffd"


class Spelling:
    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __getitem__(self, id: int) -> str:
        if id not in self._known:
            self._known[id] = self.names.get(id) or self._spell(id)
        return self._known[id]

    def _spell(self, id: int) -> str:
        text = self.tokenizer.decode([id])
        if REPLACED not in text and self.tokenizer.encode(text).tolist() == [id]:
            return text
        spelling = self.tokenizer.bytes_of(id)
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling) if spelling else f"token_id:{id}"

    @cached_property
    def special(self) -> dict[str, int]:
        """The boundary and the special tokens, by their names; without a boundary, id 0 is a token like any other."""
        return {} if self.tokenizer.boundary == "none" else self.tokenizer.special_tokens

    @cached_property
    def names(self) -> dict[int, str]:
        """Those of the special tokens."""
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

    def known(self, ids: Sequence[int]) -> Sequence[int]:
        """The same ids, if all are in the vocabulary."""
        for id in ids:
            if not 0 <= id < len(self.tokenizer):
                raise UserError(f"there is no token {id}: the vocabulary has the ids from 0 to "
                                f"{len(self.tokenizer) - 1}.")
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
        self.names = {} if tokenizer.lines else spelling.names    # where a line ends, there is a newline
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
