"""The error tree. Every error says what was wrong, where, and what to do about it.

ApprenticeError
├── ConfigError            a recipe, override or command line is wrong (the user can fix it)
├── DataError              a problem set or file cannot be read as what it claims to be
├── TemplateError          a tokenizer or chat template cannot carry the episode protocol
├── InfrastructureError    something broke that is nobody's decision: never a reward, never a wrong answer
│   ├── ExpertError        an expert failed past its retries
│   ├── AdvisorError       the advisor, its judge or its ledger failed past their retries
│   ├── SandboxError       the sandbox (not the code in it) failed past its retries
│   ├── EngineError        an inference engine failed
│   │   └── StaleEngineError   an engine that missed a weight sync was asked to sample
│   ├── WeightSyncError    weights did not reach every engine
│   ├── PlacementError     the cluster cannot hold the actors asked for
│   └── StalledError       no progress within the deadline: the watchdog ended the run
"""

from __future__ import annotations

__all__ = [
    "AdvisorError",
    "ApprenticeError",
    "ConfigError",
    "DataError",
    "EngineError",
    "ExpertError",
    "InfrastructureError",
    "PlacementError",
    "SandboxError",
    "StaleEngineError",
    "StalledError",
    "TemplateError",
    "WeightSyncError",
]


class ApprenticeError(Exception):
    """Base of every error this project raises on purpose."""


class ConfigError(ApprenticeError, ValueError):
    """A recipe, an override or a command-line argument is wrong."""


class DataError(ApprenticeError, ValueError):
    """A problem set, trajectory file or model folder cannot be read."""


class TemplateError(ApprenticeError, ValueError):
    """A tokenizer or its chat template cannot carry the episode protocol."""


class InfrastructureError(ApprenticeError, RuntimeError):
    """Something outside the policy broke. Retried, or dropped and counted; never scored."""


class ExpertError(InfrastructureError):
    """An expert failed past its retries.

    Args:
        kind: short machine-readable reason, e.g. ``timeout``, ``http_500``, ``empty``, ``lost_to_reasoning``.
        expert: name of the expert.
    """

    def __init__(self, message: str, *, kind: str = "error", expert: str = "") -> None:
        super().__init__(message)
        self.message, self.kind, self.expert = message, kind, expert

    def __reduce__(self) -> tuple[object, ...]:  # keyword arguments survive pickling across processes
        return (_rebuild_expert_error, (self.message, self.kind, self.expert))


def _rebuild_expert_error(message: str, kind: str, expert: str) -> ExpertError:
    return ExpertError(message, kind=kind, expert=expert)


class AdvisorError(InfrastructureError):
    """The advisor, its judge or its ledger failed past their retries. Says nothing of the query.

    Args:
        kind: short machine-readable reason, e.g. ``timeout``, ``http_500``, ``ledger``.
    """

    def __init__(self, message: str, *, kind: str = "error") -> None:
        super().__init__(message)
        self.message, self.kind = message, kind

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_advisor_error, (self.message, self.kind))


def _rebuild_advisor_error(message: str, kind: str) -> AdvisorError:
    return AdvisorError(message, kind=kind)


class SandboxError(InfrastructureError):
    """The sandbox itself failed; says nothing of the code it was given."""


class EngineError(InfrastructureError):
    """An inference engine failed."""


class StaleEngineError(EngineError):
    """An engine that missed a weight sync was asked to sample."""


class WeightSyncError(InfrastructureError):
    """Weights did not reach every engine in time."""


class PlacementError(InfrastructureError):
    """The cluster cannot hold the actors that the recipe asks for."""


class StalledError(InfrastructureError):
    """No progress was made within the deadline."""
