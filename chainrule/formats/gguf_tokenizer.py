"""Tokenizers in GGUF files, as tokenizer.json and back: byte-level BPE with its pre-tokenizer, SentencePiece, our own.

    gpt2      merges of byte-level letters; `tokenizer.ggml.pre` names the pattern by which texts are split first
    llama     SentencePiece's BPE: tokens with scores, unknown characters as bytes `<0x0A>`, spaces as `▁`

Our characters are written as `llama` without longer tokens, bytes and bpe as `gpt2`; the key `chainrule.tokenizer`
names the unit. Words and symbols cannot be written: llama.cpp has no tokenizer that keeps unknown words.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.formats.boundary import Ends
from chainrule.text.tokenizers.bpe import BPE
from chainrule.text.tokenizers.bytes import BYTE_LEVEL, ByteLevel
from chainrule.text.tokenizers.characters import FALLBACK, FIRST, CharacterLevel
from chainrule.text.tokenizers.pretrained import SPECIAL_FLAGS
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.unit import SPECIAL, Spec, bpe_model, tokenizer_json

KEY, OWN = "tokenizer.ggml.", "chainrule.tokenizer"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)    # token types
SPACE = "▁"

# Pre-tokenizers

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"    # GPT-2's
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")


def _split(*patterns: str) -> Spec:
    """Splits by each pattern in turn; matches and what lies between them are parts."""
    splits = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
              for pattern in patterns]
    return {"type": "Sequence", "pretokenizers": [*splits, BYTE_LEVEL]}


GPT2 = {**BYTE_LEVEL, "use_regex": True}
SMOLLM = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, GPT2]}
DEFAULT = _split(r"[\p{P}\$\+<=>\^~\|]+", WORDS, r"\p{N}+", "[0-9][0-9][0-9]")
PRE: dict[str, Spec] = {
    "gpt-2": GPT2, "phi-2": GPT2, "olmo": GPT2,
    "smollm": SMOLLM, "starcoder": SMOLLM, "refact": SMOLLM, "codeshell": SMOLLM,
    "smaug-bpe": _split(LLAMA3), "dbrx": _split(LLAMA3),
    "llama-bpe": _split(LLAMA3), "llama3": _split(LLAMA3), "llama-v3": _split(LLAMA3),
    "qwen2": _split(QWEN2), "stablelm2": _split(QWEN2), "deepseek-r1-qwen": _split(QWEN2),
    "default": DEFAULT,
}  # fmt: skip
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3")    # a part that is a token needs no merges (`ignore_merges`)


# Import


def read_tokenizer(fields: Mapping[str, Any], path: Path) -> tuple[Tokenizer, Ends]:
    """The tokenizer of a file, with its boundary at id 0, and the ids of BOS and EOS in the file."""
    tokens = _texts(fields, "tokens", path)
    types = fields.get(KEY + "token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise UserError(f"{path} has {len(tokens):,} tokens and {len(types):,} types of tokens.")
    if len(set(tokens)) != len(tokens):
        twice = next(token for place, token in enumerate(tokens) if token in tokens[:place])
        raise UserError(f"{path} has the token {twice!r} twice; tokens must differ.")
    model = fields.get(KEY + "model")
    if (unit := fields.get(OWN)) is not None:
        return Tokenizer.from_spec(_own(unit, tokens, fields, path)), Ends()
    if model == "gpt2":
        spec = _byte_level(tokens, types, fields, path)
    elif model == "llama":
        spec = _sentence_piece(tokens, types, fields, path)
    else:
        raise UserError(f"{path} has the tokenizer {model}, which cannot be imported; gpt2 and llama can.")
    begin, end = (_id(fields, name, path) for name in ("bos_token_id", "eos_token_id"))
    tokenizer, begin, end = Tokenizer.adopt(spec, begin, end, path, said_in="it")
    return tokenizer, Ends(begin, end)


def _texts(fields: Mapping[str, Any], name: str, path: Path) -> list[str]:
    value = fields.get(KEY + name)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UserError(f"{path} has no {KEY}{name}; a file with a tokenizer has a list of texts there.")
    return value


def _id(fields: Mapping[str, Any], name: str, path: Path) -> int | None:
    value = fields.get(KEY + name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise UserError(f"{path} has {KEY}{name}={value}; the id of a token is expected.")
    return value


def _byte_level(tokens: Sequence[str], types: Sequence[int], fields: Mapping[str, Any], path: Path) -> Spec:
    pre = fields.get(KEY + "pre", "default")
    if pre not in PRE:
        raise UserError(f"{path} has the pre-tokenizer {pre}, which cannot be imported; these can: {', '.join(PRE)}.")
    merges = [list(_pair(merge)) for merge in _texts(fields, "merges", path)]
    model = bpe_model({token: id for id, token in enumerate(tokens)}, merges) | {"ignore_merges": pre in WHOLE_WORDS}
    spec = tokenizer_json(model, PRE[pre], decoder={**BYTE_LEVEL, "use_regex": True})
    return spec | {"added_tokens": _added(tokens, types)}


def _pair(merge: str) -> tuple[str, str]:
    place = merge.find(" ", 1)
    return merge[:place], merge[place + 1 :]


def _added(tokens: Sequence[str], types: Sequence[int]) -> list[Spec]:
    """Tokens that are found in a text before it is split: control tokens, and others that are listed as such."""
    return [{"id": id, "content": token, **SPECIAL_FLAGS, "special": kind != USER_DEFINED}
            for id, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)]


def _sentence_piece(tokens: Sequence[str], types: Sequence[int], fields: Mapping[str, Any], path: Path) -> Spec:
    """BPE whose merges are all pairs of tokens that make a token, the one of the highest score first."""
    scores = fields.get(KEY + "scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise UserError(f"{path} has no {KEY}scores for its {len(tokens):,} tokens; the tokenizer llama needs them.")
    normal = {token: score for token, score, kind in zip(tokens, scores, types, strict=True)
              if kind in (NORMAL, USER_DEFINED)}
    merges = []
    for token, score in normal.items():
        halves = ((token[:place], token[place:]) for place in range(1, len(token)))
        known = [pair for pair in halves if pair[0] in normal and pair[1] in normal]
        known.sort(key=lambda pair: (normal[pair[0]], normal[pair[1]]), reverse=True)
        merges += [(score, pair) for pair in known]
    merges.sort(key=lambda one: -one[0])    # stable
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    model = bpe_model({token: id for id, token in enumerate(tokens)}, [list(pair) for _, pair in merges], True)
    prefix = bool(fields.get(KEY + "add_space_prefix", True))
    prepend = [{"type": "Prepend", "prepend": SPACE}] * prefix
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * prefix
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    spec = tokenizer_json(
        model | {"unk_token": unknown, "fuse_unk": unknown is not None},
        normalizer={"type": "Sequence", "normalizers": [*prepend, spaces]},
        decoder={"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
    )
    return spec | {"added_tokens": _added(tokens, types)}


def _own(unit: str, tokens: Sequence[str], fields: Mapping[str, Any], path: Path) -> Spec:
    """A tokenizer that chainrule wrote."""
    special = [token for token in tokens[1:] if SPECIAL.fullmatch(token)]
    if unit == "characters" and list(tokens[1:FIRST]) == FALLBACK:
        characters = [_from_piece(token) for token in tokens[FIRST : len(tokens) - len(special)]]
        return CharacterLevel.with_special(CharacterLevel.spec(characters), special)
    if unit == "bytes" and len(tokens) >= FIRST:
        return ByteLevel.with_special(ByteLevel.spec(), special)
    if unit == "bpe":
        merges = [_pair(merge) for merge in _texts(fields, "merges", path)]
        names = tokens[1 : len(tokens) - len(special)]
        return BPE.with_special(BPE.spec(names, [pair for pair in merges if pair != NO_MERGE]), special)
    raise UserError(f"{path} has {OWN}={unit}, and its tokens are no such tokenizer; characters, bytes and bpe are.")


NO_MERGE = ("<|", "|>")    # llama.cpp refuses an empty list
ESCAPED = re.compile("<U\\+2581>")


def _from_piece(token: str) -> str:
    return " " if token == SPACE else SPACE if ESCAPED.fullmatch(token) else token
