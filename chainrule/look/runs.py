"""Runs to look at, by the names that they have on a page."""

from collections.abc import Iterable
from pathlib import Path

from chainrule.run import RECIPE, read_about

TEXT = 'The king said: "Who is there (and why)?" Nobody answered, and the king'
"""What models read where no text is given."""


def find_runs(paths: Iterable[str | Path]) -> dict[str, Path]:
    """The runs at these paths; a folder that holds runs, as `chainrule compare` makes one, stands for all of them."""
    found = {run.resolve(): run for path in paths for run in _runs_at(Path(path))}
    return {_short(place, found): run for place, run in found.items()}


def _runs_at(path: Path) -> list[Path]:
    inside = [] if (path / RECIPE).is_file() else [recipe for recipe in path.glob(f"*/{RECIPE}") if recipe.is_file()]
    if inside:
        return [recipe.parent for recipe in sorted(inside, key=_made)]
    read_about(path)
    return [path]


def _made(recipe: Path) -> tuple[int, str]:
    """Runs of a comparison come in the order in which they were made: the simplest first."""
    return recipe.stat().st_mtime_ns, str(recipe)


def _short(place: Path, every: Iterable[Path]) -> str:
    """The end of a path by which it differs from all others."""
    others = [other.parts for other in every if other != place]
    sizes = range(1, len(place.parts) + 1)
    unlike = (size for size in sizes if all(other[-size:] != place.parts[-size:] for other in others))
    return "/".join(place.parts[-next(unlike) :])
