"""A place in a memory's log that somebody names, and the moment that counts there.

A place was the head until the next entry came: what was recalled there was recalled then, so that
entry's time counts. What one request wrote is seen whole: a note is never looked at between its
writing and the word that it is held back, or that it ends another.
"""

from __future__ import annotations

from tallystick.core.errors import UsageError
from tallystick.core.moments import moment_ms
from tallystick.memory.log import EntryHeader, read_entry_header
from tallystick.memory.sqlite import SqliteMemory

__all__ = ["placed"]

_DIGITS_MAX = 18
# What is written right behind a note, of the same request.
_BELONGS = frozenset({"note.quarantined", "note.closed", "note.restored"})


def placed(store: SqliteMemory, as_of: int | str | None) -> tuple[int | None, int | None]:
    """The place and the moment; None is the head, and now. Raises `UsageError`."""
    if as_of is None:
        return None, None
    if isinstance(as_of, bool) or not isinstance(as_of, int | str):
        raise UsageError("as_of is a place in the log or a time")
    if isinstance(as_of, str) and not (as_of.isascii() and as_of.isdecimal()):
        at = moment_ms(as_of)
        return store.seq_at(at), at
    if isinstance(as_of, str) and len(as_of) > _DIGITS_MAX:
        raise UsageError(f"as_of: no log has a place of {len(as_of):,} digits")
    place = store.resolve(int(as_of))
    here, following = _header(store, place), _header(store, place + 1)
    while here is not None and following is not None and _same_request(here, following):
        place, here = place + 1, following
        following = _header(store, place + 1)
    if here is None:
        return place, 0
    return place, None if following is None else following.at


def _same_request(here: EntryHeader, following: EntryHeader) -> bool:
    return following.tag in _BELONGS and following.at == here.at


def _header(store: SqliteMemory, place: int) -> EntryHeader | None:
    entry = next(store.entries(start=place, stop=place), None) if place > 0 else None
    if entry is None:
        return None
    header = read_entry_header(entry.header, store=store.identity(), seq=place)
    return None if isinstance(header, str) else header
