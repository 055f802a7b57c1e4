"""The command line: ``apprentice``, also ``python -m driver``.

Import-light: a help text, a dry run and every mistake in a recipe come without ray, torch or vllm.

Exit codes: 0 done; 1 infrastructure failed (or a bug, with its traceback); 2 the user can fix it;
130 interrupted from the keyboard; 143 terminated.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from apprentice import __version__
from apprentice.errors import ApprenticeError, ConfigError, InfrastructureError
from driver import commands
from driver.cli_ask import add_ask
from driver.cli_data import TWO_WORDS, add_compare, add_data, add_judge, add_scores
from driver.cli_sandbox import add_sandbox

__all__ = ["main"]

_OVERRIDES = (
    "change a key of the recipe, with a YAML value: stage1.steps=5, experts.0.backend.error_rate=0.1, "
    "evaluation.modes=[internalized]; `apprentice config explain` lists all keys"
)
_ADDRESS = (
    "join this Ray cluster: auto, HOST:PORT or ray://HOST:PORT. Left out, the run joins the cluster whose "
    "job it is, and else starts a private one on this machine"
)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of descriptions and examples."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. ``argv`` without the program's name; ``sys.argv`` if None."""
    parser = _parser()
    words = list(sys.argv[1:] if argv is None else argv)
    if " ".join(words[:2]) in TWO_WORDS:
        words[:2] = [" ".join(words[:2])]
    arguments, rest = parser.parse_known_args(words)
    if rest:
        # argparse gives up on positionals that follow an option: `train demo.yaml --dry-run stage1.steps=5`.
        stray = [word for word in rest if word.startswith("-") or "=" not in word]
        if stray or not hasattr(arguments, "overrides"):
            parser.error(f"unrecognized arguments: {' '.join(stray or rest)}")
        arguments.overrides += rest
    logging.basicConfig(
        level=logging.DEBUG if arguments.debug else logging.INFO, format="%(message)s", stream=sys.stderr
    )
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except ApprenticeError as error:
        if arguments.debug:
            raise
        what = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        print(f"apprentice: {what}{error}", file=sys.stderr)
        return 1 if isinstance(error, InfrastructureError) else 2
    except KeyboardInterrupt:
        print("apprentice: interrupted; `apprentice train --resume RUN` goes on with a run", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output left, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM unwinds like an exception, so that actors, files and Ray are closed on the way out."""
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="apprentice",
        description="Train compact controllers that learn from stronger LLM experts, then work alone.",
        epilog=(
            "examples:\n"
            "  apprentice train configs/demo.yaml               the whole pipeline on this machine's CPU\n"
            "  apprentice train configs/rivet-4b.yaml --dry-run what a recipe would start, and where\n"
            "  apprentice evaluate runs/demo --checkpoint runs/demo/checkpoints/stage2/step_20\n"
            "  apprentice config explain stage1                 every key of a section\n"
            "\n`apprentice COMMAND --help` says more."
        ),
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"apprentice {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="log everything, and show tracebacks of errors")
    section = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(section, common)
    _add_evaluate(section, common)
    add_compare(section, common, _Help)
    add_scores(section, common, _Help)
    add_judge(section, common, _Help)
    _add_trajectories(section, common)
    add_data(section, common, _Help, _OVERRIDES)
    add_ask(section, common, _Help)
    _add_config(section, common)
    add_sandbox(section, common, _Help)
    return parser


_Section = argparse._SubParsersAction  # the only name that argparse has for it


def _add_train(section: _Section[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    parser = section.add_parser(
        "train",
        parents=[common],
        formatter_class=_Help,
        help="run a recipe: every stage, the evaluations and the report",
        description=(
            "Run every stage of a recipe and write a run folder with metrics, checkpoints, trajectories,\n"
            "results and report.html."
        ),
        epilog=(
            "examples:\n"
            "  apprentice train configs/demo.yaml\n"
            "  apprentice train configs/demo.yaml stage1.steps=20 evaluation.k=4\n"
            "  apprentice train configs/rivet-4b.yaml --dry-run\n"
            "  apprentice train configs/rivet-4b.yaml --address auto\n"
            "  apprentice train --resume runs/demo\n"
            "  ray job submit --working-dir . -- python -m driver train configs/demo.yaml"
        ),
    )
    parser.add_argument("recipe", nargs="?", help="a YAML file, e.g. configs/demo.yaml; not with --resume")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=_OVERRIDES)
    parser.add_argument("--address", help=_ADDRESS)
    parser.add_argument(
        "--resume", metavar="RUN", help="go on with the unfinished run in this folder, with its own recipe"
    )
    _add_dry_run(parser)
    parser.set_defaults(command=commands.train)


def _add_evaluate(section: _Section[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    parser = section.add_parser(
        "evaluate",
        parents=[common],
        formatter_class=_Help,
        help="score a model or checkpoint on the test problems of a recipe",
        description=(
            "Score one set of weights on the recipe's test problems, without training. The modes are:\n"
            "  base             the model as it is, with the protocol's prompt\n"
            "  collaborative    with experts and Python\n"
            "  experts_removed  the same prompt with Python only\n"
            "  internalized     one stream that writes what experts wrote, with Python only"
        ),
        epilog=(
            "examples:\n"
            "  apprentice evaluate configs/demo.yaml --modes base\n"
            "  apprentice evaluate runs/demo --checkpoint runs/demo/checkpoints/stage2/step_20 "
            "--modes internalized\n"
            "  apprentice evaluate runs/demo evaluation.k=8 protocol.max_expert_calls=1 "
            "--modes collaborative\n"
            "  apprentice evaluate --resume runs/demo-evaluate"
        ),
    )
    parser.add_argument("recipe", nargs="?", help="a YAML file, or the folder of a run; not with --resume")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=_OVERRIDES)
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with the interrupted evaluation in this folder: problems that "
        "it has finished are not sampled again",
    )
    parser.add_argument(
        "--checkpoint", help="folder of weights in Hugging Face format; else controller.model"
    )
    parser.add_argument("--modes", help="comma-separated; evaluation.modes of the recipe when left out")
    parser.add_argument("--address", help=_ADDRESS)
    _add_dry_run(parser)
    parser.set_defaults(command=commands.evaluate)


def _add_trajectories(section: _Section[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    parser = section.add_parser(
        "trajectories",
        formatter_class=_Help,
        help="collect, review, show and count trajectories",
        description="Work with the trajectories that Stage II learns from.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    collect = actions.add_parser(
        "collect",
        parents=[common],
        formatter_class=_Help,
        help="sample trajectories with a trained controller and filter them",
        description="Only Stage II's collection: sample, filter and select trajectories for a review.",
        epilog=(
            "example:\n"
            "  apprentice trajectories collect runs/demo --checkpoint runs/demo/checkpoints/stage1/step_8"
        ),
    )
    collect.add_argument("recipe", help="a YAML file, or the folder of a run")
    collect.add_argument("overrides", nargs="*", metavar="key=value", help=_OVERRIDES)
    collect.add_argument("--checkpoint", help="folder of weights; else controller.model")
    collect.add_argument("--address", help=_ADDRESS)
    _add_dry_run(collect)
    collect.set_defaults(command=commands.collect)

    review = actions.add_parser(
        "review",
        parents=[common],
        formatter_class=_Help,
        help="read candidates for Stage II, approve or reject each",
        description=(
            "Page through the candidate trajectories of a run that have no decision yet. Decisions are kept\n"
            "in RUN/review.jsonl; stop at any time and go on later. Stage II trains on what was approved:\n"
            "`apprentice train --resume RUN`."
        ),
        epilog=(
            "examples:\n"
            "  apprentice trajectories review runs/demo\n"
            "  apprentice trajectories review runs/demo --accept-all\n"
            "  apprentice trajectories review runs/demo --reject '1000000:train/gcd/00012#0/3.0'"
        ),
    )
    review.add_argument("run", help="folder of a run")
    choice = review.add_mutually_exclusive_group()
    choice.add_argument("--accept-all", action="store_true", help="approve all that have no decision, unread")
    choice.add_argument("--reject", nargs="+", metavar="ID", help="reject these, without asking")
    review.set_defaults(command=commands.review)

    show = actions.add_parser(
        "show",
        parents=[common],
        formatter_class=_Help,
        help="list trajectories of a run, or print some",
        description="Without an ID, list the trajectories of a run; with IDs, print those by owner.",
        epilog="examples:\n  apprentice trajectories show runs/demo --stage stage1\n"
        "  apprentice trajectories show runs/demo '0:train/gcd/00012#0/3.0'",
    )
    show.add_argument("run", help="folder of a run")
    show.add_argument("ids", nargs="*", metavar="ID", help="trajectory ids")
    show.add_argument("--stage", help="a folder of RUN/trajectories; all of them when left out")
    show.set_defaults(command=commands.show)

    stats = actions.add_parser(
        "stats",
        parents=[common],
        formatter_class=_Help,
        help="count trajectories, calls and tokens of a run",
        description="Means a trajectory, for each stage: reward, accuracy, calls by tool and expert, tokens.",
        epilog="example:\n  apprentice trajectories stats runs/demo",
    )
    stats.add_argument("run", help="folder of a run")
    stats.add_argument("--stage", help="a folder of RUN/trajectories; all of them when left out")
    stats.set_defaults(command=commands.stats)


def _add_config(section: _Section[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    parser = section.add_parser(
        "config",
        formatter_class=_Help,
        help="list recipes, show one resolved, explain its keys",
        description="Look at recipes; nothing is started.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = actions.add_parser("list", parents=[common], help="list the recipes of a folder")
    listing.add_argument("folder", nargs="?", default="configs", help="default: configs")
    listing.set_defaults(command=commands.list_recipes)

    show = actions.add_parser(
        "show",
        parents=[common],
        formatter_class=_Help,
        help="print a recipe with every default and override filled in",
        epilog="example:\n  apprentice config show configs/rivet-1.7b.yaml stage2.lambda_fmt=0",
    )
    show.add_argument("recipe", help="a YAML file, or the folder of a run")
    show.add_argument("overrides", nargs="*", metavar="key=value", help=_OVERRIDES)
    show.set_defaults(command=commands.show_config)

    explain = actions.add_parser(
        "explain",
        parents=[common],
        formatter_class=_Help,
        help="list keys with type, default and meaning",
        epilog="examples:\n  apprentice config explain\n  apprentice config explain stage1\n"
        "  apprentice config explain learning_rate",
    )
    explain.add_argument("word", nargs="?", default="", help="only keys that contain this")
    explain.set_defaults(command=commands.explain)


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the resolved recipe and which actors it would start on what; start nothing",
    )
