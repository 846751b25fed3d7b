"""The memory class of the Python API, which can also forget notes in recorded runs.

The runtime recalls from any memory. Only forgetting has to reach the ledger, so that method is
here, above both packages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tallystick.memory import memory as tenant
from tallystick.memory.store.records import Criteria, ForgetStrategy

if TYPE_CHECKING:
    from tallystick.ledger.sqlite import SqliteLedger
    from tallystick.upkeep.erasure import Erased


class Memory(tenant.Memory):
    """One tenant's notes, read and written as one agent, and forgotten wherever they are."""

    def forget(
        self,
        ids: Sequence[str] = (),
        *,
        subject: str | None = None,
        principal: str | None = None,
        session: str | None = None,
        criteria: Criteria | None = None,
        expired: bool = False,
        strategy: ForgetStrategy | None = None,
        dry_run: bool = False,
        ledger: SqliteLedger | None = None,
    ) -> Erased:
        """Forget notes, chosen in one way, and return what was done, with a receipt.

        `expired` chooses the notes whose time is over. With `ledger`, hard deletion and redaction
        also erase the text from recorded runs. The default strategy is soft deletion, for a subject
        redaction, for expired notes hard deletion. With `dry_run` nothing is
        changed. Notes that may not be forgotten, and runs that are kept, are named in the result.
        Raise `UsageError` if the notes are chosen in no way or in two. Raise `NoteInvalid` for a
        blank subject, empty criteria, or more than 200,000 notes. Raise `BackendUnsupported` for
        the strategy `consolidate`.
        """
        # Imported here, because most users of a memory erase nothing.
        from tallystick.upkeep.erasure import Which, forget_notes

        which = Which(
            ids=tuple(ids),
            subject=subject,
            principal=principal,
            session_id=session,
            criteria=criteria,
            expired=expired,
        )
        return forget_notes(self, which, strategy=strategy, dry_run=dry_run, ledger=ledger)
