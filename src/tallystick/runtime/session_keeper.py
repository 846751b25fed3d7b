"""Sessions as their users have them: the book, what they keep beside the ledger, and who is in one.

    with open_sessions(ledger_path()) as sessions:
        made = sessions.new()
        sessions.snapshot(made.id, "before the merge")

Rule: an image is on the disk before the book names it, and let go of after the book stopped naming
it. Whoever dies in between leaves an image that nobody names; the next one who works in the session
lets go of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tallystick.attachments.port import Attachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.errors import SessionBusy, UsageError
from tallystick.core.ids import is_ulid
from tallystick.core.session_errors import SessionNotFound
from tallystick.ledger.port import Ledger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.session_book import SessionBook
from tallystick.runtime.session_history import EarlierRun, earlier_runs
from tallystick.runtime.session_images import SessionImages
from tallystick.runtime.session_info import KeptSnapshot, SessionInfo, SessionRun
from tallystick.runtime.session_lock import held_session, is_held
from tallystick.sandbox.identity import now_ms

__all__ = ["Sessions", "book_path", "open_sessions", "sessions_of"]

_TEARDOWN_SECONDS = 10.0


def book_path(ledger: Path) -> Path:
    """Where the book of sessions is whose runs are in a ledger: beside it."""
    named = "sessions.db" if ledger.name == "ledger.db" else f"{ledger.name}-sessions.db"
    return ledger.with_name(named)


def sessions_of(ledger: Ledger, attachments: Attachments) -> Sessions:
    """The sessions beside a ledger. Refused by name for one that ends with its process."""
    if not isinstance(ledger, SqliteLedger) or not isinstance(attachments, SqliteAttachments):
        raise UsageError("sessions outlive processes: they need a ledger in a file")
    return Sessions(ledger, attachments)


@contextlib.contextmanager
def open_sessions(ledger: Path) -> Iterator[Sessions]:
    """The sessions beside a ledger, which is made if it is not there."""
    with SqliteLedger(ledger) as opened, SqliteAttachments(opened.file) as attachments:
        yield Sessions(opened, attachments)


class Sessions:
    """What may be done with sessions. Every call is whole when it returns."""

    def __init__(
        self,
        ledger: SqliteLedger,
        attachments: SqliteAttachments,
        *,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.ledger: Ledger = ledger
        self.book = SessionBook(book_path(Path(ledger.path)), clock=clock)
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
        """A session by its id, the beginning of it, or the `last` one."""
        known = self.book.ids()
        if named == "last" and known:
            return known[-1]
        wanted = named.upper()
        found = [each for each in known if each == wanted] or [
            each for each in known if wanted and each.startswith(wanted)
        ]
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
            with held_session(self.book.path, session, wait_seconds=_TEARDOWN_SECONDS):
                self.images.free(session)
        except SessionBusy:
            raise SessionBusy(
                f"session {session} is removed, but its run has not ended yet; what it keeps goes "
                f"when it does"
            ) from None
        return gone

    def runs(self, session: str) -> Sequence[SessionRun]:
        return self.book.kept.runs(session)

    def history(self, session: str) -> Sequence[EarlierRun]:
        """What the runs of a session were asked and came to, as far as the ledger has it."""
        return earlier_runs(self.ledger, [each.run for each in self.runs(session)])

    # -- snapshots -----------------------------------------------------------------------------

    def snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Keep the interpreter under a name, as the last run left it."""
        with self._working(session):
            return self.book.kept.record_snapshot(session, name)

    def restore(self, session: str, name: str) -> KeptSnapshot:
        """Put the interpreter back, by a snapshot's name or `name:id`."""
        with self._working(session):
            found = self.book.kept.restore_snapshot(session, name)
            self.free(session)
            return found

    def snapshots(self, session: str) -> Sequence[KeptSnapshot]:
        return self.book.kept.snapshots(session)

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
                if self.book.kept.forget_images(session, ids, runs):
                    self.free(session)
                    cleared.append(session)
        return cleared

    def images_of(self, ids: Collection[str], runs: Collection[str] = ()) -> frozenset[str]:
        """Those that sessions keep and that are these, or that these runs left."""
        found = [self.book.kept.images_of(each, ids, runs) for each in self.book.ids()]
        return frozenset().union(*found)

    # -- inside --------------------------------------------------------------------------------

    def free(self, session: str) -> None:
        """Let go of what the book does not name. For whoever holds the session."""
        self.images.free(session, self.book.kept.needed(session))

    @contextlib.contextmanager
    def _working(self, session: str) -> Iterator[None]:
        """Inside, the session is there, can be used, and is ours."""
        self.book.validate(session)
        with self._held(session):
            yield

    @contextlib.contextmanager
    def _held(self, session: str) -> Iterator[None]:
        self.book.get(session)
        with held_session(self.book.path, session):
            yield

    def _live(self, info: SessionInfo) -> SessionInfo:
        """Whoever was in it may have died there, and told nobody."""
        if info.state != "executing" or (is_ulid(info.id) and is_held(self.book.path, info.id)):
            return info
        return msgspec.structs.replace(info, state="ready")
