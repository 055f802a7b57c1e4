"""Arguments of the commands that look at problem sets and results; they start nothing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from driver import commands, results_commands

if TYPE_CHECKING:
    Section = argparse._SubParsersAction[argparse.ArgumentParser]  # the only name that argparse has for it

__all__ = ["TWO_WORDS", "add_compare", "add_data", "add_judge", "add_scores"]

_COMPARE, _JUDGE, _SCORES = "evaluate compare", "evaluate judge", "evaluate scores"
TWO_WORDS = (_COMPARE, _JUDGE, _SCORES)
"""Commands of two words: ``evaluate`` itself takes a recipe, so nothing can stand below it."""


def add_compare(
    section: Section, common: argparse.ArgumentParser, formatter: type[argparse.HelpFormatter]
) -> None:
    """``apprentice evaluate compare``."""
    parser = section.add_parser(
        _COMPARE,
        parents=[common],
        formatter_class=formatter,
        help="the paired difference of two runs, or of two modes, on the same problems",
        description=(
            "Compare the results of run B with those of run A problem by problem: mean@k of B minus A,\n"
            "with a bootstrap interval over problems. Runs with different problems are refused; --shared\n"
            "compares the problems that both have, and says how many those are."
        ),
        epilog=(
            "examples:\n"
            "  apprentice evaluate compare runs/demo runs/demo-2\n"
            "  apprentice evaluate compare runs/demo runs/demo --modes experts_removed internalized"
        ),
    )
    parser.add_argument("a", metavar="A", help="folder of a run with results")
    parser.add_argument("b", metavar="B", help="folder of another, or of the same with --modes")
    parser.add_argument(
        "--modes", nargs=2, metavar=("OF_A", "OF_B"), help="one mode of each; else all common"
    )
    parser.add_argument("--shared", action="store_true", help="compare what is shared of different problems")
    parser.add_argument(
        "--confidence", type=float, default=0.95, help="of the interval (default: %(default)s)"
    )
    parser.set_defaults(command=results_commands.compare)


def add_scores(
    section: Section, common: argparse.ArgumentParser, formatter: type[argparse.HelpFormatter]
) -> None:
    """``apprentice evaluate scores``."""
    parser = section.add_parser(
        _SCORES,
        parents=[common],
        formatter_class=formatter,
        help="mean@k and pass@k of every mode and set of a run, and what is odd about its samples",
        description=(
            "Score the results in a run's folder anew: mean@k and pass@k with bootstrap intervals over\n"
            "problems, problems whose attempts are all one text, and golds in prose, which are counted and\n"
            "judged apart from everything that rules check."
        ),
        epilog="example:\n  apprentice evaluate scores runs/demo",
    )
    parser.add_argument("run", help="folder of an evaluated run")
    parser.set_defaults(command=results_commands.scores)


def add_judge(
    section: Section, common: argparse.ArgumentParser, formatter: type[argparse.HelpFormatter]
) -> None:
    """``apprentice evaluate judge``."""
    parser = section.add_parser(
        _JUDGE,
        parents=[common],
        formatter_class=formatter,
        help="let a model judge the answers that no rule can check (golds in prose)",
        description=(
            "After an evaluation: ask a model behind an OpenAI-compatible endpoint whether answers to\n"
            "problems with golds in prose state the same. The rules' results stay as they are; the judge's\n"
            "stand in RUN/judged, and in the summary and report in figures of their own. An answer is\n"
            "never asked about twice."
        ),
        epilog=(
            "example:\n"
            "  apprentice evaluate judge runs/imo-evaluate --base-url http://localhost:8000/v1 --model NAME"
        ),
    )
    parser.add_argument("run", help="folder of an evaluated run")
    parser.add_argument("--base-url", required=True, help="of the endpoint")
    parser.add_argument("--model", required=True, help="name of the model there")
    parser.add_argument("--api-key-env", help="environment variable that holds the key")
    parser.add_argument(
        "--concurrency", type=int, default=8, help="questions at a time (default: %(default)s)"
    )
    parser.set_defaults(command=results_commands.judge)


def add_data(
    section: Section, common: argparse.ArgumentParser, formatter: type[argparse.HelpFormatter], overrides: str
) -> None:
    """``apprentice data``."""
    parser = section.add_parser(
        "data",
        formatter_class=formatter,
        help="problem sets: source, licence, counts, contamination",
        description="Look at problem sets; nothing is started.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    info = actions.add_parser(
        "info",
        parents=[common],
        formatter_class=formatter,
        help="what a set or a recipe's sets hold, and whether training problems stand in test sets",
        description=(
            "Read the problem sets of a recipe, or one set, and print source, licence, rows kept and\n"
            "dropped, and copies of test problems among the training problems.\n"
            "Without a name: the known sets."
        ),
        epilog=(
            "examples:\n"
            "  apprentice data info\n"
            "  apprentice data info configs/rivet-4b.yaml data.train.source=torl/train.parquet\n"
            "  apprentice data info math-ai/aime24\n"
            "  apprentice data info my_train.jsonl --test math-ai/aime24 HuggingFaceH4/MATH-500"
        ),
    )
    info.add_argument("what", nargs="?", help="a recipe, the folder of a run, a file, a hub id or `champ`")
    info.add_argument("overrides", nargs="*", metavar="key=value", help=f"with a recipe: {overrides}")
    info.add_argument("--split", help="with a set: which split")
    info.add_argument("--test", nargs="+", default=[], metavar="SET", help="compare the set with these")
    info.set_defaults(command=commands.data_info)
