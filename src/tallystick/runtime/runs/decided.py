"""Define what a person decided about what a run waits for, also as text for another process."""

from __future__ import annotations

import msgspec

from tallystick.core.records import PersonDecision


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of the person `by` about the programs or requests with these digests, and why.

    With `run`, it is about what waits in that run, and not in those around or inside it. With
    `all`, it is about everything that waits, and an approval is of later calls of the run too.
    `entries` is how many the run had: an equal request that waits later is another one. It is 0 if
    that is not known, as where the process of the run waits.
    """

    decision: PersonDecision
    by: str
    because: str = ""
    sha256s: tuple[str, ...] = ()
    run: str = ""
    all: bool = False
    entries: int = 0

    @property
    def approves_all(self) -> bool:
        """True if no later call of the run needs a further word."""
        return self.all and self.decision == "approve"

    def covers(self, run: str, sha256: str) -> bool:
        """Return True if it is about this program or request, which waits in a run."""
        return sha256 in self.sha256s and self.run in ("", run)


def as_decided(decision: PersonDecision | Decided | None, *, by: str = "") -> Decided | None:
    """Return a decision as what it is about: a plain word is about the program that waits."""
    if decision is None or isinstance(decision, Decided):
        return decision
    return Decided(decision=decision, by=by)


def encode_decided(decided: Decided) -> bytes:
    """Return a decision as bytes."""
    return msgspec.json.encode(decided)


def decode_decided(raw: bytes) -> Decided | None:
    """Return a decision from its bytes; None if they hold none."""
    try:
        return msgspec.json.decode(raw, type=Decided)
    except (msgspec.MsgspecError, UnicodeError):
        return None
