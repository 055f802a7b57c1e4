"""Commands that look at the results of finished evaluations."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from apprentice.errors import ApprenticeError, ConfigError

if TYPE_CHECKING:
    from apprentice.run_folder import RunFolder

__all__ = ["compare", "judge", "scores"]


def compare(arguments: argparse.Namespace) -> int:
    """``apprentice evaluate compare``."""
    from apprentice.metrics.compare import compare_runs

    print(
        compare_runs(
            Path(arguments.a),
            Path(arguments.b),
            modes=tuple(arguments.modes) if arguments.modes else None,
            shared_only=arguments.shared,
            confidence=arguments.confidence,
        ).table()
    )
    return 0


def scores(arguments: argparse.Namespace) -> int:
    """``apprentice evaluate scores``."""
    from apprentice.metrics.set_scores import score_sets, scores_table
    from apprentice.results import read_all_results
    from apprentice.run_folder import RunFolder

    run = RunFolder.open(arguments.run)
    items = read_all_results(run.path / "results")
    if not items:
        raise ConfigError(f"{run.path} has no results (results/MODE/SET.jsonl): evaluate it first")
    how = run.config.evaluation
    found = score_sets(
        items,
        run.path,
        confidence=how.confidence,
        bootstrap_samples=how.bootstrap_samples,
        seed=run.config.seed,
    )
    print(scores_table(found, how.sampling.temperature))
    return 0


def judge(arguments: argparse.Namespace) -> int:
    """``apprentice evaluate judge``; 1 when an answer could not be judged."""
    import asyncio

    from apprentice.config.schema import OpenAIBackend
    from apprentice.data.load import load_problems
    from apprentice.metrics.judged import (
        JudgedScore,
        judge_items,
        judged_table,
        judgement_path,
        score_judged,
    )
    from apprentice.results import ItemResult, read_all_results
    from apprentice.run_folder import RunFolder
    from apprentice.verify.judge import Judge
    from apprentice.verify.structure import is_prose

    if arguments.concurrency < 1:
        raise ConfigError(f"--concurrency {arguments.concurrency} must be at least 1")
    run = RunFolder.open(arguments.run)
    cells: dict[tuple[str, str], list[ItemResult]] = {}
    for item in read_all_results(run.path / "results"):
        cells.setdefault((item.mode, item.set_name), []).append(item)
    if not any(is_prose(item.gold) for items in cells.values() for item in items):
        print(f"{run.path}: nothing to judge; no gold in its results is prose")
        return 0
    backend = OpenAIBackend(
        base_url=arguments.base_url, model=arguments.model, api_key_env=arguments.api_key_env
    )
    needed = {name for (_, name), items in cells.items() if any(is_prose(item.gold) for item in items)}
    questions = {
        item.name: {p.problem_id: p.question for p in load_problems(item)}
        for item in run.config.data.test
        if item.name in needed
    }

    async def all_of_them() -> list[JudgedScore]:
        judge = Judge(backend)
        scores = []
        for (mode, name), items in cells.items():
            path = judgement_path(run.path, mode, name)
            verdicts, failures = await judge_items(
                items, questions.get(name, {}), judge, path, concurrency=arguments.concurrency
            )
            scores.append(
                score_judged(items, verdicts, failures=failures, confidence=run.config.evaluation.confidence)
            )
        await judge.close()
        return scores

    scores = asyncio.run(all_of_them())
    print(judged_table(scores, arguments.model))
    _report_anew(run)
    return 1 if any(score.failed for score in scores) else 0


def _report_anew(run: RunFolder) -> None:
    """Bring a run's summary and report up to date with what was judged, if it has them."""
    from apprentice.report.build import build_report
    from apprentice.report.summary import write_summary
    from apprentice.results import read_all_results
    from driver.commands import controller_codec

    old = run.read_json("summary.json")
    if old is None:
        return
    write_summary(
        run,
        read_all_results(run.path / "results"),
        wall_seconds=old["wall_seconds"],
        peak_memory_bytes=old["peak_memory_bytes"],
    )
    try:
        token_bytes = controller_codec(run.config).token_bytes
    except (ApprenticeError, OSError) as error:
        print(f"the report shows token ids: the controller's tokenizer cannot be read ({error})")
        token_bytes = None
    print(f"report: {build_report(run, token_bytes)}")
