"""Columns: the fields of notes that filters and the two clocks need, one growing array for each.

A question to the store becomes a mask over them: a reader, filters, a position in the log and a
moment in time. It selects the same notes as `selection.select_notes`, without reading a row. The
state of a note changes: the columns have the present state, and beside them are the earlier states,
each with the positions from and to which it was valid.

Needs the extra `memory`.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from tallystick.memory.note import MemoryType, NoteScope
from tallystick.memory.recall.packing import Packed, pack, unpack
from tallystick.memory.recall.scope import NoteFields
from tallystick.memory.recall.selection import Filters
from tallystick.memory.recall.words import words
from tallystick.memory.store.projection import OPEN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Arrays that grow, and names by number.


_CAPACITY_MIN = 1_024
_NOBODY = -2

Scalar = TypeVar("Scalar", bound="np.generic")


class Column(Generic[Scalar]):
    """Numbers of one type, one after the other. The array is doubled when it is full."""

    def __init__(self, kind: type[Scalar]) -> None:
        import numpy as np

        self._room: NDArray[Scalar] = np.zeros(_CAPACITY_MIN, dtype=kind)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> NDArray[Scalar]:
        """All values, as a view of the array. It is valid until the next `extend`."""
        return self._room[: self._count]

    def packed(self) -> Packed:
        """Return all values, for a block."""
        return pack(self.values)

    def extend_packed(self, packed: Packed, *, plus: int = 0) -> None:
        """Append the values of a block, each with `plus` added to it."""
        values = unpack(packed, self._room.dtype.type)
        self.extend(values + plus if plus else values)

    def extend(self, values: Sequence[Any] | NDArray[Any]) -> None:
        """Append values. Arrays that `values` returned before are not to be used after."""
        end = self._count + len(values)
        if end > len(self._room):
            self.reserve(max(end, 2 * len(self._room)))
        self._room[self._count : end] = values
        self._count = end

    def reserve(self, count: int) -> None:
        """Make room for that many values, if there is less. Room that is not used costs nothing."""
        import numpy as np

        if count > len(self._room):
            room = np.zeros(count, dtype=self._room.dtype)
            room[: self._count] = self.values
            self._room = room


class Names:
    """Texts by number, each stored once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, name: str | None) -> int:
        """Return the number of a name; a new name gets the next one. None is -1."""
        if name is None:
            return -1
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.names)
            self.names.append(name)
        return code

    def find_code(self, name: str) -> int:
        """Return the number of a name, or a number that no note has if the name is new."""
        return self._codes.get(name, _NOBODY)


# The states of notes: a row of the store, and states that were replaced.


DELETED, QUARANTINED, ARCHIVED = 2, 4, 8


class StateRow(NamedTuple):
    """A row of `state`, without the number of its note."""

    seq_from: int
    seq_to: int
    body_seq: int
    importance: float
    valid_to: int | None
    expires_at: int | None
    deleted_at: int | None
    state: str
    quarantine: str

    @property
    def flags(self) -> int:
        """The state as bits: deleted, quarantined, archived."""
        return (
            (DELETED if self.deleted_at is not None else 0)
            | (QUARANTINED if self.quarantine else 0)
            | (ARCHIVED if self.state in ("archived", "forgotten") else 0)
        )


