"""Where derived files are kept: `$CHAINRULE_CACHE`, else ~/.cache/chainrule. It may be deleted at any time."""

import os
from pathlib import Path

from chainrule.errors import UserError


def cache_folder(given: Path | None = None) -> Path:
    folder = given or Path(os.environ.get("CHAINRULE_CACHE") or "~/.cache/chainrule").expanduser()
    if folder.is_symlink() and not folder.exists():
        raise UserError(f"{folder}, the cache, is a link to {folder.readlink()}, which is not there. Make that folder.")
    return folder
