"""What a chart of a page shows, read back from its pixels by means of its ticks."""

import math
import re

import numpy as np

POINT = re.compile(r"([\d.]+) ([\d.]+)")
READ = """(chart) => ({
  ticks: [...chart.querySelectorAll("text[data-axis]")].map((one) =>
    [one.dataset.axis, +one.dataset.value, +one.dataset.at]),
  lines: [...chart.querySelectorAll("path[data-line]")].map((one) => [one.dataset.line, one.getAttribute("d")]),
})"""


def drawn_lines(page, selector, x="linear", y="log"):
    """By name: the (x, y) of each point of each line."""
    read = page.locator(f"{selector} svg.plot-drawing").evaluate(READ)
    value = {axis: _inverse([(at, tick) for name, tick, at in read["ticks"] if name == axis], scale)
             for axis, scale in (("x", x), ("y", y))}
    return {name: [(value["x"](float(left)), value["y"](float(top))) for left, top in POINT.findall(path)]
            for name, path in read["lines"]}


def dots(page, selector):
    """By name: the exact (x, y) of each dot."""
    found = page.locator(f"{selector} circle[data-dot]").evaluate_all(
        "all => all.map((one) => [one.dataset.dot, +one.dataset.x, +one.dataset.y])")
    return {name: [(x, y) for other, x, y in found if other == name] for name, _, _ in found}


def label_boxes(page, selector):
    """Text and box of every text that is drawn in a chart."""
    return page.locator(f"{selector} svg.plot-drawing text").evaluate_all(
        "all => all.map((one) => [one.textContent, one.getBBox()]).map(([t, b]) => [t, b.x, b.y, b.width, b.height])")


def overlaps(boxes, slack=1.0):
    """Pairs of texts that cover each other by more than `slack` pixels both ways."""
    def meet(one, other):
        (_, x, y, w, h), (_, x2, y2, w2, h2) = one, other
        return min(x + w, x2 + w2) - max(x, x2) > slack and min(y + h, y2 + h2) - max(y, y2) > slack

    return [(one[0], other[0]) for place, one in enumerate(boxes) for other in boxes[place + 1 :] if meet(one, other)]


def _inverse(ticks, scale):
    """From a pixel to its value, by a line through the ticks; a tick that is not on it fails."""
    pixels, values = zip(*ticks)
    shown = np.log(values) if scale == "log" else np.array(values)
    slope, offset = np.polyfit(pixels, shown, 1)
    assert np.allclose(slope * np.array(pixels) + offset, shown, atol=1e-6 * (abs(shown).max() + 1))
    return lambda pixel: math.exp(slope * pixel + offset) if scale == "log" else slope * pixel + offset
