"""Endpoint baselines that need no training: the advisor alone, uncapped and capped at b."""

from __future__ import annotations

import asyncio

from apprentice.metrics.ask_baselines import llm_only
from apprentice.metrics.ask_run import add_evaluation
from apprentice.results import write_results
from apprentice.trajectory import Status
from driver.ask.session import AskSession
from driver.ask.units import Unit
from driver.evaluation import item_results

__all__ = ["run_baseline"]


def run_baseline(session: AskSession, unit: Unit) -> None:
    """``llm_only`` or ``llm_capped`` on every test set; trajectories and results as any evaluation's."""
    run, label = session.run, unit.name.removeprefix("evaluate/")
    assert session.recipe.ask is not None
    verifier = session.verifier()
    for problem_set in run.config.data.test:
        problems = run.tests[problem_set.name]
        k = problem_set.k or run.config.evaluation.k
        with run.progress(len(problems) * k, f"{label}: {problem_set.name}", "call") as bar:

            def on_progress(done: int, bar: object = bar) -> None:
                bar.update(done - bar.done)  # type: ignore[attr-defined]
                run.watchdog.beat(label)

            trajectories = asyncio.run(
                llm_only(
                    problems,
                    session.advisor,
                    verifier,
                    k=k,
                    max_tokens=session.recipe.ask.llm_max_tokens,
                    budget=unit.budget,
                    instructions=session.recipe.ask.instructions,
                    on_progress=on_progress,
                )
            )
        run.folder.write_trajectories(f"evaluate_{label}", problem_set.name, trajectories)
        usable = [t for t in trajectories if t.status is not Status.UNUSABLE]
        items = item_results(problems, usable, mode=label, set_name=problem_set.name)
        write_results(run.folder.results_path(label, problem_set.name), items)
    add_evaluation(run.folder, label, unit.mode, unit.budget, [item.name for item in run.config.data.test])
