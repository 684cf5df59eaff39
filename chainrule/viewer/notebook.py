"""`chainrule.look(run, "text")`: every view that fits, as one self-contained HTML file that a notebook displays.

    chainrule.look("runs/gpt", "To be, or", view="attention")
    chainrule.look([one, other], "To be, or").save("page.html")
    chainrule.look(model, "To be, or", tokenizer=tokenizer)
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.files import write_text
from chainrule.model import Model
from chainrule.models import KINDS
from chainrule.run import COMPARISON, RECIPE, Run, load, read_about
from chainrule.tasks import first_task, recipe_for
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.viewer.hues import hues_of
from chainrule.viewer.page import Panel, make_page, script_json
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import Options, View, every_view, find_view

MAX_BYTES = 8_000_000
FRAME = 500_000    # bytes of these for the modules and the style


def make_file(
    subjects: Sequence[Subject], text: str, view: View | None = None, options: Options | None = None
) -> str:
    """One view; or all that fit, within the limit of a file. A view that fails is replaced by a line that says why."""
    if view is not None:
        panels = panels_of(view, subjects, text, options or {})
    else:
        panels = within_limit([panel for each in every_view().values() for panel in try_panels(each, subjects, text)])
    if not panels:
        why = "no view fits; a view needs a model that has what it shows" if view is None else (
            f"the view {view.name} does not fit: {view.why_not(subjects)}")
        raise UserError(f"{names(subjects)}: {why}.")
    hues = hues_of({subject.name: subject.run.recipe.kind for subject in subjects})
    return make_page(f"Views of {names(subjects)}", "", panels, hues)


def panels_of(view: View, subjects: Sequence[Subject], text: str, options: Options) -> list[Panel]:
    """One for all subjects that fit, if the view shows several; else one for each."""
    return [
        Panel(name, view.name, title, view.make(group, text, options), view.note, group=view.group)
        for name, title, group in _groups(view, subjects)
    ]


def try_panels(view: View, subjects: Sequence[Subject], text: str) -> list[Panel]:
    panels = []
    for name, title, group in _groups(view, subjects):
        try:
            panels.append(Panel(name, view.name, title, view.make(group, text, {}), view.note, group=view.group))
        except UserError as error:
            panels.append(Panel(name, view.name, title, None, view.note, str(error), view.group))
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


TEXT = 'The king said: "Who is there (and why)?" Nobody answered, and the king'
"""What models read if no text is given and none is stored with their runs."""

def opening_text(runs: Iterable[Mapping[str, Any]]) -> str:
    """The held-out text that the first run with one has in its recipe.json; so a page begins in its own alphabet."""
    return next((str(about["excerpt"]) for about in runs if about.get("excerpt")), TEXT)


HEIGHT = 720    # pixels of the frame in a notebook

Viewable: TypeAlias = str | Path | Run | Model


@dataclass(frozen=True)
class Page:
    """An HTML page that contains all it needs."""

    html: str

    def save(self, path: str | Path) -> Path:
        write_text(Path(path), self.html)
        return Path(path)

    def _repr_html_(self) -> str:
        """In a frame, so that the styles of the notebook and of the page do not mix."""
        frame = f'style="width: 100%; height: {HEIGHT}px; border: 0" title="chainrule look"'
        return f'<iframe {frame} srcdoc="{escape(self.html)}"></iframe>'

    def __repr__(self) -> str:
        return f"<a page of {len(self.html) / 1e6:.1f} MB: save(path) writes it, and a notebook draws it>"


def look(
    models: Viewable | Sequence[Viewable],
    text: str | None = None,
    view: str | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    device: str = "auto",
    **options: Any,
) -> Page:
    """Shows a run, the path of one, or several of them; one view, or all that fit.

    `text`: what the models read; None: the beginning of a run's held-out text.
    `tokenizer`: needed for a model without its run. `options`: those of the view, such as layer=2 of attention.
    """
    if options and view is None:
        raise UserError(f"{', '.join(options)}: options belong to one view; name it, as in view='attention'.")
    several = [models] if isinstance(models, str) or not isinstance(models, Sequence) else models
    subjects = with_unique_names([subject for one in several for subject in subjects_of(one, tokenizer, device)])
    chosen = {name: str(value) for name, value in options.items()}
    text = opening_text(subject.run.about for subject in subjects) if text is None else text
    return Page(make_file(subjects, text, None if view is None else find_view(view), chosen))


def subjects_of(one: Viewable, tokenizer: Tokenizer | None, device: str) -> list[Subject]:
    if isinstance(one, Run):
        return [Subject(one.path.name, one)]
    if isinstance(one, str | Path):
        return [Subject(name, load(path, choose_device(device))) for name, path in find_runs([one]).items()]
    if isinstance(one, Model) and tokenizer is not None:
        return [without_run(one, tokenizer)]
    raise UserError(f"{type(one).__name__} cannot be shown: give a run, as chainrule.load(path) returns one, or its "
                    "path; or a model and its tokenizer=.")


def without_run(model: Model, tokenizer: Tokenizer) -> Subject:
    """A model without a run, as if it had been made with the defaults of its kind."""
    kind = next((name for name, kind in KINDS.items() if kind.where.endswith(f":{type(model).__name__}")), None)
    if kind is None:
        raise UserError(f"{type(model).__name__} is no kind of chainrule; save it as a run to show it.")
    return Subject(kind, Run(Path(kind), recipe_for(kind, task=first_task(kind)), tokenizer, model, {}))


def with_unique_names(subjects: Sequence[Subject]) -> list[Subject]:
    """With unique names."""
    seen, named = dict[str, int](), list[Subject]()
    for subject in subjects:
        seen[subject.name] = count = seen.get(subject.name, 0) + 1
        named.append(subject if count == 1 else Subject(f"{subject.name} ({count})", subject.run))
    return named


# Runs, by the names that they have on a page


def find_runs(paths: Iterable[str | Path]) -> dict[str, Path]:
    """The runs at these paths; a folder of runs, such as `chainrule compare` makes, stands for all of them."""
    found = {run.resolve(): run for path in paths for run in _runs_at(Path(path))}
    return {_short(place, found): run for place, run in found.items()}


def _runs_at(path: Path) -> list[Path]:
    inside = [] if (path / RECIPE).is_file() else [recipe for recipe in path.glob(f"*/{RECIPE}") if recipe.is_file()]
    if inside:
        kinds = _compared(path)
        place = {name: number for number, name in enumerate(kinds)}
        runs = sorted((recipe.parent for recipe in inside), key=lambda run: run.name)
        return sorted(runs, key=lambda run: place.get(run.name, len(kinds)))
    read_about(path)
    return [path]


def _compared(folder: Path) -> list[str]:
    """The kinds of the comparison in a folder, the simplest first; its runs are named by them. None: no comparison."""
    try:
        return list(json.loads((folder / COMPARISON).read_text(encoding="utf-8"))["kinds"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _short(place: Path, every: Iterable[Path]) -> str:
    """The shortest end of a path by which it differs from all others."""
    others = [other.parts for other in every if other != place]
    sizes = range(1, len(place.parts) + 1)
    unique = (size for size in sizes if all(other[-size:] != place.parts[-size:] for other in others))
    return "/".join(place.parts[-next(unique) :])
