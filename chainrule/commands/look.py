"""`chainrule look`: a live page on this machine, or one HTML file that shows the same from disk."""

import os
import sys
import webbrowser
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.files import write_text
from chainrule.progress import say, set_quiet
from chainrule.run import load, read_about
from chainrule.text.sources import find_sources, read_text
from chainrule.viewer.notebook import find_runs, make_file, opening_text
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import every_view, find_view

CHARACTERS = 20_000    # of a file: more than any view shows at once
MISSING = "the live page needs fastapi and uvicorn: pip install 'chainrule[look]'. --out PAGE.html writes a file."


def look_command(args: Namespace) -> dict[str, Any]:
    runs = find_runs(args.run)
    if args.view is not None:
        find_view(args.view)
    text = text_of(args)
    if text is None:
        text = opening_text(map(read_about, runs.values()))
    if args.table:
        return print_table(runs, text, args)
    return write_file(runs, text, args) if args.out is not None else open_page(runs, text, args)


def text_of(args: Namespace) -> str | None:
    """The text that was given; None: none was."""
    if args.text is not None and args.file is not None:
        raise UserError("--text and --file both give a text; use one of them.")
    if args.file is not None:
        return beginning(args.file)
    return None if args.text is None else str(args.text)


def beginning(file: str) -> str:
    text = ""
    with TemporaryDirectory() as spool:
        for piece in (piece for source in find_sources(file, Path(spool)) for piece in read_text(source)):
            text += piece
            if len(text) > CHARACTERS:
                say(f"of {file} the first {CHARACTERS:,} characters are shown.")
                return text[:CHARACTERS]
    return text


def options_of(args: Namespace) -> dict[str, str]:
    """What a view is asked for."""
    return {} if args.word is None else {"word": args.word}


def print_table(runs: Mapping[str, Path], text: str, args: Namespace) -> dict[str, Any]:
    """The numbers of a view, in the terminal."""
    tables = {view.name: view.table for view in every_view().values() if view.table is not None}
    if args.out is not None or args.view not in tables:
        have = " or ".join(f"--view {name}" for name in tables)
        raise UserError(f"--table prints the numbers of a view instead of a page: give {have}, and no --out.")
    subjects = [Subject(name, load(path, choose_device(args.device))) for name, path in runs.items()]
    fitting = [subject for subject in subjects if find_view(args.view).fits(subject)]
    if not fitting:
        raise UserError(f"{', '.join(runs)}: the view {args.view} does not fit; it needs a model that has what it "
                        "shows.")
    made = {subject.name: tables[args.view]([subject], text, options_of(args)) for subject in fitting}
    for name, table in made.items() if not args.json else ():
        print("\n".join([f"{name}:", *table.lines] if len(made) > 1 else table.lines))
    return {"view": args.view, "runs": {name: table.values for name, table in made.items()}}


def write_file(runs: Mapping[str, Path], text: str, args: Namespace) -> dict[str, Any]:
    out, device = Path(args.out), choose_device(args.device)
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name the file to write, as in {out / 'page.html'}.")
    if out.parent.is_file():
        raise UserError(f"--out {out}: {out.parent} is a file, not a folder. Choose another place.")
    subjects = [Subject(name, load(path, device)) for name, path in runs.items()]
    view = None if args.view is None else find_view(args.view)
    page = make_file(subjects, text, view, options_of(args))
    write_text(out, page)
    if not args.json:
        size = max(len(page.encode()) / 1e6, 0.01)
        print(f"{out} shows {', '.join(runs)}: {size:.{1 if size >= 0.1 else 2}f} MB, and opens without a network.")
    return {"runs": list(runs), "out": str(out), "bytes": len(page.encode()), "view": args.view}


def open_page(runs: Mapping[str, Path], text: str, args: Namespace) -> dict[str, Any]:
    """Serves until Ctrl-C, which is the normal end."""
    try:
        from chainrule.serve.app import make_app
        from chainrule.serve.server import Runs, address, open_socket, serve
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise UserError(MISSING) from None
    app = make_app(Runs(runs, choose_device(args.device)), text, args.host, args.view)
    with open_socket(args.host, args.port) as socket:
        url = address(socket) + (f"#contextual.word={quote(args.word)}" if args.word else "")
        print(f"{', '.join(runs)}: {url} (stop with Ctrl-C)", file=sys.stderr, flush=True)
        if not args.no_browser and has_screen():
            webbrowser.open(url)
        set_quiet(True)
        serve(app, socket)
    return {"runs": list(runs), "url": url, "view": args.view}


def has_screen() -> bool:
    """Without a screen, a text browser would take over the terminal."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
