"""Pages that lie on disk, in a real browser."""

import pytest

from chainrule.viewer.page import Panel, make_page


@pytest.fixture
def open_file(open_url, tmp_path):
    """A page that lies on disk."""

    def open_it(text, address="", **context):
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        return open_url(path.as_uri() + address, **context)

    return open_it


@pytest.fixture
def open_view(open_file):
    """One view of subjects, as a file shows it: the page, and the data that are drawn there."""

    def open_it(view, subjects, text="", options=None, address="", **context):
        data = view.make(subjects, text, options or {})
        page = make_page("a page", "", [Panel(view.name, view.name, view.title, data, view.note)])
        return open_file(page, address, **context), data

    return open_it
