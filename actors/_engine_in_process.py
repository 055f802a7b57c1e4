"""vLLM's LLMEngine inside the actor, stepped by a thread: half the start-up of a subprocess on a CPU, and
weights reach the model straight from the object store's memory."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from actors._engine import Completion, EngineOptions, engine_arguments
from actors._engine_async import completion
from apprentice.errors import EngineError

__all__ = ["InProcessEngine"]

_Command = Callable[[Any], None]


class InProcessEngine:
    """See :class:`actors._engine.Engine`.

    One thread owns the engine: it loads it, steps it while requests are unfinished, and between two steps
    carries out what the event loop sent it. Nothing else touches the engine.
    """

    def __init__(self, options: EngineOptions, on_gpu: bool) -> None:
        self._name = options.name
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._waiting: dict[str, asyncio.Future[Completion]] = {}
        self._fatal = ""
        self._updating = False
        loaded: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(engine_arguments(options, on_gpu), loaded), name="engine", daemon=True
        )
        self._thread.start()
        self._loaded = asyncio.wrap_future(loaded)

    async def ready(self) -> None:
        """Until the model is loaded.

        Raises:
            EngineError: it could not be.
        """
        await self._loaded

    @property
    def fatal(self) -> str:
        """Why the engine is dead; empty while it lives."""
        return self._fatal

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: dict[str, Any]
    ) -> Completion:
        """Sample one continuation."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        self._check()
        params = SamplingParams(**sampling, output_kind=RequestOutputKind.FINAL_ONLY)
        future: asyncio.Future[Completion] = self._loop.create_future()
        self._waiting[request_id] = future
        prompt = tokens_input(list(prompt_ids))
        self._commands.put(lambda engine: self._add(engine, request_id, prompt, params))
        try:
            return await future
        finally:
            self._waiting.pop(request_id, None)
            if future.cancelled():
                self._commands.put(lambda engine: engine.abort_request([request_id]))

    async def init_transfer(self, init_info: dict[str, Any]) -> None:
        """Rendezvous of a push transport."""
        await self._call(
            lambda engine: engine.collective_rpc(
                "init_weight_transfer_engine", kwargs={"init_info": init_info}
            )
        )

    async def begin_update(self) -> None:
        """Prepare the model to receive weights; an update that was never ended is ended first."""
        if self._updating:
            # vLLM refuses a second start while one is open, and closes some failed ones by itself.
            with contextlib.suppress(EngineError):
                await self._call(lambda engine: engine.collective_rpc("finish_weight_update"))
        self._updating = True
        await self._call(lambda engine: engine.collective_rpc("start_weight_update"))

    async def receive_update(self, update_info: dict[str, Any]) -> None:
        """Load some tensors."""
        await self._call(
            lambda engine: engine.collective_rpc("update_weights", kwargs={"update_info": update_info})
        )

    async def end_update(self, version: int) -> None:
        """Put the new weights into service; reset the prefix cache."""

        def end(engine: Any) -> bool:
            engine.collective_rpc("finish_weight_update")
            engine.set_weight_version(str(version))
            return bool(engine.reset_prefix_cache())

        if not await self._call(end):
            raise EngineError(f"{self._name}: the prefix cache could not be reset: requests are in flight")
        self._updating = False

    async def label(self, version: int) -> None:
        """Name the weights that are in service."""
        await self._call(lambda engine: engine.set_weight_version(str(version)))

    async def close(self) -> None:
        """End the thread."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, 30.0)

    def _check(self) -> None:
        if self._fatal:
            raise EngineError(f"{self._name}: {self._fatal}")

    async def _call(self, function: Callable[[Any], Any]) -> Any:
        """Carry out ``function(engine)`` between two steps."""
        self._check()
        future: Future[Any] = Future()

        def command(engine: Any) -> None:
            try:
                future.set_result(function(engine))
            # Whatever vLLM raised belongs to the caller; the engine's thread goes on.
            except Exception as error:  # noqa: BLE001
                future.set_exception(EngineError(f"{self._name}: the engine refused: {error!r}"))

        self._commands.put(command)
        return await asyncio.wrap_future(future)

    # ---- the engine's thread ----

    def _run(self, arguments: dict[str, Any], loaded: Future[None]) -> None:
        try:
            from vllm.engine.arg_utils import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

            engine = LLMEngine.from_engine_args(EngineArgs(**arguments), enable_multiprocessing=False)
        # Any failure to load is the actor's failure to start; it is raised there.
        except Exception as error:  # noqa: BLE001
            self._fatal = f"the engine did not load: {error!r}"
            loaded.set_exception(EngineError(f"{self._name}: {self._fatal}"))
            return
        loaded.set_result(None)
        try:
            while self._turn(engine):
                pass
        # The engine is broken, whatever broke it: all who wait must hear of it.
        except Exception as error:  # noqa: BLE001
            self._fatal = f"the engine died: {error!r}"
            self._loop.call_soon_threadsafe(self._fail_all)
            while (command := self._commands.get()) is not None:
                command(_DeadEngine(self._fatal))

    def _turn(self, engine: Any) -> bool:
        """Carry out all commands, then one step. False: asked to end."""
        busy = engine.has_unfinished_requests()
        while True:
            try:
                command = self._commands.get(block=not busy)
            except queue.Empty:
                break
            if command is None:
                return False
            command(engine)
            busy = True
        if not engine.has_unfinished_requests():
            return True
        finished = [output for output in engine.step() if output.finished]
        if finished:
            self._loop.call_soon_threadsafe(self._deliver, finished)
        return True

    def _add(self, engine: Any, request_id: str, prompt: Any, params: Any) -> None:
        try:
            engine.add_request(request_id, prompt, params)
        # A request that vLLM refuses fails alone.
        except Exception as error:  # noqa: BLE001
            refused = EngineError(f"{self._name}: the engine refused a request: {error!r}")
            self._loop.call_soon_threadsafe(self._reject, request_id, refused)

    # ---- back in the event loop ----

    def _deliver(self, outputs: list[Any]) -> None:
        for output in outputs:
            future = self._waiting.get(output.request_id)
            if future is None or future.done():
                continue
            try:
                future.set_result(completion(output))
            except EngineError as error:
                future.set_exception(error)

    def _reject(self, request_id: str, error: EngineError) -> None:
        future = self._waiting.get(request_id)
        if future is not None and not future.done():
            future.set_exception(error)

    def _fail_all(self) -> None:
        for request_id in list(self._waiting):
            self._reject(request_id, EngineError(f"{self._name}: {self._fatal}"))


class _DeadEngine:
    """Stands in for an engine that died: every use says so."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        raise EngineError(self._reason)
