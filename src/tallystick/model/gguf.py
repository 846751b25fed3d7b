"""Run a local GGUF file inside this process, by the engine of the extra `gguf`.

The engine is llama.cpp's server without its network: requests and replies have its chat completions
format and are handed over as bytes, in one thread that this model owns. The engine also opens a
port on the loopback address, and has no option against that; a random key makes the port useless.

The engine cannot be interrupted between two tokens, nor while it reads a stretch of the prompt.
Cancelling returns at once; the engine stops at its next callback, and only then takes the next
request.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tallystick.core.errors import UsageError, system_errors
from tallystick.model import failures, openai
from tallystick.model.dialect import Reader, SseEvent
from tallystick.model.failures import one_line
from tallystick.model.pacing import Gate
from tallystick.model.port import Heard, Model, ModelError, ModelReply, ModelRequest

_MAGIC = b"GGUF"
_ENGINE = "xllamacpp"
_CONTEXT_TOKENS = 16_384


class Engine(Protocol):
    """The part of the engine that is used. A callback that returns True ends the reply."""

    def handle_chat_completions(
        self, request: bytes, callback: Callable[[bytes], bool], /
    ) -> object: ...


class GgufModel:
    """A model in a file. It is loaded by the first request, which takes seconds.

    One request runs at a time. One that is not done after `total_seconds` raises `ModelError`.
    """

    def __init__(
        self,
        path: Path,
        *,
        context_tokens: int = _CONTEXT_TOKENS,
        threads: int | None = None,
        total_seconds: float = 600.0,
        load: Callable[[Path, int, int], Engine] | None = None,
    ) -> None:
        self._path = path
        self._context_tokens = context_tokens
        self._threads = threads or max(1, (os.cpu_count() or 2) - 1)
        self._total_seconds = total_seconds
        self._load = load or _load_engine
        self._engine: Engine | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._gate = Gate(concurrency=1)
        self._closing = threading.Event()

    @classmethod
    def from_file(cls, path: Path | str, *, context_tokens: int = _CONTEXT_TOKENS) -> GgufModel:
        """Check the file and find the engine, so that a mistake is reported before anything runs.

        Raise `UsageError` if the file cannot be read, is not GGUF, or the extra is not installed.
        """
        path = Path(path).expanduser()
        with system_errors(path, UsageError), path.open("rb") as file:
            magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            raise UsageError(f"{path} is not a GGUF file; name the file of a model in that format")
        if importlib.util.find_spec(_ENGINE) is None:
            raise UsageError("gguf: models need an extra: pip install 'tallystick[gguf]'")
        return cls(path, context_tokens=context_tokens)

    @property
    def name(self) -> str:
        return f"gguf:{self._path.name}"

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return self._gate.admitted()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda text: None) -> ModelReply:
        loop = asyncio.get_running_loop()
        said = openai.body(request, model=self._path.name, cap="max_tokens", stream=True)
        # With `return_progress` the engine calls back while it reads the prompt, so that it can be
        # stopped then too.
        body = msgspec.json.encode({**said, "return_progress": True})
        let_go = threading.Event()

        def report_progress(text: str) -> None:
            if not let_go.is_set():
                loop.call_soon_threadsafe(heard, text)

        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="tally-gguf")
        work = loop.run_in_executor(
            self._thread, self._complete, body, openai.reader(request), let_go, report_progress
        )
        try:
            async with asyncio.timeout(self._total_seconds):
                return await work
        except TimeoutError:
            failure = failures.total_timeout(self._total_seconds)
        except ModelError as error:
            failure = error
        finally:
            let_go.set()
        message = f"{self.name}: {failure.message}"
        raise failures.with_message(failure, message=message, usage=failure.usage)

    async def close(self) -> None:
        """End the thread and free the memory. Waits until the engine has stopped.

        The request in progress is stopped, and those that wait are cancelled. A later request loads
        the model again.
        """
        self._closing.set()
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        # The engine's own threads end with the last reference to it.
        self._thread = self._engine = None
        self._closing.clear()

    def _complete(
        self,
        body: bytes,
        reader: Reader,
        let_go: threading.Event,
        report_progress: Callable[[str], None],
    ) -> ModelReply:
        """Make one reply, in the model's thread. Raise `ModelError` if there is none.

        The engine cannot pass on an exception of the callback, so it is kept and raised afterwards.
        """
        failure: list[Exception] = []

        def take(chunk: bytes) -> bool:
            try:
                reader.feed(SseEvent(b"", chunk))
                if said := reader.text.take_new():
                    report_progress(said)
            except Exception as error:
                failure.append(error)
            return bool(failure) or let_go.is_set() or self._closing.is_set()

        if self._engine is None:
            self._engine = self._open_engine()
        try:
            self._engine.handle_chat_completions(body, take)
        except (ValueError, RuntimeError) as error:
            raise ModelError(
                reason="invalid_request",
                message=f"the engine refuses ({one_line(str(error))[:300]})",
                billed=False,
            ) from error
        if failure:
            raise failure[0]
        return reader.finish()

    def _open_engine(self) -> Engine:
        try:
            return self._load(self._path, self._context_tokens, self._threads)
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            raise ModelError(
                reason="model_unavailable",
                message=f"cannot be loaded ({one_line(str(error))[:300]}); check that the "
                f"file is whole and fits into memory",
                billed=False,
            ) from error


def _load_engine(path: Path, context_tokens: int, threads: int) -> Engine:
    # Imported by name, because the engine is in an extra and has no types.
    engine: Any = importlib.import_module(_ENGINE)
    wanted = engine.CommonParams()
    wanted.model.path = str(path)
    wanted.model_alias = {path.name}
    wanted.n_ctx = context_tokens
    wanted.n_parallel = 1
    wanted.cpuparams.n_threads = threads
    wanted.cpuparams_batch.n_threads = threads
    wanted.hostnames = ["127.0.0.1"]
    wanted.port = 0
    wanted.api_keys = [secrets.token_urlsafe(32)]
    wanted.use_jinja = True
    wanted.ui = False
    wanted.warmup = False
    wanted.verbosity = 0
    server: Engine = engine.Server(wanted)
    return server


_: type[Model] = GgufModel
