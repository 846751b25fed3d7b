"""Import logs of the rlms package as runs of ours: to be read, listed, compared and exported."""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from tallystick.core.chain import Draft, Head, Sealed
from tallystick.core.charge import Charge
from tallystick.core.errors import TransferRefused
from tallystick.core.ids import ENTROPY_BYTES, ulid
from tallystick.core.machine.turn import charge_of
from tallystick.core.records import (
    FIGURE_MAX,
    Caller,
    ChildBegun,
    ChildEnded,
    ContextRef,
    Record,
    RunEnded,
    RunStarted,
    encode_record,
    intent_of,
    tag_of,
)
from tallystick.interop.rlms_format import (
    FILE_BYTES_MAX,
    UNKNOWN_GOAL,
    Call,
    Iteration,
    Metadata,
    RunMetadata,
    Trajectory,
    charge_in,
    goal_in,
    limits_of,
    lines_of,
    milliseconds,
    model_of,
    moment_of,
    program_records,
    prompt_digest,
    query_records,
    read_line,
    run_end,
    text_in,
    turn_records,
)
from tallystick.ledger.custody import seal_all
from tallystick.ledger.port import BODY_BYTES_MAX, ExportHeader, TransferLedger
from tallystick.ledger.transfer import FORMAT_ALONE
from tallystick.runtime.runs.history import RLMS_TEMPLATE
from tallystick.storage.clock import now_ms

