"""Sessions as users have them: the book, the interpreters that they keep, and their runs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tallystick.attachments.collect import CollectableAttachments
from tallystick.core.charge import Charge
from tallystick.core.errors import (
    GuestMissing,
    LedgerError,
    SessionBusy,
    SessionNotFound,
    SessionNotKept,
    SessionsFull,
    UsageError,
)
from tallystick.core.records import (
    Record,
    RunEnded,
    RunProgram,
    RunStarted,
    StopReason,
    decode_record,
)
from tallystick.ledger.port import Ledger
from tallystick.runtime.runs.history import UNREADABLE, spent_so_far, whole_records
from tallystick.sandbox.snapshot import Image, ImageOrigin
from tallystick.sandbox.wasm.image import ENGINE, load_image
from tallystick.sandbox.wasm.variables import SessionValues, read_values
from tallystick.sessions.book import SessionBook
from tallystick.sessions.rows import (
    Expires,
    KeptSnapshot,
    Left,
    SessionInfo,
    SessionRun,
    period_of,
)
from tallystick.sessions.snapshots import SessionImages


def differs_from_here(origin: ImageOrigin | None) -> Literal["guest", "engine"] | None:
    """Return which part of this installation cannot load an image; None if nothing prevents it.

    The guest is compared first. None also if the origin of the image is unknown, or if the guest is
    not installed here.
    """
    try:
        here = load_image().sha256
    except GuestMissing:
        return None
    if origin is None:
        return None
    if origin.guest != here:
        return "guest"
    return "engine" if origin.engine != ENGINE else None


# Earlier runs of a session: read from the ledger, and summarised for the model.
#
# The book has the ids of runs, and the ledger has their content. So content that was pruned or
# removed is not shown any more. The summary that a run was given is recorded in its start.


TOLD_MAX = 5
_GOAL_CHARS_MAX = 200
_ANSWER_CHARS_MAX = 400
_NOT_KEPT = " (its variables were not kept)"


class EarlierRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the ledger has it now. `goal` is None if it was pruned or removed.

    `stop` is None if it is running, or was interrupted. `lost` means that the session does not keep
    what its programs left.
    """

    run: str
    goal: str | None = None
    stop: StopReason | None = None
    answer: str | None = None
    lost: bool = False


def earlier_runs(ledger: Ledger, runs: Iterable[str]) -> list[EarlierRun]:
    """Return runs by their ids in their order, as far as the ledger still has them.

    One that is gone or cannot be read has only its id.
    """
    return [_earlier_run(ledger, run) for run in runs]


def summary_of(earlier: Sequence[EarlierRun]) -> str:
    """Return the summary of earlier runs for a model: the last five answered ones, one per line.

    A goal is cut at 200 characters, an answer at 400, and white space becomes single spaces. A lost
    run is marked so, and a heading comes first. The result is empty if there is none.
    """
    answered = [each for each in earlier if each.goal is not None and each.stop == "answered"]
    if not answered:
        return ""
    lines = [
        f"- {_shorten(each.goal or '', _GOAL_CHARS_MAX)!r}: "
        f"{_shorten(each.answer or '', _ANSWER_CHARS_MAX)!r}{_NOT_KEPT if each.lost else ''}"
        for each in answered[-TOLD_MAX:]
    ]
    return "\n".join(["Earlier tasks of this session, and their answers:", *lines])


def _earlier_run(ledger: Ledger, run: str) -> EarlierRun:
    row = ledger.row(run)
    if row is None or not row.head.count:
        return EarlierRun(run=run)
    try:
        first = _record(ledger, run, 0)
        last = _record(ledger, run, row.head.count - 1)
    except (LedgerError, *UNREADABLE):
        return EarlierRun(run=run)
    ended = last if isinstance(last, RunEnded) else None
    return EarlierRun(
        run=run,
        goal=first.goal if isinstance(first, RunStarted) else None,
        stop=None if ended is None else ended.stop,
        answer=None if ended is None else ended.answer,
    )


