"""One HTML file with every view that fits the models: it opens from disk and contains all that it needs."""

from collections.abc import Sequence
from dataclasses import replace

from chainrule.errors import UserError
from chainrule.viewer.page import Panel, make_page, script_json
from chainrule.viewer.subject import Subject
from chainrule.viewer.view import Options, View
from chainrule.viewer.views import every_view

MAX_BYTES = 8_000_000
FRAME = 5_100_000    # bytes of these for Plotly, the modules and the style


def make_file(
    subjects: Sequence[Subject], text: str, view: View | None = None, options: Options | None = None
) -> str:
    """One view; or all that fit, within the limit of a file. A view that fails is replaced by a line that says why."""
    if view is not None:
        panels = panels_of(view, subjects, text, options or {})
    else:
        panels = within_limit([panel for each in every_view().values() for panel in try_panels(each, subjects, text)])
    if not panels:
        lacking = "no view fits" if view is None else f"the view {view.name} does not fit"
        raise UserError(f"{names(subjects)}: {lacking}; a view needs a model that has what it shows.")
    return make_page(f"Views of {names(subjects)}", "", panels)


def panels_of(view: View, subjects: Sequence[Subject], text: str, options: Options) -> list[Panel]:
    """One for all subjects that fit, if the view shows several; else one for each."""
    return [
        Panel(name, view.name, title, view.make(group, text, options), view.note)
        for name, title, group in _groups(view, subjects)
    ]


def try_panels(view: View, subjects: Sequence[Subject], text: str) -> list[Panel]:
    panels = []
    for name, title, group in _groups(view, subjects):
        try:
            panels.append(Panel(name, view.name, title, view.make(group, text, {}), view.note))
        except UserError as error:
            panels.append(Panel(name, view.name, title, None, view.note, str(error)))
    return panels


def within_limit(panels: Sequence[Panel]) -> list[Panel]:
    """The panels in their order; one that is too large for what is left of the file is replaced by a line."""
    left, kept = MAX_BYTES - FRAME, list[Panel]()
    for panel in panels:
        size = len(script_json(panel.data))
        if size > left:
            why = f"Left out to keep the file below {MAX_BYTES // 10**6} MB: ask for the view {panel.module} alone."
            panel = replace(panel, data=None, error=why)
        else:
            left -= size
        kept.append(panel)
    return kept


def names(subjects: Sequence[Subject]) -> str:
    return ", ".join(subject.name for subject in subjects)


def _groups(view: View, subjects: Sequence[Subject]) -> list[tuple[str, str, Sequence[Subject]]]:
    """Name and title of each panel, and the subjects it shows."""
    fit = [subject for subject in subjects if view.fits(subject)]
    if view.several or len(fit) < 2:
        return [(view.name, view.title, fit)] if fit else []
    return [
        (f"{view.name}-{number}" if number > 1 else view.name, f"{view.title}: {subject.name}", [subject])
        for number, subject in enumerate(fit, 1)
    ]
