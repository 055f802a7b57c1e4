"""Axis ticks, smoothing, numbers as people write them, and the room that a label needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["format_number", "moving_mean", "nice_ticks", "shorten", "text_width"]

_NARROW, _WIDE = frozenset("ijlftrI.,:;'|!()[] "), frozenset("mwMW@%…")


def moving_mean(values: Sequence[float], share: float = 0.08) -> list[float]:
    """Centred moving mean over ``share`` of the points on either side (at least 1), of those there are."""
    half = max(1, round(len(values) * share))
    out = []
    for i in range(len(values)):
        window = values[max(0, i - half) : i + half + 1]
        out.append(sum(window) / len(window))
    return out


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round numbers (1, 2 or 5 times a power of ten apart) enclosing ``low`` to ``high``."""
    if not high > low:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def format_number(value: float) -> str:
    """Three significant digits, thousands with a comma, tiny numbers in scientific notation."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6:
        return f"{value:.2e}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size < 1e-3:
        return f"{value:.0e}"
    return f"{value:.3g}"


def text_width(text: str, size: float) -> float:
    """Width of ``text`` at font size ``size``, in its unit, roughly: that of DejaVu Sans, which is wider than
    the other fonts of the page."""
    return size * sum(0.4 if c in _NARROW else 0.95 if c in _WIDE else 0.64 for c in text)


def shorten(text: str, size: float, room: float) -> str:
    """``text`` where it fits into ``room``, else with its middle cut out: names differ at their ends."""
    if text_width(text, size) <= room:
        return text
    for kept in range(len(text) - 1, 1, -1):
        short = f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"
        if text_width(short, size) <= room:
            return short
    return "…"
