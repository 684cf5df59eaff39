"""The layout of a run directory: its files by name, and how far its training has come."""

import re
from dataclasses import dataclass

FORMAT = 2
"""The number of this layout and of the names in it: settings, weights, log events. Other numbers are refused."""

CURE = "Restore it, or train again with --overwrite."
INSTEAD = "Choose another folder, or replace it with --overwrite."

MODEL, TOKENIZER, LOG, RECIPE = ("model.safetensors", "tokenizer.json", "log.jsonl", "recipe.json")
TOKENIZER_CONFIG = "tokenizer_config.json"    # for other programs
FILES = (MODEL, TOKENIZER, TOKENIZER_CONFIG, LOG, RECIPE)
ADAPTER, CHAT_TEMPLATE = "adapter.safetensors", "chat_template.jinja"    # that a run may have
VERIFIED = (MODEL, ADAPTER, TOKENIZER, CHAT_TEMPLATE)
SAVED = (*VERIFIED, TOKENIZER_CONFIG, LOG)    # all but recipe.json, which is renamed last
CHECKPOINTS, BEGUN, BOARD, CURVES = "checkpoints", "begun.json", "tensorboard", "curves.html"
COMPARISON = "comparison.json"    # beside the runs of a comparison: its kinds, the simplest first
UNFINISHED = re.compile(r"\..+\.aside|\.tmp\w{6}")    # what a killed process was writing (files.py; safetensors)
CHECKPOINT = re.compile(rf"begun\.json|\d{{9,}}(\.safetensors|\.json)?|{UNFINISHED.pattern}")    # ours in checkpoints/


@dataclass(frozen=True)
class Done:
    """How far training has come."""

    rounds: int = 0                 # optimizer steps, or passes of counting, that are done
    finished: bool = False          # False: interrupted; the same command continues from here
    nats: float | None = None       # loss per training token before the last pass
