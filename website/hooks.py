"""Hooks of the site: where a lesson shows the picture of a page, the site shows the page itself.

`figures/NAME.png` is a picture of NAME.html. If the pages were made (`python website/lessons.py pages docs/pages`), the
picture is followed by a link and a frame with the page, which works without a network.
"""

import re
from pathlib import Path
from typing import Any

PICTURE = re.compile(r"!\[(?P<title>[^\]]*)\]\(figures/(?P<name>[\w-]+)\.png\)")
PAGES = Path(__file__).parents[1] / "docs" / "pages"
FRAME = (
    '<p><a href="{to}" target="_blank">Open this page</a></p>\n'
    '<iframe src="{to}" title="{title}" width="100%" height="720" loading="lazy"></iframe>'
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The lesson with the page in place of its picture, where there is one."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if not (PAGES / f"{name}.html").is_file():
            return match[0]
        return FRAME.format(to=f"../../pages/{name}.html", title=match["title"])

    return PICTURE.sub(replace, markdown) if page.file.src_uri.startswith("lessons/") else markdown
