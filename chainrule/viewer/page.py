"""A page that opens from disk: one HTML file with its data, its style and its ES modules inside. No network, no build.

A view is drawn by a module of `web/` that exports `render(element, data, state, live)`; here `live` is null, since
there is no server to ask. Modules import each other by name, as in `chainrule/draw`, and the page's import map resolves
the names: on a server to paths, here to data URLs that the page makes of the compressed modules within it.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template
from typing import Any

import numpy as np
from torch import Tensor

from chainrule.viewer.compression import TYPES, deflate, deflate_data
from chainrule.viewer.hues import hue_style


def pack_array(values: Any, dtype: str = "float32", digits: int | None = None) -> dict[str, Any]:
    """An array as JSON: base64 of its bytes, which `unpack` of web/arrays.js turns into a typed array again.

    A float32 keeps its exact value in 5⅓ characters; as decimal digits it would take about ten and be rounded.
    `digits`: binary digits that a reader can see, 3.3 for each decimal one; a large file has no more.
    """
    array = values.detach().float().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    data = np.ascontiguousarray(array, np.dtype(TYPES[dtype]))
    packed = {"dtype": dtype, "shape": list(data.shape), "data": base64.b64encode(data.tobytes()).decode()}
    return packed if digits is None else packed | {"digits": digits}


WEB = files("chainrule.viewer") / "web"
IMPORT = re.compile(r'from "chainrule/([a-z_]+)"')
COMMENT = re.compile(r"[ \t]*/\*\*.*?\*/", re.DOTALL)
MAIN = "page"
SMALL = 5_000    # characters of a panel's JSON, at most, which is not compressed


@dataclass(frozen=True)
class Panel:
    name: str            # id of its section, and its part of the address
    module: str          # in web/, without .js
    title: str
    data: Any            # plain values for JSON
    note: str = ""       # what it shows
    error: str = ""      # shown instead of the drawing
    group: str = ""      # of sections in the list at the left; without groups the list is above


def make_page(title: str, lead: str, panels: Sequence[Panel], hues: Mapping[str, int] = {}) -> str:
    """`hues`: the colour of each model that is shown, by its name."""
    modules = closure([MAIN, *(panel.module for panel in panels if not panel.error)])
    return Template(read_web_file("page.html")).substitute(
        title=escape(title),
        lead=f"<p class=lead>{escape(lead)}</p>\n" if lead else "",
        frame="framed" if any(panel.group for panel in panels) else "",
        style=style(modules) + hue_style(hues),
        modules=deflate(script_json({f"chainrule/{name}": read_code(name) for name in modules}).encode()),
        contents="\n".join(_contents(panels)) if len(panels) > 1 else "",
        sections="\n".join(_section(panel) for panel in panels),
        panels=script_json([_panel_json(panel) for panel in panels]),
    )


def closure(names: Iterable[str]) -> list[str]:
    """The modules, and all that they import, directly or not."""
    found, waiting = dict[str, None](), list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = None
            waiting += IMPORT.findall(read_web_file(f"{name}.js"))
    return sorted(found)


def read_web_file(name: str) -> str:
    return _web_files()[name].read_text(encoding="utf-8")


def read_code(module: str) -> str:
    """The code of a module without its comments, which have the types and are a third of it."""
    return COMMENT.sub("", read_web_file(f"{module}.js"))


def module_names() -> list[str]:
    return sorted(name.removesuffix(".js") for name in _web_files() if name.endswith(".js"))


def _web_files() -> dict[str, Traversable]:
    """Every file of `web/` and of the folders in it, by name; names are unique."""
    folders = [WEB, *(entry for entry in WEB.iterdir() if entry.is_dir())]
    return {entry.name: entry for folder in folders for entry in folder.iterdir() if entry.is_file()}


def style(modules: Iterable[str]) -> str:
    """CSS: that of every page, and that of each module that has some."""
    files, own = _web_files(), [f"{name}.css" for name in modules if name != MAIN]
    return "\n".join(files[name].read_text(encoding="utf-8") for name in ("page.css", *own) if name in files)


def script_json(value: Any) -> str:
    """JSON that is safe within a script element, whatever strings it contains."""
    return json.dumps(value, allow_nan=False, ensure_ascii=True).replace("<", "\\u003c")


def _panel_json(panel: Panel) -> dict[str, Any]:
    content = {"error": panel.error} if panel.error else _data_json(panel.data)
    return {"name": panel.name, "module": panel.module, "note": panel.note, **content}


def _data_json(data: Any) -> dict[str, Any]:
    """The data; or, if they are large, compressed, which page.js inflates."""
    characters = len(script_json(data))
    return {"data": data} if characters <= SMALL else {"deflated": deflate_data(data, characters)}


def _contents(panels: Sequence[Panel]) -> Iterator[str]:
    """Links to the sections, under the names of their groups."""
    group = ""
    for panel in panels:
        if panel.group != group:
            yield f'<p class="rail-group">{escape(panel.group)}</p>'
        group = panel.group
        yield f'<a href="#{panel.name}">{escape(panel.title)}</a>'

def _section(panel: Panel) -> str:
    return f'<section id="{panel.name}"><h2>{escape(panel.title)}</h2><div class=view></div></section>'