# The deepest nesting of runs, and the largest number of entries that a log may give.
DEPTH_MAX = 16
ENTRIES_MAX = 250_000
_DAY_MS = 86_400_000
_NOTHING = Charge()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A finished chain of a run, ready to be added to the ledger."""

    run: str
    head: Head
    entries: list[Sealed]

    @property
    def header(self) -> ExportHeader:
        """The header with which the ledger adopts the chain."""
        return ExportHeader(
            format=FORMAT_ALONE,
            run=self.run,
            count=self.head.count,
            hash=self.head.hash,
            fence=0,
            moved=False,
        )


@dataclass(slots=True, kw_only=True)
class Log:
    """The state of reading one log. `line` is the number of the current line, 0 for none."""

    name: str
    source: ContextRef
    salt_key: bytes
    line: int = 0
    metadata: Metadata | None = None
    open: _Run | None = None
    entries: int = 0
    chains: list[Chain] = field(default_factory=list)
    completions: list[tuple[str, int]] = field(default_factory=list)

    def refusal(self, why: str) -> TransferRefused:
        """Return the error for a fault in the current line."""
        where = f"line {self.line}: " if self.line else ""
        return TransferRefused(file=self.name, why=f"{where}{why}; nothing was imported")

    def add(self, read: Metadata | Iteration | str) -> None:
        """Add the next line, as it was read; text is the reason why it could not be.

        Metadata, and an iteration 1, end the open completion. Raise `TransferRefused` for a line
        that cannot be read, does not fit those before it, or breaks a limit.
        """
        if isinstance(read, str):
            raise self.refusal(read)
        if isinstance(read, Metadata):
            self.close()
            self.metadata = read
            return
        if self.metadata is None:
            raise self.refusal("it does not begin with its metadata")
        if read.iteration == 1:
            self.close()
        if self.open is None:
            number = len(self.completions)
            self.open = _Run.begin(self, self.metadata, read, place=f"{number}")
        self.open.add(read)

    def close(self) -> None:
        """End the open completion: it has no more iterations. Without one, do nothing.

        Raise `TransferRefused` if its figures add up to more than a record can hold, or if its end
        breaks a limit.
        """
        if self.open is not None:
            self.open.close(None)
            self.completions.append((self.open.run, self.open.children))
            self.open = None

    def seal(self, run: str, drafts: list[Draft]) -> Head:
        """Make the chain of a run that is complete, and add it to `chains`; return its head.

        Salts follow from the log's bytes.
        """
        places = iter(range(len(drafts)))

        def salts(count: int) -> bytes:
            made = f"{run} {next(places)}".encode()
            return hashlib.blake2b(made, key=self.salt_key, digest_size=count).digest()

        entries, head = seal_all(run, drafts, head=Head.of_nothing(), salts=salts)
        self.chains.append(Chain(run=run, head=head, entries=entries))
        return head

    def id_at(self, place: str, *, depth: int, time_ms: int) -> str:
        """Return the id of a run of this log: the same for the same bytes, place, depth and time.

        Of one time, child runs sort before their parent.
        """
        made = hashlib.sha256(f"{self.source.sha256} {place}".encode()).digest()
        # All runs of a completion have one time. The deeper a run, the smaller this first byte.
        entropy = bytes([0xFF - depth]) + made[: ENTROPY_BYTES - 1]
        return ulid(time_ms=time_ms, entropy=entropy)


@dataclass(slots=True, kw_only=True)
class _Run:
    """A run while it is read: its records so far."""

    log: Log
    run: str
    metadata: RunMetadata
    place: str
    depth: int
    time_ms: int
    drafts: list[Draft] = field(default_factory=list)
    last: Iteration | None = None
    intents: int = 0
    children: int = 0
    charge: Charge = _NOTHING

    @classmethod
    def begin(
        cls,
        log: Log,
        metadata: RunMetadata,
        first: Iteration,
        *,
        place: str,
        caller: Caller | None = None,
        goal: str | None = None,
        time_ms: int | None = None,
    ) -> _Run:
        """Begin a run with the facts of its first iteration, whose timestamp is when that ended.

        The iteration itself is not added. `place` is where the run is in the log, and `caller` the
        call that began it, None for a completion. `time_ms` is the time in the run's id, by default
        its start. Without `goal` it is the question in the prompt, or a text that says that it is
        unknown. Raise `TransferRefused` if the timestamp is not a time, or more than a day ahead,
        or if the start breaks a limit.
        """
        ended_at = moment_of(first.timestamp)
        if ended_at is None or ended_at > now_ms() + _DAY_MS:
            raise log.refusal("its timestamp is not a time, or is in the future")
        started_at = max(0, ended_at - milliseconds(first.iteration_time))
        time_ms = started_at if time_ms is None else time_ms
        depth = 0 if caller is None else caller.depth
        run = log.id_at(place, depth=depth, time_ms=time_ms)
        if goal is None:
            goal = goal_in(first.prompt) or UNKNOWN_GOAL
        made = cls(log=log, run=run, metadata=metadata, place=place, depth=depth, time_ms=time_ms)
        made.write(
            RunStarted(
                goal=goal,
                model=model_of(metadata),
                limits=limits_of(metadata),
                grants=(),
                contexts=(log.source,),
                functions=(),
                texts=(),
                seed=0,
                clock_ns=0,
                session_id=run,
                template=RLMS_TEMPLATE,
                guest="",
                engine="",
                started_at=started_at,
                caller=caller,
            )
        )
        return made

    def write(self, *records: Record) -> None:
        """Add records. Raise `TransferRefused` if they are too many, or one is too long."""
        for record in records:
            self.log.entries += 1
            if self.log.entries > ENTRIES_MAX:
                raise self.log.refusal(f"it would make more than {ENTRIES_MAX:,} entries")
            body = encode_record(record)
            if len(body) > BODY_BYTES_MAX:
                raise self.log.refusal("a text in it is too long to be kept")
            self.drafts.append(Draft(tag=tag_of(record), intent=intent_of(record), body=body))

    def add(self, iteration: Iteration) -> None:
        """Add one turn with its blocks, its calls and the runs inside it, and their cost.

        Raise `TransferRefused` if it is not the next one, follows the final answer, or breaks a
        limit. A run inside it is refused too if it is nested too deep or has no final answer.
        """
        expected = 1 if self.last is None else self.last.iteration + 1
        if iteration.iteration != expected:
            raise self.log.refusal(f"iteration {iteration.iteration} where {expected} was expected")
        if self.last is not None and self.last.final_answer is not None:
            raise self.log.refusal("an iteration after the final answer")
        asked, replied = turn_records(iteration, intent=self._next_intent())
        self.write(asked, replied)
        self.charge += Charge(
            turns=1, model_calls=1, wall_ms=milliseconds(iteration.iteration_time)
        )
        for part, block in enumerate(iteration.code_blocks):
            intent = self._next_intent()
            begun, ended = program_records(
                block, intent=intent, turn=iteration.iteration, part=part
            )
            self.write(begun)
            for call in block.result.rlm_calls:
                self._add_call(call, program=intent)
            self.write(ended)
        # Only short fields of it are needed later. Its prompt and blocks repeat the whole context.
        self.last = msgspec.structs.replace(iteration, prompt=msgspec.Raw(), code_blocks=[])

    def close(self, used: Charge | None) -> tuple[Head, RunEnded | None]:
        """End the run and make its chain; return its head and its end.

        `used` is what the log says that all of it used; it replaces the sums of the turns. The end
        is None without a final answer: the chain is then made without one. Raise `TransferRefused`
        if figures add up to more than a record can hold, or if the end breaks a limit.
        """
        assert self.last is not None
        ended = None
        if self.last.final_answer is not None:
            charge = self.charge
            if used is not None:
                charge = msgspec.structs.replace(
                    charge,
                    usd=used.usd,
                    tokens_in=used.tokens_in,
                    tokens_out=used.tokens_out,
                    model_calls=used.model_calls,
                )
            if any((each or 0) > FIGURE_MAX for each in msgspec.structs.astuple(charge)):
                raise self.log.refusal("its figures add up to more than can be kept")
            ended = run_end(self.last, self.metadata, charge)
            self.write(ended)
        return self.log.seal(self.run, self.drafts), ended

    def _next_intent(self) -> int:
        self.intents += 1
        return self.intents

    def _add_call(self, call: Call, *, program: int) -> None:
        self.charge += Charge(host_calls=1)
        intent = self._next_intent()
        if call.metadata is not None:
            self._add_child(call, call.metadata, intent=intent, program=program)
            return
        same = call.root_model == self.metadata.root_model
        model = model_of(self.metadata) if same else call.root_model
        asked, ended = query_records(call, intent=intent, program=program, model=model)
        self.write(asked, ended)
        self.charge += charge_of(ended)

    def _add_child(self, call: Call, inside: Trajectory, *, intent: int, program: int) -> None:
        depth = self.depth + 1
        if depth > DEPTH_MAX:
            raise self.log.refusal(f"runs are nested more than {DEPTH_MAX} deep")
        if not inside.iterations:
            raise self.log.refusal("a run inside it has no iteration")
        child = _Run.begin(
            self.log,
            inside.run_metadata,
            inside.iterations[0],
            place=f"{self.place}/{intent}",
            caller=Caller(run=self.run, intent=intent, item=0, depth=depth),
            goal=text_in(call.prompt),
            time_ms=self.time_ms,
        )
        for iteration in inside.iterations:
            child.add(iteration)
        head, ended = child.close(charge_in(call.usage_summary))
        if ended is None:
            raise self.log.refusal("a run inside it has no final answer")
        self.children += 1 + child.children
        begun = ChildBegun(
            intent=intent,
            program=program,
            item=0,
            run=child.run,
            request_sha256=prompt_digest(call.prompt),
        )
        outcome = ChildEnded(
            intent=intent,
            item=0,
            run=child.run,
            stop=ended.stop,
            detail=ended.detail,
            answer=call.response or "",
            partial=ended.partial,
            charge=ended.charge,
            count=head.count,
            hash=head.hash,
        )
        self.write(begun, outcome)
        self.charge += charge_of(outcome)


# Logs of the rlms package as runs of ours: to be read, listed, compared and exported.
#
# Rule 1: a log has no chain. One is made here, so what it proves is what was imported, not that it
# happened. The start of each run has the digest of the log.
# Rule 2: nothing is written before all of the log was read and fits. Then each run is adopted as a
# copy, which cannot be resumed. Child runs come first, so that a parent finds the runs it names.
# Rule 3: the same log gives the same runs, entries and hashes everywhere. Ids and salts are made
# from its bytes; only somebody who has those can compute the salts again.
# Rule 4: facts that the log does not have are not invented. Requests have no digest of ours: they
# have that of the prompt as the log has it, marked `rlms:`. Usage of turns is recorded as missing.


_PIECE_BYTES = 1 << 20
# The bytes of UTF-8 that do not begin a character. Without them, bytes count as characters.
_CONTINUED = bytes(range(0x80, 0xC0))


class ImportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A completion of the log, and how many runs are inside it.

    `new` is false if the ledger had the run already.
    """

    run: str
    children: int
    new: bool


