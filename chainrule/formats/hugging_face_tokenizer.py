"""The tokenizer of an exported Hugging Face folder: it puts special tokens around a text, as the task reads it.

    lm        0 text                            tag   0 words
    classify  0 text E, or 0 text D text E      mask  0 text 0

tokenizer.json is that of the run with a post-processor for this. BOS and EOS of an imported model have their own ids
again (boundary.py).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chainrule.formats.boundary import NOT_MOVED, Ends
from chainrule.tasks.classify import DELIMITER, EXTRACT
from chainrule.tasks.denoise import MASK
from chainrule.text.tokenizers.pretrained import FileVocabulary, renamed
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.unit import Spec

BEGIN, END = "BOS", "EOS"
TEMPLATES = {    # for a text A, and for a pair of texts
    "lm": ((BEGIN, "A"), (BEGIN, "A", BEGIN, "B")),
    "tag": ((BEGIN, "A"), (BEGIN, "A", BEGIN, "B")),
    "mask": ((BEGIN, "A", END), (BEGIN, "A", END, "B", END)),
    "classify": ((BEGIN, "A", EXTRACT), (BEGIN, "A", DELIMITER, "B", EXTRACT)),
}


def write_tokenizer(
    tokenizer: Tokenizer, context: int | None, folder: Path, task: str = "lm", ends: Ends = NOT_MOVED,
    names: Mapping[str, str] = {},
) -> None:  # fmt: skip
    """tokenizer.json and tokenizer_config.json. `names`: new names of tokens."""
    spec = renamed(tokenizer.spec(ends.end if task == "mask" else ends.begin), names)    # the id that was exchanged
    ids = _ids(spec)
    config = tokenizer.config(context)
    if tokenizer.boundary != "none":
        special = _special_tokens(tokenizer, task, {id: name for name, id in ids.items()}, ends)
        spec["post_processor"] = _post_processor(task, special, ids)
        config |= {"bos_token": special[BEGIN], "eos_token": special[END]}
        config |= {} if task == "lm" else {"pad_token": special[END]}
        config |= {"mask_token": special[MASK]} if MASK in special else {}
    write_json(folder / "tokenizer.json", spec)
    write_json(folder / "tokenizer_config.json", config)


def _ids(spec: Spec) -> dict[str, int]:
    vocab = FileVocabulary(spec["model"])
    for token in spec["added_tokens"]:
        vocab.add(token["content"], token["id"])
    return vocab.ids


def _special_tokens(
    tokenizer: Tokenizer, task: str, in_file: Mapping[int, str], ends: Ends
) -> dict[str, str]:
    """The names in tokenizer.json of the tokens that a template needs."""
    special = {BEGIN: in_file[ends.begin], END: in_file[ends.end]}
    for name in {"mask": (MASK,), "classify": (DELIMITER, EXTRACT)}.get(task, ()):
        id = tokenizer.id(name)
        assert id is not None, f"a run for {task} has {name}"
        special[name] = in_file[id]
    return special


def _post_processor(task: str, special: Mapping[str, str], ids: Mapping[str, int]) -> dict[str, Any]:
    def made(template: tuple[str, ...]) -> list[dict[str, Any]]:
        return [{"Sequence": {"id": part, "type_id": 0}} if part in ("A", "B")
                else {"SpecialToken": {"id": special[part], "type_id": 0}} for part in template]

    single, pair = TEMPLATES[task]
    used = {special[part] for part in (*single, *pair) if part in special}
    tokens = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in sorted(used)}
    return {"type": "TemplateProcessing", "single": made(single), "pair": made(pair), "special_tokens": tokens}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
