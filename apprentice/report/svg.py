"""Charts over steps as inline SVG: lines, and stacked columns or areas.

Hand-made, so that the report stays one light file that follows the reader's light or dark scheme (colours are
CSS classes, see ``page.css``). Each function returns markup that is safe to insert: all text is escaped here.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from apprentice.report.scale import format_number, moving_mean, nice_ticks, shorten, text_width

__all__ = [
    "Series",
    "line_chart",
    "stacked_chart",
]

_WIDTH, _HEIGHT = 356.0, 190.0
_LEFT, _TOP, _BOTTOM = 44.0, 10.0, 22.0
_CHARACTER = 6.5  # width of one at the labels' font size, roughly
_LABEL, _ROOM = 11.0, 148.0  # font size of a label at a line's end, and the most room for it
_SMOOTH_FROM, _COLUMNS_TO = 24, 30  # points


@dataclass(frozen=True, slots=True)
class Series:
    """One line: equally long ``x`` (steps) and ``y``; ``colour`` a CSS class (``c0``, ``expert``)."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    unit: str = "",
    zero: bool = False,
    y_range: tuple[float, float] | None = None,
    x_label: str = "step",
    dots: bool = False,
) -> Markup:
    """Lines over steps. From 24 points on a moving mean is drawn over the faint raw values.

    Args:
        series: at least one, none of them empty.
        title: for the figure's caption and for screen readers.
        unit: of the vertical axis.
        zero: let the axis begin at zero.
        y_range: the axis' ends, when the quantity has natural ones.
        x_label: name of the horizontal axis.
        dots: mark every point, and smooth nothing.
    """
    all_x = [x for s in series for x in s.x]
    all_y = [y for s in series for y in s.y]
    low, high = y_range or (min(all_y), max(all_y))
    if zero:
        low = min(low, 0.0)
    ticks = nice_ticks(low, high, 4)
    low, high = (min(low, ticks[0]), max(high, ticks[-1])) if y_range is None else (low, high)
    long = not dots and max(len(s.y) for s in series) >= _SMOOTH_FROM
    lines = [moving_mean(s.y) if long else list(s.y) for s in series]
    named = len(series) > 1  # the caption names a single line
    labels = [
        _end_label(s.label, line[-1]) if named else format_number(line[-1])
        for s, line in zip(series, lines, strict=True)
    ]
    plot = _Plot(min(all_x), max(all_x), low, high, labels)
    parts = [plot.grid([t for t in ticks if low <= t <= high], x_label)]
    ends: list[tuple[float, str, str]] = []
    for s, line, label in zip(series, lines, labels, strict=True):
        if long:
            parts.append(plot.path(s.x, s.y, f"raw {s.colour}"))
        parts.append(plot.path(s.x, line, f"line {s.colour}"))
        if dots or len(s.x) == 1:
            parts += [
                Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(
                    s.colour, plot.x(x), plot.y(y)
                )
                for x, y in zip(s.x, s.y, strict=True)
            ]
        ends.append((plot.y(line[-1]), label, s.colour))
    parts.append(_end_labels(ends, plot.right + 5))
    return _figure(title, unit, parts, plot, series, x_label)


def stacked_chart(series: Sequence[Series], *, title: str, unit: str = "", x_label: str = "step") -> Markup:
    """The series on top of each other: columns for up to 30 steps, areas for more. All share their ``x``."""
    x = series[0].x
    totals = [sum(s.y[i] for s in series) for i in range(len(x))]
    ticks = nice_ticks(0.0, max(totals), 4)
    columns = len(x) <= _COLUMNS_TO
    half = 0.43 * min((b - a for a, b in itertools.pairwise(x)), default=1.0) if columns else 0.0
    labels = [_end_label(s.label, s.y[-1]) for s in series]
    plot = _Plot(min(x) - half, max(x) + half, 0.0, max(ticks[-1], max(totals)), labels)
    parts = [plot.grid(ticks, x_label, x_ends=(min(x), max(x)))]
    bottom = [0.0] * len(x)
    ends = []
    for s, label in zip(series, labels, strict=True):
        top = [a + b for a, b in zip(bottom, s.y, strict=True)]
        if columns:
            shape = "".join(
                f"M{plot.x(at - half):.1f} {plot.y(low):.1f}H{plot.x(at + half):.1f}"
                f"V{plot.y(high):.1f}H{plot.x(at - half):.1f}z"
                for at, low, high in zip(x, bottom, top, strict=True)
                if high > low
            )
        else:
            edge = [f"{plot.x(at):.1f} {plot.y(y):.1f}" for at, y in zip(x, top, strict=True)]
            edge += [f"{plot.x(at):.1f} {plot.y(y):.1f}" for at, y in zip(x[::-1], bottom[::-1], strict=True)]
            shape = f"M{'L'.join(edge)}z"
        parts.append(Markup('<path class="fill {}" d="{}"/>').format(s.colour, shape))
        ends.append((plot.y((bottom[-1] + top[-1]) / 2), label, s.colour))
        bottom = top
    parts.append(_end_labels(ends, plot.right + 5))
    return _figure(title, unit, parts, plot, series, x_label)