class ReplacedStates:
    """States of notes that were replaced, so that recall can answer as of an earlier position."""

    def __init__(self) -> None:
        import numpy as np

        self._add_places = Column(np.int64)
        self._seq_from, self._seq_to = Column(np.int64), Column(np.int64)
        self._flags, self._importance = Column(np.uint8), Column(np.float64)
        self._valid_to, self._expires_at = Column(np.int64), Column(np.int64)

    @property
    def _columns(self) -> tuple[Column[Any], ...]:
        """All columns but the first, in the order in which they are packed."""
        return (
            self._seq_from, self._seq_to, self._flags, self._importance, self._valid_to,
            self._expires_at,
        )  # fmt: skip

    def packed(self) -> list[Packed]:
        """Return all states, for a block."""
        return [column.packed() for column in (self._add_places, *self._columns)]

    def add_packed(self, packed: Sequence[Packed], *, first: int) -> None:
        """Append the states of a block, whose first note is at the place `first`."""
        places, *columns = packed
        self._add_places.extend_packed(places, plus=first)
        for column, values in zip(self._columns, columns, strict=True):
            column.extend_packed(values)

    def add(self, places: Sequence[int], states: Sequence[StateRow]) -> None:
        """Append states, each for the note at the same index of `places`."""
        self._add_places.extend(places)
        self._seq_from.extend([state.seq_from for state in states])
        self._seq_to.extend([state.seq_to for state in states])
        self._flags.extend([state.flags for state in states])
        self._importance.extend([state.importance for state in states])
        self._valid_to.extend([end_of(state.valid_to) for state in states])
        self._expires_at.extend([end_of(state.expires_at) for state in states])

    def importance(self, place: int, seq: int) -> float:
        """Return the importance of the note at `place` as of a position, from a replaced state.

        Raise `IndexError` if it had none that was replaced since.
        """
        import numpy as np

        then = (self._add_places.values == place) & (self._seq_from.values <= seq)
        then &= self._seq_to.values > seq
        return float(self._importance.values[np.flatnonzero(then)[0]])

    def at(self, filters: Filters, *, seq: int, at: int) -> NDArray[np.int64]:
        """Return the places of notes whose state as of `seq` was replaced and passes the filters.

        `at` is the time that decides what has expired and what is valid.
        """
        mask = (self._seq_from.values <= seq) & (self._seq_to.values > seq)
        mask &= (self._flags.values & hidden_flags(filters)) == 0
        if not filters.expired:
            mask &= self._expires_at.values > at
        if filters.current:
            mask &= self._valid_to.values > at
        if filters.min_importance is not None:
            mask &= self._importance.values >= filters.min_importance
        return self._add_places.values[mask]


def end_of(time: int | None) -> int:
    """Return a time for comparison: None, for no end, is later than every time."""
    return OPEN if time is None else time


def hidden_flags(filters: Filters) -> int:
    """Return the flags of states that the filters exclude."""
    return (
        (0 if filters.deleted else DELETED)
        | (0 if filters.quarantined else QUARANTINED)
        | (0 if filters.archived else ARCHIVED)
    )


_FIELDS_MAX = 10_000
# Beside the flags of the state: the note at this place was erased, or added again at another place.
DEAD = 1
_TYPES = {kind.value: at for at, kind in enumerate(MemoryType)}
_SCOPES = {scope.value: at for at, scope in enumerate(NoteScope)}
_OPEN_SCOPES = (NoteScope.PUBLIC, NoteScope.GLOBAL)


class NoteRow(NamedTuple):
    """The fields of a note that never change, as the columns need them."""

    number: int
    id: str
    agent_id: str
    memory_type: str
    scope: str
    author: str | None
    thread_id: str | None
    position: int | None
    org_id: str | None
    key: str | None
    created_at: int
    valid_from: int


class PackedNotes(msgspec.Struct, frozen=True, array_like=True):
    """The notes of a block: numbers by column, names by column, and what only some notes have."""

    columns: dict[str, Packed]
    names: dict[str, list[str]]
    codes: dict[str, Packed]
    tags: dict[str, Packed]
    shares: list[tuple[int, str, int, int]]
    replaced: list[Packed]


