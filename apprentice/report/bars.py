"""Horizontal bars as inline SVG: values with intervals, and a funnel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from apprentice.report.scale import format_number, nice_ticks, shorten, text_width

__all__ = ["Bar", "bar_chart", "funnel"]

_SIZE = 13.0  # of a label's font, as page.css says
_GAP = 12.0  # between a label and its bar


@dataclass(frozen=True, slots=True)
class Bar:
    """One horizontal bar with an interval, all in one unit; ``note`` stands behind it."""

    label: str
    value: float
    low: float
    high: float
    note: str = ""
    colour: str = "c0"


def bar_chart(bars: Sequence[Bar], *, title: str, unit: str, maximum: float) -> Markup:
    """Horizontal bars from zero to ``maximum`` with intervals, each labelled with its value and note.

    Long labels get up to two fifths of the width, longer ones lose their middle.
    """
    row, width, right = 38.0, 760.0, 170.0
    longest = max((text_width(bar.label, _SIZE) for bar in bars), default=0.0)
    left = min(304.0, max(190.0, longest + _GAP))
    height = row * len(bars) + 30
    scale = (width - left - right) / maximum
    parts = []
    for tick in nice_ticks(0.0, maximum, 5):
        if tick > maximum:
            continue
        x = left + tick * scale
        parts.append(
            Markup(
                '<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="4" y2="{1:.1f}"/>'
                '<text class="tick" x="{0:.1f}" y="{2:.1f}" text-anchor="middle">{3}</text>'
            ).format(x, height - 24, height - 8, format_number(tick) + (f" {unit}" if tick == 0 else ""))
        )
    for i, bar in enumerate(bars):
        y = 6 + i * row
        middle = y + (row - 12) / 2
        low, high = left + bar.low * scale, left + bar.high * scale
        parts.append(
            Markup(
                '<text class="label" x="{left:.1f}" y="{text:.1f}" text-anchor="end">{label}</text>'
                '<rect class="fill {colour}" x="{x:.1f}" y="{y:.1f}" '
                'width="{w:.1f}" height="{h:.1f}" rx="3"/>'
                '<path class="whisker" d="M{low:.1f} {middle:.1f}H{high:.1f}'
                'M{low:.1f} {a:.1f}v8M{high:.1f} {a:.1f}v8"/>'
                '<text class="value" x="{end:.1f}" y="{text:.1f}">{value}'
                '<tspan class="muted">  {note}</tspan></text>'
            ).format(
                left=left - _GAP,
                x=left,
                y=y,
                w=max(1.0, bar.value * scale),
                h=row - 12,
                text=middle + 4.5,
                middle=middle,
                a=middle - 4,
                low=low,
                high=high,
                end=max(high, left + bar.value * scale) + 12,
                colour=bar.colour,
                label=shorten(bar.label, _SIZE, left - _GAP),
                value=f"{bar.value:.1f} {unit}",
                note=bar.note,
            )
        )
    return Markup(
        '<figure class="wide"><figcaption>{}</figcaption>'
        '<svg viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}</svg></figure>'
    ).format(title, width, height, title, Markup("").join(parts))


def funnel(steps: Sequence[tuple[str, int]], *, title: str) -> Markup:
    """What is left after each step, as bars; each says how many went. ``steps[0]`` is what there was."""
    row, left, width, right = 30.0, 210.0, 760.0, 190.0
    height = row * len(steps) + 6
    most = max(1, *(count for _, count in steps))
    scale = (width - left - right) / most
    parts = []
    for i, (label, count) in enumerate(steps):
        lost = steps[i - 1][1] - count if i else 0
        y = 4 + i * row
        note = f"−{lost:,}" if i and lost else ("none removed" if i else "")
        parts.append(
            Markup(
                '<text class="label" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>'
                '<rect class="fill {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="3"/>'
                '<text class="value" x="{:.1f}" y="{:.1f}">{:,}<tspan class="muted">  {}</tspan></text>'
            ).format(
                left - 12,
                y + 15.5,
                label,
                "c0" if i < len(steps) - 1 else "c2",
                left,
                y,
                max(1.0, count * scale),
                row - 8,
                left + max(1.0, count * scale) + 12,
                y + 15.5,
                count,
                note,
            )
        )
    return Markup(
        '<figure class="wide"><figcaption>{}</figcaption>'
        '<svg viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}</svg></figure>'
    ).format(title, width, height, title, Markup("").join(parts))
