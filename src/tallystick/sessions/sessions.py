"""Sessions as their users have them: the book, and the interpreters that they keep."""

from __future__ import annotations

import contextlib
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
from tallystick.sessions.rows import KeptSnapshot, Left, SessionInfo, SessionRun
from tallystick.sessions.snapshots import SessionImages


def differs_from_here(origin: ImageOrigin | None) -> Literal["guest", "engine"] | None:
    """Say what keeps this installation from loading an image. None if nothing does.

    It is None as well if who made the image is unknown, or this guest is not installed.
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


# What came before in a session: read from the ledger, told to the model in short, counted.
#
# The book names runs, and the ledger says what they were. So what is pruned or removed there is
# told to nobody any more. What a run is told is written into its start.


TOLD_MAX = 5
_GOAL_CHARS_MAX = 200
_ANSWER_CHARS_MAX = 400
_NOT_KEPT = " (its variables were not kept)"


class EarlierRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the ledger has it now. `goal` is None of one that was pruned or removed.

    `stop` is None of one that is running, or was cut off. `lost` says that the session does not
    keep what its programs left.
    """

    run: str
    goal: str | None = None
    stop: StopReason | None = None
    answer: str | None = None
    lost: bool = False


def earlier_runs(ledger: Ledger, runs: Iterable[str]) -> list[EarlierRun]:
    """Runs by their ids, as far as the ledger still has them."""
    return [_earlier(ledger, run) for run in runs]


def told_of(earlier: Sequence[EarlierRun]) -> str:
    """What a model is told of earlier runs: the last few that have an answer, each in a line."""
    answered = [each for each in earlier if each.goal is not None and each.stop == "answered"]
    if not answered:
        return ""
    lines = [
        f"- {_short(each.goal or '', _GOAL_CHARS_MAX)!r}: "
        f"{_short(each.answer or '', _ANSWER_CHARS_MAX)!r}{_NOT_KEPT if each.lost else ''}"
        for each in answered[-TOLD_MAX:]
    ]
    return "\n".join(["Earlier tasks of this session, and their answers:", *lines])


def _earlier(ledger: Ledger, run: str) -> EarlierRun:
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
    """Say whether the last entry of a run is its end."""
    row = ledger.row(run)
    if row is None or not row.head.count:
        return False
    try:
        return isinstance(_record(ledger, run, row.head.count - 1), RunEnded)
    except (LedgerError, *UNREADABLE):
        return False


def _had_programs(ledger: Ledger, run: str) -> bool:
    """Say whether a run ran programs, which change the interpreter of its session."""
    try:
        return any(isinstance(each, RunProgram) for each in whole_records(ledger, run))
    except (LedgerError, *UNREADABLE):
        return False


def _record(ledger: Ledger, run: str, seq: int) -> Record | None:
    sealed = next(ledger.read(run, start=seq, stop=seq + 1), None)
    return None if sealed is None or sealed.body is None else decode_record(sealed.body)


