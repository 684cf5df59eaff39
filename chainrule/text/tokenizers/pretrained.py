"""Pretrained tokenizers: any tokenizer.json of Hugging Face. The token that ends or begins a text moves to id 0.

The two ids are swapped in the file itself, so that every program that reads the saved file gets the same ids. Its
post-processor, which would add such tokens, is removed. Whether the tokenizer is lossless, and whether texts may be
cut at spaces, is found by testing it on difficult strings.
"""

import copy
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import Tokenizer as HuggingFace
from tokenizers.decoders import DecodeStream

from chainrule.errors import UserError
from chainrule.model import BOUNDARY
from chainrule.text.tokenizers.bpe import SLICE, easy_slices, hugging_face_ids, last_match
from chainrule.text.tokenizers.bytes import BYTES
from chainrule.text.tokenizers.unit import BOUNDARY_NAME, Ids, Spec, Unit, nameable, visible

ENDS = (BOUNDARY_NAME, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|eot_id|>", "<|im_end|>", "[SEP]")
BEGINNINGS = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]")
HARD = (
    " a  b\n\n\tc \r\n", "  ", "\n", "Don't DON'T 1234567 a1b2", "<s></s><unk>",
    "naïve cafe\u0301 ﬁ Ⅷ Å", "日本語 中文。", "👩‍🚀 🏳️‍🌈", "\x00\x7f\ufeff\u200b",
)
NO_BOUNDARY = re.compile(r"pad|unk|mask|cls|null", re.IGNORECASE)    # other special tokens that are often at id 0
SPECIAL_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
FALLBACK = re.compile("<0x[0-9A-F]{2}>")
SPACE_CUT = re.compile(r"(?<=\S)(?= )")
CUTS = (
    "one two", "one. two.\nThree four", "don't 12 345", "(a) (b)", "x =  y\n\n z", "日本 語", "é à", "A\tB C",
    "end.\r\n Next 's",
)


