"""Runs a task with this runtime: a session in memory, a real sandbox, a model over HTTP."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from bench.real.kept import KeptReplies
from bench.real.meter import Meter
from bench.real.outcome import Allowed, Exchange, Outcome, Runner, Server
from bench.real.task import Task

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.records import AIDS, ProgramFinished, Record
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.endpoint import Endpoint, Secret
from tallystick.model.http import HttpModel
from tallystick.model.port import Heard, Model, ModelError, ModelReply, ModelRequest
from tallystick.runtime.context.inputs import given_text
from tallystick.skills.skills import Skills

__all__ = ["VERSION", "runner"]

VERSION = importlib.metadata.version("tallystick")


class _Listened:
    """A model whose requests and replies are kept as they were."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.exchanges: list[Exchange] = []

    @property
    def name(self) -> str:
        return self._model.name

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return self._model.admitted()

    async def ask(self, request: ModelRequest, *, heard: Heard) -> ModelReply:
        messages: list[tuple[str, str]] = [(each.role, each.text) for each in request.messages]
        heat = "" if request.temperature is None else f"temperature {request.temperature:g}"
        try:
            reply = await self._model.ask(request, heard=heard)
        except ModelError as error:
            self.exchanges.append(Exchange(messages=messages, reply="", note=f"failed: {error}"))
            raise
        self.exchanges.append(
            Exchange(
                messages=messages,
                reply=reply.text,
                tokens_in=reply.usage.tokens_in,
                tokens_out=reply.usage.tokens_out,
                note=f"{heat} cut" if reply.cut else heat,
            )
        )
        return reply

    async def close(self) -> None:
        await self._model.close()


def _switch(session: Session, aids: tuple[str, ...]) -> None:
    """Give the runs of a session only some of the helps for weak models.

    No setting does that: nobody who is not measuring them has a use for it.
    """
    engine = session._engine
    engine.request = functools.partial(engine.request, aids=aids)  # type: ignore[method-assign]


def runner(
    server: Server,
    allowed: Allowed,
    *,
    kept: KeptReplies | None = None,
    aids: tuple[str, ...] = AIDS,
) -> Runner:
    """A runner of tasks, each in a session of its own.

    With `kept`, requests that were answered before do not reach the model. `aids` are the helps for
    weak models that the runs have.
    """
    limits = RunLimits(
        turns=allowed.turns,
        tokens=allowed.tokens,
        reply_tokens=allowed.reply_tokens,
        wall_ms=allowed.seconds * 1_000,
    )

    def run(task: Task) -> Outcome:
        notes: list[str] = []

        def watch(run_id: str, record: Record) -> None:
            if isinstance(record, ProgramFinished):
                notes.append(_note(record))

        inputs = [given_text(text, name=name) for name, text in task.files.items()]
        began = time.monotonic()
        with ExitStack() as stack:
            asked = server
            if kept is not None:
                meter = stack.enter_context(Meter(server, seconds=allowed.seconds, kept=kept))
                asked = replace(server, url=meter.url)
            model = _Listened(_model(asked))
            skills = stack.enter_context(_skills(task))
            session = stack.enter_context(
                Session(model=model, ledger=MemoryLedger(), skills=skills)
            )
            _switch(session, aids)
            ended = session.run(
                task.question,
                inputs=inputs,
                limits=limits,
                temperature=allowed.temperature,
                strategy=task.strategy,
                # The prompt names the time. With the present in it, no two runs ask the same.
                clock="fixed",
                watch=watch,
            )
        # Its connections belonged to the loop of the session; it forgets them.
        asyncio.run(model.close())
        return Outcome(
            answer=ended.answer,
            answered=ended.answered,
            stop=ended.stop,
            turns=ended.turns,
            tokens_in=ended.charge.tokens_in,
            tokens_out=ended.charge.tokens_out,
            seconds=time.monotonic() - began,
            detail=ended.detail,
            exchanges=model.exchanges,
            notes=notes,
        )

    return run


@contextmanager
def _skills(task: Task) -> Iterator[Skills | None]:
    """The skills of a task, none of them matched: what is not listed has to be searched for."""
    if not task.skills:
        yield None
        return
    with tempfile.TemporaryDirectory() as root:
        for name, text in task.skills.items():
            (Path(root) / name).mkdir()
            (Path(root) / name / "SKILL.md").write_text(text)
        yield Skills.of(root, top_n=0)


def _model(server: Server) -> Model:
    return HttpModel(
        Endpoint(
            provider="bench",
            dialect="openai",
            base_url=server.url,
            model=server.model,
            key=Secret(server.key) if server.key else None,
            concurrency=1,
        )
    )


def _note(record: ProgramFinished) -> str:
    """What a program came to, also where the model was told less."""
    failure = record.failure
    came = [f"turn {record.turn}: {record.stop}, {record.wall_ms:,} ms"]
    if record.stdout.strip():
        came.append(f"printed: {record.stdout.strip()[:400]}")
    if record.value is not None:
        came.append(f"value: {record.value[:400]}")
    if record.answer is not None:
        came.append(f"answer: {record.answer[:400]}")
    if failure is not None:
        came.append(f"failed: {failure.kind}: {failure.message[:400]}")
    return "; ".join(came)
