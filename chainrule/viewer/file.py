"""One file that shows models from disk: every view that fits, with all that it needs inside."""

from collections.abc import Sequence
from dataclasses import replace

from chainrule.errors import UserError
from chainrule.viewer.page import Panel, make_page, plain
from chainrule.viewer.subject import Subject
from chainrule.viewer.view import Options, View
from chainrule.viewer.views import every_view

MOST = 8_000_000     # bytes of a file
FRAME = 5_100_000    # of these for Plotly, the modules and the style


def make_file(
    subjects: Sequence[Subject], text: str, view: View | None = None, options: Options | None = None
) -> str:
    """One view; or all that fit, as many as the file has room for. Of one that cannot be made a line says why."""
    if view is not None:
        panels = panels_of(view, subjects, text, options or {})
    else:
        panels = bounded([panel for each in every_view().values() for panel in panels_tried(each, subjects, text)])
    if not panels:
        raise UserError(f"{names(subjects)}: {'no view fits' if view is None else f'the view {view.name} does not fit'}"
                        f", which shows only what a model has.")
    return make_page(f"A look at {names(subjects)}", "", panels)


def panels_of(view: View, subjects: Sequence[Subject], text: str, options: Options) -> list[Panel]:
    """One for all subjects that fit, where a view shows several; else one for each."""
    return [
        Panel(name, view.name, title, view.make(group, text, options), view.note)
        for name, title, group in _groups(view, subjects)
    ]


def panels_tried(view: View, subjects: Sequence[Subject], text: str) -> list[Panel]:
    panels = []
    for name, title, group in _groups(view, subjects):
        try:
            panels.append(Panel(name, view.name, title, view.make(group, text, {}), view.note))
        except UserError as error:
            panels.append(Panel(name, view.name, title, None, view.note, str(error)))
    return panels


def bounded(panels: Sequence[Panel]) -> list[Panel]:
    """As many as there is room for, the first first; of the others only what they would be."""
    room, kept = MOST - FRAME, list[Panel]()
    for panel in panels:
        size = len(plain(panel.data))
        if size > room:
            why = f"Left out, so that the file has less than {MOST // 10**6} MB: ask for the view {panel.module} alone."
            panel = replace(panel, data=None, error=why)
        else:
            room -= size
        kept.append(panel)
    return kept


def names(subjects: Sequence[Subject]) -> str:
    return ", ".join(subject.name for subject in subjects)


def _groups(view: View, subjects: Sequence[Subject]) -> list[tuple[str, str, Sequence[Subject]]]:
    """Name and title of each panel, and whom it shows."""
    fit = [subject for subject in subjects if view.fits(subject)]
    if view.several or len(fit) < 2:
        return [(view.name, view.title, fit)] if fit else []
    return [
        (f"{view.name}-{number}" if number > 1 else view.name, f"{view.title}: {subject.name}", [subject])
        for number, subject in enumerate(fit, 1)
    ]
