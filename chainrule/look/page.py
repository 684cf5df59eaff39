"""A page that opens from disk: one HTML file with its data, its style and its ES modules inside. No network, no build.

A view is a module of `web/` that exports `render(element, data, state)`. Modules import each other by name, as in
`chainrule/draw`, and the page's import map says where a name is to be found: here in the page itself, as a data URL;
a server would say a path, and the modules would be the same.
"""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

WEB = files("chainrule.look") / "web"
IMPORT = re.compile(r'from "chainrule/([a-z_]+)"')
MAIN = "page"


@dataclass(frozen=True)
class Panel:
    name: str            # its place in the page, and in the address
    module: str          # in web/, without .js
    title: str
    data: Any            # plain values for JSON
    note: str = ""       # what to see in it


def make_page(title: str, lead: str, views: Sequence[Panel]) -> str:
    modules = closure([MAIN, *(view.module for view in views)])
    return Template(source("page.html")).substitute(
        title=escape(title),
        lead=escape(lead),
        style=source("page.css"),
        imports=plain({"imports": {f"chainrule/{name}": data_url(source(f"{name}.js")) for name in modules}}),
        contents="\n".join(f'<a href="#{view.name}">{escape(view.title)}</a>' for view in views),
        sections="\n".join(_section(view) for view in views),
        views=plain([{"name": view.name, "module": view.module, "data": view.data} for view in views]),
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
    return (WEB / file).read_text(encoding="utf-8")


def data_url(module: str) -> str:
    return f"data:text/javascript;charset=utf-8;base64,{base64.b64encode(module.encode()).decode()}"


def plain(value: Any) -> str:
    """JSON that can stand within a script element, whatever texts are in it."""
    return json.dumps(value, allow_nan=False, ensure_ascii=True).replace("<", "\\u003c")


def _section(view: Panel) -> str:
    note = f"<p class=note>{escape(view.note)}</p>" if view.note else ""
    return f'<section id="{view.name}"><h2>{escape(view.title)}</h2>{note}<div class=view></div></section>'