def _short(text: str, chars_max: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= chars_max else f"{flat[: chars_max - 4]} ..."


# Sessions as their users have them: the book, what they keep beside the ledger, and who is in one.
#
#     with open_stores(ledger_path()) as stores:
#         made = stores.sessions.new()
#         stores.sessions.snapshot(made.id, "before the merge")
#
# Rule: an image is on the disk before the book names it, and let go of after the book stopped
# naming it. Whoever dies in between leaves an image that nobody names; the next one who works in
# the session lets go of it.
# Rule: what a run leaves is on the disk and named by the book, as prepared, before the ledger has
# the run's end. The ledger's entry decides: with it, what is prepared is the session's, whoever
# notes that in the book, and when; without it, nothing of it is.


_TEARDOWN_SECONDS = 10.0


def book_path(ledger: Path) -> Path:
    """Where the book of sessions is whose runs are in a ledger: beside it."""
    named = "sessions.db" if ledger.name == "ledger.db" else f"{ledger.name}-sessions.db"
    return ledger.with_name(named)


class Sessions:
    """What may be done with sessions. Every call is whole when it returns."""

    def __init__(
        self, ledger: Ledger, attachments: CollectableAttachments, book: SessionBook
    ) -> None:
        self.ledger = ledger
        self.book = book
        self.images = SessionImages(attachments)

    # -- sessions ------------------------------------------------------------------------------

    def new(
        self,
        *,
        token_budget: int | None = None,
        time_budget_ms: int | None = None,
        variables: Mapping[str, str] | None = None,
        backend: str = "wasm",
    ) -> SessionInfo:
        """A session that is ready, with a fresh interpreter of a sandbox. It has half an hour."""
        self.book.cleanup_expired()
        made = self.book.create(
            token_budget=token_budget, time_budget_ms=time_budget_ms, backend=backend
        )
        try:
            if variables:
                self.book.set_variables(made.id, variables)
            return self.book.update_state(made.id, "ready")
        except BaseException:
            self.book.remove(made.id)
            raise

    def find(self, named: str) -> str:
        """Return a session by its id, the beginning of it, its name, or the `last` without one."""
        known = self.book.ids()
        names = self.book.names()
        if named == "last" and (unnamed := [each for each in known if each not in names]):
            return unnamed[-1]
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
        """A session as it stands: executing only while somebody alive works in it."""
        return self._live(self.book.get(session))

    def list(self) -> Sequence[SessionInfo]:
        return [self._live(each) for each in self.book.list()]

    def resume(self, session: str) -> SessionInfo:
        """Reopen a session that has expired, with all that it keeps."""
        return self._live(self.book.reopen(session))

    def remove(self, session: str) -> SessionInfo:
        """Destroy a session: its interpreter and its snapshots. Its runs stay in the ledger.

        A run in it is cancelled, also one of another process. The session is gone in any case; that
        such a run did not end in time is raised after that, as `SessionBusy`.
        """
        gone = self.book.remove(session)
        try:
            with self.book.hold(session, wait_seconds=_TEARDOWN_SECONDS):
                self.images.free(session)
        except SessionBusy:
            raise SessionBusy(
                f"session {session} is removed, but its run has not ended yet; what it keeps goes "
                f"when it does"
            ) from None
        return gone

    def runs(self, session: str) -> Sequence[SessionRun]:
        """The runs of a session in the order they were begun.

        One whose process died counts as lost where the ledger has its end and nobody kept what its
        programs left.
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
        """What the runs of a session were asked and came to, as far as the ledger has it."""
        runs = self.runs(session)
        found = earlier_runs(self.ledger, [each.run for each in runs])
        return [
            msgspec.structs.replace(each, lost=run.lost)
            for each, run in zip(found, runs, strict=True)
        ]

    # -- other guests, and what can be taken from them ------------------------------------------

    def origin(self, session: str, left: Left, *, backend: str) -> ImageOrigin | None:
        """Return who made an interpreter; None for a fresh, native or unreadable one."""
        if left.image is None or backend != "wasm":
            return None
        return self.images.origin(session, left.image)

    def values(self, session: str, left: Left) -> SessionValues | None:
        """Return the variables that were recorded when a run left them, None if none were.

        Raises `StoreError` if they cannot be read.
        """
        if left.values is None:
            return None
        return read_values(self.images.read(session, left.values))

    def start_from(self, session: str, image: Image, *, names: str, values: bytes | None) -> None:
        """Give a new session an interpreter, which its first run goes on with."""
        with self.working(session):
            self.put_interpreter(session, image, names=names, values=values)

    def put_interpreter(
        self, session: str, image: Image, *, names: str = "", values: bytes | None = None
    ) -> None:
        """Make an image the interpreter of a session. For the caller that holds the session."""
        ref = self.images.keep(session, run=session, image=image)
        kept = None if values is None else self.images.keep_values(session, values)
        try:
            self.book.kept.start_from(session, Left(image=ref, names=names, values=kept))
        finally:
            # The one before it, or this one if the session was removed.
            self.free(session)

    # -- snapshots -----------------------------------------------------------------------------

    def snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Keep the interpreter under a name, as the last run left it."""
        with self.working(session):
            self.check_kept(session)
            return self.book.kept.record_snapshot(session, name)

    def restore(self, session: str, name: str) -> KeptSnapshot:
        """Put the interpreter back, by a snapshot's name or `name:id`."""
        with self.working(session):
            self.finish(session)
            found = self.book.kept.restore_snapshot(session, name)
            self.free(session)
            return found

    def snapshots(self, session: str) -> Sequence[KeptSnapshot]:
        return self.book.kept.snapshots(session)

    def named_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Return a snapshot by its name or `name:id`. Raises `SnapshotNotFound`."""
        return self.book.kept.named_snapshot(session, name)

    def delete_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Let go of a snapshot."""
        with self._held(session):
            found = self.book.kept.delete_snapshot(session, name)
            self.free(session)
            return found

    def forget_images(self, ids: Collection[str], runs: Collection[str] = ()) -> Sequence[str]:
        """Have no session keep any of these images, or any that these runs left.

        Gives the sessions that did. One that somebody works in is left as it is: it would put its
        own in the place. `images_of` names what is left.
        """
        cleared = []
        for session in self.book.ids():
            with contextlib.suppress(SessionBusy, SessionNotFound), self._held(session):
                self.finish(session)
                if self.book.kept.forget_images(session, ids, runs):
                    self.free(session)
                    cleared.append(session)
        return cleared

    def images_of(self, ids: Collection[str], runs: Collection[str] = ()) -> frozenset[str]:
        """Those that sessions keep and that are these, or that these runs left."""
        found = [self.book.kept.images_of(each, ids, runs) for each in self.book.ids()]
        return frozenset().union(*found)

    # -- inside --------------------------------------------------------------------------------

    def is_unfinished(self, session: str) -> bool:
        """Say whether a process that died, or one that still lives, has something to finish."""
        left = self.book.get(session).left
        return left.prepared is not None or any(
            not each.ended for each in self.book.kept.runs(session)
        )

    def finish(self, session: str) -> Sequence[str]:
        """Finish what a process left half done that died. For whoever holds the session.

        What a run had prepared to leave is the session's if the ledger has the end of the run. What
        its process had spent is counted. Returns the runs whose variables nobody can keep any more.
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
        """Finish what a process left half done that died. For whoever holds the session.

        Raises `SessionNotKept`, once, if what a run left is lost. The session can be used after it.
        """
        for run in self.finish(session):
            raise SessionNotKept(
                session=session, run=run, why="the process that drove the run died before that"
            )

    def end_run(
        self, session: str, run: str, *, charge: Charge | None = None, lost: bool = False
    ) -> None:
        """Note that nobody works on a run any more, and what it spent; None for its record's word.

        A run that was refused before anything of it was written is none of the session's.
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
        """Say whether a run has ended and its programs left what the session does not have."""
        prepared = None if left.prepared is None else left.prepared.run
        if run in (left.run, prepared):
            return False
        return has_ended(self.ledger, run) and _had_programs(self.ledger, run)

    def free(self, session: str) -> None:
        """Let go of what the book does not name. For whoever holds the session."""
        self.images.free(session, self.book.kept.needed(session))

    @contextlib.contextmanager
    def working(self, session: str) -> Iterator[None]:
        """Hold a session that is there and can be used. Raises `SessionBusy`."""
        self.book.validate(session)
        with self._held(session):
            yield

    @contextlib.contextmanager
    def _held(self, session: str) -> Iterator[None]:
        self.book.get(session)
        with self.book.hold(session):
            yield

    def _live(self, info: SessionInfo) -> SessionInfo:
        """Whoever was in it may have died there, and told nobody."""
        left = info.left
        if (info.state != "executing" and left.prepared is None) or self.book.is_held(info.id):
            return info
        if left.prepared is not None:
            ended = has_ended(self.ledger, left.prepared.run or "")
            left = left.prepared if ended else msgspec.structs.replace(left, prepared=None)
        state = "ready" if info.state == "executing" else info.state
        return msgspec.structs.replace(info, state=state, left=left)
