"""Where derived files are kept: `$CHAINRULE_CACHE`, else ~/.cache/chainrule. It may be deleted at any time."""

import os
from pathlib import Path


def cache_folder(given: Path | None = None) -> Path:
    return given or Path(os.environ.get("CHAINRULE_CACHE") or "~/.cache/chainrule").expanduser()