class Pretrained(Unit):
    name = "pretrained"

    def __init__(self, spec: Spec):
        self.tokenizer = HuggingFace.from_str(json.dumps(spec))
        self.tokenizer.encode_special_tokens = True            # a text that spells a special token is ordinary text
        tokens = self.tokenizer.get_vocab(with_added_tokens=True)
        self.boundary_name: str = self.tokenizer.id_to_token(BOUNDARY) or BOUNDARY_NAME
        self.names = [""] * (1 + max(tokens.values()))
        for token, id in tokens.items():
            self.names[id] = nameable(token)
        self.lossless = all(self.decode(self.encode(text)) == text for text in HARD)
        self.can_be_cut = all(self._same_in_parts(text) for text in CUTS)

    def encode(self, text: str) -> Ids:
        batches = list(easy_slices(SPACE_CUT, text, SLICE)) if len(text) > SLICE and self.can_be_cut else [text]
        return np.concatenate([np.empty(0, np.uint32), *self.encode_many(batches)])

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        pairs = zip(texts, hugging_face_ids(self.tokenizer, texts), strict=True)
        return [self._without_boundary(text) if BOUNDARY in ids else ids for text, ids in pairs]

    def _without_boundary(self, text: str) -> Ids:
        """A text that contains the boundary's name, which would be encoded as id 0: it is cut within the name."""
        parts = text.split(self.boundary_name)
        middle = len(self.boundary_name) // 2
        head, tail = self.boundary_name[:middle], self.boundary_name[middle:]
        halves = [tail * (place > 0) + part + head * (place < len(parts) - 1) for place, part in enumerate(parts)]
        return np.concatenate(hugging_face_ids(self.tokenizer, halves))

    def special_tokens(self) -> dict[str, int]:
        added = self.tokenizer.get_added_tokens_decoder()
        return {token.content: id for id, token in added.items() if token.special}

    def bytes_of(self, id: int) -> bytes | None:
        """Where tokens are byte strings: byte-level vocabularies, and byte fallbacks such as <0xE2>."""
        token = self.tokenizer.id_to_token(id)
        if token is None or id == BOUNDARY or id in self._special_ids:
            return b""
        if self._byte_level:
            return bytes(BYTES[letter] for letter in token) if set(token) <= BYTES.keys() else None
        return bytes.fromhex(token[3:5]) if FALLBACK.fullmatch(token) else None

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.special_tokens().values())

    @cached_property
    def _byte_level(self) -> bool:
        decoder = json.loads(self.tokenizer.to_str())["decoder"] or {}
        return "ByteLevel" in [decoder.get("type"), *(part["type"] for part in decoder.get("decoders", ()))]

    def encode_parts(self, parts: Sequence[str | int]) -> Ids:
        """In one piece, since a tokenizer may treat the beginning of a text, and spaces at special tokens, apart."""
        tokenizer, signs, ids = self._with_signs
        given = [part for part in parts if not isinstance(part, str)]
        text = "".join(part if isinstance(part, str) else signs[part] for part in parts)
        found = [ids.get(id, id) for id in tokenizer.encode(text, add_special_tokens=False).ids]
        if [id for id in found if id in signs] != given:
            raise UserError("the text spells a special token, which this tokenizer cannot read as ordinary text.")
        return np.array(found, np.uint32)

    @cached_property
    def _with_signs(self) -> tuple[HuggingFace, dict[int, str], dict[int, int]]:
        """The same tokenizer with random signs, which no text contains, as the spellings of special tokens.

        Returns also the sign of each special token, by its id, and from each sign's id there to the token's here.
        """
        spec, special = json.loads(self.tokenizer.to_str()), self.special_tokens()
        signs = {id: f"<{secrets.token_hex(16)}>" for id in special.values()}
        spec["added_tokens"] = [{**token, "content": signs.get(token["id"], token["content"])}
                                for token in spec["added_tokens"]]
        made = HuggingFace.from_str(json.dumps(spec))
        back: dict[Any, int] = {made.token_to_id(sign): id for id, sign in signs.items()}
        return made, signs, back

    def cut(self, text: str) -> int:
        return last_match(SPACE_CUT, text) if self.can_be_cut else 0

    def decode(self, tokens: Iterable[int]) -> str:
        ids = [int(token) for token in tokens if token != BOUNDARY]
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def stream_decoder(self) -> "PretrainedStreamDecoder":
        return PretrainedStreamDecoder(self.tokenizer)

    def show(self, id: int) -> str:
        return visible(self.decode([id])) or self.names[id]

    @classmethod
    def with_special(cls, spec: Spec, names: Sequence[str]) -> Spec:
        """Adds them outside the model's vocabulary: inside it a text could spell them."""
        known = HuggingFace.from_str(json.dumps(spec))
        missing = [name for name in names if known.token_to_id(name) is None]
        size = 1 + max(known.get_vocab(with_added_tokens=True).values())
        if missing and size != known.get_vocab_size(with_added_tokens=True):
            raise UserError("this tokenizer.json has gaps between its ids, so no special token can be added to it.")
        added = [{"id": size + place, "content": name, **SPECIAL_FLAGS} for place, name in enumerate(missing)]
        return {**spec, "added_tokens": [*spec["added_tokens"], *added]}

    def _same_in_parts(self, text: str) -> bool:
        whole = hugging_face_ids(self.tokenizer, [text])[0]
        parts = [[text[: found.start()], text[found.start() :]] for found in SPACE_CUT.finditer(text)]
        return all(np.array_equal(whole, np.concatenate(hugging_face_ids(self.tokenizer, part))) for part in parts)


class PretrainedStreamDecoder:
    def __init__(self, tokenizer: HuggingFace):
        self.tokenizer = tokenizer
        self.stream = DecodeStream(skip_special_tokens=False)
        self.held: list[int] = []                               # tokens whose text is not yet complete

    def feed(self, id: int) -> str:
        if id == BOUNDARY:
            return ""
        self.held.append(int(id))
        text = self.stream.step(self.tokenizer, int(id))
        if text:
            self.held = []
        return text or ""

    def finish(self) -> str:
        text: str = self.tokenizer.decode(self.held, skip_special_tokens=False)
        return text