class ImportedLog(msgspec.Struct, frozen=True, kw_only=True):
    """The result of importing a log: its completions in order."""

    runs: tuple[ImportedRun, ...]


def import_rlms_log(ledger: TransferLedger, file: BinaryIO, *, name: str) -> ImportedLog:
    """Import every completion of a log as a run; return the completions in order.

    Nothing is written before all of it was read and fits. Then the runs are adopted one by one: an
    error of the ledger leaves those before it. Runs that the ledger has already are left as they
    are.

    `file` is read from its current position, `name` names it in errors. Raise `TransferRefused`,
    with the line if one is at fault, for anything that cannot be imported.
    """
    with _seekable(file) as source:
        log = _measure(source, name)
        again = hashlib.sha256()
        for number, line in enumerate(lines_of(source), start=1):
            again.update(line)
            log.line = number
            if line.strip():
                log.add(read_line(line))
    log.close()
    log.line = 0
    if again.hexdigest() != log.source.sha256:
        raise log.refusal("it changed while it was read")
    if not log.completions:
        raise log.refusal("it has no iteration")
    before = {chain.run for chain in log.chains if ledger.row(chain.run) is not None}
    for chain in log.chains:
        if chain.run not in before:
            ledger.adopt(chain.header, iter(chain.entries))
    return ImportedLog(
        runs=tuple(
            ImportedRun(run=run, children=children, new=run not in before)
            for run, children in log.completions
        )
    )


