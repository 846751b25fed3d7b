"""What can go wrong with memory, sorted as in `tallystick.core.errors`.

    UsageError
    ├── ImportRefused             lines that are no export of notes
    └── NoteInvalid               Validation: a field that may not have this value
    Refused
    ├── BackendUnsupported        BackendUnsupported: this store cannot do that
    ├── EmbedderNotConfigured     EmbedderNotConfigured: embeddings are needed, and there are none
    ├── ModelMismatch             Embedding: the store's vectors are another model's
    └── MemoryPermissionDenied    PermissionDenied: a note of somebody else
    BackendError
    ├── EmbeddingFailed           Embedding: the model gave no usable vector
    ├── IndexFailed               Index: a projection disagrees with the log
    ├── NoteErased                NotFound: the note was here, and its bytes were erased
    ├── NoteNotFound              NotFound: no note of that id, or none that may be seen
    └── StorageFailed             Storage: the file, and not one of the kinds below
        ├── MemoryCorrupt             damaged, or written by another hand
        ├── MemoryFormatUnknown       written by a version that this one does not know
        ├── MemoryFull                no room on the disk
        ├── MemoryLocked              another process is writing
        ├── MemoryReadOnly            it may not be written
        ├── MemoryUnavailable         it cannot be opened, or its disk failed
        └── NotAMemory                another kind of file

The second word is the `kind`, by which other systems name the same thing.
"""

from __future__ import annotations

from tallystick.core.errors import BackendError, Refused, UsageError

_SHOWN_CHARS_MAX = 80


class NoteInvalid(UsageError):
    """A field of a note, a filter or a request is not what it may be. Nothing was written."""

    code = "usage.memory"
    kind = "Validation"

    def __init__(self, *, field: str, why: str, given: object = None) -> None:
        shown = "" if given is None else f", not {_shown(given)}"
        super().__init__(f"{field}: {why}{shown}")
        self.field = field
        self.why = why
        self.given = given


class ImportRefused(UsageError):
    """Lines that are no export, or not to be believed. Nothing of them was kept."""

    code = "usage.memory.import"
    kind = "Validation"

    def __init__(self, *, line: int, why: str) -> None:
        super().__init__(f"line {line:,}: {why}; nothing was imported")
        self.line = line
        self.why = why


class MemoryPermissionDenied(Refused):
    """A note that the actor can see, and may not change so."""

    code = "refused.memory"
    kind = "PermissionDenied"

    def __init__(self, *, id: str, actor: str, needs: str) -> None:
        super().__init__(f"note {id}: {actor} has not the permission `{needs}`")
        self.id = id
        self.actor = actor
        self.needs = needs


class BackendUnsupported(Refused):
    """This store cannot do that, and does not pretend to."""

    code = "refused.memory.unsupported"
    kind = "BackendUnsupported"

    def __init__(self, *, backend: str, capability: str, detail: str) -> None:
        super().__init__(f"{backend} cannot do {capability}: {detail}")
        self.backend = backend
        self.capability = capability
        self.detail = detail


class EmbedderNotConfigured(Refused):
    """A strategy that needs embeddings was asked for, and there is no model. Lexical works."""

    code = "refused.memory.embedder"
    kind = "EmbedderNotConfigured"

    def __init__(self, *, requested: str, backend: str) -> None:
        super().__init__(
            f"{requested} needs embeddings, and {backend} has no model: install the extra "
            f"`memory`, or ask for `lexical`"
        )
        self.requested = requested
        self.backend = backend


class ModelMismatch(Refused):
    """The store's vectors are another model's. Vectors of two models are never compared."""

    code = "refused.memory.model"
    kind = "Embedding"

    def __init__(self, *, found: str, given: str) -> None:
        super().__init__(
            f"the vectors of this store were made with model {found[:12]}, not {given[:12]}; "
            f"tally memory embed --replace embeds its notes again with the new one"
        )
        self.found = found
        self.given = given


class EmbeddingFailed(BackendError):
    """The model gave no vector, or one that cannot be kept."""

    code = "backend.memory.embedding"
    kind = "Embedding"

    def __init__(self, *, source: str) -> None:
        super().__init__(f"no usable vector: {source}")
        self.source = source


class IndexFailed(BackendError):
    """A projection does not say what the log says. The log is whole; it can be built again."""

    code = "backend.memory.index"
    kind = "Index"

    def __init__(self, *, source: str) -> None:
        super().__init__(f"an index of the memory disagrees with its log: {source}; rebuild it")
        self.source = source


class NoteNotFound(BackendError):
    """There is no such note. To an actor who may not see it, it looks the same."""

    code = "backend.memory.not_found"
    kind = "NotFound"

    def __init__(self, *, id: str) -> None:
        super().__init__(f"note {_cut(id)} was not found")
        self.id = id


class NoteErased(BackendError):
    """The note was here. Its place in the log is left, and nothing of what it said."""

    code = "backend.memory.erased"
    kind = "NotFound"

    def __init__(self, *, id: str, seq: int | None) -> None:
        where = "" if seq is None else f" by entry {seq:,}"
        super().__init__(f"note {_cut(id)} was erased{where}")
        self.id = id
        self.seq = seq


class StorageFailed(BackendError):
    """The file of a memory cannot be read or written."""

    code = "backend.memory"
    kind = "Storage"


class MemoryCorrupt(StorageFailed):
    """The file is damaged."""

    code = "backend.memory.corrupt"

    def __init__(self, *, path: str, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}; restore it, or import an export of it")
        self.path = path
        self.why = why


class MemoryFormatUnknown(StorageFailed):
    """The file was written by a version that this one does not know."""

    code = "backend.memory.format"

    def __init__(self, *, path: str, found: int, known: int) -> None:
        super().__init__(
            f"{path} is a memory of format {found}; this version reads {known}: "
            f"use the version that wrote it, or export with that and import with this"
        )
        self.path = path
        self.found = found
        self.known = known


class MemoryFull(StorageFailed):
    """There is no room on the disk. What was acknowledged before is kept."""

    code = "backend.memory.full"

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path}: no room on the disk; nothing of this was written")
        self.path = path


class MemoryLocked(StorageFailed):
    """Another process held the file for too long."""

    code = "backend.memory.locked"

    def __init__(self, *, path: str, waited_seconds: float) -> None:
        super().__init__(f"{path}: another process uses it; waited {waited_seconds:g} s")
        self.path = path
        self.waited_seconds = waited_seconds


class MemoryReadOnly(StorageFailed):
    """The file or its directory may not be written."""

    code = "backend.memory.read_only"

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path} may not be written: look at its rights and its disk's")
        self.path = path


class MemoryUnavailable(StorageFailed):
    """The file cannot be opened, or its disk failed."""

    code = "backend.memory.unavailable"

    def __init__(self, *, path: str, why: str) -> None:
        super().__init__(f"{path} cannot be used: {why}")
        self.path = path
        self.why = why


class NotAMemory(StorageFailed):
    """The file is something else, and stays as it is."""

    code = "backend.memory.other_file"

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path} is no memory; it was left as it is")
        self.path = path


def _shown(given: object) -> str:
    return _cut(given if isinstance(given, str) else repr(given))


def _cut(text: str) -> str:
    cut = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[: _SHOWN_CHARS_MAX - 3]}..."
    return repr(cut.encode("utf-8", "replace").decode())