def with_boundary_first(given: Spec, boundary: str | None = None) -> Spec:
    """The same tokenizer with its boundary at id 0: the token of that name, or else of a usual one."""
    spec = copy.deepcopy(given)
    spec.update(post_processor=None, truncation=None, padding=None)
    vocab = FileVocabulary(spec["model"])
    for token in spec["added_tokens"]:
        vocab.add(token["content"], token["id"])
    names = [boundary] if boundary is not None else [*_names_at_zero(given), *ENDS, *BEGINNINGS]
    name = next((name for name in names if name in vocab.ids), None)
    if name is None:
        name = BOUNDARY_NAME
        vocab.add(name, 1 + max(vocab.ids.values(), default=-1))
    elif spec == given and any((token["content"], token["id"]) == (name, BOUNDARY) for token in spec["added_tokens"]):
        return given                                            # chainrule saved it, maybe with special tokens
    vocab.swap(name)
    if all(token["content"] != name for token in spec["added_tokens"]):
        spec["added_tokens"].append({"id": BOUNDARY, "content": name, **SPECIAL_FLAGS})
    return _with_ids(spec, vocab)


def _with_ids(spec: Spec, vocab: "FileVocabulary") -> Spec:
    for token in spec["added_tokens"]:
        token["id"] = vocab.ids[token["content"]]
    spec["added_tokens"].sort(key=lambda token: int(token["id"]))
    vocab.store()
    return spec


def with_boundary_at(given: Spec, id: int) -> Spec:
    """The same tokenizer with id 0 and another exchanged: so an imported one gets the ids of its own file again."""
    spec = copy.deepcopy(given)
    vocab = FileVocabulary(spec["model"])
    for token in spec["added_tokens"]:
        vocab.add(token["content"], token["id"])
    vocab.swap(next(name for name, place in vocab.ids.items() if place == id))
    return _with_ids(spec, vocab)


def renamed(spec: Spec, names: Mapping[str, str]) -> Spec:
    """The same tokenizer with other names of some tokens; the post-processor is removed, as it may name them."""
    if not names:
        return spec
    vocab = FileVocabulary(spec["model"])
    vocab.ids = {names.get(name, name): id for name, id in vocab.ids.items()}
    if vocab.scores is not None:
        vocab.scores = {names.get(name, name): score for name, score in vocab.scores.items()}
    vocab.store()
    added = [{**token, "content": names.get(token["content"], token["content"])} for token in spec["added_tokens"]]
    return {**spec, "added_tokens": added, "post_processor": None}


def _names_at_zero(spec: Spec) -> list[str]:
    """The boundary of a file that chainrule saved: a special token at id 0, and no post-processor."""
    if spec.get("post_processor") is not None:
        return []
    return [token["content"] for token in spec["added_tokens"]
            if token["id"] == BOUNDARY and token["special"] and not NO_BOUNDARY.search(token["content"])]


def first_name(spec: Spec) -> str:
    """The name of id 0 in a tokenizer.json."""
    vocab = FileVocabulary(spec["model"])
    for token in spec["added_tokens"]:
        vocab.add(token["content"], token["id"])
    return next(name for name, id in vocab.ids.items() if id == BOUNDARY)


class FileVocabulary:
    """The vocabulary of any model of `tokenizers`: names to ids, or (Unigram) a list of names and scores."""

    def __init__(self, model: Spec):
        self.model = model
        listed = isinstance(model["vocab"], list)
        self.scores: dict[str, Any] | None = dict(model["vocab"]) if listed else None
        self.ids: dict[str, int] = {name: id for id, name in enumerate(self.scores or ())} or dict(model["vocab"])

    def add(self, name: str, id: int) -> None:
        self.ids.setdefault(name, id)

    def swap(self, name: str) -> None:
        at_zero = next((other for other, id in self.ids.items() if id == BOUNDARY), None)
        if at_zero is not None:
            self.ids[at_zero] = self.ids[name]
        if self.scores is not None and self.model.get("unk_id") is not None:
            unknown = self.model["vocab"][self.model["unk_id"]][0]
            self.ids[name] = BOUNDARY
            self.model["unk_id"] = self.ids[unknown]
        self.ids[name] = BOUNDARY

    def store(self) -> None:
        ordered = sorted(self.ids, key=self.ids.__getitem__)
        if self.scores is None:
            self.model["vocab"] = {name: self.ids[name] for name in ordered}
        elif [self.ids[name] for name in ordered] != list(range(len(ordered))):
            raise UserError("this tokenizer.json has gaps between its ids, which a Unigram vocabulary cannot keep.")
        else:
            self.model["vocab"] = [[name, self.scores.get(name, 0.0)] for name in ordered]
