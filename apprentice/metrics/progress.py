"""Progress bars and phase times."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO

from tqdm import tqdm

__all__ = ["PhaseTimer", "Progress", "format_seconds"]


class Progress:
    """How far something is, how fast it goes and how long it will take.

    A bar on a terminal; elsewhere (a log file, a Ray job) a plain line at most every ``interval_s`` seconds,
    and one at the end. Rate and remaining time are averages since the start, and count this run's own items
    only (not ``initial``).

    Args:
        total: number of items; None when nobody knows (then no remaining time).
        label: what is being done, e.g. ``stage1``.
        unit: name of one item, e.g. ``step``.
        initial: items done before (a resumed run).
        enabled: False prints nothing (``tracking.progress``).
        stream: where to print; standard error when left out.
        interval_s: least time between two plain lines, in seconds.
        clock: seconds, monotonic; for tests.
    """

    def __init__(
        self,
        total: int | None,
        label: str,
        *,
        unit: str = "it",
        initial: int = 0,
        enabled: bool = True,
        stream: TextIO | None = None,
        interval_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.label, self.unit = total, label, unit
        self.done = self._initial = initial
        self._enabled = enabled
        self._stream = sys.stderr if stream is None else stream
        self._interval = interval_s
        self._clock = clock
        self._start = self._last_line = clock()
        self._postfix: dict[str, str] = {}
        self._closed = False
        self._bar: Any = None
        if enabled and self._stream.isatty():
            self._bar = tqdm(
                total=total, desc=label, unit=unit, initial=initial, file=self._stream, dynamic_ncols=True
            )

    def update(self, n: int = 1, **values: float | str) -> None:
        """``n`` more items are done; ``values`` are shown behind (numbers with 3 significant digits)."""
        self.done += n
        if values:
            self._postfix = {k: v if isinstance(v, str) else f"{v:.3g}" for k, v in values.items()}
        if self._bar is not None:
            if values:
                self._bar.set_postfix(self._postfix, refresh=False)
            self._bar.update(n)
        elif self._enabled and self._clock() - self._last_line >= self._interval:
            self._print()

    def line(self) -> str:
        """The plain line, e.g. ``stage1: 12/50 step (24 %), 0.31 step/s, 2:03 left, reward=0.3``."""
        elapsed = self._clock() - self._start
        count = self.done - self._initial
        parts = [
            f"{self.done}/{self.total} {self.unit} ({100 * self.done / self.total:.0f} %)"
            if self.total
            else f"{self.done} {self.unit}"
        ]
        if count > 0 and elapsed > 0:
            rate = count / elapsed
            parts.append(f"{rate:.3g} {self.unit}/s" if rate >= 0.1 else f"{1 / rate:.3g} s/{self.unit}")
            if self.total is not None and self.done < self.total:
                parts.append(f"{format_seconds((self.total - self.done) / rate)} left")
            else:
                parts.append(f"took {format_seconds(elapsed)}")
        parts.extend(f"{key}={value}" for key, value in self._postfix.items())
        return f"{self.label}: {', '.join(parts)}"

    def _print(self) -> None:
        self._last_line = self._clock()
        print(self.line(), file=self._stream, flush=True)

    def close(self) -> None:
        """Finish: the bar stays as it is, a plain last line is printed. Twice does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._bar is not None:
            self._bar.close()
        elif self._enabled:
            self._print()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PhaseTimer:
    """Wall seconds by phase: ``with timer("rollout"): ...``; the same phase twice adds up.

    Phases may overlap or nest; each is measured by itself, so their sum may exceed the wall time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Measure the body, also when it raises."""
        start = self._clock()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self._clock() - start

    def metrics(self) -> dict[str, float]:
        """``{"time/<phase>": seconds}`` for the logger."""
        return {f"time/{phase}": seconds for phase, seconds in self.seconds.items()}

    def reset(self) -> dict[str, float]:
        """Start anew; returns what :meth:`metrics` would have."""
        metrics = self.metrics()
        self.seconds = {}
        return metrics


def format_seconds(seconds: float) -> str:
    """``0.4 s``, ``42 s``, ``2:03`` (minutes) or ``1:02:03`` (hours)."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
