"""``apprentice sandbox``: looks at what isolation this machine gives."""

from __future__ import annotations

import argparse
import asyncio
import logging
from typing import TYPE_CHECKING

from apprentice.config.load import load_config
from apprentice.config.schema import SandboxConfig

if TYPE_CHECKING:
    Section = argparse._SubParsersAction[argparse.ArgumentParser]  # the only name that argparse has for it

__all__ = ["add_sandbox"]


def add_sandbox(
    section: Section, common: argparse.ArgumentParser, formatter: type[argparse.HelpFormatter]
) -> None:
    """``apprentice sandbox``."""
    parser = section.add_parser(
        "sandbox",
        formatter_class=formatter,
        help="what keeps the models' code from this machine",
        description="Look at the sandbox of this machine.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser(
        "doctor",
        parents=[common],
        formatter_class=formatter,
        help="isolation level, attacks tried, latency, and what to change for a higher level",
        description=(
            "Start a sandbox worker at the highest isolation level that this machine gives, try the attacks\n"
            "on it, measure warm cells, and say what to change in a container or pod for a higher level.\n"
            "Run it where pools run: in the container or pod, as its account.\n"
            "Exits with 1 where the lowest level accepted is not reached."
        ),
        epilog=(
            "examples:\n"
            "  apprentice sandbox doctor\n"
            "  apprentice sandbox doctor configs/rivet-4b.yaml\n"
            "  apprentice sandbox doctor --level A"
        ),
    )
    check.add_argument("recipe", nargs="?", help="take the lowest level accepted from this recipe")
    check.add_argument("--level", choices=("A", "B", "none"), help="lowest level accepted (default: B)")
    check.add_argument(
        "--cells", type=int, default=100, metavar="N", help="warm cells to measure (default: %(default)s)"
    )
    check.set_defaults(command=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """``apprentice sandbox doctor``."""
    from apprentice.sandbox.doctor import examine, render
    from apprentice.sandbox.isolation import Level
    from apprentice.sandbox.pool import IMPORTS

    config = load_config(arguments.recipe, []).sandbox if arguments.recipe else SandboxConfig()
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    found = asyncio.run(
        examine(Level(arguments.level or config.level), IMPORTS, cells=max(1, arguments.cells))
    )
    print(render(found))
    return 0 if found.reached else 1
