"""Tokenizers in GGUF files, as tokenizer.json and back: byte-level BPE with its pre-tokenizer, SentencePiece, our own.

    gpt2      merges of byte-level letters; `tokenizer.ggml.pre` names the pattern by which texts are split first
    llama     SentencePiece's BPE: tokens with scores, unknown characters as bytes `<0x0A>`, spaces as `▁`

Our characters are written as `llama` without longer tokens, bytes and bpe as `gpt2`; the key `chainrule.tokenizer`
names the unit. Words and symbols cannot be written: llama.cpp has no tokenizer that keeps unknown words.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unicodedata import category

from chainrule.errors import UserError
from chainrule.formats.boundary import Ends
from chainrule.progress import say
from chainrule.text.tokenizers.bpe import BPE
from chainrule.text.tokenizers.bytes import BYTE_LEVEL, BYTES, ByteLevel
from chainrule.text.tokenizers.characters import FALLBACK, FIRST, CharacterLevel
from chainrule.text.tokenizers.pretrained import SPECIAL_FLAGS
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.unit import SPECIAL, Spec, bpe_model, token_names, tokenizer_json

KEY, OWN = "tokenizer.ggml.", "chainrule.tokenizer"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)    # token types
SPACE = "▁"
ESCAPED = "<U+2581>"           # the character ▁ itself
NO_MERGE = ("<|", "|>")        # llama.cpp refuses an empty list
NFC = {"type": "NFC"}

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


# SentencePiece


def _form(prefix: bool) -> dict[str, Spec]:
    """Spaces as `▁`; with `prefix` a text gets one in front, as transformers converts these tokenizers."""
    prepend = [{"type": "Prepend", "prepend": SPACE}] * prefix
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * prefix
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, spaces]},
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
    }


PIECES = (_form(False), _form(True))


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
    form = PIECES[bool(fields.get(KEY + "add_space_prefix", True))]
    spec = tokenizer_json(model | {"unk_token": unknown, "fuse_unk": unknown is not None}, **form)
    return spec | {"added_tokens": _added(tokens, types)}


def _own(unit: str, tokens: Sequence[str], fields: Mapping[str, Any], path: Path) -> Spec:
    """A tokenizer that chainrule wrote."""
    special = [token for token in tokens[1:] if SPECIAL.fullmatch(token)]
    if unit == "characters" and list(tokens[1:FIRST]) == FALLBACK:
        pieces = tokens[FIRST : len(tokens) - len(special)]
        characters = [{SPACE: " ", ESCAPED: SPACE}.get(piece, piece) for piece in pieces]
        return CharacterLevel.with_special(CharacterLevel.spec(characters), special)
    if unit == "bytes" and len(tokens) >= FIRST:
        return ByteLevel.with_special(ByteLevel.spec(), special)
    if unit == "bpe":
        merges = [_pair(merge) for merge in _texts(fields, "merges", path)]
        names = tokens[1 : len(tokens) - len(special)]
        return BPE.with_special(BPE.spec(names, [pair for pair in merges if pair != NO_MERGE]), special)
    raise UserError(f"{path} has {OWN}={unit}, and its tokens are no such tokenizer; characters, bytes and bpe are.")


# Export


def tokenizer_fields(tokenizer: Tokenizer, ends: Ends, run: Path) -> dict[str, Any]:
    """The keys of a file for a run's tokenizer; one that llama.cpp cannot do is refused."""
    spec = tokenizer.spec(ends.begin)
    if tokenizer.unit == "characters":
        fields = _characters(spec)
    elif tokenizer.unit == "bytes":
        fields = _merged(spec, "gpt-2")
    elif tokenizer.unit == "bpe":
        fields = _merged(spec, "smaug-bpe")    # llama 3's pattern: nearest to ours
        warn_of_marks(fields["tokens"])
    elif tokenizer.unit == "pretrained":
        fields = _pretrained(spec, run)
    else:
        raise UserError(f"{run} has text.tokenizer={tokenizer.unit}, and llama.cpp has no tokenizer that does the "
                        "same: it drops what it does not know. characters, bytes and bpe can be exported.")
    own = {} if tokenizer.unit == "pretrained" else {OWN: tokenizer.unit}
    fields |= {"bos_token_id": ends.begin, "eos_token_id": ends.end, "add_eos_token": False}
    return own | {KEY + name: value for name, value in fields.items()}


