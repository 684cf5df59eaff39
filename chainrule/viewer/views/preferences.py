"""Preference curves: rewards, accuracy, margin, KL, entropy and length of a training, and what is wrong with them.

The charts are SVG, made here from the run's log (preferences/curves.py), and the sentences are the diagnosis. While
training goes on, `training_page` is the same as a page that reads itself again.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from chainrule.inference.statistics import Score
from chainrule.preferences.curves import GROUPS, Curve, read_curves
from chainrule.preferences.diagnosis import diagnose
from chainrule.run import read_log
from chainrule.viewer.line_chart import line_chart
from chainrule.viewer.page import Panel, make_page
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import Options, View

POINTS = 50      # of a curve; of more records each point is a mean
REFRESH = 5      # seconds after which the page of a training under way is read again, unless the reader stops it
AGAIN = (f'<p class="note"><label><input id="again" type="checkbox" checked> read again every {REFRESH} seconds</label>'
         f'<script>setInterval(() => document.getElementById("again").checked && location.reload(), {1000 * REFRESH})'
         "</script></p>")

Records = Sequence[Mapping[str, Any]]


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    return {"models": [{"name": subject.name, **describe_log(_log(subject), ended=True)} for subject in subjects]}


def _log(subject: Subject) -> Records:
    return read_log(subject.run.path)


def describe_log(records: Records, *, ended: bool) -> dict[str, Any]:
    """The charts and the sentences about them."""
    found = [{"trouble": one.trouble, "sentence": one.sentence} for one in diagnose(records, ended=ended)]
    return {"findings": found, "charts": draw_charts(records)}


def draw_charts(records: Records) -> list[dict[str, str]]:
    """A picture for each group of curves that the log has; of the validation split they are beside the others."""
    trained, held_out, charts = read_curves(records), read_curves(records, "evaluation"), []
    for title, names in GROUPS.items():
        several = len(names) > 1
        here = [name for name in names if name in trained]
        curves = {_label(name, several): trained[name] for name in here}
        curves |= {_label(name, several, True): held_out[name] for name in here if name in held_out}
        if curves:
            shown = {name: thin_curve(curve) for name, curve in curves.items()}
            charts.append({"title": title, "svg": line_chart(shown, x="step", y=title, ticks=_ticks(curves))})
    return charts


def _label(name: str, several: bool, held_out: bool = False) -> str:
    """Of a curve beside its end: chosen; training; rejected, held out."""
    return ", ".join([name.rpartition("/")[2]] * several + ["held out"] * held_out) or "training"


def thin_curve(curve: Curve) -> list[tuple[float, Score]]:
    """At most POINTS points: the mean of neighbouring records, from the lowest to the highest of them."""
    count = min(POINTS, len(curve))
    ends = [len(curve) * place // count for place in range(count + 1)]
    points = []
    for begin, end in pairwise(ends):
        values = [value for _, value in curve[begin:end]]
        points.append((fmean(step for step, _ in curve[begin:end]), Score(fmean(values), min(values), max(values))))
    return points


def _ticks(curves: Mapping[str, Curve]) -> dict[float, str]:
    """Names of the first step, of the last, and of one between."""
    steps = [step for curve in curves.values() for step, _ in curve]
    first, last = min(steps), max(steps)
    return {step: f"{step:,}" for step in sorted({first, (first + last) // 2, last})}


def training_page(name: str, records: Records, *, ended: bool) -> str:
    """A file that shows the training of a run so far, and reads itself again until training has ended."""
    data = {"models": [{"name": name, **describe_log(records, ended=ended)}]}
    page = make_page(f"Training {name}", "", [Panel(VIEW.name, VIEW.name, VIEW.title, data, VIEW.note)])
    return page if ended else page.replace("<main>", f"<main>\n{AGAIN}", 1)


VIEW = View(
    "preferences", "Preference curves",
    "Training on preferences or rewards, step by step: rewards of chosen and rejected answers, their margin and how "
    "often the chosen one wins; the reward, the KL divergence from the reference, entropy and length. A shade is from "
    "the lowest to the highest record of a point. A sentence says what a curve means that goes wrong.",
    lambda subject: bool(read_curves(_log(subject))), _make, several=True, reads=False,
    needs="a run of --task preference, reward or reinforce, with its log",
)
