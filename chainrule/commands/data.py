"""`chainrule data`: the list of known texts, and the download of one."""

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from chainrule.errors import UserError
from chainrule.progress import short
from chainrule.text.datasets import catalogue, get
from chainrule.text.sources import Source


def data_command(args: Namespace) -> dict[str, Any]:
    if args.get is None:
        return list_all(args)
    if args.get != "get" or args.name is None:
        raise UserError("data: `chainrule data` lists the known texts, and `chainrule data get NAME` downloads one.")
    splits = get(args.name)
    if not args.json:
        for split, sources in splits.items():
            print(f"{split}: {place(sources)}")
    plain_splits = {split: [plain(source) for source in sources] for split, sources in splits.items()}
    return {"name": args.name, "splits": plain_splits}


def plain(source: Source) -> dict[str, Any]:
    return asdict(source) | {"path": str(source.path)}


def list_all(args: Namespace) -> dict[str, Any]:
    entries = catalogue()
    if not args.json:
        name, size = max(len(entry.name) for entry in entries), 7
        for entry in entries:
            print(f"{entry.name:<{name}}  {short(entry.bytes) + 'B':>{size}}  {entry.idea}  [{entry.where}]")
    return {"texts": [asdict(entry) for entry in entries]}


def place(sources: Sequence[Source]) -> str:
    """One file by its path and byte range, several by their folder."""
    if len(sources) > 1:
        return f"{len(sources)} files in {os.path.commonpath([source.path for source in sources])}"
    (source,) = sources
    if not source.begin and source.end is None:
        return str(source.path)
    return f"{source.path}, bytes {source.begin:,} to {'the end' if source.end is None else f'{source.end:,}'}"