def has_ended(ledger: Ledger, run: str) -> bool:
    """Return True if the last entry of a run is its end.

    False also if that cannot be read, or if the run is not here.
    """
    row = ledger.row(run)
    if row is None or not row.head.count:
        return False
    try:
        return isinstance(_record(ledger, run, row.head.count - 1), RunEnded)
    except (LedgerError, *UNREADABLE):
        return False


def _had_programs(ledger: Ledger, run: str) -> bool:
    """Return True if a run ran programs, which change the interpreter of its session.

    False also if its records cannot be read. Raise `ResumeRefused` if one of them was erased.
    """
    try:
        return any(isinstance(each, RunProgram) for each in whole_records(ledger, run))
    except (LedgerError, *UNREADABLE):
        return False


def _record(ledger: Ledger, run: str, seq: int) -> Record | None:
    sealed = next(ledger.read(run, start=seq, stop=seq + 1), None)
    return None if sealed is None or sealed.body is None else decode_record(sealed.body)


def _shorten(text: str, chars_max: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= chars_max else f"{flat[: chars_max - 4]} ..."


# Sessions as their users have them.
#
#     with open_stores(ledger_path()) as stores:
#         made = stores.sessions.new()
#         stores.sessions.snapshot(made.id, "before the merge")
#
# Rule: an image is on the disk before the book refers to it, and is released after the book stopped
# referring to it. A crash in between leaves an image without a reference, which the next client
# that works in the session releases.
# Rule: before the ledger has the end of a run, its interpreter is on the disk and in the book, as
# `prepared`. The entry in the ledger decides: with it, the prepared interpreter is the session's,
# whichever process notes that in the book, and when; without it, the prepared one is dropped.


# How long `remove` waits until the run in the session is cancelled.
_TEARDOWN_SECONDS = 10.0


def book_path(ledger: Path) -> Path:
    """Return the path of the book of sessions that belongs to a ledger: beside it.

    It is `sessions.db` for `ledger.db`, else the name of the ledger with `-sessions.db` after it.
    """
    named = "sessions.db" if ledger.name == "ledger.db" else f"{ledger.name}-sessions.db"
    return ledger.with_name(named)


class Sessions:
    """The operations on sessions. Each call is complete when it returns.

    A method that takes a session raises `SessionNotFound` if there is none, unless it says
    otherwise, and the errors of the stores.
    """

    def __init__(
        self, ledger: Ledger, attachments: CollectableAttachments, book: SessionBook
    ) -> None:
        self.ledger = ledger
        self.book = book
        self.images = SessionImages(attachments)
        # The limit for what all sessions keep on the disk, None for none. The client sets it.
        self.bytes_max: int | None = None

    # -- sessions ------------------------------------------------------------------------------

    def new(
        self,
        *,
        token_budget: int | None = None,
        time_budget_ms: int | None = None,
        variables: Mapping[str, str] | None = None,
        backend: str = "wasm",
        expires: Expires = None,
    ) -> SessionInfo:
        """Create a session that is ready, with a fresh interpreter.

        The budgets are for all its runs together, None for no limit. `variables` are its context
        variables. `backend` is the sandbox of its runs. `expires` is how long it lasts: a duration
        such as "12h", a `timedelta`, "reference" for half an hour with three extensions, or None
        for no end. Sessions whose time is over are marked as expired. Raise `SessionsFull` if all
        sessions together keep more than `bytes_max`. Raise `InvalidLimit` or
        `ContextVariableRefused` for arguments that are not allowed. Then no session is left.
        """
        period = period_of(expires)
        self.book.cleanup_expired()
        self.check_room()
        made = self.book.create(
            token_budget=token_budget,
            time_budget_ms=time_budget_ms,
            backend=backend,
            period=period,
        )
        try:
            if variables:
                self.book.set_variables(made.id, variables)
            return self.book.update_state(made.id, "ready")
        except BaseException:
            self.book.remove(made.id)
            raise

    def find(self, named: str) -> str:
        """Return the id of a session from its id, the beginning of it, its name, or `last`.

        Ids are found in either case. An id comes before a name, and a name before a beginning.
        `last` is the newest session without a name. Raise `SessionNotFound` if nothing matches, and
        `UsageError` if the beginning of an id matches several.
        """
        known = self.book.ids()
        names = self.book.names()
        if named == "last" and (unnamed := [each for each in known if each not in names]):
            return unnamed[-1]
        # Every id begins with the empty text, which names none.
        wanted = named.upper()
        found = (
            [each for each in known if each == wanted]
            or [session for session, name in names.items() if name == named]
            or [each for each in known if wanted and each.startswith(wanted)]
        )
        if len(found) > 1:
            raise UsageError(f"{named!r} is the beginning of {len(found)} sessions; give more")
        if not found:
            raise SessionNotFound(session=named)
        return found[0]

    def get(self, session: str) -> SessionInfo:
        """Return a session as it is now: executing only while a living client works in it.

        Its interpreter is the one that a dead client's run left, if the ledger has the end of that
        run.
        """
        return self._with_real_state(self.book.get(session))

    def list(self) -> Sequence[SessionInfo]:
        """Return all sessions as they are now, the oldest first."""
        return [self._with_real_state(each) for each in self.book.list()]

    def extend(self, session: str) -> SessionInfo:
        """Add one more period to the end of a session.

        Raise `MaxExtensionsReached` if its period allows no more, `InvalidSessionState` if it has
        no end, and an error for a session that cannot be used.
        """
        return self._with_real_state(self.book.extend(session))

    def resume(self, session: str) -> SessionInfo:
        """Let a session go on that is paused or has expired, with all that it keeps.

        A paused one has the time that it had left, an expired one its whole period again. One that
        can be used stays as it is. Raise `InvalidSessionState` if it was terminated.
        """
        return self._with_real_state(self.book.reopen(session))

    def set_expiry(self, session: str, expires: Expires) -> SessionInfo:
        """Let a session last that long from now, or with None without an end.

        `expires` is as in `new`. An expired session can be used again. Raise `InvalidLimit` for a
        text that is no duration, and `InvalidSessionState` for a session that was terminated, or
        has a name.
        """
        return self._with_real_state(self.book.set_period(session, period_of(expires)))

    def pause(self, session: str) -> SessionInfo:
        """Let nothing run or change in a session, and its time stand still, until it is resumed.

        One that is paused stays so. Raise `SessionBusy` if a client works in it, and an error for a
        session that has expired or was terminated.
        """
        if self.book.get(session).state == "paused":
            return self.book.get(session)
        with self.working(session):
            self.finish(session)
            return self.book.update_state(session, "paused")

    def terminate(self, session: str) -> SessionInfo:
        """End a session for good, and delete its interpreter and its snapshots.

        What it was, its runs and what they spent can still be read. A run in it is cancelled, even
        one of another process. Terminating twice is harmless. Raise `SessionBusy` if such a run did
        not end within 10 s; the session is terminated nevertheless, and its images are deleted when
        that run ends.
        """
        self.book.update_state(session, "terminated")
        self._free_when_idle(session, "terminated")
        return self.get(session)

    def remove(self, session: str) -> SessionInfo:
        """Delete a session: its interpreter and its snapshots. Its runs stay in the ledger.

        A run in it is cancelled, even one of another process. Return the session as it was. Raise
        `SessionBusy` if such a run did not end within 10 s; the session is deleted nevertheless,
        and its images when that run ends.
        """
        # The book first: a run in the session notices that its row is gone, cancels itself and
        # releases the lock, even in another process.
        gone = self.book.remove(session)
        self._free_when_idle(session, "removed")
        return gone

    def _free_when_idle(self, session: str, how: str) -> None:
        """Delete what a session keeps that is over, once the run in it has ended.

        Raise `SessionBusy` if that takes longer than 10 s.
        """
        try:
            with self.book.hold(session, wait_seconds=_TEARDOWN_SECONDS):
                self.book.kept.clear(session)
                self.images.free(session)
        except SessionBusy:
            raise SessionBusy(
                f"session {session} is {how}, but its run has not ended yet; what it keeps goes "
                f"when it does"
            ) from None

    def free_if_terminated(self, session: str) -> None:
        """Delete what a session keeps if it was terminated. The caller must have locked it."""
        with contextlib.suppress(SessionNotFound):
            if self.book.get(session).state == "terminated":
                self.book.kept.clear(session)
                self.free(session)

    # -- the disk ------------------------------------------------------------------------------

    def disk_bytes(self) -> int:
        """Return the size of all that sessions keep; what several keep is counted once.

        An image that a run holds too stays on the disk when its session goes, until the run goes.
        """
        return sum(self.book.kept.sizes().values())

    def check_room(self) -> None:
        """Raise `SessionsFull` if all sessions together keep more than `bytes_max`."""
        if self.bytes_max is not None and (used := self.disk_bytes()) > self.bytes_max:
            raise SessionsFull(used=used, most=self.bytes_max)

    def oldest(
        self,
        *,
        unused_ms: int | None = None,
        keep: int | None = None,
        bytes_max: int | None = None,
    ) -> Sequence[SessionInfo]:
        """Return sessions that could be removed, the one that was used longest ago first.

        Those that were not used for `unused_ms`; all but the `keep` used last; and as many as have
        to go so that at most `bytes_max` stay on the disk. What is None chooses nothing. Sessions
        that have a name are left out, and those in which a run is in progress.
        """
        known = self.list()
        now = self.book.now()
        free = [each for each in known if each.name is None and each.state != "executing"]
        free.sort(key=lambda each: (each.used_at, each.id))
        chosen = set()
        if unused_ms is not None:
            chosen |= {each.id for each in free if now - each.used_at > unused_ms}
        if keep is not None:
            chosen |= {each.id for each in free[: max(0, len(free) - keep)]}
        if bytes_max is not None:
            chosen |= set(self._too_much(free, bytes_max))
        return [each for each in free if each.id in chosen]

    def _too_much(self, oldest: Sequence[SessionInfo], bytes_max: int) -> Iterator[str]:
        """Yield sessions, in their order, until what the others keep is at most `bytes_max`."""
        needed = {each: self.book.kept.needed_attachments(each) for each in self.book.ids()}
        sizes = self.book.kept.sizes()
        holders = Counter(id for ids in needed.values() for id in ids)
        left = sum(sizes.values())
        for each in oldest:
            if left <= bytes_max:
                return
            for id in needed.get(each.id, ()):
                holders[id] -= 1
                if not holders[id]:
                    left -= sizes.get(id, 0)
            yield each.id

    def runs(self, session: str) -> Sequence[SessionRun]:
        """Return the runs of a session in the order they were begun.

        A run whose process died counts as lost if the ledger has its end and no process kept what
        its programs left.
        """
        runs = self.book.kept.runs(session)
        if all(each.ended for each in runs) or self.book.is_held(session):
            return runs
        left = self.book.get(session).left
        return [
            msgspec.structs.replace(each, lost=not each.ended and self._is_lost(left, each.run))
            if not each.lost
            else each
            for each in runs
        ]

    def history(self, session: str) -> Sequence[EarlierRun]:
        """Return the goals and answers of a session's runs, in the order they were begun.

        What the ledger does not have any more is None.
        """
        runs = self.runs(session)
        found = earlier_runs(self.ledger, [each.run for each in runs])
        return [
            msgspec.structs.replace(each, lost=run.lost)
            for each, run in zip(found, runs, strict=True)
        ]

    # -- interpreters of other guests, and their values -----------------------------------------

    def origin(self, session: str, left: Left, *, backend: str) -> ImageOrigin | None:
        """Return who made an interpreter; None for a fresh or unreadable one.

        None also for an interpreter of another backend than WASM.
        """
        if left.image is None or backend != "wasm":
            return None
        return self.images.origin(session, left.image)

    def values(self, session: str, left: Left) -> SessionValues | None:
        """Return the variables that were recorded when a run ended; None if none were.

        Raise `StoreError` if they cannot be read.
        """
        if left.values is None:
            return None
        return read_values(self.images.read(session, left.values))

    def start_from(self, session: str, image: Image, *, names: str, values: bytes | None) -> None:
        """Give a new session the interpreter that its first run begins with.

        `names` lists its variables in short, to be shown. `values` are its variables as JSON, None
        if they are unknown. Raise `SessionBusy` if a client works in it, and an error for a session
        that cannot be used.
        """
        with self.working(session):
            self.put_interpreter(session, image, names=names, values=values)

    def put_interpreter(
        self, session: str, image: Image, *, names: str = "", values: bytes | None = None
    ) -> None:
        """Make an image the interpreter of a session, and release the one before.

        `names` and `values` are as in `start_from`. The caller must have locked the session. Raise
        an error for one that cannot be used; then the image is released.
        """
        ref = self.images.keep(session, run=session, image=image)
        kept = None if values is None else self.images.keep_values(session, values)
        try:
            self.book.kept.start_from(session, Left(image=ref, names=names, values=kept))
        finally:
            # This releases the previous interpreter, or the new one if the session was removed.
            self.free(session)

    # -- snapshots -----------------------------------------------------------------------------

    def snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Keep the interpreter under a name, as the last run left it.

        Raise `SessionBusy` if a client works in the session, `SessionNotKept` as `check_kept` does,
        `SessionsFull` as `new` does, and the errors of `SessionKept.record_snapshot`.
        """
        self.check_room()
        with self.working(session):
            self.check_kept(session)
            return self.book.kept.record_snapshot(session, name)

    def restore(self, session: str, name: str) -> KeptSnapshot:
        """Replace the interpreter by a snapshot, by its name or `name:id`. Return the snapshot.

        The work of a dead process is finished first, and a loss that it finds is not raised. Raise
        `SessionBusy` if a client works in the session, `SnapshotNotFound` if there is none, and an
        error for a session that cannot be used.
        """
        with self.working(session):
            self.finish(session)
            found = self.book.kept.restore_snapshot(session, name)
            self.free(session)
            return found

    def snapshots(self, session: str) -> Sequence[KeptSnapshot]:
        """Return the snapshots of a session in the order they were taken."""
        return self.book.kept.snapshots(session)

    def named_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Return a snapshot by its name or `name:id`. Raise `SnapshotNotFound` if there is none."""
        return self.book.kept.named_snapshot(session, name)

    def delete_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Delete a snapshot by its name or `name:id`, release its image, and return it.

        Raise `SessionBusy` if a client works in the session, and `SnapshotNotFound` if there is
        none.
        """
        with self._lock(session):
            found = self.book.kept.delete_snapshot(session, name)
            self.free(session)
            return found

    def forget_images(self, ids: Collection[str], runs: Collection[str] = ()) -> Sequence[str]:
        """Drop these images from all sessions, and those that these runs left.

        Return the sessions that had one. The work of dead processes is finished first, in sessions
        without such an image too. A session in which a client works is skipped, because that client
        would store its own interpreter again. `images_of` returns what is left.
        """
        cleared = []
        for session in self.book.ids():
            with contextlib.suppress(SessionBusy, SessionNotFound), self._lock(session):
                self.finish(session)
                if self.book.kept.forget_images(session, ids, runs):
                    self.free(session)
                    cleared.append(session)
        return cleared

    def images_of(self, ids: Collection[str], runs: Collection[str] = ()) -> frozenset[str]:
        """Return the attachments of sessions' images that are in `ids` or were left by `runs`."""
        found = [self.book.kept.images_of(each, ids, runs) for each in self.book.ids()]
        return frozenset().union(*found)

    # -- inside --------------------------------------------------------------------------------

    def is_unfinished(self, session: str) -> bool:
        """Return True if a process has work to finish in this session, dead or alive.

        That is so if an interpreter is prepared, or a run is not noted as ended.
        """
        left = self.book.get(session).left
        return left.prepared is not None or any(
            not each.ended for each in self.book.kept.runs(session)
        )

    def finish(self, session: str) -> Sequence[str]:
        """Finish the work of a process that died. The caller must have locked the session.

        An interpreter that a run had prepared becomes the session's if the ledger has the end of
        the run, else it is dropped. Every run in progress is noted as ended, with what its records
        say that it spent, or deleted if it has none. Images without a reference are released.
        Return the runs whose variables are lost.
        """
        left, kept = self.book.get(session).left, self.book.kept
        lost = []
        if left.prepared is not None and not has_ended(self.ledger, left.prepared.run or ""):
            kept.drop_prepared(session)
        elif left.prepared is not None and not kept.leave(session, left.prepared):
            lost.append(left.prepared.run or "")
        left = self.book.get(session).left
        for each in kept.runs(session):
            if not each.ended:
                if each.run not in lost and self._is_lost(left, each.run):
                    lost.append(each.run)
                self.end_run(session, each.run, lost=each.run in lost)
        self.free(session)
        return lost

    def check_kept(self, session: str) -> None:
        """Finish the work of a process that died. The caller must have locked the session.

        Raise `SessionNotKept`, once, if what a run left is lost. The session can be used after
        that.
        """
        for run in self.finish(session):
            raise SessionNotKept(
                session=session, run=run, why="the process that drove the run died before that"
            )

    def end_run(
        self, session: str, run: str, *, charge: Charge | None = None, lost: bool = False
    ) -> None:
        """Note that a run is not in progress any more, and what it spent.

        `charge` None means to read that from its records. `lost` is as in `SessionKept.end_run`. A
        run that was refused before anything of it was recorded is deleted from the session. Nothing
        is raised if the session was removed.
        """
        row = self.ledger.row(run) if charge is None else None
        if charge is None and (row is None or not row.head.count):
            self.book.kept.forget_run(session, run)
            return
        if charge is None:
            charge = spent_so_far(self.ledger, run)
        with contextlib.suppress(SessionNotFound):
            self.book.kept.end_run(
                session,
                run,
                tokens=charge.tokens_in + charge.tokens_out,
                wall_ms=charge.wall_ms,
                ended=True,
                lost=lost,
            )

    def _is_lost(self, left: Left, run: str) -> bool:
        """Return True if a run has ended, and the session does not have what its programs left.

        A run without programs left nothing.
        """
        prepared = None if left.prepared is None else left.prepared.run
        if run in (left.run, prepared):
            return False
        return has_ended(self.ledger, run) and _had_programs(self.ledger, run)

    def free(self, session: str) -> None:
        """Release what the book does not refer to. The caller must have locked the session.

        Of a session that was removed, everything is released.
        """
        self.images.free(session, self.book.kept.needed_attachments(session))

    @contextlib.contextmanager
    def working(self, session: str) -> Iterator[None]:
        """Lock a session that exists and can be used, while inside.

        Raise `SessionBusy` if it is in use, and the errors of `require_usable`.
        """
        self.book.validate(session)
        with self._lock(session):
            yield

    @contextlib.contextmanager
    def _lock(self, session: str) -> Iterator[None]:
        self.book.get(session)
        with self.book.hold(session):
            yield

    def _with_real_state(self, info: SessionInfo) -> SessionInfo:
        """Return a session with its real state: the client that executed in it may have died.

        Then it is ready, and its interpreter is the one that the dead client's run left, if the
        ledger has the end of that run.
        """
        left = info.left
        if info.state == "terminated" or self.book.is_held(info.id):
            return info
        if info.state != "executing" and left.prepared is None:
            return info
        if left.prepared is not None:
            ended = has_ended(self.ledger, left.prepared.run or "")
            left = left.prepared if ended else msgspec.structs.replace(left, prepared=None)
        state = "ready" if info.state == "executing" else info.state
        return msgspec.structs.replace(info, state=state, left=left)
