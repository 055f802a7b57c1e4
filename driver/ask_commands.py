"""What ``apprentice ask`` does. Heavy imports stand inside the functions that need them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from apprentice.errors import ConfigError

if TYPE_CHECKING:
    from apprentice.metrics.ask_run import Evaluation
    from apprentice.metrics.resample import Resampling
    from apprentice.report.tables import Table
    from apprentice.run_folder import RunFolder

__all__ = [
    "baselines", "change", "difficulty", "judge", "leakage", "pareto", "queries", "summary", "sweep", "table",
    "utility",
]  # fmt: skip


def summary(arguments: argparse.Namespace) -> int:
    """``apprentice ask summary``."""
    from apprentice.report.ask_tables import summary_table

    _, found, how = _open(arguments)
    return _print(summary_table(found, how))


def pareto(arguments: argparse.Namespace) -> int:
    """``apprentice ask pareto``."""
    from apprentice.metrics.ask import calls_cost
    from apprentice.report.ask_tables import front_points, front_table, oracle_points, priced_at

    if arguments.by_calls and arguments.c_out is not None:
        raise ConfigError("--by-calls counts calls and --c-out prices tokens: give one of them")
    cost = calls_cost if arguments.by_calls else priced_at(arguments.c_out, arguments.c_in)
    unit = "calls" if arguments.by_calls else "charged"
    if arguments.c_out is not None:
        unit = f"c_in = {arguments.c_in:g}, c_out = {arguments.c_out:g}"
    several = len(arguments.run) > 1
    points, notes = [], []
    for folder in arguments.run:
        run, found, how = _open(arguments, folder)
        prefix = f"{run.path.name}: " if several else ""
        mine, left_out = front_points(found, cost, how)
        oracle, of_oracle = oracle_points(found, cost)
        points += [(prefix + name, x, y) for name, x, y in (*mine, *oracle)]
        notes += [f"{prefix}{name}: no cost is known; it has no place here" for name in left_out]
        notes += [prefix + note for note in of_oracle]
    return _print(front_table(points, notes, f"Accuracy against cost ({unit}); * is not dominated"))


def sweep(arguments: argparse.Namespace) -> int:
    """``apprentice ask sweep``."""
    from apprentice.report.ask_tables import sweep_table

    _, found, how = _open(arguments)
    return _print(sweep_table(found, how))


def difficulty(arguments: argparse.Namespace) -> int:
    """``apprentice ask difficulty``."""
    from apprentice.report.ask_tables import difficulty_table

    _, found, solo, how = _open_with_solo(arguments)
    return _print(difficulty_table(found, solo, how))


def utility(arguments: argparse.Namespace) -> int:
    """``apprentice ask utility``."""
    from apprentice.report.ask_tables import utility_table

    _, found, solo, how = _open_with_solo(arguments)
    return _print(utility_table(found, solo, how))


def change(arguments: argparse.Namespace) -> int:
    """``apprentice ask change``."""
    from apprentice.metrics.ask_run import read_solo, select
    from apprentice.report.ask import stage_pairs
    from apprentice.report.ask_tables import change_tables

    labels, arguments.labels = arguments.labels, None
    run, found, how = _open(arguments)
    solo = read_solo(run, found, arguments.solo)
    if labels:
        names = labels.split(",")
        if len(names) != 2:
            raise ConfigError(f"--labels {labels}: name the evaluations before and after, with one comma")
        pairs = [(select(found, names[0]), select(found, names[1]))]
    else:
        pairs = stage_pairs(found)
        if not pairs:
            raise ConfigError(f"{run.path} has no evaluation after stage 3: name two with --labels")
    return _print(*(table for pair in pairs for table in change_tables(*pair, solo, how)))


def queries(arguments: argparse.Namespace) -> int:
    """``apprentice ask queries``."""
    from apprentice.metrics.ask_queries import code_before_call, score_qmaker, typed_queries
    from apprentice.metrics.ask_run import read_qmaker_validations
    from apprentice.metrics.resample import interval_text
    from apprentice.report.ask_tables import qmaker_table, query_table
    from driver.commands import decoder

    run, found, how = _open(arguments)
    tables = []
    if validations := read_qmaker_validations(run):
        scores = [
            (
                f"b = {v.budget}, {'trained' if v.trained else 'at the start'}",
                score_qmaker(v.trajectories, how),
            )
            for v in validations
        ]
        tables.append(qmaker_table(scores, how))
    if (types := query_table(found, typed_queries(run))) is not None:
        tables.append(types)
    _print(*tables)
    if types is None:
        print("query types: none were judged; `apprentice ask judge` asks a model")
    asking = [one for one in found if any(a.called for a in one.attempts)]
    decode = decoder(run.config) if any(one.mode.startswith("ask") for one in asking) else None
    for one in asking:
        if decode is not None and one.mode.startswith("ask"):
            share = interval_text(code_before_call(one.trajectories, decode, how), 100, 1)
            print(f"{one.label}, {one.set_name}: code before the call in {share} % of calling trajectories")
    return 0


def leakage(arguments: argparse.Namespace) -> int:
    """``apprentice ask leakage``."""
    from apprentice.metrics.ask_run import SECRETS_FILE, read_planted
    from apprentice.report.ask_tables import leakage_table

    run, found, how = _open(arguments)
    planted = read_planted(run)
    if not planted:
        raise ConfigError(
            f"{run.path}: no secret was planted ({SECRETS_FILE} is missing): set ask.secrets.share"
        )
    return _print(leakage_table(found, planted, how))


def table(arguments: argparse.Namespace) -> int:
    """``apprentice ask table``."""
    from apprentice.report.ask_demo import demo_table

    print(demo_table(arguments.run))
    return 0


def judge(arguments: argparse.Namespace) -> int:
    """``apprentice ask judge``; 1 when a query could not be judged."""
    import asyncio

    from apprentice.advisors.backends import OpenAIAdvisor
    from apprentice.config.parts import OpenAIBackend
    from apprentice.metrics.ask_judging import judge_queries
    from apprentice.metrics.ask_queries import sent_queries, type_counts, typed_queries
    from apprentice.report.ask_tables import query_table

    if arguments.concurrency < 1:
        raise ConfigError(f"--concurrency {arguments.concurrency} must be at least 1")
    arguments.confidence, arguments.samples = 0.95, 1
    run, found, _ = _open(arguments)
    wanted = sent_queries(found)
    questions = _questions(run)
    backend = OpenAIBackend(
        base_url=arguments.base_url, model=arguments.model, api_key_env=arguments.api_key_env
    )

    async def all_of_them() -> dict[str, int]:
        endpoint = OpenAIAdvisor("judge", backend, temperature=0.0, top_p=1.0)
        try:
            return await judge_queries(
                run, wanted, questions, endpoint, arguments.model,
                max_tokens=arguments.max_tokens, concurrency=arguments.concurrency,
            )  # fmt: skip
        finally:
            await endpoint.close()

    failures = asyncio.run(all_of_them())
    typed = typed_queries(run, arguments.model)
    if (types := query_table(found, typed)) is not None:
        _print(types)
    for kind, count in sorted(failures.items()):
        print(f"not judged: {count} ({kind})")
    return 1 if any(row.judged < row.queries for row in type_counts(found, typed)) else 0


def baselines(arguments: argparse.Namespace) -> int:
    """``apprentice ask baselines``."""
    from apprentice.metrics.ask import charged
    from apprentice.report.ask_tables import front_table, oracle_points, summary_table

    run, found, how = _open(arguments)
    endpoints = [one for one in found if one.mode == "solo" or one.mode.startswith("llm_")]
    if not any(one.mode.startswith("llm_") for one in endpoints):
        raise ConfigError(
            f"{run.path} has no evaluation of the advisor alone (llm_only, llm_capped_b...): they are made "
            "by `apprentice train` where `evaluate` is among the stages"
        )
    tables = [summary_table(endpoints, how)]
    points, notes = oracle_points(endpoints, charged)
    if points:
        tables.append(front_table(points, notes, "Problem-level oracle, cheapest problems first"))
    return _print(*tables)


def _open(
    arguments: argparse.Namespace, folder: str | None = None
) -> tuple[RunFolder, list[Evaluation], Resampling]:
    """A run, its evaluations (those of ``--labels``) and how intervals are made."""
    from apprentice.metrics.ask_run import read_evaluations
    from apprentice.metrics.resample import Resampling
    from apprentice.run_folder import RunFolder

    run = RunFolder.open(folder or arguments.run)
    try:
        how = Resampling(arguments.confidence, arguments.samples, run.config.seed)
    except ValueError as error:
        raise ConfigError(f"--confidence or --samples: {error}") from error
    return run, _chosen(read_evaluations(run), arguments.labels), how


def _open_with_solo(
    arguments: argparse.Namespace,
) -> tuple[RunFolder, list[Evaluation], dict[str, float], Resampling]:
    """:func:`_open`, and standalone success; of the evaluations, those in which something can be asked."""
    from apprentice.metrics.ask_run import read_solo

    labels, arguments.labels = arguments.labels, None
    run, found, how = _open(arguments)
    solo = read_solo(run, found, arguments.solo)
    asking = _chosen([one for one in found if one.mode != "solo"], labels)
    if not asking:
        raise ConfigError(f"{run.path}: no evaluation in which the advisor could be asked")
    return run, asking, solo, how


def _questions(run: RunFolder) -> dict[str, str]:
    """Problem id -> the question as the reasoner saw it, of the run's test sets."""
    from apprentice.data.load import load_data
    from apprentice.data.secrets import plant_secrets

    secrets = None if run.config.ask is None else run.config.ask.secrets
    tests = list(load_data(run.config.data).test.values())
    if secrets is not None and secrets.share:
        tests = [plant_secrets(problems, secrets.share, secrets.seed, "all") for problems in tests]
    return {p.problem_id: p.question for problems in tests for p in problems}


def _chosen(found: list[Evaluation], labels: str | None) -> list[Evaluation]:
    if not labels:
        return found
    names = labels.split(",")
    known = {one.label for one in found}
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"--labels: no evaluation {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return [one for one in found if one.label in names]


def _print(*tables: Table) -> int:
    print("\n\n".join(table.text() for table in tables))
    return 0
