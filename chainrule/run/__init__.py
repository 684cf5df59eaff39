"""The run directory: everything about a trained model in one folder, complete and verified.

    recipe.json  tokenizer.json  tokenizer_config.json  model.safetensors  log.jsonl  (chat_template.jinja)

`AutoTokenizer` of transformers opens it by tokenizer.json and tokenizer_config.json. With LoRA it has
adapter.safetensors instead of model.safetensors: the update of the base run's weights. All files are written and synced
under temporary names first, and recipe.json, which holds the sha256 of the others and of its own content, is renamed
last: a run is complete, or it is no run, or `load` names the damaged file. During training there is also a folder
checkpoints/ with begun.json, which says what is being trained.
"""

from chainrule.run.about import find_base, read_about, recipe_of, weights_file
from chainrule.run.earlier import differences, look_before_writing, refuse_unwritable, same_text
from chainrule.run.layout import (
    ADAPTER,
    BOARD,
    CHAT_TEMPLATE,
    CHECKPOINTS,
    COMPARISON,
    CURVES,
    FILES,
    FORMAT,
    INSTEAD,
    LOG,
    MODEL,
    RECIPE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    UNFINISHED,
    Done,
)
from chainrule.run.run import SEARCH, Run, SamplingOptions, load, make_template, merged, read_chat_template
from chainrule.run.saving import finish_saving, read_log, save, write_log, write_tensors
from chainrule.run.unfinished import begin, forget_checkpoints, read_begun, remove, remove_unfinished

__all__ = [
    "ADAPTER", "BOARD", "CHAT_TEMPLATE", "CHECKPOINTS", "COMPARISON", "CURVES", "FILES", "FORMAT", "INSTEAD",
    "LOG", "MODEL", "RECIPE", "SEARCH", "TOKENIZER", "TOKENIZER_CONFIG", "UNFINISHED", "Done", "Run",
    "SamplingOptions", "begin", "differences", "find_base", "finish_saving", "forget_checkpoints", "load",
    "look_before_writing", "make_template", "merged", "read_about", "read_begun", "read_chat_template",
    "read_log", "recipe_of", "refuse_unwritable", "remove", "remove_unfinished", "same_text", "save",
    "weights_file", "write_log", "write_tensors",
]
