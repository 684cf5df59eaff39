"""A page that opens from disk: one HTML file with its data, its style and its ES modules inside. No network, no build.

A view is a module of `web/` that exports `render(element, data, state, live)`, where `live` is null: there is no server
to ask. Modules import each other by name, as in `chainrule/draw`, and the page's import map says where a name is to be
found: here in the page itself, as a data URL; a server says a path, and the modules are the same.
"""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template
from typing import Any

from chainrule.errors import UserError

WEB = files("chainrule.viewer") / "web"
IMPORT = re.compile(r'from "chainrule/([a-z_]+)"')
MAIN, PLOT = "page", "plot"


@dataclass(frozen=True)
class Panel:
    name: str            # its place in the page, and in the address
    module: str          # in web/, without .js
    title: str
    data: Any            # plain values for JSON
    note: str = ""       # what to see in it
    error: str = ""      # in the place of a drawing, where there is none


def make_page(title: str, lead: str, panels: Sequence[Panel]) -> str:
    modules = closure([MAIN, *(panel.module for panel in panels if not panel.error)])
    return Template(source("page.html")).substitute(
        title=escape(title),
        lead=escape(lead),
        style=style(modules),
        imports=plain({"imports": {f"chainrule/{name}": data_url(source(f"{name}.js")) for name in modules}}),
        contents="\n".join(f'<a href="#{panel.name}">{escape(panel.title)}</a>' for panel in panels),
        sections="\n".join(_section(panel) for panel in panels),
        panels=plain([_drawn(panel) for panel in panels]),
        plotly=f"<script>{inline(plotly())}</script>" if PLOT in modules else "",
    )


def closure(names: Iterable[str]) -> list[str]:
    """The modules, and all that they import."""
    found, waiting = dict[str, None](), list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = None
            waiting += IMPORT.findall(source(f"{name}.js"))
    return sorted(found)


def source(file: str) -> str:
    return _files()[file].read_text(encoding="utf-8")


@cache
def _files() -> dict[str, Traversable]:
    """Every file of `web/` and its folders, by name; no two have the same."""
    folders = [WEB, *(entry for entry in WEB.iterdir() if entry.is_dir())]
    return {entry.name: entry for folder in folders for entry in folder.iterdir() if entry.is_file()}


def style(modules: Iterable[str]) -> str:
    """That of every page, and what some modules have of their own."""
    own = [f"{name}.css" for name in modules if name != MAIN]
    return "\n".join(source(file) for file in ("page.css", *own) if file in _files())


def plotly() -> str:
    """Plotly's own JavaScript, as it lies in its wheel."""
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        raise UserError("charts are drawn by plotly, which is not installed: pip install 'chainrule[look]'.") from None


def inline(script: str) -> str:
    """JavaScript that does not end the element in which it stands; within its strings it means the same."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def data_url(module: str) -> str:
    return f"data:text/javascript;charset=utf-8;base64,{base64.b64encode(module.encode()).decode()}"


def plain(value: Any) -> str:
    """JSON that can stand within a script element, whatever texts are in it."""
    return json.dumps(value, allow_nan=False, ensure_ascii=True).replace("<", "\\u003c")


def _drawn(panel: Panel) -> dict[str, Any]:
    what: dict[str, Any] = {"error": panel.error} if panel.error else {"data": panel.data}
    return {"name": panel.name, "module": panel.module, **what}


def _section(panel: Panel) -> str:
    note = f"<p class=note>{escape(panel.note)}</p>" if panel.note else ""
    return f'<section id="{panel.name}"><h2>{escape(panel.title)}</h2>{note}<div class=view></div></section>'
