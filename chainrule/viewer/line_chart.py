"""Line charts as SVG: a curve for each model, with its 95 % interval around it. For files; the pages draw their own."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from chainrule.inference.statistics import Score

COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#0a7ea4", "#bf3989", "#57606a")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 540, 360, 56, 28, 56    # up to the right end of the axes, and the margins
LETTER = 7.5           # pixels of a letter
LINE = 16              # pixels between the names of two curves, at least
TICKS = 6              # on the y axis, about

Curve: TypeAlias = Sequence[tuple[float, Score]]
"""Points from left to right."""


def line_chart(
    curves: Mapping[str, Curve], *, x: str, y: str, ticks: Mapping[float, str], log: bool = False, zero: bool = False,
    points: Mapping[str, Sequence[tuple[float, float]]] = {},
) -> str:
    """The picture. `x`, `y`: what the axes show; `ticks`: names of places on the x axis; `zero`: y begins at 0.

    `points`: single measurements that a curve is made of, drawn small in its colour.
    """
    ends = [value for curve in curves.values() for _, score in curve for value in (score.low, score.high)]
    values = [*ends, *(value for places in points.values() for _, value in places)]
    low, high = min(values), max(values)
    step = _nice((high - (0.0 if zero else low)) / TICKS or 1.0)
    bottom = 0.0 if zero else step * math.floor(low / step)
    frame = Frame(min(ticks), max(ticks), bottom, step * math.ceil(high / step), step, log)
    parts = [*frame.axes(x, y, ticks)]
    for colour, (name, curve) in zip(_cycle(COLOURS, len(curves)), curves.items()):
        parts += frame.dots(points.get(name, ()), colour)
        parts += frame.curve(curve, colour)
    parts += frame.names(curves)
    style = 'font-family="sans-serif" font-size="13" fill="#57606a"'
    width = WIDTH + 20 + round(LETTER * max(map(len, curves)))
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" {style}>'
    return "\n".join([opening, *parts, "</svg>\n"])


@dataclass(frozen=True)
class Frame:
    """Coordinates in the picture."""

    left: float
    right: float
    bottom: float
    top: float
    step: float           # between two lines of the grid
    log: bool             # a logarithmic x axis

    def x(self, value: float) -> float:
        place, left, right = (math.log(part) if self.log else part for part in (value, self.left, self.right))
        share = 0.5 if right == left else 0.03 + 0.94 * (place - left) / (right - left)
        return round(LEFT + (WIDTH - LEFT) * share, 1)

    def y(self, value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (self.top - value) / ((self.top - self.bottom) or 1), 1)

    def axes(self, x: str, y: str, ticks: Mapping[float, str]) -> Iterator[str]:
        decimals = max(0, -math.floor(math.log10(self.step)))
        for line in range(round((self.top - self.bottom) / self.step) + 1):
            value = self.bottom + line * self.step
            height = self.y(value)
            yield f'<line x1="{LEFT}" x2="{WIDTH}" y1="{height}" y2="{height}" stroke="#8884"/>'
            yield f'<text x="{LEFT - 8}" y="{height + 4}" text-anchor="end">{_signed(value, decimals)}</text>'
        for value, name in ticks.items():
            yield f'<text x="{self.x(value)}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{escape(name)}</text>'
        yield f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x)}</text>'
        yield f'<text x="{LEFT - 40}" y="{TOP - 12}">{escape(y)}</text>'

    def curve(self, curve: Curve, colour: str) -> Iterator[str]:
        above, below = [(at, score.high) for at, score in curve], [(at, score.low) for at, score in curve]
        yield f'<polygon points="{self._points(above + below[::-1])}" fill="{colour}" opacity="0.15"/>'
        middle = [(at, score.value) for at, score in curve]
        yield f'<polyline points="{self._points(middle)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for at, value in middle:
            yield f'<circle cx="{self.x(at)}" cy="{self.y(value)}" r="2.5" fill="{colour}"/>'

    def dots(self, places: Sequence[tuple[float, float]], colour: str) -> Iterator[str]:
        for at, value in places:
            yield f'<circle cx="{self.x(at)}" cy="{self.y(value)}" r="1.5" fill="{colour}" opacity="0.35"/>'

    def names(self, curves: Mapping[str, Curve]) -> Iterator[str]:
        """Beside the end of each curve, and moved down where two would overlap."""
        colours, before = dict(zip(curves, _cycle(COLOURS, len(curves)))), -math.inf
        left, lowest = self.x(self.right) + 10, HEIGHT - BOTTOM - LINE * (len(curves) - 1)
        for place, name in enumerate(sorted(curves, key=lambda name: self.y(curves[name][-1][1].value))):
            score = curves[name][-1][1]
            before = max(before + LINE, min(self.y(score.value) + 4, lowest + LINE * place))
            yield f'<text x="{left}" y="{round(before, 1)}" fill="{colours[name]}">{escape(name)}</text>'

    def _points(self, places: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{self.x(at)},{self.y(value)}" for at, value in places)


def _signed(value: float, decimals: int) -> str:
    """With a minus sign, not a hyphen, and none before zero."""
    return f"{value:z.{decimals}f}".replace("-", "−")


def _nice(step: float) -> float:
    """The next of 1, 2, 5, 10, 20 …"""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(part * power for part in (1, 2, 5, 10) if part * power >= step * (1 - 1e-9))


def _cycle(colours: Sequence[str], count: int) -> list[str]:
    return [colours[place % len(colours)] for place in range(count)]
