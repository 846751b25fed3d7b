"""Test agents: the object behind the fixture `tally`, usable without pytest too.

    with AgentTest(Path("recordings/test_overdue.tally")) as tally:
        run = tally.run("which are overdue?", files=["books.csv"], tools=[rate])
        assert run.value == "INV-101"
        tally.assert_replays(run)

Runs are kept in memory, with a fixed clock and without the configuration of the machine.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

import msgspec

from tallystick.core.budget.amount import Budget
from tallystick.core.errors import UsageError
from tallystick.core.records import CallHost, HostAnswered, Record, RunStarted
from tallystick.core.views.difference import difference_of
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.port import Model
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.result import Run
from tallystick.stores import Stores, is_in_file, open_stores
from tallystick.testing.ledgers import append_records
from tallystick.testing.models import block
from tallystick.testing.recordings import (
    ListeningModel,
    PromptDrift,
    Recording,
    ReplayedModel,
    read_recording,
    write_recording,
)

if TYPE_CHECKING:
    from tallystick.agent.agent import Agent
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

Mode = Literal["replay", "once", "record", "live"]
MODES: tuple[Mode, ...] = get_args(Mode)
# Options of `run` that make the agent; the rest are of its run.
_OF_THE_AGENT = ("tools", "instructions", "skills", "memory", "models", "vocabulary", "pricing")
_decode_request = msgspec.json.Decoder(tuple[str, list[Any], dict[str, Any]]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool by a program: its arguments by name, and whether it succeeded."""

    name: str
    arguments: Mapping[str, Any]
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The differences of a run from its recording: in its prompts, and in what it did by turns."""

    run: str
    prompts: tuple[PromptDrift, ...]
    turns: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.prompts or self.turns)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.prompts), *self.turns])


@dataclass(kw_only=True)
class _Made:
    """A run of a test, with its model and its tools, so that it can be replayed and resumed."""

    agent: Agent
    run: Run[Any]
    options: dict[str, Any]


@dataclass(kw_only=True)
class AgentTest:
    """Runs agents for one test, and compares them with recordings.

    `recording` is the file of the first run; those of further runs have a number before the suffix.
    `mode` is "replay" to ask no model, "record" to ask one and write, "once" to record what is
    missing, and "live" to ask one and write nothing. `model` is asked then. `remedy` is the command
    that records the test again. `strict` makes a difference from the recording a failure.
    `warn` is called with each difference otherwise. `budget` is of the runs of this test together,
    and `max_usd` of all runs on the ledger of `stores`, also those of other processes.
    """

    recording: Path
    mode: Mode = "replay"
    model: str | None = None
    remedy: str = "AgentTest(mode='record')"
    strict: bool = False
    warn: Callable[[str], None] = lambda said: None
    sandbox: WasmSandbox | None = None
    stores: Stores = field(default_factory=lambda: open_stores("memory:"))
    budget: Mapping[str, object] | None = None
    max_usd: str | None = None
    made: list[_Made] = field(default_factory=list)
    _asking: Agent | None = None
    drift: list[Drift] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the agents of this test, and its stores. Closing twice is harmless."""
        for each in self.made:
            each.agent.close()
        if self._asking is not None:
            self._asking.close()
        self.stores.close()

    # -- runs ----------------------------------------------------------------------------------

    def run(self, goal: str, *, model: object = None, **options: Any) -> Run[Any]:  # noqa: ANN401
        """Run a goal, and return the result. The options are those of `Agent` and `Agent.run`.

        With a `model` that is no name, such as `script(...)`, that model is asked and nothing is
        recorded. Otherwise the replies come from the recording, or are recorded, by the mode.
        Raise `RecordingUnusable` if the recording is missing or cannot be used.
        """
        if model is not None and not isinstance(model, str):
            return self._run(goal, model, options)
        path = self._next_recording()
        if self.mode == "replay" or (self.mode == "once" and path.is_file()):
            return self._replayed(goal, read_recording(path, remedy=self.remedy), options)
        return self._recorded(goal, path, model, options)

    def _next_recording(self) -> Path:
        """Return the file of the next run of this test that has one."""
        number = 1 + sum("recording" in each.options for each in self.made)
        stem = self.recording.stem
        return self.recording if number == 1 else self.recording.with_stem(f"{stem}-{number}")

    def _replayed(self, goal: str, recording: Recording, options: dict[str, Any]) -> Run[Any]:
        model = ReplayedModel(recording)
        run = self._run(goal, model, options, recording=recording.path)
        records = self.records(run)
        found = Drift(
            run=run.run,
            prompts=tuple(model.drift),
            turns=tuple(_turn_lines(recording.records, records)),
        )
        if found:
            self.drift.append(found)
            said = f"{recording.path.name}: the run differs from its recording\n{found}"
            if self.strict:
                raise AssertionError(f"{said}\nrecord it again: {self.remedy}")
            self.warn(said)
        return run

    def _recorded(
        self, goal: str, path: Path, model: str | None, options: dict[str, Any]
    ) -> Run[Any]:
        listening = ListeningModel(self.real_model(model or self.model))
        run = self._run(goal, listening, options, recording=path)
        if self.mode != "live":
            write_recording(
                path,
                stores=self.stores,
                run=run.run,
                prompts=listening.prompts,
                remedy=self.remedy,
            )
            written = read_recording(path, remedy=self.remedy)
            self.made[-1].options["model"] = ReplayedModel(written)
        return run

    def real_model(self, name: str | None) -> Model:
        """Open the model to record from: by its name, or that of the configuration of the machine.

        Raise `UsageError` if there is none, or if it cannot be opened.
        """
        from tallystick.agent.agent import Agent

        # Its configuration is the machine's: it names the model, its address and its key.
        self._asking = Agent(name)
        return self._asking.model_of(None)

    def _run(
        self,
        goal: str,
        model: object,
        options: dict[str, Any],
        *,
        recording: Path | None = None,
    ) -> Run[Any]:
        given = dict(options)
        of_agent = {name: given.pop(name) for name in _OF_THE_AGENT if name in given}
        agent = self.agent(model, **of_agent)
        if isinstance(model, ProbeModel):
            model.look_at(agent, given.get("answer"))
        kept = {"model": _anew(model), "agent": of_agent}
        if recording is not None:
            kept["recording"] = recording
        run = agent.run(goal, **given)
        self.made.append(_Made(agent=agent, run=run, options=kept))
        return run

    def agent(self, model: object, **options: Any) -> Agent:  # noqa: ANN401
        """Return an agent as `run` uses it: in memory, with a fixed clock and no configuration."""
        from tallystick.agent.agent import Agent

        fixed: dict[str, Any] = {
            "clock": "fixed",
            "config": None,
            "sandbox": self.sandbox,
            "budget": self.budget,
            "ledger": self.stores.ledger,
        }
        if self.max_usd is not None:
            fixed["total"] = Budget.of(usd=self.max_usd)
        if not is_in_file(self.stores.ledger):
            fixed["attachments"] = self.stores.attachments
        return Agent(cast("Model", model), **{**fixed, **options})

    # -- models --------------------------------------------------------------------------------

    def script(self, *programs: str) -> Model:
        """Return a model that writes these programs, one in each turn. A reply may be a text too.

        A text with a fence is a whole reply.
        """
        from tallystick.model.scripted import ScriptedModel

        return ScriptedModel.of(*(each if "```" in each else block(each) for each in programs))

    def reply(self, function: Callable[[int, Any], str]) -> Model:
        """Return a model that answers by a function of the number of the call and its messages."""
        from tallystick.model.scripted import ScriptedModel

        return ScriptedModel(function)

    def probe(self) -> ProbeModel:
        """Return a model that calls each tool once, and answers with a value of the right type.

        The arguments are made from the types of the tools. So every tool is tried from a program,
        across the sandbox, without a word of a script.
        """
        return ProbeModel()

    def faults(self, model: object, *kinds: str) -> Model:
        """Return a model whose first calls fail in these ways, one after the other.

        The kinds are "timeout", "429", "500", "401" and "cut". Then the given model is asked.
        """
        from tallystick.testing.faults import FailingModel

        return FailingModel(model, kinds)

    # -- after a run ---------------------------------------------------------------------------

    def records(self, run: Run[Any] | str) -> list[Record]:
        """Return the records of a run."""
        return list(records_of(self.stores.ledger, run if isinstance(run, str) else run.run))

    def calls(self, run: Run[Any] | str, name: str | None = None) -> list[ToolCall]:
        """Return the calls of tools in a run, or those of one tool, in their order.

        Positional arguments have the names that the tool's signature gives them. Calls whose
        request is not in the record, since it is long or older, have no arguments.
        """
        found: list[ToolCall] = []
        asked: dict[int, CallHost] = {}
        made = self._made(run)
        for each in self.records(run):
            if isinstance(each, CallHost):
                asked[each.intent] = each
            elif isinstance(each, HostAnswered) and name in (None, each.name):
                begun = asked.get(each.intent)
                request = each.request if begun is None else begun.request
                signature = _signature_of(made, each.name)
                arguments = _arguments(request, signature) if isinstance(request, str) else {}
                found.append(ToolCall(name=each.name, arguments=arguments, ok=each.ok))
        return found

    def assert_calls(
        self,
        run: Run[Any] | str,
        name: str,
        *,
        times: int | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Assert that a tool was called: so many times, or at least once with these arguments."""
        calls = self.calls(run, name)
        if args is not None:
            wanted = [
                each
                for each in calls
                if all(each.arguments.get(key, _MISSING) == value for key, value in args.items())
            ]
            shown = ", ".join(_shown_call(each) for each in calls) or "none"
            assert wanted, f"no call of {name} has {dict(args)}; calls: {shown}"
            calls = wanted
        if times is not None:
            assert len(calls) == times, f"{name} was called {len(calls)} times, not {times}"
        elif args is None:
            assert calls, f"{name} was not called"

    def assert_replays(self, run: Run[Any] | str) -> None:
        """Assert that a run does the same when it is repeated: its programs run again."""
        report = self._made(run).agent.replay(run)
        assert report.held, f"the replay differs: {report.divergence}"

    def crash_at(self, entries: int, run: Run[Any]) -> Run[Any]:
        """Resume a run as if its process had died after so many entries, and return the result.

        It is resumed with the same tools, from a ledger that ends there. An effect that had begun
        raises `RunInDoubt`, as it would for a user.
        """
        made = self._made(run)
        records = self.records(run)
        if not 1 <= entries <= len(records):
            raise UsageError(f"crash_at: the run has {len(records)} entries, not {entries}")
        ledger = MemoryLedger()
        append_records(ledger, run.run, records[:entries])
        options = {
            **made.options["agent"],
            "ledger": ledger,
            "attachments": self.stores.attachments,
        }
        agent = self.agent(_anew(made.options["model"]), **options)
        try:
            return agent.resume(run)
        finally:
            agent.close()

    def transcript(self, run: Run[Any] | str) -> str:
        """Return the records of a run as stable lines, to keep in a file and compare with."""
        from tallystick.cli.show import transcript_lines

        lines = [line for record in self.records(run) for line in transcript_lines(record)]
        return re.sub(r"\b\d+ ms passed", "N ms passed", "\n".join(lines) + "\n")

    def outline(self, run: Run[Any] | str) -> str:
        """Return a run turn by turn, as `tally inspect` shows it."""
        from tallystick.cli.commands.inspect import turn_lines

        return "\n".join(turn_lines([(None, each) for each in self.records(run)], full=False))

    def export(self, run: Run[Any] | str, path: Path) -> None:
        """Write a run to a new file, which `tally import` reads.

        Raise `TransferRefused` if it cannot be written.
        """
        from tallystick.upkeep.transfer import export_run_with_attachments

        named = run if isinstance(run, str) else run.run
        export_run_with_attachments(self.stores.ledger, self.stores.attachments, named, path)

    def _made(self, run: Run[Any] | str) -> _Made:
        named = run if isinstance(run, str) else run.run
        found = next((each for each in self.made if each.run.run == named), None)
        if found is None:
            raise UsageError(f"run {named} is not one of this test")
        return found


_MISSING = object()


def _anew(model: object) -> object:
    """Return a model that begins from its first reply again; the model itself if it has no place.

    A script counts its replies, and a resumed run passes over those that it has.
    """
    if isinstance(model, ReplayedModel):
        return model.anew()
    if isinstance(model, ListeningModel):
        return model
    try:
        return copy.deepcopy(model)
    except (TypeError, ValueError):
        return model


# -- what a probe writes ------------------------------------------------------------------------


class ProbeModel:
    """A model that calls each tool once, and then answers with a value that fits."""

    name = "probe"

    def __init__(self) -> None:
        self._program = "FINAL('')"

    def look_at(self, agent: Agent, answer: object) -> None:
        """Write the program for the tools of an agent, and for the type of its answer."""
        from tallystick.agent.options import asked_answer

        schema = asked_answer(answer).schema
        value = "probed" if schema is None else example_of(schema)
        lines = [
            f"try: print({each.name!r}, {each.name}(**{_arguments_for(each)!r}))\n"
            f"except Exception as error: print({each.name!r}, type(error).__name__, error)"
            for each in agent.engine.tools
        ]
        self._program = "\n".join([*lines, f"FINAL({value!r})"])

    def admitted(self) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    async def ask(self, request: Any, *, heard: Any = None) -> Any:  # noqa: ANN401 (as the port)
        """Reply with the program."""
        from tallystick.model.port import ModelReply, estimated_usage

        text = block(self._program)
        return ModelReply(text=text, usage=estimated_usage(request.messages, text))

    async def close(self) -> None:
        """Do nothing: no resource is open."""


def _arguments_for(tool: Any) -> dict[str, Any]:  # noqa: ANN401 (a tool of any kind)
    """Return arguments for a tool, made from the types of those that it needs."""
    from tallystick.typed.value_type import value_type

    function = inspect.unwrap(tool.function)
    hints = inspect.get_annotations(function, eval_str=True)
    return {
        each.name: example_of(value_type(hints[each.name], where=each.name).schema)
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.name in hints
    }


def example_of(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401 (any JSON value)
    """Return a value that fits a JSON Schema of the kind that answers have."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return example_of(schema[key][0])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    match kind:
        case "object":
            fields = schema.get("properties", {})
            needed = schema.get("required", ())
            return {name: example_of(fields.get(name, {})) for name in needed}
        case "array":
            first = [example_of(each) for each in schema.get("prefixItems", ())]
            missing = schema.get("minItems", 0) - len(first)
            return first + [example_of(schema.get("items", {}))] * max(0, missing)
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return _text(schema)


def _number(schema: Mapping[str, Any]) -> Any:  # noqa: ANN401 (an int or a float)
    least = schema.get("minimum", 0)
    if "exclusiveMinimum" in schema:
        least = max(least, schema["exclusiveMinimum"] + 1)
    most = schema.get("maximum", max(least, 1))
    step = schema.get("multipleOf")
    value = min(max(1, least), most)
    return value if step is None else -(-value // step) * step


_TEXTS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "email": "ann@example.org",
    "uri": "https://example.org",
}


def _text(schema: Mapping[str, Any]) -> str:
    text = _TEXTS.get(schema.get("format", ""), "text")
    return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", len(text) + 999)]


# -- what differs -------------------------------------------------------------------------------


def _turn_lines(then: Sequence[Record], now: Sequence[Record]) -> Iterator[str]:
    """Write how a run differs from its recording: limits, inputs, and each turn that differs."""
    found = difference_of(then, now)
    yield from _limit_lines(then, now)
    for each in found.given:
        how = "new" if each.a is None else "gone" if each.b is None else "changed"
        yield f"input {each.name}: {how}"
    for turn in found.turns:
        # A prompt that differs is shown by its parts.
        parts = [each for each in turn.differs if each != "request"]
        if turn.verdict in ("only_a", "only_b"):
            where = "in the recording" if turn.verdict == "only_a" else "in this run"
            yield f"turn {turn.turn}: only {where}"
        elif parts:
            yield f"turn {turn.turn}: {', '.join(parts)}"
            yield from _detail_lines(turn)
    if found.end.verdict not in ("same", "none"):
        yield "end: another answer or stop"
        yield from (f"  {line}" for line in found.end.diff)


def _detail_lines(turn: Any) -> Iterator[str]:  # noqa: ANN401 (a turn of a comparison)
    for program in turn.programs:
        yield from (f"  {line}" for line in program.diff)
        for text in program.texts:
            yield from (f"  {text.name}: {line}" for line in text.diff)
    for calls in (turn.host_calls, turn.queries):
        if calls.first is not None:
            name = calls.names.b or calls.names.a
            yield f"  call {calls.first} of {name}: another {calls.what}"
            yield from (f"    {line}" for line in calls.diff)
    yield from (f"  {line}" for line in turn.diff)


def _limit_lines(then: Sequence[Record], now: Sequence[Record]) -> Iterator[str]:
    one, other = then[0], now[0]
    if isinstance(one, RunStarted) and isinstance(other, RunStarted):
        for name in one.limits.__struct_fields__:
            a, b = getattr(one.limits, name), getattr(other.limits, name)
            if a != b:
                yield f"limit {name}: {a} in the recording, {b} now"


# -- calls --------------------------------------------------------------------------------------


def _signature_of(made: _Made, name: str) -> inspect.Signature | None:
    tool = next((each for each in made.agent.engine.tools if each.name == name), None)
    if tool is None:
        return None
    try:
        return inspect.signature(inspect.unwrap(tool.function))
    except (TypeError, ValueError):
        return None


def _arguments(request: str, signature: inspect.Signature | None) -> dict[str, Any]:
    try:
        _, positional, named = _decode_request(request)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    names = list(signature.parameters) if signature is not None else []
    placed = {
        names[number] if number < len(names) else str(number): value
        for number, value in enumerate(positional)
    }
    return {**placed, **named}


def _shown_call(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"
