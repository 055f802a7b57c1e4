"""vLLM's AsyncLLM: the engine core (and on a CPU its worker) run in processes of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from actors._engine import Completion, EngineOptions, engine_arguments
from apprentice.errors import EngineError

__all__ = ["SubprocessEngine"]


class SubprocessEngine:
    """See :class:`actors._engine.Engine`. Create it in the event loop that uses it."""

    def __init__(self, options: EngineOptions, on_gpu: bool) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._name = options.name
        self._updating = False
        self._llm: Any = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(options, on_gpu)))

    @property
    def fatal(self) -> str:
        """Why the engine is dead; empty while it lives."""
        return f"the engine process of {self._name} died" if self._llm.errored else ""

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: dict[str, Any]
    ) -> Completion:
        """Sample one continuation."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        params = SamplingParams(**sampling, output_kind=RequestOutputKind.FINAL_ONLY)
        prompt = tokens_input(list(prompt_ids))
        try:
            async for output in self._llm.generate(prompt, params, request_id):
                if output.finished:
                    return completion(output)
        except (EngineDeadError, EngineGenerateError, ValueError) as error:
            raise EngineError(f"{self._name}: {self.fatal or 'generation failed'}: {error}") from error
        raise EngineError(f"{self._name}: the engine ended request {request_id} without an output")

    async def init_transfer(self, init_info: dict[str, Any]) -> None:
        """Rendezvous of a push transport."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._guard(lambda: self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info)))

    async def begin_update(self) -> None:
        """Prepare the model to receive weights; an update that was never ended is ended first."""
        if self._updating:
            # vLLM refuses a second start while one is open, and closes some failed ones by itself.
            with contextlib.suppress(EngineError):
                await self._guard(self._llm.finish_weight_update)
        self._updating = True
        await self._guard(self._llm.start_weight_update)

    async def receive_update(self, update_info: dict[str, Any]) -> None:
        """Load some tensors."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._guard(lambda: self._llm.update_weights(WeightTransferUpdateRequest(update_info)))

    async def end_update(self, version: int) -> None:
        """Put the new weights into service; reset the prefix cache."""
        await self._guard(lambda: self._llm.finish_weight_update(str(version)))
        self._updating = False
        if not await self._guard(self._llm.reset_prefix_cache):
            raise EngineError(f"{self._name}: the prefix cache could not be reset: requests are in flight")

    async def label(self, version: int) -> None:
        """Name the weights that are in service."""
        await self._guard(lambda: self._llm.update_weight_version(str(version)))

    async def close(self) -> None:
        """End the engine's processes."""
        self._llm.shutdown()

    async def _guard(self, call: Callable[[], Any]) -> Any:
        try:
            return await call()
        # vLLM wraps whatever its worker raised in bare exceptions of several kinds.
        except Exception as error:
            raise EngineError(f"{self._name}: {self.fatal or 'the engine refused'}: {error}") from error


def completion(output: Any) -> Completion:
    """Ours from a finished vLLM ``RequestOutput``.

    Raises:
        EngineError: it did not end by a stop or by its length, logprobs do not pair with ids, or the weights
            changed in the middle.
    """
    (sample,) = output.outputs
    if sample.finish_reason not in ("stop", "length"):
        raise EngineError(f"request {output.request_id} ended with {sample.finish_reason!r}")
    logprobs = sample.logprobs.logprobs if sample.logprobs is not None else []
    if len(logprobs) != len(sample.token_ids):
        raise EngineError(f"{len(sample.token_ids)} ids but {len(logprobs)} logprobs from the engine")
    versions = {span.version for span in sample.weight_versions or ()}
    if len(versions) != 1:
        raise EngineError(f"request {output.request_id} was sampled under weight versions {sorted(versions)}")
    return Completion(list(sample.token_ids), list(logprobs), sample.finish_reason, versions.pop())
