"""Recordings: runs in files beside tests, whose replies take the place of a model.

A recording is a run that was exported with its child runs, and the prompts that were sent. On
replay the run happens anew: its programs and tools really run, and only the replies come from the
file. A prompt that is as it was gets its own reply. For one that differs, the reply of the same
place is used, and the difference is kept as a `PromptDrift`.

    NAME.tally             the run
    NAME.child-1.tally     runs that its programs began, in the order of their beginnings
    NAME.prompts.json      the text of each prompt, to show what of it differs later
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tallystick.core.errors import TallystickError, UsageError
from tallystick.core.history import History
from tallystick.core.machine.prompt import Message, request_digest
from tallystick.core.records import (
    AskModel,
    AttachmentRef,
    ModelFailed,
    ModelReplied,
    QueryAsked,
    QueryFailed,
    QueryReplied,
    Record,
    RunStarted,
)
from tallystick.model.endpoint import without_known_keys
from tallystick.model.port import Heard, Model, ModelError, ModelReply, ModelRequest
from tallystick.model.recorded import failure_of
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.tree import Node, tree_of
from tallystick.storage.private_file import write_whole
from tallystick.stores import Stores, open_stores
from tallystick.upkeep.transfer import export_run_with_attachments, import_run_with_attachments

PROMPTS_VERSION = 1
_DIFF_LINES_MAX = 40
# Forms of keys that providers hand out. Others are found if the process has them in use.
_KEY_FORMS = re.compile(
    rb"\b(?:sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{30,}|"
    rb"xox[abprs]-[A-Za-z0-9-]{20,}|AIza[0-9A-Za-z_-]{35}|"
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----)"
)


class RecordingUnusable(UsageError):
    """A recording is missing, damaged, of another version, or must not be written.

    The message ends with what mends it.
    """


# -- prompts ------------------------------------------------------------------------------------


class _SentMessage(msgspec.Struct, frozen=True):
    role: str
    part: str
    text: str


class _SentPrompt(msgspec.Struct, frozen=True):
    """A prompt as it was sent, with the digest of its request. Texts are named by their digests."""

    request_sha256: str
    messages: tuple[_SentMessage, ...]


class _Prompts(msgspec.Struct, frozen=True):
    """The prompts of a recording. `texts` has each text once."""

    version: int
    texts: dict[str, str]
    prompts: tuple[_SentPrompt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDrift:
    """A prompt that differs from the recorded one whose reply it got.

    `lines` says of each part of the prompt whether it is the same, and how it differs.
    """

    number: int
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"prompt {self.number} differs from the recording:", *self.lines])


def _drift_lines(then: Sequence[_SentMessage], now: Sequence[Message]) -> tuple[str, ...]:
    """Compare two prompts part by part."""
    before = {each.part: each.text for each in then}
    after = {each.part: each.text for each in now}
    found: list[str] = []
    for part in [*before, *(each for each in after if each not in before)]:
        a, b = before.get(part), after.get(part)
        if a is None or b is None:
            found.append(f"  {part}: {'new' if a is None else 'gone'}")
        elif a != b:
            diff = list(difflib.unified_diff(a.splitlines(), b.splitlines(), lineterm="", n=0))[2:]
            less = sum(each.startswith("-") for each in diff)
            more = sum(each.startswith("+") for each in diff)
            found.append(f"  {part}: -{less} +{more} lines")
            found += [f"    {each}" for each in diff[:_DIFF_LINES_MAX] if not each.startswith("@@")]
    if not found:
        found.append("  the texts are the same: the limits, the temperature or pictures differ")
    return tuple(found)


_Outcome = ModelReplied | ModelFailed | QueryReplied | QueryFailed


# -- models -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Exchange:
    """A recorded call of a model: its digest, its place, and its outcome."""

    request_sha256: str
    by_program: bool
    outcome: _Outcome
    text: str
    used: bool = False


class ReplayedModel:
    """Replies from a recording. `drift` has the prompts that differ from it.

    It has the name of the recorded model, so that equal prompts have equal digests.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._left = [dataclasses.replace(each) for each in recording.exchanges]
        self.drift: list[PromptDrift] = []
        self._asked = 0

    @property
    def name(self) -> str:
        return self._recording.model

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda chars: None) -> ModelReply:
        """Return the recorded reply.

        Raise the recorded failure, or `ModelError` if no reply is left.
        """
        self._asked += 1
        found = self._find(request)
        if found is None:
            raise ModelError(
                reason="unknown",
                message=f"the recording {self._recording.path.name} has no reply left for this "
                f"call; record it again: {self._recording.remedy}",
            )
        found.used = True
        outcome = found.outcome
        if isinstance(outcome, ModelFailed | QueryFailed):
            raise failure_of(outcome)
        return ModelReply(
            text=found.text,
            usage=outcome.usage,
            cut=outcome.cut,
            served_by=outcome.served_by,
            finish=outcome.finish,
        )

    def _find(self, request: ModelRequest) -> _Exchange | None:
        """Return the exchange of an equal prompt, or the next of the same kind and place."""
        asked = request_digest(
            self.name,
            request.messages,
            tokens_out_max=request.tokens_out_max,
            temperature=request.temperature,
        )
        free = [each for each in self._left if not each.used]
        same = next((each for each in free if each.request_sha256 == asked), None)
        if same is not None:
            return same
        by_program = request.messages[0].role != "system"
        kind = [each for each in free if each.by_program == by_program]
        found = next((each for each in kind if self._same_place(each, request)), None)
        if found is None:
            found = next(iter(kind), None)
        if found is not None:
            then = self._recording.prompts.get(found.request_sha256, ())
            lines = _drift_lines(then, request.messages)
            self.drift.append(PromptDrift(number=self._asked, lines=lines))
        return found

    def _same_place(self, exchange: _Exchange, request: ModelRequest) -> bool:
        """Return True if both prompts have the same task and number of replies before them."""
        then = self._recording.prompts.get(exchange.request_sha256, ())
        return _place_of(then) == _place_of(request.messages)

    def anew(self) -> ReplayedModel:
        """Return a model that begins the recording from its first reply."""
        return ReplayedModel(self._recording)

    async def close(self) -> None:
        """Do nothing: no resource is open."""


