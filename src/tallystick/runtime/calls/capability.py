"""The port of capabilities: what a run gives its programs beside the models.

A capability lives in a package of its own, above the runtime, and is registered in one list by the
client. The runtime knows this port and no capability by name. What a capability records of a run
goes into fields of its own of `RunStarted` and `HostAnswered`, where it has some, else into `given`
and `notes`, under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tallystick.core.citation.cited import Cited
from tallystick.core.errors import TallystickError
from tallystick.core.history import History
from tallystick.core.machine.state import RunState
from tallystick.core.records import (
    CheckProgram,
    EvidenceRef,
    HostAnswered,
    ProgramChecked,
    RunEnded,
    RunStarted,
)
from tallystick.core.strategy import AskedStrategy
from tallystick.model.port import Model
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.calls.queries import Queries
from tallystick.runtime.calls.scope import Call, CallScope
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.context.inputs import Input
from tallystick.runtime.spend.door import ModelDoor
from tallystick.sandbox.text import HostText

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """The request for a new run, as far as a capability has to know it."""

    goal: str
    inputs: Sequence[Input]
    put_skills: Sequence[str]
    session_id: str
    strategy: AskedStrategy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """The variables of a run's programs: `values` are in the guest, `texts` stay on the host."""

    values: Mapping[str, object] = field(default_factory=dict)
    texts: Mapping[str, HostText | Mapping[str, HostText]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """The parts of a run that a capability may use.

    A replay asks no model: it has no `door` and no `model`.
    `others` gives the functions of the run's other capabilities. `sockets` is where native programs
    find sockets of this process, None where they cannot.
    """

    run: str
    run_attachments: RunAttachments
    queries: Queries
    door: ModelDoor | None
    others: Callable[[RunCapability], Sequence[RunFunction]]
    wrap: Callable[[RunFunction], RunFunction]
    sandbox: Callable[[], WasmSandbox]
    model: Model | None = None
    sockets: Path | None = None


class RunCapability:
    """One capability of one run. Each method has the empty answer."""

    def functions(self) -> Sequence[RunFunction]:
        """Return the functions that programs find."""
        return ()

    def data(self) -> RunData:
        """Return the variables that programs find."""
        return RunData()

    def finish(self, started: RunStarted) -> RunStarted:
        """Return the start of a new run as it is written, once its functions are known."""
        return started

    async def cite(self, ended: RunEnded | None, started: RunStarted) -> Cited | None:
        """Return where the answer stands in the data, None if this run's data are not of here."""
        return None

    def evidence(self, state: RunState) -> EvidenceRef | None:
        """Return what the prompt of the next turn shows of this, as it is recorded."""
        return None

    async def check(
        self, source: str, state: RunState, asked: CheckProgram
    ) -> ProgramChecked | None:
        """Check a program before it runs. The same program is checked alike on replay."""
        return None

    def around(
        self, scope: CallScope, state: RunState
    ) -> AbstractAsyncContextManager[Mapping[str, str]]:
        """Stand around a program while it runs. Gives variables of its environment."""
        return nullcontext({})

    def refuse(self, call: Call) -> TallystickError | None:
        """Return why a program may not make a call now, None if it may."""
        return None

    def fields_of(self, notes: Sequence[msgspec.Struct]) -> Mapping[str, Any]:
        """Return the fields of an answer's record, for what serving the call has noted.

        A capability that has no field of its own gives `notes`, with its name and what it says.
        """
        return {}

    def recalled(self, scope: CallScope, answer: HostAnswered) -> None:
        """Hear of an answer of this program that is served from the record."""


class Capability(Protocol):
    """Something that runs can be given. One for a client."""

    @property
    def name(self) -> str: ...

    @property
    def for_children(self) -> bool:
        """True if runs that programs begin have it too."""
        ...

    def given(self, asked: AskedRun, run_attachments: RunAttachments) -> Mapping[str, Any]:
        """Return fields of the start of a new run. Raises `UsageError` for what cannot be.

        A capability that has no field of its own gives `given`, with its name and what it says.
        """
        ...

    def check_resume(self, run: str, history: History) -> None:
        """Raise `ResumeRefused` if the run cannot be resumed with this."""
        ...

    def known_functions(self) -> Sequence[RunFunction]:
        """Return what is known of its functions outside of runs, to decide about calls in doubt."""
        ...

    def drift(self, history: History, run_attachments: RunAttachments) -> Sequence[msgspec.Struct]:
        """Return what of it is another now than a recorded run saw."""
        ...

    def open(
        self, started: RunStarted, history: History, services: RunServices
    ) -> RunCapability | None:
        """Return what it gives a run, new or recorded; None for nothing.

        The start of a new run does not name its functions yet.
        """
        ...

    def cite_recorded(
        self, ended: RunEnded, started: RunStarted, run_attachments: RunAttachments
    ) -> Cited | None:
        """Return where the answer of a recorded run stands in its data, None for no data."""
        ...


class CapabilityBase:
    """The empty answers of a capability; a base to begin with."""

    for_children = True

    def given(self, asked: AskedRun, run_attachments: RunAttachments) -> Mapping[str, Any]:
        """Give nothing into the start."""
        return {}

    def check_resume(self, run: str, history: History) -> None:
        """Let every run be resumed."""

    def known_functions(self) -> Sequence[RunFunction]:
        """Know no functions outside of runs."""
        return ()

    def drift(self, history: History, run_attachments: RunAttachments) -> Sequence[msgspec.Struct]:
        """Find no drift."""
        return ()

    def cite_recorded(
        self, ended: RunEnded, started: RunStarted, run_attachments: RunAttachments
    ) -> Cited | None:
        """Cite nothing."""
        return None


class Tools(CapabilityBase):
    """The caller's own functions, as a capability."""

    name = "tools"

    def __init__(self, functions: Sequence[RunFunction]) -> None:
        self._functions = tuple(functions)

    def known_functions(self) -> Sequence[RunFunction]:
        """Return the functions: they are the same in every run."""
        return self._functions

    def open(
        self, started: RunStarted, history: History, services: RunServices
    ) -> RunCapability | None:
        """Give the functions, as whatever stands around the run wraps them."""
        return _ToolsOfRun([services.wrap(each) for each in self._functions])


class _ToolsOfRun(RunCapability):
    def __init__(self, functions: Sequence[RunFunction]) -> None:
        self._functions = functions

    def functions(self) -> Sequence[RunFunction]:
        return self._functions


class Opened:
    """The capabilities of one run, in their order, as one."""

    def __init__(self, each: Sequence[RunCapability]) -> None:
        self._each = each
        self._functions: list[RunFunction] | None = None

    def functions(self) -> Sequence[RunFunction]:
        """Return the functions of all, in order."""
        if self._functions is None:
            self._functions = [made for each in self._each for made in each.functions()]
        return self._functions

    def data(self) -> RunData:
        """Return the variables of all."""
        each = [opened.data() for opened in self._each]
        return RunData(
            values={name: value for data in each for name, value in data.values.items()},
            texts={name: text for data in each for name, text in data.texts.items()},
        )

    def finish(self, started: RunStarted) -> RunStarted:
        """Complete the start of a new run, by one after the other."""
        for each in self._each:
            started = each.finish(started)
        return started

    async def cite(self, ended: RunEnded | None, started: RunStarted) -> Cited:
        """Return the citations of the one that has some."""
        for each in self._each:
            found = await each.cite(ended, started)
            if found is not None:
                return found
        return Cited()

    def evidence(self, state: RunState) -> EvidenceRef | None:
        """Return the evidence of the one that has some."""
        found = (each.evidence(state) for each in self._each)
        return next((each for each in found if each is not None), None)

    async def check(self, source: str, state: RunState, asked: CheckProgram) -> ProgramChecked:
        """Return the verdict of the one that checks."""
        for each in self._each:
            found = await each.check(source, state, asked)
            if found is not None:
                return found
        raise AssertionError("a run whose programs are checked has a capability that does it")

    def around(
        self, scope: CallScope, state: RunState
    ) -> AbstractAsyncContextManager[Mapping[str, str]]:
        """Stand around a program as all of them do."""
        return _AllAround([each.around(scope, state) for each in self._each])

    def refuse(self, call: Call) -> TallystickError | None:
        """Return the first refusal."""
        found = (each.refuse(call) for each in self._each)
        return next((each for each in found if each is not None), None)

    def fields_of(self, notes: Sequence[msgspec.Struct]) -> Mapping[str, Any]:
        """Return the fields of all."""
        return merged("notes", [each.fields_of(notes) for each in self._each] if notes else [])

    def recalled(self, scope: CallScope, answer: HostAnswered) -> None:
        """Tell all of them."""
        for each in self._each:
            each.recalled(scope, answer)


def merged(shared: str, fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of several capabilities; what they say under `shared` stands by name."""
    found: dict[str, Any] = {}
    for each in fields:
        together = {**found.get(shared, {}), **each.get(shared, {})}
        found = {**found, **each, **({shared: together} if together else {})}
    return found


class _AllAround:
    """Several context managers as one, which gives what all of them give."""

    def __init__(self, inside: Sequence[AbstractAsyncContextManager[Mapping[str, str]]]) -> None:
        self._inside = [each for each in inside if not isinstance(each, nullcontext)]
        self._stack: Any = None

    async def __aenter__(self) -> Mapping[str, str]:
        if not self._inside:
            return {}
        from contextlib import AsyncExitStack

        self._stack = AsyncExitStack()
        await self._stack.__aenter__()
        given: dict[str, str] = {}
        for each in self._inside:
            given.update(await self._stack.enter_async_context(each))
        return given

    async def __aexit__(self, *exc: Any) -> bool | None:  # noqa: ANN401 (as the protocol has it)
        if self._stack is None:
            return None
        ended: bool | None = await self._stack.__aexit__(*exc)
        return ended