@contextmanager
def _seekable(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the file, or a temporary copy if it can be read only once. The log is read twice.

    The copy ends one byte after the largest size, which is enough to refuse it.
    """
    if file.seekable():
        yield file
        return
    with tempfile.TemporaryFile() as spool:
        left = FILE_BYTES_MAX + 1
        while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
            spool.write(piece)
            left -= len(piece)
        spool.seek(0)
        yield spool


def _measure(file: BinaryIO, name: str) -> Log:
    """Read a log for its digests and its size, and go back to where it was.

    Raise `TransferRefused` if it has more than 256 MiB.
    """
    start = file.tell()
    plain, salted = hashlib.sha256(), hashlib.blake2b(person=b"tally rlms salts")
    size = chars = 0
    while piece := file.read(_PIECE_BYTES):
        size += len(piece)
        if size > FILE_BYTES_MAX:
            why = f"it has more than {FILE_BYTES_MAX:,} bytes; nothing was imported"
            raise TransferRefused(file=name, why=why)
        plain.update(piece)
        salted.update(piece)
        chars += len(piece.translate(None, _CONTINUED))
    file.seek(start, io.SEEK_SET)
    source = ContextRef(
        name=RLMS_TEMPLATE, sha256=plain.hexdigest(), bytes=size, chars=chars, sample=""
    )
    return Log(name=name, source=source, salt_key=salted.digest())