class _Plot:
    """Maps data to the picture."""

    left, top, bottom = _LEFT, _TOP, _HEIGHT - _BOTTOM

    def __init__(
        self, x_low: float, x_high: float, y_low: float, y_high: float, labels: Sequence[str]
    ) -> None:
        room = min(_ROOM, max(28.0, _CHARACTER * max(map(len, labels))))
        self.right = _WIDTH - 12 - room
        self.x_low, self.x_high = (x_low, x_high) if x_high > x_low else (x_low - 1, x_high + 1)
        self.y_low, self.y_high = (y_low, y_high) if y_high > y_low else (y_low - 1, y_high + 1)

    def x(self, value: float) -> float:
        return self.left + (value - self.x_low) / (self.x_high - self.x_low) * (self.right - self.left)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return self.bottom - min(1.0, max(0.0, share)) * (self.bottom - self.top)

    def path(self, x: Sequence[float], y: Sequence[float], css: str) -> Markup:
        points = " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in zip(x, y, strict=True))
        return Markup('<polyline class="{}" points="{}"/>').format(css, points)

    def grid(self, ticks: Sequence[float], x_label: str, x_ends: tuple[float, float] | None = None) -> Markup:
        parts = []
        for tick in ticks:
            parts.append(
                Markup(
                    '<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
                    '<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>'
                ).format(
                    self.left,
                    self.right,
                    self.left - 6,
                    self.y(tick) + 3.5,
                    format_number(tick),
                    y=self.y(tick),
                )
            )
        low, high = x_ends or (self.x_low, self.x_high)
        shown = [t for t in nice_ticks(low, high, 4) if low <= t <= high and float(t).is_integer()]
        for tick in shown:
            parts.append(
                Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>').format(
                    self.x(tick), self.bottom + 14, format_number(tick)
                )
            )
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{:.1f}">{}</text>').format(
                self.right + 12, self.bottom + 14, x_label
            )
        )
        return Markup("").join(parts)


def _figure(
    title: str, unit: str, parts: Sequence[Markup], plot: _Plot, series: Sequence[Series], x_label: str
) -> Markup:
    data = {
        "axis": x_label,
        "left": plot.left,
        "right": plot.right,
        "low": plot.x_low,
        "high": plot.x_high,
        "series": [{"label": s.label, "x": list(s.x), "y": [float(f"{v:.4g}") for v in s.y]} for s in series],
    }
    return Markup(
        '<figure><figcaption>{}<span class="unit">{}</span></figcaption>'
        '<svg class="chart" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}" data-chart="{}">'
        '{}<line class="cursor" y1="{:.0f}" y2="{:.0f}"/></svg></figure>'
    ).format(
        title,
        unit,
        _WIDTH,
        _HEIGHT,
        title,
        escape(json.dumps(data)),
        Markup("").join(parts),
        plot.top,
        plot.bottom,
    )


def _end_label(name: str, value: float) -> str:
    """Name and last value of a line; a name too long for the room loses its middle, the number stays."""
    number = " " + format_number(value)
    return shorten(name, _LABEL, _ROOM - text_width(number, _LABEL)) + number


def _end_labels(ends: Sequence[tuple[float, str, str]], x: float) -> Markup:
    """Labels at the ends of lines, moved apart so that none covers another."""
    gap = 12.5
    placed = sorted(ends)
    heights = [y for y, _, _ in placed]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    overflow = heights[-1] - (_HEIGHT - _BOTTOM - 1.5)
    if overflow > 0:
        heights[-1] -= overflow
        for i in range(len(heights) - 2, -1, -1):
            heights[i] = min(heights[i], heights[i + 1] - gap)
    return Markup("").join(
        Markup('<text class="end {}" x="{:.1f}" y="{:.1f}">{}</text>').format(colour, x, y + 3.5, text)
        for y, (_, text, colour) in zip(heights, placed, strict=True)
    )
