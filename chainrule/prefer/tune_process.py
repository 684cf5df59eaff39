"""Preference tuning in a process of its own (`python -m chainrule.prefer.tune_process`), so that the page stays alive.

It gets its task as JSON in its argument, and prints each record of the training log as a line of JSON. SIGTERM stops it
where training could be resumed.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from chainrule.errors import UserError, out_of_memory
from chainrule.progress import set_quiet
from chainrule.training.finetune import finetune_recipe
from chainrule.training.pipeline import make_run


def tell(record: Mapping[str, Any]) -> None:
    print(json.dumps(record), flush=True)


def tune(task: Mapping[str, Any]) -> int:
    """`task`: base, settings, texts, valid, out, device."""
    set_quiet(True)
    try:
        recipe = finetune_recipe(task["base"], task["settings"], task="preference")
        made = make_run(task["texts"], recipe, task["out"], valid=task["valid"], device=task["device"],
                        observe=lambda model, record: tell(record))
    except UserError as error:
        tell({"event": "error", "line": " ".join(str(error).split())})
        return 2
    except Exception as error:
        line = "out of memory. Fewer train.pairs would fit." if out_of_memory(error) else (
            f"this failed, which is a bug: {type(error).__name__}: {error}")
        tell({"event": "error", "line": line})
        raise
    tell({"event": "end", "finished": made.finished, "interrupted": made.interrupted})
    return 0


if __name__ == "__main__":
    sys.exit(tune(json.loads(sys.argv[1])))
