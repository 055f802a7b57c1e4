"""What every stage of a run needs, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from apprentice.config.schema import Config
from apprentice.data.order import ProblemStream
from apprentice.data.problem import Problem
from apprentice.metrics.logger import MetricsLogger
from apprentice.metrics.memory import MemorySampler
from apprentice.metrics.progress import Progress
from apprentice.run_folder import RunFolder
from apprentice.tokens.codec import ChatCodec
from driver.fleet import Fleet
from driver.watchdog import Watchdog

__all__ = ["Run"]


@dataclass(slots=True)
class Run:
    """One run: its folder, its actors, its data.

    ``tests`` maps a test set's name to its problems; ``seconds`` collects wall seconds by stage.
    """

    config: Config
    folder: RunFolder
    logger: MetricsLogger
    watchdog: Watchdog
    fleet: Fleet
    codec: ChatCodec
    train: list[Problem]
    tests: Mapping[str, list[Problem]]
    stream: ProblemStream
    memory: MemorySampler
    seconds: dict[str, float] = field(default_factory=dict)
    earlier_peak_bytes: int = 0
    """Peak memory of the processes that this one resumes."""

    @property
    def peak_memory_bytes(self) -> int:
        """Peak memory of the run so far, over all its processes in turn."""
        return max(self.memory.peak_bytes, self.earlier_peak_bytes)

    def progress(self, total: int, label: str, unit: str, initial: int = 0) -> Progress:
        """A progress bar, on or off as the recipe says."""
        return Progress(total, label, unit=unit, initial=initial, enabled=self.config.tracking.progress)

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Log one step, and tell the watchdog that something moved."""
        self.logger.log(step, stage, metrics)
        self.watchdog.beat(f"{stage} step {step}")

    def checkpoint(self, stage: str, step: int) -> str:
        """Write a checkpoint of the learners' weights; the folder."""
        path = self.folder.checkpoint_path(stage, step)
        self.fleet.save(str(path.absolute()))  # a learner's working directory may be another
        self.folder.mark_complete(stage, step, version=self.fleet.version, position=self.stream.position)
        return str(path)