class NoteColumns:
    """Notes by place, from 0 on, in the order in which they are added.

    A redacted note gets other content: it is dead at its old place, and added again at a new one.
    """

    def __init__(self) -> None:
        import numpy as np

        self.number = Column(np.int64)
        # The id as two numbers, which are in the order of the ids.
        self.id_high, self.id_low = Column(np.uint64), Column(np.uint64)
        self.flags = Column(np.uint8)
        self.body_seq, self.seq_from = Column(np.int64), Column(np.int64)
        self.importance = Column(np.float64)
        self.valid_to, self.expires_at = Column(np.int64), Column(np.int64)
        self._kind, self._scope = Column(np.uint8), Column(np.uint8)
        self._created_at, self._valid_from = Column(np.int64), Column(np.int64)
        self._agent, self._author = Column(np.int32), Column(np.int32)
        self._thread, self._org, self._key = (Column(np.int32) for _ in range(3))
        # A place in a thread is at least 0.
        self._position = Column(np.int64)
        self._agents, self._authors = Names(), Names()
        self._threads, self._orgs, self._keys = Names(), Names(), Names()
        self._authors_by_word: dict[str, list[int]] = defaultdict(list)
        self._tags: dict[str, array[int]] = {}
        # By agent and note: the positions from and to which the note was shared.
        self._shares: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(dict)
        self._shared_with: dict[int, set[str]] = {}
        # The same by agent as arrays with places, made on first use.
        self._spans: dict[str, NDArray[np.int64]] = {}
        self._replaced = ReplacedStates()
        # Bounds over all notes: outside of them a comparison would exclude no note, so it is
        # skipped.
        self._seq_newest, self._valid_from_latest = 0, 0
        self._valid_to_first = self._expires_first = OPEN
        # The fields of notes by place, as they are now.
        self._fields_known: dict[int, tuple[str, NoteFields]] = {}
        # Ascending: the number of a note, or of the one before it if it was added again.
        self._keyed = Column(np.int64)
        self._again: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.number)

    # -- what happens --------------------------------------------------------------------------

    def add(self, notes: Sequence[tuple[NoteRow, StateRow]], *, again: bool = False) -> None:
        """Add notes with their present state.

        With `again`, they were here before and are dead there.
        """
        if not notes:
            return
        rows, states = [row for row, _ in notes], [state for _, state in notes]
        self._add_places(rows, again=again)
        ids = [int(row.id.replace("-", ""), 16) for row in rows]
        self.id_high.extend([id >> 64 for id in ids])
        self.id_low.extend([id & 0xFFFF_FFFF_FFFF_FFFF for id in ids])
        self._kind.extend([_TYPES[row.memory_type] for row in rows])
        self._scope.extend([_SCOPES[row.scope] for row in rows])
        self._created_at.extend([row.created_at for row in rows])
        self._valid_from.extend([row.valid_from for row in rows])
        self._agent.extend([self._agents.code(row.agent_id) for row in rows])
        self._author.extend([self._code_of_author(row.author) for row in rows])
        self._thread.extend([self._threads.code(row.thread_id) for row in rows])
        self._position.extend([-1 if row.position is None else row.position for row in rows])
        self._org.extend([self._orgs.code(row.org_id) for row in rows])
        self._key.extend([self._keys.code(row.key) for row in rows])
        for column, values in self._state_columns(states):
            column.extend(values)
        self._widen_bounds(states)
        latest = max(row.valid_from for row in rows)
        self._valid_from_latest = max(self._valid_from_latest, latest)

    def packed(self) -> PackedNotes:
        """Return all notes, for a block. None may be dead."""
        import numpy as np

        return PackedNotes(
            columns={name: column.packed() for name, column in self._plain_columns()},
            names={name: names.names for name, names, _ in self._named_columns()},
            codes={name: column.packed() for name, _, column in self._named_columns()},
            tags={
                tag: pack(np.frombuffer(places, dtype=np.uint32))
                for tag, places in sorted(self._tags.items())
            },
            shares=[
                (number, agent, *span)
                for agent, shared in sorted(self._shares.items())
                for number, spans in sorted(shared.items())
                for span in spans
            ],
            replaced=self._replaced.packed(),
        )

    def reserve(self, count: int) -> None:
        """Make room for that many notes."""
        for column in (self._keyed, *(column for _, column in self._plain_columns())):
            column.reserve(count)
        for _, _, column in self._named_columns():
            column.reserve(count)

    def add_block(self, packed: PackedNotes) -> None:
        """Add the notes of a block. Their numbers are above those that were added before."""
        import numpy as np

        before = len(self)
        for name, column in self._plain_columns():
            column.extend_packed(packed.columns[name])
        for name, names, column in self._named_columns():
            of = self._code_of_author if names is self._authors else names.code
            # The code -1, for no name, is the last one of the table.
            table = np.array([*map(of, packed.names[name]), -1], dtype=np.int32)
            column.extend(table.take(unpack(packed.codes[name], np.int32)))
        self._keyed.extend(self.number.values[before:])
        for tag, places in packed.tags.items():
            held = self._tags.setdefault(tag, array("I"))
            held.frombytes((unpack(places, np.uint32) + np.uint32(before)).tobytes())
        for number, agent, begin, end in packed.shares:
            self._share(number, agent, begin, end)
        self._spans.clear()
        self._replaced.add_packed(packed.replaced, first=before)
        if len(self) > before:
            new = slice(before, None)
            self._seq_newest = max(self._seq_newest, int(self.seq_from.values[new].max()))
            latest = int(self._valid_from.values[new].max())
            self._valid_from_latest = max(self._valid_from_latest, latest)
            self._valid_to_first = min(self._valid_to_first, int(self.valid_to.values[new].min()))
            first = int(self.expires_at.values[new].min())
            self._expires_first = min(self._expires_first, first)

    def _plain_columns(self) -> tuple[tuple[str, Column[Any]], ...]:
        return (
            ("number", self.number), ("id_high", self.id_high), ("id_low", self.id_low),
            ("flags", self.flags), ("body_seq", self.body_seq), ("seq_from", self.seq_from),
            ("importance", self.importance), ("valid_to", self.valid_to),
            ("expires_at", self.expires_at), ("kind", self._kind), ("scope", self._scope),
            ("created_at", self._created_at), ("valid_from", self._valid_from),
            ("position", self._position),
        )  # fmt: skip

    def _named_columns(self) -> tuple[tuple[str, Names, Column[np.int32]], ...]:
        return (
            ("agent", self._agents, self._agent), ("author", self._authors, self._author),
            ("thread", self._threads, self._thread), ("org", self._orgs, self._org),
            ("key", self._keys, self._key),
        )  # fmt: skip

    def set_state(self, place: int, state: StateRow) -> None:
        """Replace the present state of the note at `place`. The former one is not kept here."""
        for column, values in self._state_columns([state]):
            column.values[place] = values[0]
        self._fields_known.pop(place, None)
        self._widen_bounds([state])

    def add_replaced_states(self, places: Sequence[int], states: Sequence[StateRow]) -> None:
        """Add states that were replaced, for recalls as of an earlier position."""
        self._replaced.add(places, states)

    def add_tag(self, place: int, tag: str) -> None:
        """Add a tag to the note at `place`."""
        self._tags.setdefault(tag, array("I")).append(place)

    def set_shares(self, number: int, spans: Iterable[tuple[str, int, int]]) -> None:
        """Replace the shares of a note.

        A span has an agent, and the positions from and to which the note is shared with it.
        """
        for agent in self._shared_with.pop(number, ()):
            self._shares[agent].pop(number, None)
        for agent, seq_from, seq_to in spans:
            self._share(number, agent, seq_from, seq_to)
        self._spans.clear()

    def drop(self, place: int) -> None:
        """Remove the note at `place` from every mask."""
        self.flags.values[place] |= DEAD
        self._spans.clear()

    def find_place(self, number: int) -> int | None:
        """Return the place of a note, or None if it is dead or was never added."""
        at = self._again.get(number)
        if at is None:
            at = int(self._keyed.values.searchsorted(number))
            if at == len(self) or self.number.values[at] != number:
                return None
        return None if self.flags.values[at] & DEAD else at

    # -- what is asked -------------------------------------------------------------------------

    def mask(self, *, reader: str | None, filters: Filters, seq: int, at: int) -> NDArray[np.bool_]:
        """Return the mask of the notes that a reader sees, as of a position and a moment.

        None sees all.
        """
        mask = self._state_mask(filters, seq=seq, at=at)
        if filters.current and at < self._valid_from_latest:
            mask &= self._valid_from.values <= at
        for column, numbers, chosen in (
            (self._kind, _TYPES, filters.memory_types),
            (self._scope, _SCOPES, filters.scopes),
        ):
            if chosen:
                mask &= _one_of(column, [numbers[str(each)] for each in chosen])
        for names, codes, wanted in (
            (self._orgs, self._org, filters.org_id),
            (self._threads, self._thread, filters.thread_id),
            (self._authors, self._author, filters.author),
            (self._keys, self._key, filters.key),
        ):
            if wanted is not None:
                mask &= codes.values == names.find_code(wanted)
        if filters.after is not None:
            mask &= self._created_at.values >= filters.after
        if filters.before is not None:
            mask &= self._created_at.values < filters.before
        if filters.tags:
            mask &= self._tag_mask(filters.tags)
        if reader is not None:
            mask &= self._visible_mask(reader, seq)
        return mask

    def authors(self, said: frozenset[str], mask: NDArray[np.bool_]) -> list[str]:
        """Return the authors of notes under the mask whose names have one of these words.

        They are in no order.
        """
        codes = {code for word in said for code in self._authors_by_word.get(word, ())}
        by = self._author.values
        if len(codes) > 8:
            import numpy as np

            codes &= set(np.unique(by[mask]).tolist())
            return [self._authors.names[code] for code in sorted(codes)]
        return [self._authors.names[code] for code in codes if bool(((by == code) & mask).any())]

    def fields(self, places: Sequence[int], *, seq: int) -> list[tuple[str, NoteFields]]:
        """Return the id of each note, and what ranking reads of it, as of a position in the log.

        Text and relations are left out.
        """
        if seq < self._seq_newest:
            return self._fields_at(places, seq=seq)
        # Small memories have all of their notes ranked at each recall.
        known = self._fields_known
        missing = [place for place in places if place not in known]
        if len(missing) + len(known) > _FIELDS_MAX:
            known.clear()
            missing = list(places)
        known.update(zip(missing, self._fields_at(missing, seq=seq), strict=True))
        return [known[place] for place in places]

    def _fields_at(self, places: Sequence[int], *, seq: int) -> list[tuple[str, NoteFields]]:
        import numpy as np

        at = np.asarray(places, dtype=np.int64)
        importance = self.importance.values[at]
        if seq < self._seq_newest:
            for later in np.flatnonzero(self.seq_from.values[at] > seq).tolist():
                importance[later] = self._replaced.importance(places[later], seq)
        authors, threads = self._authors.names, self._threads.names
        return [
            (
                id,
                NoteFields(
                    text="",
                    author=authors[author] if author >= 0 else "",
                    session=threads[thread] if thread >= 0 else "",
                    position=None if position < 0 else position,
                    created_at=created_at,
                    importance=important,
                ),
            )
            for id, author, thread, position, created_at, important in zip(
                self._ids(at),
                self._author.values[at].tolist(),
                self._thread.values[at].tolist(),
                self._position.values[at].tolist(),
                self._created_at.values[at].tolist(),
                importance.tolist(),
                strict=True,
            )
        ]

    def _ids(self, at: NDArray[np.int64]) -> list[str]:
        import numpy as np

        both = np.stack([self.id_high.values[at], self.id_low.values[at]], axis=1)
        digits = both.astype(">u8").tobytes().hex()
        cut = [digits[begin : begin + 32] for begin in range(0, len(digits), 32)]
        return [f"{id[:8]}-{id[8:12]}-{id[12:16]}-{id[16:20]}-{id[20:]}" for id in cut]

    def first(self, places: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Return those `count` of some places that have the smallest ids, in order of the ids."""
        import numpy as np

        order = np.lexsort((self.id_low.values[places], self.id_high.values[places]))
        return places[order[:count]]

    # -- inside --------------------------------------------------------------------------------

    def _share(self, number: int, agent: str, seq_from: int, seq_to: int) -> None:
        self._shares[agent].setdefault(number, []).append((seq_from, seq_to))
        self._shared_with.setdefault(number, set()).add(agent)

    def _add_places(self, rows: Sequence[NoteRow], *, again: bool) -> None:
        before = len(self)
        if again:
            self._again.update((row.number, before + at) for at, row in enumerate(rows))
        last = int(self._keyed.values[-1]) if before else 0
        self._keyed.extend([last if again else row.number for row in rows])
        self.number.extend([row.number for row in rows])

    def _state_columns(
        self, states: Sequence[StateRow]
    ) -> tuple[tuple[Column[Any], list[float] | list[int]], ...]:
        return (
            (self.flags, [state.flags for state in states]),
            (self.body_seq, [state.body_seq for state in states]),
            (self.seq_from, [state.seq_from for state in states]),
            (self.importance, [state.importance for state in states]),
            (self.valid_to, [end_of(state.valid_to) for state in states]),
            (self.expires_at, [end_of(state.expires_at) for state in states]),
        )

    def _widen_bounds(self, states: Sequence[StateRow]) -> None:
        for state in states:
            self._seq_newest = max(self._seq_newest, state.seq_from)
            self._valid_to_first = min(self._valid_to_first, end_of(state.valid_to))
            self._expires_first = min(self._expires_first, end_of(state.expires_at))

    def _code_of_author(self, author: str | None) -> int:
        known = len(self._authors.names)
        code = self._authors.code(author)
        if code == known and author is not None:
            for word in set(words(author)):
                self._authors_by_word[word].append(code)
        return code

    def _state_mask(self, filters: Filters, *, seq: int, at: int) -> NDArray[np.bool_]:
        """Return the mask of the notes that had a state as of `seq` which passes the filters."""
        hidden = hidden_flags(filters)
        mask: NDArray[np.bool_] = (self.flags.values & (hidden | DEAD)) == 0
        if not filters.expired and at >= self._expires_first:
            mask &= self.expires_at.values > at
        if filters.current and at >= self._valid_to_first:
            mask &= self.valid_to.values > at
        if filters.min_importance is not None:
            mask &= self.importance.values >= filters.min_importance
        if seq < self._seq_newest:
            mask &= self.seq_from.values <= seq
            then = self._replaced.at(filters, seq=seq, at=at)
            mask[then[(self.flags.values[then] & DEAD) == 0]] = True
        return mask

    def _tag_mask(self, tags: Iterable[str]) -> NDArray[np.bool_]:
        import numpy as np

        mask = np.zeros(len(self), dtype=np.bool_)
        for tag in tags:
            if tag in self._tags:
                mask[np.frombuffer(self._tags[tag], dtype=np.uint32)] = True
        return mask

    def _visible_mask(self, reader: str, seq: int) -> NDArray[np.bool_]:
        mask: NDArray[np.bool_] = self._agent.values == self._agents.find_code(reader)
        mask |= _one_of(self._scope, [_SCOPES[scope.value] for scope in _OPEN_SCOPES])
        if reader in self._shares:
            place, begin, end = self._share_spans(reader)
            mask[place[(begin <= seq) & (seq < end)]] = True
        return mask

    def _share_spans(self, reader: str) -> NDArray[np.int64]:
        """Return the shares with a reader: a row of places, one of first positions, one of ends."""
        import numpy as np

        if reader not in self._spans:
            found = [
                (place, begin, end)
                for number, spans in self._shares[reader].items()
                if (place := self.find_place(number)) is not None
                for begin, end in spans
            ]
            self._spans[reader] = np.array(found, dtype=np.int64).reshape(-1, 3).T
        return self._spans[reader]


def _one_of(column: Column[np.uint8], chosen: Iterable[int]) -> NDArray[np.bool_]:
    import numpy as np

    table = np.zeros(256, dtype=np.bool_)
    table[list(chosen)] = True
    return table.take(column.values)
