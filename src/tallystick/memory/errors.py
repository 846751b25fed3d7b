"""The errors of memory, sorted as in `tallystick.core.errors`.

    UsageError
    ├── ImportRefused             lines that are no export of notes
    └── NoteInvalid               Validation: a field that may not have this value
    Refused
    ├── BackendUnsupported        BackendUnsupported: this store cannot do that
    ├── EmbedderNotConfigured     EmbedderNotConfigured: embeddings are needed, and there are none
    ├── ModelMismatch             Embedding: the store's vectors are another model's
    └── MemoryPermissionDenied    PermissionDenied: a note of another agent
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

from tallystick.core.errors import BackendError, Facts, Refused, UsageError

_SHOWN_CHARS_MAX = 80


class NoteInvalid(Facts, UsageError):
    """A field of a note, a filter or a request has a value that it may not have.

    Nothing was written.
    """

    code = "usage.memory"
    kind = "Validation"

    field: str
    why: str
    given: object = None

    def text(self) -> str:
        shown = "" if self.given is None else f", not {_display(self.given)}"
        return f"{self.field}: {self.why}{shown}"


class ImportRefused(Facts, UsageError):
    """Lines that are not an export, or that cannot be trusted. None of them was imported."""

    code = "usage.memory.import"
    kind = "Validation"
    says = "line {line:,}: {why}; nothing was imported"

    line: int
    why: str


class MemoryPermissionDenied(Facts, Refused):
    """An actor can see a note, and lacks the permission for this change."""

    code = "refused.memory"
    kind = "PermissionDenied"
    says = "note {id}: {actor} does not have the permission `{needs}`"

    id: str
    actor: str
    needs: str


class BackendUnsupported(Facts, Refused):
    """This store cannot do that, and does not pretend to."""

    code = "refused.memory.unsupported"
    kind = "BackendUnsupported"
    says = "{backend} cannot do {capability}: {detail}"

    backend: str
    capability: str
    detail: str


class EmbedderNotConfigured(Facts, Refused):
    """The strategy needs embeddings, and there is no model. The strategy `lexical` needs none."""

    code = "refused.memory.embedder"
    kind = "EmbedderNotConfigured"
    says = (
        "{requested} needs embeddings, and {backend} has no model: install the extra `memory`, or "
        "ask for `lexical`"
    )

    requested: str
    backend: str


class ModelMismatch(Facts, Refused):
    """The store's vectors are of another model. Vectors of two models are never compared."""

    code = "refused.memory.model"
    kind = "Embedding"

    found: str
    given: str

    def text(self) -> str:
        return (
            f"the vectors of this store were made with model {self.found[:12]}, not "
            f"{self.given[:12]}; tally memory embed --replace embeds its notes again with the new "
            f"one"
        )


class EmbeddingFailed(Facts, BackendError):
    """The model gave no vector, or one that cannot be stored."""

    code = "backend.memory.embedding"
    kind = "Embedding"
    says = "no usable vector: {source}"

    source: str


class IndexFailed(Facts, BackendError):
    """A projection disagrees with the log. The log is whole, so the projection can be rebuilt."""

    code = "backend.memory.index"
    kind = "Index"
    says = (
        "an index of the memory disagrees with its log: {source}; SqliteMemory.rebuild() builds it "
        "again from the log"
    )

    source: str


class NoteNotFound(Facts, BackendError):
    """No such note exists. An actor who may not see a note gets the same error."""

    code = "backend.memory.not_found"
    kind = "NotFound"

    id: str

    def text(self) -> str:
        return f"note {_shorten(self.id)} was not found"


class NoteErased(Facts, BackendError):
    """The note was erased. Its position in the log is left, and none of its content."""

    code = "backend.memory.erased"
    kind = "NotFound"

    id: str
    seq: int | None

    def text(self) -> str:
        where = "" if self.seq is None else f" by entry {self.seq:,}"
        return f"note {_shorten(self.id)} was erased{where}"


class StorageFailed(BackendError):
    """The file of a memory cannot be read or written."""

    code = "backend.memory"
    kind = "Storage"


class MemoryCorrupt(Facts, StorageFailed):
    """The file is damaged."""

    code = "backend.memory.corrupt"
    says = "{where} is damaged: {why}; restore it, or import an export of it"

    where: str
    why: str


class MemoryFormatUnknown(Facts, StorageFailed):
    """The file was written by a version that this one does not know."""

    code = "backend.memory.format"
    says = (
        "{where} is a memory of format {found}; this version reads {known}: use the version that "
        "wrote it, or export with that and import with this"
    )

    where: str
    found: int
    known: int


class MemoryFull(Facts, StorageFailed):
    """The disk has no room. Everything that was acknowledged before is kept."""

    code = "backend.memory.full"
    says = "{where}: no room on the disk; nothing of this was written"

    where: str


class MemoryLocked(Facts, StorageFailed):
    """Another process held the file for too long."""

    code = "backend.memory.locked"
    says = (
        "{where} was being written by another process for {waited_seconds:g} s; try again when it "
        "has finished"
    )

    where: str
    waited_seconds: float


class MemoryReadOnly(Facts, StorageFailed):
    """The file or its directory may not be written."""

    code = "backend.memory.read_only"
    says = (
        "{where} cannot be written: check the permissions of the file and its directory, and that "
        "the disk is not read-only"
    )

    where: str


class MemoryUnavailable(Facts, StorageFailed):
    """The file cannot be opened, or its disk failed."""

    code = "backend.memory.unavailable"
    says = "{where} cannot be used: {why}"

    where: str
    why: str


class NotAMemory(Facts, StorageFailed):
    """The file is of another kind, and was not changed."""

    code = "backend.memory.other_file"
    says = "{where} is not a memory file; it was not changed"

    where: str


def _display(given: object) -> str:
    return _shorten(given if isinstance(given, str) else repr(given))


def _shorten(text: str) -> str:
    cut = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[: _SHOWN_CHARS_MAX - 3]}..."
    return repr(cut.encode("utf-8", "replace").decode())
