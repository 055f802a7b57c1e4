"""One expert: a backend with its retries and its cache."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from apprentice.config.schema import ExpertConfig, OpenAIBackend, VllmBackend, WorkedBackend
from apprentice.data.problem import Problem
from apprentice.episodes.actions import CallExpert
from apprentice.errors import ConfigError
from apprentice.experts.cache import AnswerCache, cache_key
from apprentice.experts.engine import EngineExpert, Generate
from apprentice.experts.openai import OpenAIExpert
from apprentice.experts.prompt import build_messages, extract_program
from apprentice.experts.retry import RetryPolicy, total_deadline_s, with_retries
from apprentice.experts.types import Backend, BackendFailure, ExpertAnswer
from apprentice.experts.worked import WorkedExpert

__all__ = ["Expert", "make_backend"]


def make_backend(
    config: ExpertConfig,
    *,
    problems: Mapping[str, Problem] | None = None,
    generate: Generate | None = None,
    seed: int = 0,
) -> Backend:
    """The backend that a recipe names.

    Args:
        config: of the expert.
        problems: problem id -> problem, for ``worked``.
        generate: the engine, for ``vllm``.
        seed: of the run.

    Raises:
        ConfigError: ``worked`` without problems, ``openai`` without its key.
    """
    backend = config.backend
    if isinstance(backend, WorkedBackend):
        if problems is None:
            raise ConfigError(f"expert {config.name!r}: backend worked needs a problem set")
        return WorkedExpert(config.name, backend, problems, seed=seed)
    if isinstance(backend, OpenAIBackend):
        return OpenAIExpert(
            config.name,
            backend,
            temperature=config.temperature,
            top_p=config.top_p,
            include_transcript=config.include_transcript,
        )
    assert isinstance(backend, VllmBackend)
    if generate is None:
        raise ValueError(f"expert {config.name!r}: backend vllm needs an engine")
    return EngineExpert(config.name, backend.model, generate, include_transcript=config.include_transcript)


class Expert:
    """Answers calls: from its cache if there is one, else from its backend with retries.

    Args:
        config: of the expert.
        backend: makes one attempt.
        cache_dir: folder of the cache files; needed when ``config.cache`` is not ``off``.
        rng: of the pauses between retries.

    Raises:
        ConfigError: a cache is asked for and there is no folder for it.
    """

    def __init__(
        self,
        config: ExpertConfig,
        backend: Backend,
        *,
        cache_dir: str | Path | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.config, self._backend, self._rng = config, backend, rng
        self._policy = RetryPolicy(
            max_retries=config.max_retries,
            attempt_s=config.timeout_s,
            deadline_s=total_deadline_s(config.timeout_s, config.max_retries),
        )
        self._cache: AnswerCache | None = None
        if config.cache != "off":
            if cache_dir is None:
                raise ConfigError(
                    f"expert {config.name!r}: cache is {config.cache!r} but no cache folder is given"
                )
            self._cache = AnswerCache(Path(cache_dir) / f"{config.name}.jsonl", config.cache)
        self.failed_attempts: Counter[str] = Counter()
        """Failed attempts by kind, those that a retry made good included."""

    async def answer(self, request: CallExpert) -> ExpertAnswer:
        """One call; ``code_interpreter`` gets the bare program.

        Raises:
            ExpertError: past its retries, or a replay without a recorded answer.
        """
        key = self._key(request) if self._cache is not None else ""
        if self._cache is not None:
            recorded = self._cache.get(key, expert=self.config.name)
            if recorded is not None:
                return recorded
        answer = await with_retries(
            lambda timeout_s: self._attempt(request, timeout_s),
            self._policy,
            on_failure=self._count,
            rng=self._rng,
        )
        if self._cache is not None:
            self._cache.put(key, answer)
        return answer

    async def close(self) -> None:
        """Release the backend."""
        await self._backend.close()

    async def _attempt(self, request: CallExpert, timeout_s: float) -> ExpertAnswer:
        answer = await self._backend.answer(request, timeout_s=timeout_s)
        if request.tool != "code_interpreter":
            return answer
        program = extract_program(answer.text)
        if not program.strip():
            raise BackendFailure(
                f"expert {self.config.name!r}: the reply has no program",
                kind="empty",
                expert=self.config.name,
                retryable=True,
                usage=answer.usage,
            )
        return replace(answer, text=program)

    def _count(self, failure: BackendFailure) -> None:
        self.failed_attempts[failure.kind] += 1

    def _key(self, request: CallExpert) -> str:
        sampling: dict[str, object] = {
            "temperature": self.config.temperature,
            "top_p": self.config.top_p,
            "max_tokens": request.max_tokens,
        }
        if isinstance(self.config.backend, WorkedBackend):
            sampling["problem_id"] = request.problem_id  # what it really answers from
        return cache_key(
            expert=self.config.name,
            model=self._backend.model,
            messages=build_messages(request, include_transcript=self.config.include_transcript),
            sampling=sampling,
        )