def _characters(spec: Spec) -> dict[str, Any]:
    """SentencePiece without longer tokens. It reads every space as `▁`, so this character itself cannot be read."""
    names = token_names(spec)
    tokens = [{" ": SPACE, SPACE: ESCAPED}.get(name, name) for name in names]
    types = [CONTROL, *[BYTE] * len(FALLBACK), *(_type(token) for token in tokens[FIRST:])]
    if ESCAPED in tokens:
        say(f"llama.cpp will read {SPACE} as a space: its tokenizer writes spaces so")
    return {"model": "llama", "tokens": tokens, "token_type": types, "scores": [0.0] * len(tokens),
            "add_space_prefix": False}


def _type(token: str) -> int:
    return UNUSED if token == ESCAPED else NORMAL if len(token) == 1 else CONTROL


def _merged(spec: Spec, pre: str) -> dict[str, Any]:
    """Byte-level BPE, of our own or another program's."""
    ids = _all_ids(spec)
    kinds = {token["content"]: CONTROL if token["special"] else USER_DEFINED for token in spec["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    types = [kinds.get(token, CONTROL if SPECIAL.fullmatch(token) else NORMAL) for token in tokens]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in spec["model"]["merges"]]
    merges = merges or [" ".join(NO_MERGE)]
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges}


def _all_ids(spec: Spec) -> dict[str, int]:
    ids: dict[str, int] = dict(spec["model"]["vocab"]) | {one["content"]: one["id"] for one in spec["added_tokens"]}
    assert sorted(ids.values()) == list(range(len(ids))), "every row has a token, and each a name of its own"
    return ids


def _pretrained(spec: Spec, run: Path) -> dict[str, Any]:
    model, normalizer = spec["model"], spec.get("normalizer")
    if model["type"] == "BPE" and model.get("byte_fallback") and spec.get("pre_tokenizer") is None:
        return _pieces(spec, run)
    whole = bool(model.get("ignore_merges"))
    pre = next((name for name in PRE if _plain(PRE[name]) == _plain(spec.get("pre_tokenizer"))
                and whole == (name in WHOLE_WORDS)), None)
    if model["type"] != "BPE" or normalizer not in (None, NFC) or pre is None:
        raise UserError(f"{run} has a {model['type']} tokenizer with a pre-tokenizer or normalizer that llama.cpp does "
                        f"not have; these are known: {', '.join(PRE)}.")
    if normalizer == NFC:
        say("llama.cpp will not normalise texts (NFC), as this tokenizer does: accents in two characters differ")
    return _merged(spec, pre)


def _plain(pre_tokenizer: Any) -> Any:
    """Without what changes no token."""
    if isinstance(pre_tokenizer, list):
        return [_plain(one) for one in pre_tokenizer]
    if not isinstance(pre_tokenizer, dict):
        return pre_tokenizer
    usual = {"use_regex": True} if pre_tokenizer.get("type") == "ByteLevel" else {}
    return {name: _plain(value) for name, value in {**usual, **pre_tokenizer}.items() if name != "trim_offsets"}


def _pieces(spec: Spec, run: Path) -> dict[str, Any]:
    """SentencePiece: the score of a token is the place of its first merge, so that the same pairs are merged first."""
    form = {name: spec[name] for name in ("normalizer", "decoder")}
    if form not in PIECES:
        raise UserError(f"{run} has a tokenizer with byte fallback and a normalizer that llama.cpp does not have.")
    ids, scores = _all_ids(spec), dict[str, float]()
    for rank, pair in enumerate(spec["model"]["merges"]):
        left, right = pair if isinstance(pair, list) else _pair(pair)
        scores.setdefault(left + right, -float(rank))
    special = {one["content"] for one in spec["added_tokens"] if one["special"]}
    tokens, unknown = sorted(ids, key=ids.__getitem__), spec["model"]["unk_token"]
    types = [UNKNOWN if token == unknown else CONTROL if token in special else BYTE if token in FALLBACK
             else NORMAL for token in tokens]
    lowest = -float(len(scores))
    return {"model": "llama", "tokens": tokens, "token_type": types, "add_space_prefix": bool(PIECES.index(form)),
            "scores": [scores.get(token, lowest) for token in tokens]}


def warn_of_marks(tokens: Sequence[str]) -> None:
    """Combining marks are letters in our pattern, and not in that of llama.cpp."""
    spelled = (bytes(map(BYTES.__getitem__, token)).decode("utf-8", "ignore") for token in tokens
               if not SPECIAL.fullmatch(token))
    if any(category(letter).startswith("M") for text in spelled for letter in text):
        say("llama.cpp will split words at combining marks, which some tokens here have: other tokens than ours")
