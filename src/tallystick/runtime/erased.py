"""What an erasure did, and what it could not do: plain data, for whoever asked."""

from __future__ import annotations

from typing import Literal

import msgspec

from tallystick.memory.forgotten import Failure, Strategy
from tallystick.memory.receipt_records import ForgetReceipt
from tallystick.runtime.touched_runs import Because

__all__ = ["Erased", "ErasedRun"]


class ErasedRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that had to do with notes, why it is one, and what became of it.

    `because` is that its records name a note, that it has the text, or that it is of the family of
    such a run. `why` says why a run is kept, `todo` what to do about that.
    """

    run: str
    how: Literal["pruned", "removed", "kept"]
    because: Because
    why: str = ""
    todo: str = ""


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased, or in a dry run would be, and what could not be.

    `runs` is None if no ledger was looked through. `attachments` and `outputs` are counted;
    `attachments_left` are those that have the text and that somebody else holds. `not_searched` are
    notes whose text was not looked for, because it is too short or gone already: their runs are
    found by name. `alike` are other notes that say the same: they stay, and have to be asked for.
    `note` says why bytes may still be in the ledger's file, `scrubbed` is as in `Forgotten`.
    """

    dry_run: bool
    strategy: Strategy
    notes: tuple[str, ...]
    errors: tuple[Failure, ...]
    runs: tuple[ErasedRun, ...] | None = None
    attachments: int = 0
    attachments_left: tuple[str, ...] = ()
    outputs: int = 0
    outputs_left: tuple[str, ...] = ()
    not_searched: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    exports: tuple[tuple[int, str], ...] = ()
    note: str | None = None
    receipt: ForgetReceipt | None = None
    scrubbed: bool | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing was left that was to go. Exports are not ours."""
        kept = any(run.how == "kept" for run in self.runs or ())
        left = self.attachments_left or self.outputs_left or self.note
        return not (self.errors or kept or left or self.scrubbed is False)
