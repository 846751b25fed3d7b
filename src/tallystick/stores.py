"""Open the stores of runs together: the only module that names their backends.

    with open_stores(ledger_path()) as stores:
        stores.ledger.runs()
        stores.sessions.list()

A path is a ledger in a file, with the other stores beside it; `memory:` is a ledger that ends with
the process. Each store is opened when it is first used, because most commands need one or two.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, overload

from tallystick.core.errors import UsageError
from tallystick.storage.clock import now_ms

# Attachments and sessions are imported only when they are used, so that a command that lists runs
# starts faster.
if TYPE_CHECKING:
    from tallystick.attachments.collect import CollectableAttachments
    from tallystick.attachments.sqlite import SqliteAttachments
    from tallystick.ledger.port import Ledger, TransferLedger
    from tallystick.ledger.scopes import Scopes
    from tallystick.ledger.sqlite import SqliteLedger
    from tallystick.sessions.sessions import Sessions
    from tallystick.storage.owner import Owners

_MEMORY = "memory:"


class Stores(Protocol):
    """The stores of one place. Each property returns the same object every time.

    A property may raise the errors of its store when it is first used. `close` does not replace
    what it closed, so use none of them afterwards.
    """

    @property
    def ledger(self) -> TransferLedger:
        """The records of runs."""

    @property
    def attachments(self) -> CollectableAttachments:
        """The bytes that runs and sessions keep beside their records."""

    @property
    def scopes(self) -> Scopes:
        """The budgets that processes share, or those of this process alone."""

    @property
    def owners(self) -> Owners:
        """The processes that intend to keep attachments, each with a proof if it is dead."""

    @property
    def sessions(self) -> Sessions:
        """The sessions that runs continue from."""

    def close(self) -> None:
        """Close what was opened here. Closing twice is harmless.

        A ledger or attachments that were given to `stores_of` stay open.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@overload
def open_stores(where: Path, *, clock: Callable[[], int] = now_ms) -> FileStores: ...


@overload
def open_stores(where: str, *, clock: Callable[[], int] = now_ms) -> Stores: ...


def open_stores(where: Path | str, *, clock: Callable[[], int] = now_ms) -> Stores:
    """Open the stores at a place: the path of a ledger, or the text `memory:`.

    Nothing is created or read before it is needed. `clock` gives milliseconds since 1970. Raise
    `UsageError` for an address of a kind without a backend: a text with "://".
    """
    if where == _MEMORY:
        return MemoryStores(clock=clock)
    if isinstance(where, str) and "://" in where:
        # Only the scheme is shown: the rest of an address may contain a password.
        scheme = where.partition("://")[0]
        raise UsageError(
            f"{scheme}: there is no store of this kind; give the path of a ledger, or {_MEMORY}"
        )
    return FileStores(Path(where), clock=clock)


@overload
def stores_of(
    ledger: SqliteLedger, *, attachments: SqliteAttachments | None = None
) -> FileStores: ...


@overload
def stores_of(
    ledger: TransferLedger, *, attachments: CollectableAttachments | None = None
) -> Stores: ...


def stores_of(
    ledger: TransferLedger, *, attachments: CollectableAttachments | None = None
) -> Stores:
    """Return the stores of a ledger that is open already, and of its attachments if they are too.

    Closing them closes neither of these. A ledger that is not a `SqliteLedger` has the others in
    memory. The stores that are opened here use the clock of this machine.
    """
    from tallystick.ledger.sqlite import SqliteLedger

    made = FileStores(ledger.path) if isinstance(ledger, SqliteLedger) else MemoryStores()
    # Assigned over the cached properties, so that `close` does not close what others opened.
    made.ledger = ledger
    if attachments is not None:
        made.attachments = attachments
    return made


def is_in_file(ledger: Ledger) -> bool:
    """Return True if a ledger is in a file, with its attachments and sessions beside it.

    The test is its class: `SqliteLedger`.
    """
    from tallystick.ledger.sqlite import SqliteLedger

    return isinstance(ledger, SqliteLedger)


class _Closing:
    """Closes what was opened, in the opposite order."""

    def __init__(self) -> None:
        self._closings = ExitStack()

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
        self._closings.close()


class FileStores(_Closing):
    """A ledger in a file, attachments and sessions beside it, and scopes in it."""

    def __init__(self, path: Path, *, clock: Callable[[], int] = now_ms) -> None:
        super().__init__()
        self.path = path
        self._clock = clock

    @cached_property
    def ledger(self) -> SqliteLedger:
        from tallystick.ledger.sqlite import SqliteLedger

        made = SqliteLedger(self.path)
        self._closings.callback(made.close)
        return made

    @cached_property
    def attachments(self) -> SqliteAttachments:
        from tallystick.attachments.sqlite import SqliteAttachments

        made = SqliteAttachments(self.ledger.file, clock=self._clock)
        self._closings.callback(made.close)
        return made

    @cached_property
    def scopes(self) -> Scopes:
        from tallystick.ledger.scopes import SharedScopes

        made = SharedScopes(self.ledger.file, clock=self._clock)
        self._closings.callback(made.close)
        return made

    @property
    def owners(self) -> Owners:
        return self.attachments.owners

    @cached_property
    def sessions(self) -> Sessions:
        from tallystick.sessions.file import book_in
        from tallystick.sessions.sessions import Sessions, book_path

        book = book_in(book_path(self.path), clock=self._clock)
        return Sessions(self.ledger, self.attachments, book)


class MemoryStores(_Closing):
    """Stores that end with the process."""

    def __init__(self, *, clock: Callable[[], int] = now_ms) -> None:
        super().__init__()
        self._clock = clock

    @cached_property
    def ledger(self) -> TransferLedger:
        from tallystick.ledger.memory import MemoryLedger

        return MemoryLedger()

    @cached_property
    def attachments(self) -> CollectableAttachments:
        from tallystick.attachments.memory import MemoryAttachments

        made = MemoryAttachments(clock=self._clock)
        self._closings.callback(made.close)
        return made

    @cached_property
    def scopes(self) -> Scopes:
        from tallystick.ledger.scopes import memory_scopes

        made = memory_scopes(clock=self._clock)
        self._closings.callback(made.close)
        return made

    @property
    def owners(self) -> Owners:
        return self.attachments.owners

    @cached_property
    def sessions(self) -> Sessions:
        from tallystick.sessions.memory import book_in_memory
        from tallystick.sessions.sessions import Sessions

        return Sessions(self.ledger, self.attachments, book_in_memory(clock=self._clock))


_files: type[Stores] = FileStores
_memory: type[Stores] = MemoryStores
