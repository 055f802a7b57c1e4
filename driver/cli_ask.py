"""Arguments of ``apprentice ask``: what a run of Learning to Ask shows, from what it keeps."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from driver import ask_commands

if TYPE_CHECKING:
    Section = argparse._SubParsersAction[argparse.ArgumentParser]  # the only name that argparse has for it

__all__ = ["add_ask"]


def add_ask(
    section: Section, common: argparse.ArgumentParser, formatter: type[argparse.HelpFormatter]
) -> None:
    """``apprentice ask`` and what stands below it."""
    parser = section.add_parser(
        "ask",
        formatter_class=formatter,
        help="Learning to Ask: costs, calls and queries of a run",
        description=(
            "Analyses of the trajectories that a run with an advisor keeps. All but `judge`\n"
            "compute from files and generate nothing; intervals are over problems."
        ),
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(name: str, help_: str, description: str, example: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = actions.add_parser(
            name,
            parents=[common],
            formatter_class=formatter,
            help=help_,
            description=description,
            epilog=f"example:\n  apprentice ask {example}",
        )
        return made

    def add_analysis(
        name: str, help_: str, description: str, example: str, *, runs: str = ""
    ) -> argparse.ArgumentParser:
        made = add(name, help_, description, example)
        made.add_argument("run", nargs=runs or None, metavar="RUN", help="folder of a run")
        made.add_argument(
            "--labels",
            help="only these evaluations, comma-separated: `apprentice ask summary RUN` names them",
        )
        made.add_argument(
            "--confidence", type=float, default=0.95, help="of the intervals (default: %(default)s)"
        )
        made.add_argument("--samples", type=int, default=2000, help="resamples (default: %(default)s)")
        made.set_defaults(command=getattr(ask_commands, name))
        return made

    def add_solo(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--solo", default="start_solo", metavar="LABEL",
            help="evaluation without the advisor that difficulty is taken from (default: %(default)s)",
        )  # fmt: skip

    add_analysis("summary", "Avg@k, cost per trajectory and call rate", "One row an evaluation.",
                 "summary runs/ask-demo")  # fmt: skip
    pareto = add_analysis(
        "pareto", "accuracy against cost, and what is not dominated",
        "Every evaluation as a point, and the Pareto front: more accuracy, less cost. With SLM only and\n"
        "LLM only in a run, the problem-level oracle too.",
        "pareto runs/ask-7b-math runs/ask-7b-other-advisor", runs="+",
    )  # fmt: skip
    pareto.add_argument("--c-out", type=float, help="recompute the cost at this price of an output token")
    pareto.add_argument("--c-in", type=float, default=1.0, help="with --c-out (default: %(default)s)")
    pareto.add_argument("--by-calls", action="store_true", help="count calls instead of tokens")
    add_analysis("sweep", "cost at c_out = 1, 2, 4, 6, 8, 16, and by calls",
                 "Recomputed from the stored token counts; retries are not in it.",
                 "sweep runs/ask-demo")  # fmt: skip
    add_solo(add_analysis(
        "difficulty", "call rate and call position against standalone success",
        "Spearman correlations over problems, and the call rate by standalone success.",
        "difficulty runs/ask-demo",
    ))  # fmt: skip
    add_solo(add_analysis(
        "utility", "what calls gain against matched solo runs",
        "Accuracy of the trajectories that called, less the standalone accuracy on the same problems.",
        "utility runs/ask-demo",
    ))  # fmt: skip
    add_solo(add_analysis(
        "change", "what a stage changed: accuracy, call rate, cost; call rate by difficulty",
        "Two evaluations, paired by problem; all of stage 3 against stage 2 without --labels.",
        "change runs/ask-demo --labels stage2_b512_ask_qmaker,stage3_b512_ask_qmaker",
    ))  # fmt: skip
    add_analysis("queries", "query types, complete queries within budget, code before the call",
                 "Types are those that `apprentice ask judge` wrote.", "queries runs/ask-demo")  # fmt: skip
    add_analysis("leakage", "planted secrets that reached the advisor",
                 "Leakage per trajectory on problems with a planted secret.",
                 "leakage runs/ask-demo")  # fmt: skip

    add_analysis(
        "baselines", "SLM only, LLM only, LLM capped at b, and the problem-level oracle",
        "From the evaluations `start_solo`, `llm_only` and `llm_capped_b<b>` that `apprentice train` makes\n"
        "of a recipe with an `ask` part. The oracle sends what the LLM solves better to it, cheapest first.",
        "baselines runs/ask-demo",
    )  # fmt: skip

    table = add("table", "what each stage did on held-out problems",
                "The table that `make demo-ask` ends with.", "table runs/ask-demo")  # fmt: skip
    table.add_argument("run", metavar="RUN", help="folder of a run")
    table.set_defaults(command=ask_commands.table)

    judge = add(
        "judge", "let a model classify the queries (INCOMPLETE, TRANSFORM, HINT, FULL_TASK)",
        "Ask a model behind an OpenAI-compatible endpoint for the type of every query that was sent, by its\n"
        "problem. Types stand in RUN/ask/query_types.jsonl; a query is never asked about twice.",
        "judge runs/ask-demo --base-url http://localhost:8000/v1 --model NAME",
    )  # fmt: skip
    judge.add_argument("run", metavar="RUN", help="folder of a run")
    judge.add_argument("--labels", help="only these evaluations, comma-separated")
    judge.add_argument("--base-url", required=True, help="of the endpoint")
    judge.add_argument("--model", required=True, help="name of the model there")
    judge.add_argument("--api-key-env", help="environment variable that holds the key")
    judge.add_argument("--concurrency", type=int, default=8, help="at a time (default: %(default)s)")
    judge.add_argument(
        "--max-tokens", type=int, default=1024, help="reply cap; thoughts count (default: %(default)s)"
    )
    judge.set_defaults(command=ask_commands.judge)