def _place_of(messages: Sequence[_SentMessage] | Sequence[Message]) -> tuple[str, int]:
    task = next((each.text for each in messages if each.part == "task"), "")
    return task, sum(each.role == "assistant" for each in messages)


class ListeningModel:
    """Asks another model, and keeps each prompt for the recording."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.prompts: list[_SentPrompt] = []

    @property
    def name(self) -> str:
        return self._model.name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the model has beside)
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._model, name)

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return self._model.admitted()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda chars: None) -> ModelReply:
        """Note the prompt, and ask. Raise what the model raises."""
        sha256 = request_digest(
            self.name,
            request.messages,
            tokens_out_max=request.tokens_out_max,
            temperature=request.temperature,
        )
        sent = tuple(_SentMessage(each.role, each.part, each.text) for each in request.messages)
        self.prompts.append(_SentPrompt(sha256, sent))
        return await self._model.ask(request, heard=heard)

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()


# -- files --------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Recording:
    """A recording that was read: the run, its records, and the replies of the model.

    `remedy` is the command that records it again. `stores` hold the run, in memory.
    """

    path: Path
    remedy: str
    stores: Stores
    run: str
    records: list[Record]
    model: str
    exchanges: list[_Exchange]
    prompts: dict[str, tuple[_SentMessage, ...]] = field(default_factory=dict)

    @property
    def started(self) -> RunStarted:
        """The start of the run."""
        return History(self.records).started


def prompts_path(path: Path) -> Path:
    """Return the file with the prompts of a recording."""
    return path.with_suffix(".prompts.json")


def child_paths(path: Path) -> list[Path]:
    """Return the files with the child runs of a recording that there are, in their order."""

    def number(each: Path) -> int:
        return int(each.stem.rpartition("-")[2])

    pattern = re.compile(re.escape(path.stem) + r"\.child-[1-9][0-9]*\.tally")
    found = [each for each in path.parent.glob("*.tally") if pattern.fullmatch(each.name)]
    return sorted(found, key=number)


def read_recording(path: Path, *, remedy: str) -> Recording:
    """Read a recording. Raise `RecordingUnusable` if it is missing, damaged or of another kind."""
    if not path.is_file():
        raise RecordingUnusable(f"there is no recording {path}; make it: {remedy}")
    stores = open_stores("memory:")
    try:
        transferred = import_run_with_attachments(stores.ledger, stores.attachments, path)
        inside = [
            import_run_with_attachments(stores.ledger, stores.attachments, each).run
            for each in child_paths(path)
        ]
        records = list(records_of(stores.ledger, transferred.run))
        prompts = _read_prompts(prompts_path(path))
        started = History(records).started
        exchanges = [
            each
            for run in (transferred.run, *inside)
            for each in _exchanges(stores, list(records_of(stores.ledger, run)))
        ]
    except (TallystickError, msgspec.MsgspecError, OSError) as error:
        why = str(error).removeprefix(f"{path}: ")
        raise RecordingUnusable(f"{path}: {why}; record it again: {remedy}") from error
    return Recording(
        path=path,
        remedy=remedy,
        stores=stores,
        run=transferred.run,
        records=records,
        model=started.model,
        exchanges=exchanges,
        prompts=prompts,
    )


def _read_prompts(path: Path) -> dict[str, tuple[_SentMessage, ...]]:
    """Return the prompts by the digests of their requests; none if there is no such file."""
    if not path.is_file():
        return {}
    read = msgspec.json.decode(path.read_bytes(), type=_Prompts)
    if read.version != PROMPTS_VERSION:
        raise RecordingUnusable(
            f"{path.name} has version {read.version}; this one reads {PROMPTS_VERSION}"
        )
    return {
        each.request_sha256: tuple(
            _SentMessage(one.role, one.part, read.texts.get(one.text, "")) for one in each.messages
        )
        for each in read.prompts
    }


def _exchanges(stores: Stores, records: Sequence[Record]) -> Iterator[_Exchange]:
    """Yield the calls of a run that have an outcome, in the order of their outcomes."""
    asked: dict[object, AskModel | QueryAsked] = {}
    for each in records:
        match each:
            case AskModel():
                asked["turn", each.intent] = each
            case QueryAsked():
                asked["query", each.intent, each.item, each.attempt] = each
            case ModelReplied() | ModelFailed():
                call = asked.get(("turn", each.intent))
                if call is not None:
                    said = each.text if isinstance(each, ModelReplied) else ""
                    yield _Exchange(call.request_sha256, False, each, said)
            case QueryReplied() | QueryFailed():
                call = asked.get(("query", each.intent, each.item, each.attempt))
                if call is not None:
                    yield _Exchange(call.request_sha256, True, each, _query_text(stores, each))
            case _:
                pass


def _query_text(stores: Stores, outcome: QueryReplied | QueryFailed) -> str:
    if isinstance(outcome, QueryFailed):
        return ""
    ref = outcome.text_ref
    return outcome.text if ref is None else _attachment_text(stores, ref)


def _attachment_text(stores: Stores, ref: AttachmentRef) -> str:
    with stores.attachments.chunks(ref.id) as pieces:
        return b"".join(pieces).decode("utf-8")


def write_recording(
    path: Path, *, stores: Stores, run: str, prompts: Sequence[_SentPrompt], remedy: str
) -> None:
    """Write a run, its child runs and its prompts, in the place of an earlier recording.

    Raise `RecordingUnusable`, and write nothing, if a key would be in one of the files.
    """
    files = {path: _exported(stores, run)}
    for number, child in enumerate(_runs_below(tree_of(stores.ledger, run)), start=1):
        files[path.with_suffix(f".child-{number}.tally")] = _exported(stores, child)
    files[prompts_path(path)] = _encoded_prompts(prompts)
    for name, data in files.items():
        if holds_key(data):
            raise RecordingUnusable(
                f"{name} is not written: a key would be in it. Take the key out of what the run "
                f"is given and what its tools return, then record it again: {remedy}"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in (*child_paths(path), path):
        if old not in files:
            old.unlink(missing_ok=True)
    for name, data in files.items():
        write_whole(name, data)


def _runs_below(node: Node) -> Iterator[str]:
    for each in node.children:
        yield each.run
        yield from _runs_below(each)


def _exported(stores: Stores, run: str) -> bytes:
    target = io.BytesIO()
    export_run_with_attachments(stores.ledger, stores.attachments, run, target)
    return target.getvalue()


def _encoded_prompts(prompts: Sequence[_SentPrompt]) -> bytes:
    texts: dict[str, str] = {}

    def named(text: str) -> str:
        name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        texts[name] = text
        return name

    kept = tuple(
        _SentPrompt(
            each.request_sha256,
            tuple(_SentMessage(one.role, one.part, named(one.text)) for one in each.messages),
        )
        for each in prompts
    )
    made = _Prompts(version=PROMPTS_VERSION, texts=texts, prompts=kept)
    return msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"


def holds_key(data: bytes) -> bool:
    """Return True if a key is in some bytes: one in use here, or anything of the form of one."""
    if _KEY_FORMS.search(data):
        return True
    text = data.decode("utf-8", "replace")
    return without_known_keys(text) != text
