"""What each command of :mod:`driver.cli` does. Heavy imports stand inside the functions that need them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from apprentice.config.keys import all_keys
from apprentice.config.load import load_config, to_yaml
from apprentice.config.schema import Config, DataConfig, ProblemSetConfig
from apprentice.errors import ConfigError
from driver.plan import placement_plan

if TYPE_CHECKING:
    from apprentice.tokens.codec import ChatCodec

__all__ = [
    "collect",
    "controller_codec",
    "data_info",
    "decoder",
    "evaluate",
    "explain",
    "keep_a_private_cluster_on_loopback",
    "list_recipes",
    "review",
    "show",
    "show_config",
    "stats",
    "train",
]


def train(arguments: argparse.Namespace) -> int:
    """``apprentice train``."""
    if arguments.resume:
        if arguments.recipe or arguments.overrides:
            raise ConfigError(
                "--resume goes on with the run's own recipe: leave out the recipe and overrides"
            )
        config = _run_to_resume(arguments.resume)
    elif arguments.recipe:
        config = _recipe(arguments.recipe, arguments.overrides)
    else:
        raise ConfigError("name a recipe, e.g. `apprentice train configs/demo.yaml`, or a run with --resume")
    if arguments.dry_run:
        return _dry_run(config)
    keep_a_private_cluster_on_loopback(arguments.address)
    from driver.run import train as run

    return run(config, address=arguments.address, resume=arguments.resume)


def evaluate(arguments: argparse.Namespace) -> int:
    """``apprentice evaluate``."""
    if arguments.resume:
        return _resume_evaluation(arguments)
    if not arguments.recipe:
        raise ConfigError(
            "name a recipe or the folder of a run, e.g. `apprentice evaluate configs/demo.yaml`, or an "
            "interrupted evaluation with --resume"
        )
    overrides = list(arguments.overrides)
    if arguments.modes:
        overrides.append(f"evaluation.modes=[{arguments.modes}]")  # validated with everything else
    config = _recipe(arguments.recipe, [*overrides, "stages=[evaluate]"])
    if arguments.dry_run:
        return _dry_run(config)
    keep_a_private_cluster_on_loopback(arguments.address)
    from driver.run import evaluate as run

    return run(
        config,
        checkpoint=_checkpoint(arguments.checkpoint),
        modes=config.evaluation.modes,
        address=arguments.address,
    )


def _resume_evaluation(arguments: argparse.Namespace) -> int:
    """``apprentice evaluate --resume``: what is missing of an interrupted evaluation, with its own recipe."""
    if arguments.recipe or arguments.overrides or arguments.checkpoint or arguments.modes:
        raise ConfigError(
            "--resume goes on with the evaluation's own recipe, weights and modes: name only its folder"
        )
    config = _run_to_resume(arguments.resume)
    if config.stages != ("evaluate",):
        raise ConfigError(
            f"--resume {arguments.resume}: this run trains ({', '.join(config.stages)}); go on with it by "
            f"`apprentice train --resume {arguments.resume}`"
        )
    if arguments.dry_run:
        return _dry_run(config)
    keep_a_private_cluster_on_loopback(arguments.address)
    from driver.run import train as run

    return run(config, address=arguments.address, resume=arguments.resume)


def _run_to_resume(folder: str) -> Config:
    if not (Path(folder) / "config.yaml").is_file():
        raise ConfigError(f"--resume {folder}: this is not the folder of a run (no config.yaml)")
    return _recipe(folder, ())


def data_info(arguments: argparse.Namespace) -> int:
    """``apprentice data info``; 2 when a set could not be read."""
    from apprentice.data.info import describe_data, known_sets_table

    what = arguments.what
    if what is None:
        print(known_sets_table())
        return 0
    if Path(what).suffix in (".yaml", ".yml") or (Path(what) / "config.yaml").is_file():
        if arguments.test or arguments.split:
            raise ConfigError(f"--test and --split belong to a set; {what} is a recipe and names its own")
        data = _recipe(what, arguments.overrides).data
    elif arguments.overrides:
        raise ConfigError(f"{arguments.overrides[0]} changes a key of a recipe, and {what} is a problem set")
    else:
        data = DataConfig(
            train=ProblemSetConfig(name=Path(what).name, source=what, split=arguments.split),
            test=tuple(ProblemSetConfig(name=Path(set_).name, source=set_) for set_ in arguments.test),
        )
    info = describe_data(data)
    print(info.text())
    return 0 if info.complete else 2


def collect(arguments: argparse.Namespace) -> int:
    """``apprentice trajectories collect``."""
    config = _recipe(arguments.recipe, arguments.overrides)
    if arguments.dry_run:
        return _dry_run(config.model_copy(update={"stages": ()}))  # no learner
    keep_a_private_cluster_on_loopback(arguments.address)
    from driver.run import collect as run

    return run(config, checkpoint=_checkpoint(arguments.checkpoint), address=arguments.address)


def review(arguments: argparse.Namespace) -> int:
    """``apprentice trajectories review``."""
    from apprentice.run_folder import RunFolder
    from apprentice.stage2 import review as reviewing

    run = RunFolder.open(arguments.run)
    if arguments.accept_all:
        print(reviewing.accept_all(run))
    elif arguments.reject:
        print(reviewing.reject(run, arguments.reject))
    elif not sys.stdin.isatty():
        raise ConfigError("a review asks questions and this is no terminal: use --accept-all or --reject ID")
    else:
        reviewing.review(run, decoder(run.config))
    return 0


def show(arguments: argparse.Namespace) -> int:
    """``apprentice trajectories show``."""
    from apprentice.run_folder import RunFolder
    from apprentice.stage2.review import render

    run = RunFolder.open(arguments.run)
    stages = _stages(run.path, arguments.stage)
    found = {t.trajectory_id: (stage, t) for stage in stages for t in run.read_trajectories(stage)}
    if not arguments.ids:
        for stage, t in found.values():
            verdict = t.verdict or "-"
            print(f"{stage}  {t.trajectory_id}  {t.status}  {verdict}  {len(t)} tokens  {len(t.calls)} calls")
        return 0
    unknown = [i for i in arguments.ids if i not in found]
    if unknown:
        example = next(iter(found), "(there are none)")
        raise ConfigError(f"{arguments.run} has no trajectory {unknown[0]!r}; ids look like {example}")
    decode = decoder(run.config)
    for i in arguments.ids:
        print(render(found[i][1], decode, colour=sys.stdout.isatty()))
    return 0


def stats(arguments: argparse.Namespace) -> int:
    """``apprentice trajectories stats``."""
    from apprentice.metrics.rollouts import trajectory_metrics
    from apprentice.run_folder import RunFolder

    run = RunFolder.open(arguments.run)
    for stage in _stages(run.path, arguments.stage):
        trajectories = run.read_trajectories(stage)
        print(f"{stage}: {len(trajectories)} trajectories, means of one:")
        for name, value in trajectory_metrics(trajectories).items():
            print(f"  {name:<32} {value:.4g}")
    return 0


def list_recipes(arguments: argparse.Namespace) -> int:
    """``apprentice config list``."""
    folder = Path(arguments.folder)
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise ConfigError(f"{folder} holds no recipe (*.yaml); name the folder that does")
    width = max(len(str(file)) for file in files)
    for file in files:
        first = file.read_text(encoding="utf-8").split("\n", 1)[0]
        print(f"{file!s:<{width}}  {first.removeprefix('#').strip()}")
    return 0


def show_config(arguments: argparse.Namespace) -> int:
    """``apprentice config show``."""
    print(to_yaml(_recipe(arguments.recipe, arguments.overrides)), end="")
    return 0


def explain(arguments: argparse.Namespace) -> int:
    """``apprentice config explain``."""
    keys = [key for key in all_keys() if arguments.word in key.path]
    if not keys:
        raise ConfigError(f"no key contains {arguments.word!r}; `apprentice config explain` lists all")
    for key in keys:
        variant = f" (kind: {key.kind})" if key.kind else ""
        print(f"{key.path}{variant}\n    {key.type}; default {key.default}")
        if key.description:
            print(f"    {key.description}")
    return 0


def _recipe(path: str, overrides: Sequence[str]) -> Config:
    """A recipe file, or the resolved recipe that a run folder holds."""
    of_run = Path(path) / "config.yaml"
    if Path(path).is_dir() and not of_run.is_file():
        raise ConfigError(
            f"{path} is a folder without config.yaml: name a recipe file or the folder of a run"
        )
    return load_config(of_run if of_run.is_file() else path, overrides)


def keep_a_private_cluster_on_loopback(address: str | None) -> None:
    """A cluster that this run starts for itself listens on 127.0.0.1 only.

    Ray reads this variable once, while it is imported; set later it has no effect and Ray listens on every
    interface. A cluster of several machines must not have it.
    """
    if address is None and "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def _checkpoint(path: str | None) -> str | None:
    if path is not None and not (Path(path) / "config.json").is_file():
        raise ConfigError(f"--checkpoint {path}: no model is there (a folder with config.json and weights)")
    return path


def _dry_run(config: Config) -> int:
    """The resolved recipe as YAML; the plan after it as comments, so that the output is still a recipe."""
    print("# The recipe with every default and override filled in.")
    print(to_yaml(config))
    print("# What it would start. Memory is an estimate.\n#")
    for line in placement_plan(config).table().splitlines():
        print(f"# {line}")
    return 0


def _stages(run: Path, stage: str | None) -> list[str]:
    """Folders of trajectories in a run, nested ones by their path."""
    root = run / "trajectories"
    found = sorted({str(file.parent.relative_to(root)) for file in root.rglob("*.parquet")})
    if stage is not None and stage not in found:
        raise ConfigError(f"{run} has no trajectories of {stage!r}; it has {', '.join(found) or 'none'}")
    if not found:
        raise ConfigError(f"{run} has no trajectories yet")
    return [stage] if stage else found


def decoder(config: Config) -> Callable[[Sequence[int]], str]:
    """Text of token ids, with the tokenizer of a run's controller."""
    return controller_codec(config).decode


def controller_codec(config: Config) -> ChatCodec:
    """The tokenizer of a run's controller, which may have to be fetched."""
    from apprentice.models import resolve_model
    from apprentice.tokens.codec import ChatCodec

    model = str(resolve_model(config.controller.model, config.controller.revision))
    return ChatCodec.from_pretrained(model, revision=config.controller.revision)
