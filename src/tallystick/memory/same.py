"""Whether two notes are the same: one text of one owner, said in one way.

The digest is keyed with a secret of the store, so that a short text cannot be found by trying from
a copy of an index alone. It is a projection: erased with the note.
"""

from __future__ import annotations

import hashlib

from tallystick.core.canonical import canonical
from tallystick.memory.note import NewNote, Note, normalised

__all__ = ["SECRET_BYTES", "sameness"]

SECRET_BYTES = 32


def sameness(note: Note | NewNote, *, secret: bytes) -> bytes:
    """Equal for notes that need to be kept only once.

    What a second telling could add makes them different: another author, key, tag, relation or
    metadata is lost if it is dropped. When and where it was said is kept by the sighting.
    """
    told = (
        note.agent_id,
        normalised(note.content),
        note.memory_type.value,
        note.scope.value,
        note.author,
        note.org_id,
        note.key,
        sorted(set(note.tags)),
        sorted(set(note.related_to)),
        note.metadata,
        note.source_type.value,
    )
    return hashlib.blake2b(canonical(told), key=secret, digest_size=32).digest()
