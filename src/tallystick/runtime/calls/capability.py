"""Define the port of capabilities: whatever a run gives its programs beside the models.

A capability lives in a package of its own, above the runtime. The client registers all of them in
one list. The runtime knows this port and no capability by name. A capability may have its own
fields in the records `RunStarted` and `HostAnswered`. One that has none records its data in their
fields `given` and `notes`, under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from tallystick.core.citation.cited import Cited
from tallystick.core.errors import TallystickError
from tallystick.core.history import History
from tallystick.core.machine.state import RunState
from tallystick.core.records import (
    AIDS,
    CheckProgram,
    EvidenceRef,
    HostAnswered,
    ProgramChecked,
    RunEnded,
    RunStarted,
)
from tallystick.core.strategy import AskedStrategy
from tallystick.model.port import Model
from tallystick.runtime.calls.children import Children
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.calls.queries import FindModel, Queries
from tallystick.runtime.calls.scope import Call, CallScope
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.context.inputs import Input
from tallystick.runtime.spend.door import ModelDoor
from tallystick.sandbox.text import HostText

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox


class ProgramGiven(NamedTuple):
    """The variables for the environment of a program, and its token of a bridge, if it has one."""

    env_vars: Mapping[str, str] = {}
    session_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """The parts of the request for a new run that a capability needs.

    `find_model` finds the models that its programs may ask; None if they are not to be checked.
    """

    goal: str
    inputs: Sequence[Input]
    put_skills: Sequence[str]
    session_id: str
    strategy: AskedStrategy | None = None
    find_model: FindModel | None = None
    aids: tuple[str, ...] = AIDS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """The variables of a run's programs: `values` are in the guest, `texts` stay on the host."""

    values: Mapping[str, object] = field(default_factory=dict)
    texts: Mapping[str, HostText | Mapping[str, HostText]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """The parts of a run that a capability may use.

    A replay asks no model: it has no `door` and no `model`, and uses neither `find_model`, which
    finds the models that programs may ask, nor `children`, which starts child runs. `others`
    returns the functions of the run's other capabilities. `wrap` returns a caller's function as the
    surroundings of the run have it called. `sockets` is the folder in which native programs find
    sockets of this process, None if they cannot reach any.
    """

    run: str
    run_attachments: RunAttachments
    queries: Queries
    door: ModelDoor | None
    others: Callable[[RunCapability], Sequence[RunFunction]]
    wrap: Callable[[RunFunction], RunFunction]
    sandbox: Callable[[], WasmSandbox]
    find_model: FindModel
    children: Children
    model: Model | None = None
    sockets: Path | None = None


class RunCapability:
    """One capability of one run. The methods of this base do nothing and return empty results.

    One object serves one execution of a run: the first, a resume, a fork or a replay. `data` is
    called once, before the first record, and `functions` maybe more than once. The others are
    called at the points that they name, in a replay too unless they say otherwise.
    """

    def functions(self) -> Sequence[RunFunction]:
        """Return the functions that programs may call."""
        return ()

    def data(self) -> RunData:
        """Return the variables of the programs."""
        return RunData()

    def finish(self, started: RunStarted) -> RunStarted:
        """Return the start of a new run as it is recorded.

        Called once, for a new run only, when its functions are known and before it is written.
        """
        return started

    async def cite(self, ended: RunEnded | None, started: RunStarted) -> Cited | None:
        """Return where the answer is in the data of the run, None if they belong to another.

        Called once, after a live run has ended, not in a replay. `ended` is None for a run without
        an end.
        """
        return None

    def evidence(self, state: RunState) -> EvidenceRef | None:
        """Return the record of what the prompt of the next turn shows of this; None for nothing.

        Called before each attempt at the model call of a turn.
        """
        return None

    async def check(
        self, source: str, state: RunState, asked: CheckProgram
    ) -> ProgramChecked | None:
        """Check a program before it runs. None: this capability checks none.

        Called once for each program of a run with a vocabulary. On replay, the same program must
        get the same verdict.
        """
        return None

    def around(
        self, scope: CallScope, state: RunState
    ) -> AbstractAsyncContextManager[ProgramGiven]:
        """Return a context that is entered while a program runs.

        It yields what the program is given: variables for its environment, and the token of a
        bridge. A program that is served from the record is not run, and is given nothing.
        """
        return nullcontext(ProgramGiven())

    def refuse(self, call: Call) -> TallystickError | None:
        """Return the error for a call that a program may not make now, None if it may.

        Called for each new call, in the thread of the program. A call whose answer is on record was
        allowed then, and is not asked about again.
        """
        return None

    def fields_of(self, notes: Sequence[msgspec.Struct]) -> Mapping[str, Any]:
        """Return fields for the record of an answer, from the notes made while it was served.

        Called for each new answer with notes, in any thread. The notes may be those of another
        capability. One without a field of its own returns `notes`, a mapping with its name as the
        key.
        """
        return {}

    def note_served_answer(self, scope: CallScope, answer: HostAnswered) -> None:
        """Note that an answer to this program was served from the record.

        Called once for each such answer, in any thread.
        """


class Capability(Protocol):
    """A capability that a client gives to its runs.

    One object serves one call of the client: a run, with all child runs inside it. Children start
    side by side, so what belongs to one run is in its `RunCapability`.
    """

    @property
    def name(self) -> str:
        """The key of its data in the fields `given` and `notes` of records."""
        ...

    @property
    def for_children(self) -> bool:
        """True if the child runs of a run have it too."""
        ...

    def start_fields(self, asked: AskedRun, run_attachments: RunAttachments) -> Mapping[str, Any]:
        """Return fields for the start of a new run. Raise `UsageError` if the request is wrong.

        Called once for each new run, before anything of it is written, and for an estimate, with
        attachments in memory. A capability without a field of its own returns `given`, a mapping
        with its name as the key.
        """
        ...

    def check_resume(self, run: str, history: History) -> None:
        """Raise `ResumeRefused` if the run cannot be resumed or forked with this capability."""
        ...

    def known_functions(self) -> Sequence[RunFunction]:
        """Return the functions that are known without a run, to decide about calls in doubt."""
        ...

    def drift(self, history: History, run_attachments: RunAttachments) -> Sequence[msgspec.Struct]:
        """Return the differences between this capability now and what a recorded run saw.

        Called once for each replay, before it begins.
        """
        ...

    def open(
        self, started: RunStarted, history: History, services: RunServices
    ) -> RunCapability | None:
        """Return the capability of one run, new or recorded; None if the run has none of it.

        Called once for each execution, also for a replay. The start of a new run does not name the
        functions of the run yet. Errors refuse the run: nothing is written yet.
        """
        ...

    def cite_recorded(
        self, ended: RunEnded, started: RunStarted, run_attachments: RunAttachments
    ) -> Cited | None:
        """Return where the answer of a recorded run is in its data, None if this has no data.

        Called if a resume finds that the run has ended, instead of `RunCapability.cite`.
        """
        ...


class CapabilityBase:
    """A base for capabilities. Its methods do nothing and return empty results."""

    for_children = True

    def start_fields(self, asked: AskedRun, run_attachments: RunAttachments) -> Mapping[str, Any]:
        """Return no fields. An override stores what they refer to in `run_attachments`."""
        return {}

    def check_resume(self, run: str, history: History) -> None:
        """Accept every run. An override raises `ResumeRefused`, from the run's `history`."""

    def known_functions(self) -> Sequence[RunFunction]:
        """Return no functions."""
        return ()

    def drift(self, history: History, run_attachments: RunAttachments) -> Sequence[msgspec.Struct]:
        """Return no differences."""
        return ()

    def cite_recorded(
        self, ended: RunEnded, started: RunStarted, run_attachments: RunAttachments
    ) -> Cited | None:
        """Return None: this capability has no data."""
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
        """Return the functions, each wrapped by the surroundings of the run. Never None."""
        return _ToolsOfRun([services.wrap(each) for each in self._functions])


class _ToolsOfRun(RunCapability):
    def __init__(self, functions: Sequence[RunFunction]) -> None:
        self._functions = functions

    def functions(self) -> Sequence[RunFunction]:
        return self._functions


class RunCapabilities:
    """The capabilities of one run, combined into one. They keep their order."""

    def __init__(self, each: Sequence[RunCapability]) -> None:
        self._each = each
        self._functions: list[RunFunction] | None = None

    def functions(self) -> Sequence[RunFunction]:
        """Return the functions of all capabilities, in order. Each capability is asked once."""
        if self._functions is None:
            self._functions = [made for each in self._each for made in each.functions()]
        return self._functions

    def data(self) -> RunData:
        """Return the variables of all. The later capability wins for a name that two have."""
        each = [opened.data() for opened in self._each]
        return RunData(
            values={name: value for data in each for name, value in data.values.items()},
            texts={name: text for data in each for name, text in data.texts.items()},
        )

    def finish(self, started: RunStarted) -> RunStarted:
        """Return the start of a new run after each capability has completed it in turn."""
        for each in self._each:
            started = each.finish(started)
        return started

    async def cite(self, ended: RunEnded | None, started: RunStarted) -> Cited:
        """Return the citations of the first capability that has data; empty if none has."""
        for each in self._each:
            found = await each.cite(ended, started)
            if found is not None:
                return found
        return Cited()

    def evidence(self, state: RunState) -> EvidenceRef | None:
        """Return the first evidence that is not None; None if there is none."""
        found = (each.evidence(state) for each in self._each)
        return next((each for each in found if each is not None), None)

    async def check(self, source: str, state: RunState, asked: CheckProgram) -> ProgramChecked:
        """Return the first verdict that is not None. Raise `AssertionError` if there is none."""
        for each in self._each:
            found = await each.check(source, state, asked)
            if found is not None:
                return found
        raise AssertionError("a run whose programs are checked has a capability that does it")

    def around(
        self, scope: CallScope, state: RunState
    ) -> AbstractAsyncContextManager[ProgramGiven]:
        """Return a context that enters those of all, and yields what all of them give."""
        return _AllAround([each.around(scope, state) for each in self._each])

    def refuse(self, call: Call) -> TallystickError | None:
        """Return the first refusal; None if all allow the call."""
        found = (each.refuse(call) for each in self._each)
        return next((each for each in found if each is not None), None)

    def fields_of(self, notes: Sequence[msgspec.Struct]) -> Mapping[str, Any]:
        """Return the fields of all, merged; without notes, none."""
        return merge_fields(
            "notes", [each.fields_of(notes) for each in self._each] if notes else []
        )

    def note_served_answer(self, scope: CallScope, answer: HostAnswered) -> None:
        """Note the answer in all of them."""
        for each in self._each:
            each.note_served_answer(scope, answer)


def merge_fields(shared: str, fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of several capabilities as one dictionary.

    The mappings under the key `shared` are merged by name. For any other key, the last value wins.
    """
    found: dict[str, Any] = {}
    for each in fields:
        together = {**found.get(shared, {}), **each.get(shared, {})}
        found = {**found, **each, **({shared: together} if together else {})}
    return found


class _AllAround:
    """Several context managers as one, which yields what all of them give."""

    def __init__(self, inside: Sequence[AbstractAsyncContextManager[ProgramGiven]]) -> None:
        self._inside = [each for each in inside if not isinstance(each, nullcontext)]
        self._stack: Any = None

    async def __aenter__(self) -> ProgramGiven:
        if not self._inside:
            return ProgramGiven()
        from contextlib import AsyncExitStack

        self._stack = AsyncExitStack()
        await self._stack.__aenter__()
        given = ProgramGiven()
        for each in self._inside:
            more = await self._stack.enter_async_context(each)
            token = more.session_token or given.session_token
            given = ProgramGiven({**given.env_vars, **more.env_vars}, token)
        return given

    async def __aexit__(self, *exc: Any) -> bool | None:  # noqa: ANN401 (as the protocol has it)
        if self._stack is None:
            return None
        ended: bool | None = await self._stack.__aexit__(*exc)
        return ended
