"""Which metrics the report plots, in which chart. Pure: rows in, markup out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from apprentice.metrics.logger import MetricRow
from apprentice.report.svg import Series, line_chart, stacked_chart
from apprentice.trajectory import Owner

__all__ = ["ChartGroup", "sft_charts", "stage1_charts"]


@dataclass(frozen=True, slots=True)
class ChartGroup:
    """Charts under one heading with a sentence on how to read them."""

    heading: str
    hint: str
    charts: tuple[Markup, ...]


@dataclass(frozen=True, slots=True)
class _Spec:
    """One chart: ``names`` maps metric names to labels; a name that ends in ``/`` takes all below it."""

    title: str
    names: dict[str, str]
    unit: str = ""
    zero: bool = False
    y_range: tuple[float, float] | None = None
    stacked: bool = False
    scale: float = 1.0


_STAGE1: tuple[tuple[str, str, tuple[_Spec, ...]], ...] = (
    (
        "Learning",
        "Rollouts of the training problems with experts at hand. A zero-signal group is one whose rollouts "
        "all got the same reward: it teaches nothing.",
        (
            _Spec(
                "Right answers and zero-signal groups",
                {"accuracy": "right", "groups/zero_signal": "zero-signal"},
                "%",
                y_range=(0, 100),
                scale=100,
            ),
            _Spec("Mean reward", {"reward/mean": ""}, "−1 to 1", y_range=(-1, 1)),
            _Spec("Entropy on controller tokens", {"entropy/controller": ""}, "nats", zero=True),
        ),
    ),
    (
        "Episodes",
        "Refused calls got an error text as tool response and the rollout went on. Groups and samples that "
        "experts or infrastructure lost are replaced or dropped, never scored.",
        (
            _Spec("Calls by tool", {"calls/tool/": ""}, "a trajectory", zero=True),
            _Spec("Calls by expert", {"calls/expert/": ""}, "a trajectory", zero=True),
            _Spec("Refused calls by kind", {"calls/error/": ""}, "a trajectory", zero=True),
            _Spec("Length by owner", {"tokens/": ""}, "tokens", stacked=True),
            _Spec("Cut at the token limit", {"truncated": ""}, "% of episodes", zero=True, scale=100),
            _Spec(
                "Lost and replaced",
                {"groups/dropped": "groups dropped", "samples/replaced": "replaced"},
                "a step",
                zero=True,
            ),
        ),
    ),
    (
        "Optimisation",
        "Ratio: new over old probability of a token. The gap compares the learner's logprobs of sampled "
        "tokens with the engine's.",
        (
            _Spec(
                "Clipped tokens",
                {"policy/clip_fraction": "clip", "policy/dual_clip_fraction": "dual clip"},
                "% of trained tokens",
                zero=True,
                scale=100,
            ),
            _Spec(
                "Ratio, controller tokens", {"ratio/controller/mean": "mean", "ratio/controller/max": "max"}
            ),
            _Spec("Ratio, expert tokens", {"ratio/expert/mean": "mean", "ratio/expert/max": "max"}),
            _Spec(
                "Logprob gap to the engine",
                {"logprob_gap/mean": "mean", "logprob_gap/max": "max"},
                "nats",
                zero=True,
            ),
            _Spec("Loss", {"loss": ""}),
            _Spec("Gradient norm", {"grad_norm": ""}, "before clipping", zero=True),
        ),
    ),
    (
        "Time",
        "Wall time of each phase of a step, what an episode waited for, and how fast the heavy phases went.",
        (
            _Spec("By phase", {"time/": ""}, "s a step", stacked=True),
            _Spec(
                "Waits of an episode",
                {"time/expert_mean": "experts", "time/python_mean": "Python", "time/verify_mean": "verifier"},
                "s",
                zero=True,
            ),
            _Spec(
                "Throughput",
                {"tokens_per_s/rollout": "rollout", "tokens_per_s/train": "training"},
                "tokens/s",
                zero=True,
            ),
        ),
    ),
)

_SFT = (
    _Spec("Loss", {"loss": "total", "loss/ce": "CE", "loss/fmt": "format"}, "nats a token", zero=True),
    _Spec("Gradient norm", {"grad_norm": ""}, "before clipping", zero=True),
    _Spec("Throughput", {"tokens_per_s/train": ""}, "tokens/s", zero=True),
)

_OWNERS = {owner.name.lower() for owner in Owner}


def stage1_charts(rows: Sequence[MetricRow]) -> list[ChartGroup]:
    """The charts of Stage I; a chart whose metrics were never logged is left out, an empty group too."""
    groups = []
    for heading, hint, specs in _STAGE1:
        charts = tuple(chart for spec in specs if (chart := _draw(spec, rows)) is not None)
        if charts:
            groups.append(ChartGroup(heading, hint, charts))
    return groups


def sft_charts(rows: Sequence[MetricRow]) -> tuple[Markup, ...]:
    """The charts of a supervised stage (protocol warm-up, Stage II)."""
    return tuple(chart for spec in _SFT if (chart := _draw(spec, rows)) is not None)


def _draw(spec: _Spec, rows: Sequence[MetricRow]) -> Markup | None:
    series = _series(spec, rows)
    if not series:
        return None
    if spec.stacked:
        return stacked_chart(_on_one_axis(series), title=spec.title, unit=spec.unit)
    return line_chart(series, title=spec.title, unit=spec.unit, zero=spec.zero, y_range=spec.y_range)


def _series(spec: _Spec, rows: Sequence[MetricRow]) -> list[Series]:
    names: dict[str, str] = {}
    logged = list(dict.fromkeys(name for row in rows for name in row.values))
    for name, label in spec.names.items():
        if name.endswith("/"):
            names |= {
                full: full[len(name) :]
                for full in logged
                if full.startswith(name) and not full.endswith("mean")  # means of the others, no part of them
            }
        elif name in logged:
            names[name] = label or name
    out = []
    for i, (name, label) in enumerate(names.items()):
        points = [(row.step, row.values[name] * spec.scale) for row in rows if name in row.values]
        colour = label if label in _OWNERS else f"c{i % 8}"
        out.append(Series(label, [x for x, _ in points], [y for _, y in points], colour))
    return out


def _on_one_axis(series: Sequence[Series]) -> list[Series]:
    """The same series over all their steps; zero where one has no value (that phase did not happen)."""
    steps = sorted({x for s in series for x in s.x})
    out = []
    for s in series:
        values = dict(zip(s.x, s.y, strict=True))
        out.append(Series(s.label, steps, [values.get(x, 0.0) for x in steps], s.colour))
    return out
